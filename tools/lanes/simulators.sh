#!/usr/bin/env bash
# What people's simulators do with Sightline: an environment of its own for each package, since their pins collide.
#
#   tools/lanes/simulators.sh                    # all; an hour on two cores
#   tools/lanes/simulators.sh --only panda-gym   # one
#   tools/lanes/simulators.sh --folder DIR       # where environments and runs are kept; default: .simulators
#
# Needs uv, whose cache lets all environments share one copy of torch. Pictures need OpenGL without a display: libegl1,
# libgl1-mesa-dri. The table goes into docs/simulators.md; the last line sums it up.
set -uo pipefail
cd "$(dirname "$0")/../.."
export OMP_NUM_THREADS=1 PYTHONUNBUFFERED=1

only="" folder=.simulators python=3.11
while [ $# -gt 0 ]; do
  case "$1" in
    --only) only=$2; shift 2 ;;
    --folder) folder=$2; shift 2 ;;
    --python) python=$2; shift 2 ;;
    *) sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 2 ;;
  esac
done
mkdir -p "$folder"

python3 tools/lanes/simulators.py list | while read -r name requirements; do
  [ -z "$only" ] || [ "$only" = "$name" ] || continue
  mkdir -p "$folder/$name"
  venv=$folder/$name/venv
  read -ra wanted <<< "$requirements"
  if uv venv -q --clear --python "$python" "$venv" &&
    VIRTUAL_ENV=$venv uv pip install -q -e . "${wanted[@]}" 2> "$folder/$name/install.log"; then
    "$venv/bin/python" tools/lanes/simulators.py try "$name" "$folder/$name" < /dev/null
  else
    reason=$(grep -v '^ *$' "$folder/$name/install.log" | head -1)
    python3 tools/lanes/simulators.py missing "$name" "$folder/$name" "$reason"
  fi
done
python3 tools/lanes/simulators.py table "$folder"
