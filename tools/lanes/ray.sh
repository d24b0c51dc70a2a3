#!/usr/bin/env bash
# Whether work on a Ray cluster ends as it does here: two raylets on this machine, of which actors, raylets, cells and
# drivers are killed, stopped or refused, compared bit for bit with runs that nobody disturbs.
#
#   tools/lanes/ray.sh                      # a quarter of an hour on two cores
#   tools/lanes/ray.sh --folder DIR         # where the environment is kept; default: .ray-lane
#   tools/lanes/ray.sh "two sweeps"         # those checks alone whose names begin so
#
# Needs uv; the environment takes 6 GB. It ends all that it has started, and other clusters of this machine live on. The
# last line sums it up.
set -uo pipefail
cd "$(dirname "$0")/../.."
export OMP_NUM_THREADS=1

folder=.ray-lane python=3.11
while [ $# -gt 0 ]; do
  case "$1" in
    --folder) folder=$2; shift 2 ;;
    --python) python=$2; shift 2 ;;
    -*) sed -n '2,10s/^# \{0,1\}//p' "$0"; exit 2 ;;
    *) break ;;
  esac
done
venv=$folder/venv
if [ ! -x "$venv/bin/python" ]; then
  command -v uv > /dev/null || { echo "ray: needs uv (pip install uv)"; exit 2; }
  mkdir -p "$folder"
  uv venv -q --python "$python" "$venv" && VIRTUAL_ENV=$venv uv pip install -q -e '.[cluster]' ||
    { rm -rf "$venv"; echo "ray: Ray cannot be installed"; exit 1; }
fi
PYTHONPATH=$PWD/src:$PWD/tools exec "$venv/bin/python" tools/lanes/ray_checks.py "$@"
