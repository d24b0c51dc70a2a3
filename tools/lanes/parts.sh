#!/usr/bin/env bash
# All tests of the parts that seldom change (tests/changed.py), the long ones as well; what they pass for is noted.
#
#   tools/lanes/parts.sh      # five minutes on two cores
#
# Uses the environment of the tests, .venv. The last line sums it up; commit tests/changed.json after a pass.
set -euo pipefail
cd "$(dirname "$0")/../.."
export OMP_NUM_THREADS=1
[ -x .venv/bin/pytest ] || { echo "parts: needs .venv (see the README's test command)"; exit 2; }

log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! .venv/bin/pytest -q --in-full tests/tasks tests/test_pretraining*.py | tee "$log"; then
  echo "parts: $(tail -1 "$log")"
  exit 1
fi
.venv/bin/python tests/changed.py
echo "parts: $(tail -1 "$log"); tests/changed.json is of what they passed for"
