#!/usr/bin/env bash
# Whether an image works: without a network, without rights, with nothing to write to but /data and /tmp.
#
#   docker/smoke.sh sightline:cpu
#   docker/smoke.sh sightline:cuda --gpus all
#
# Trains a tiny policy from a sentence, stops it by SIGTERM, goes on to its end, and measures the speed.
set -euo pipefail
image=${1:?usage: docker/smoke.sh IMAGE [OPTIONS OF docker run]}
shift
data=$(docker volume create)
trap 'docker volume rm -f "$data" > /dev/null' EXIT
start=(docker run --rm --network none --read-only --tmpfs /tmp --shm-size 1g --cap-drop ALL
  --security-opt no-new-privileges --volume "$data:/data" "$@")
sightline() { "${start[@]}" "$image" "$@"; }

[ "$("${start[@]}" --entrypoint id "$image" -u)" = 1000 ] || { echo "smoke: it runs as root"; exit 1; }
sightline doctor

tiny=(cartpole steps=4000 evaluation.every=2000 evaluation.episodes=2 evaluation.test_episodes=3 videos=false
  checkpoints.every=500 --run-dir /data/run --resume-or-start)
# A scheduler's SIGTERM: the run saves, and ends with 128 + 15.
name=sightline-smoke-$$
"${start[@]}" --name "$name" "$image" train "${tiny[@]}" &
process=$!
until docker exec "$name" sh -c 'ls -d /data/run/checkpoints/step-*' > /dev/null 2>&1; do
  kill -0 "$process" 2> /dev/null || { echo "smoke: the run ended before its first checkpoint"; exit 1; }
  sleep 1
done
docker kill --signal TERM "$name" > /dev/null
code=0
wait "$process" || code=$?
[ "$code" = 143 ] || { echo "smoke: SIGTERM ended the run with exit code $code, not 143"; exit 1; }
# The scheduler's next start.
sightline train "${tiny[@]}"
sightline doctor --speed
echo "smoke: $image works"
