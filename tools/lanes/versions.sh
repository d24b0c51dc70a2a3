#!/usr/bin/env bash
# The quick tests of what touches other people's libraries, and the main job, with their lowest or newest versions.
#
#   tools/lanes/versions.sh lowest 3.11     # the lower bounds of pyproject.toml; called by lowest.sh
#   tools/lanes/versions.sh newest 3.13     # the newest that the bounds allow; called by newest.sh
#
# Needs uv. Makes an environment of its own in a temporary folder and removes it. Half an hour on two cores.
set -euo pipefail
cd "$(dirname "$0")/../.."
kind=${1:?lowest or newest} python=${2:-3.11}
command -v uv > /dev/null || { echo "$kind: needs uv (pip install uv)"; exit 2; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export OMP_NUM_THREADS=1 VIRTUAL_ENV=$folder/venv

resolution=highest
[ "$kind" = newest ] || resolution=lowest-direct
uv venv -q --python "$python" "$VIRTUAL_ENV"
# What only tests need stays new: their own lower bounds are nobody's concern.
# The lowest that have a wheel for this Python: numpy 1.26 has none for 3.13.
uv pip compile -q --python-version "$python" --resolution "$resolution" --only-binary :all: pyproject.toml \
  --extra lora -o "$folder/bounds.txt"
uv pip install -q -r "$folder/bounds.txt"
uv pip install -q --no-deps -e .
uv pip install -q -c "$folder/bounds.txt" pytest pytest-timeout pytest-xdist hypothesis scipy num2words

versions=$("$VIRTUAL_ENV/bin/python" - <<'PYTHON'
import platform
from importlib.metadata import version

names = ("gymnasium", "numpy", "torch", "transformers", "stable-baselines3", "pydantic")
print(f"Python {platform.python_version()}, {', '.join(f'{name} {version(name)}' for name in names)}")
PYTHON
)
result=$(
  "$VIRTUAL_ENV/bin/python" -m pytest -q -n 2 -m "not learning" tests/test_naming.py tests/test_odd_environments.py \
    tests/test_spaces.py tests/test_frame_vector.py tests/test_wrap.py tests/test_encoders.py tests/test_zero_shot_reward.py \
    tests/test_private_parts.py tests/test_replay.py tests/test_training.py tests/test_on_policy.py tests/test_requirements.py tests/test_vlm.py \
    2>&1 | tee "$folder/tests.log" | tail -1
) || { grep -E "^(FAILED|ERROR)" "$folder/tests.log" | head -20 || true; }
job=$("$VIRTUAL_ENV/bin/sightline" train cartpole --run-dir "$folder/run" 2>&1 | grep '^trained' || echo "the main job failed")
echo "$kind ($versions): $result; main job: $job"
