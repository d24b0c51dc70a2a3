#!/usr/bin/env bash
# Whether LeRobot's own loader opens data sets that Sightline wrote, with every frame, sentence and reward in place, and
# whether Sightline reads one that LeRobot wrote.
#
#   tools/lanes/lerobot.sh                  # five minutes on two cores, and 5 GB
#   tools/lanes/lerobot.sh --folder DIR     # where LeRobot's environment and the data sets are kept; default: .lerobot
#
# LeRobot's pins do not fit beside Sightline, so it has an environment of its own. Needs uv, and .venv with the extra
# `datasets`. The last line sums it up.
set -uo pipefail
cd "$(dirname "$0")/../.."
export OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1

folder=.lerobot python=3.12
while [ $# -gt 0 ]; do
  case "$1" in
    --folder) folder=$2; shift 2 ;;
    --python) python=$2; shift 2 ;;
    *) sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 2 ;;
  esac
done
[ -x .venv/bin/python ] || { echo "lerobot: needs .venv (see the README's test command)"; exit 2; }
venv=$folder/venv data=$folder/data
if [ ! -x "$venv/bin/python" ]; then
  command -v uv > /dev/null || { echo "lerobot: needs uv (pip install uv)"; exit 2; }
  mkdir -p "$folder"
  uv venv -q --python "$python" "$venv" && VIRTUAL_ENV=$venv uv pip install -q "lerobot[dataset]>=0.6" ||
    { rm -rf "$venv"; echo "lerobot: LeRobot cannot be installed"; exit 1; }
fi
rm -rf "$data" && mkdir -p "$data"

passed=0 all=0
check() { # NAME COMMAND…
  local name=$1; shift
  all=$((all + 1))
  if "$@"; then passed=$((passed + 1)); echo "ok   $name"; else echo "--   $name"; fi
}
ours=$PWD/.venv/bin/python theirs=$venv/bin/python check=tools/lanes/lerobot_datasets.py
PYTHONPATH=$PWD/src "$ours" "$check" write "$data" || { echo "lerobot: nothing was written"; exit 1; }
for kind in films pictures; do
  check "LeRobot opens ours ($kind)" "$theirs" "$check" open "$data" "$kind"
done
check "LeRobot takes our reward as progress" "$theirs" "$check" weigh "$data" films
for kind in films pictures; do
  check "LeRobot writes one ($kind)" "$theirs" "$check" theirs "$data" "$kind"
  check "Sightline reads it ($kind)" env PYTHONPATH="$PWD/src" "$ours" "$check" read "$data" "$kind"
done
version=$("$theirs" -c 'from importlib.metadata import version; print(version("lerobot"))')
echo "lerobot: $passed of $all checks pass with LeRobot $version"
[ "$passed" = "$all" ]
