#!/usr/bin/env bash
# Whether the image for CPUs can be built, and works: docker/smoke.sh trains in it, without a network and without rights.
#
#   tools/lanes/docker.sh                     # with the published base and torch for CPUs
#   tools/lanes/docker.sh --folder DIR        # where a daemon's and a base's files are kept; default: .docker-lane
#   tools/lanes/docker.sh --wheels DIR --torch "torch==… torchvision==…"      # torch from wheels of this machine
#
# Where no Docker daemon runs, one is started from Debian's packages, which are unpacked and not installed. Where the
# published base cannot be pulled, one is made of Debian's packages (Python 3.11). Both need root, and are said at the end.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit

folder=$PWD/.docker-lane wheels='' torch='torch torchvision'
while [ $# -gt 0 ]; do
  case "$1" in
    --folder) folder=$(realpath "$2"); shift 2 ;;
    --wheels) wheels=$(realpath "$2"); shift 2 ;;
    --torch) torch=$2; shift 2 ;;
    *) sed -n '2,10s/^# \{0,1\}//p' "$0"; exit 2 ;;
  esac
done
mkdir -p "$folder"
processes=()
# Only what was started here is ended.
trap '[ "${#processes[@]}" = 0 ] || kill "${processes[@]}"; wait' EXIT
fail() { echo "docker: $1"; exit 1; }

engine='the daemon that runs here'
if ! docker info > /dev/null 2>&1; then
  engine="a daemon of Debian's packages"
  programs=$folder/programs
  if [ ! -x "$programs/usr/sbin/dockerd" ]; then
    (cd "$folder" && apt-get download -qq docker.io containerd runc debootstrap) || fail "no daemon runs, and Debian's packages cannot be had"
    for package in "$folder"/*.deb; do dpkg-deb -x "$package" "$programs" || fail "$package cannot be unpacked"; done
  fi
  export PATH="$programs/usr/sbin:$programs/usr/bin:$PATH" DOCKER_HOST="unix://$folder/docker.sock"
  dockerd --iptables=false --ip-masq=false --bridge=none --data-root "$folder/data" --exec-root "$folder/exec" \
    --pidfile "$folder/dockerd.pid" --host "$DOCKER_HOST" > "$folder/dockerd.log" 2>&1 &
  processes+=($!)
  for _ in $(seq 60); do docker info > /dev/null 2>&1 && break; sleep 1; done
  docker info > /dev/null 2>&1 || fail "the daemon does not start: $(tail -1 "$folder/dockerd.log")"
fi

base=python:3.12-slim-bookworm
described='the published base'
if ! docker image inspect "$base" > /dev/null 2>&1 && ! docker pull -q "$base" > /dev/null 2>&1; then
  base=sightline-base:debian
  described="a base of Debian's packages (Python 3.11; the published base was not pulled)"
  if ! docker image inspect "$base" > /dev/null 2>&1; then
    export DEBOOTSTRAP_DIR="$folder/programs/usr/share/debootstrap"
    debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates bookworm "$folder/base" > "$folder/debootstrap.log" ||
      fail "no base: $(tail -1 "$folder/debootstrap.log")"
    # Whom this machine trusts.
    cp -L --remove-destination /etc/ssl/certs/ca-certificates.crt "$folder/base/etc/ssl/certs/"
    printf '[global]\ncert = /etc/ssl/certs/ca-certificates.crt\n' > "$folder/base/etc/pip.conf"
    tar -C "$folder/base" -c . | docker import - "$base" > /dev/null || fail "the base cannot be imported"
  fi
fi

options=(--build-arg "BASE=$base" --build-arg "TORCH=$torch")
if [ -n "$wheels" ]; then
  # An index, as pip reads one: a folder for each package.
  for wheel in "$wheels"/*.whl; do
    name=$(basename "$wheel")
    mkdir -p "$folder/index/${name%%-*}"
    cp -n "$wheel" "$folder/index/${name%%-*}/"
  done
  python3 -m http.server 8123 --bind 127.0.0.1 --directory "$folder/index" > /dev/null 2>&1 &
  processes+=($!)
  options+=(--build-arg TORCH_INDEX=http://127.0.0.1:8123)
fi
began=$SECONDS
DOCKER_BUILDKIT=0 docker build -q --network host -f docker/Dockerfile --target cpu -t sightline:cpu "${options[@]}" . ||
  fail "the image cannot be built"
minutes=$(((SECONDS - began + 59) / 60))
size=$(docker image inspect -f '{{.Size}}' sightline:cpu)
docker/smoke.sh sightline:cpu || fail "the image was built, and does not work"
echo "docker: sightline:cpu works, $((size / 1000000)) MB, built in $minutes minutes by $engine, on $described"
