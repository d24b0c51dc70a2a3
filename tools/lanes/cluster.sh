#!/usr/bin/env bash
# Whether work on a Ray cluster is what it is here: two raylets on this machine, embeddings compared bit for bit, actors
# killed, a sweep's cells.
#
#   tools/lanes/cluster.sh                  # on an idle machine; Ray gives up where its agents take 15 s to start
#   tools/lanes/cluster.sh --folder DIR     # where the environment is kept; default: .cluster
#
# Needs uv; the environment takes 6 GB. The last line sums it up.
set -uo pipefail
cd "$(dirname "$0")/../.."
export OMP_NUM_THREADS=1

folder=.cluster python=3.11
while [ $# -gt 0 ]; do
  case "$1" in
    --folder) folder=$2; shift 2 ;;
    --python) python=$2; shift 2 ;;
    *) sed -n '2,8s/^# \{0,1\}//p' "$0"; exit 2 ;;
  esac
done
venv=$folder/venv
if [ ! -x "$venv/bin/python" ]; then
  command -v uv > /dev/null || { echo "cluster: needs uv (pip install uv)"; exit 2; }
  mkdir -p "$folder"
  uv venv -q --python "$python" "$venv" && VIRTUAL_ENV=$venv uv pip install -q -e '.[cluster]' ||
    { rm -rf "$venv"; echo "cluster: Ray cannot be installed"; exit 1; }
fi
PYTHONPATH=$PWD/src exec "$venv/bin/python" tools/lanes/cluster_checks.py
