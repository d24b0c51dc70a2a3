#!/usr/bin/env bash
# Every part of every benchmark once, at its smallest size: does it still run? What it says then means nothing.
#
#   tools/lanes/benchmarks.sh               # all; up to an hour on two cores
#   tools/lanes/benchmarks.sh agents rooms  # those of these files
#
# Uses the environment of the tests, .venv. Results and run folders go into a temporary folder, which is removed, so what
# is in benchmarks/results stays as it is. `sized` and `at_size` of benchmarks/running.py say what the smallest size is.
set -uo pipefail
cd "$(dirname "$0")/../.."
root=$PWD python=$PWD/.venv/bin/python
[ -x "$python" ] || { echo "benchmarks: needs .venv (see the README's test command)"; exit 2; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
# Parts go on from the results of before, as they do when they measure.
cp -r benchmarks/results "$folder/results"
export BENCHMARKS_SMALLEST_INTO=$folder/results OMP_NUM_THREADS=1 PYTHONPATH=$root/src:$root/tools

"$python" tools/lanes/benchmark_parts.py "$@" > "$folder/parts" || exit 2
all=0 ran=0 lacking=0
while read -r name arguments; do
  all=$((all + 1))
  began=$SECONDS
  eval "words=($arguments)" # a choice may hold spaces, and is quoted then
  (cd "$folder" && timeout -k 10 600 "$python" "$root/benchmarks/$name.py" "${words[@]}") > "$folder/log" 2>&1 < /dev/null
  code=$?
  last=$(grep -v '^ *$' "$folder/log" | tail -1)
  [ "$code" != 124 ] || last="not done after 600 s: $last"
  case "$last" in
    needs\ *) lack=$last ;;
    *"no Chromium"*) lack="needs a browser" ;;
    *"no OpenGL"*) lack="needs OpenGL" ;;
    *"pip install"*) lack="needs ${last#*pip install }" ;;
    *) lack="" ;;
  esac
  if [ "$code" = 0 ]; then
    ran=$((ran + 1))
    how=ok
  elif [ -n "$lack" ]; then
    lacking=$((lacking + 1))
    how=$lack
  else
    how="FAILED: ${last:0:300}"
  fi
  printf '%-40s %4d s  %s\n' "$name $arguments" "$((SECONDS - began))" "$how"
done < "$folder/parts"
summary="benchmarks: $ran of $all parts ran"
[ "$lacking" = 0 ] || summary+=", $lacking need what is not here"
failed=$((all - ran - lacking))
[ "$failed" = 0 ] || summary+=", $failed failed"
echo "$summary"
[ "$failed" = 0 ]
