#!/usr/bin/env bash
# Whether the version of each stack that one would get alone can be resolved together with Sightline, too.
#
#   tools/lanes/beside.sh            # a row for each; nothing is installed; minutes
#
# A resolver that is free to choose takes an old version of a stack in silence, so the version is held fast. Needs uv.
# docs/beside-other-stacks.md says the way round where two cannot be joined.
set -uo pipefail
cd "$(dirname "$0")/../.."
command -v uv > /dev/null || { echo "beside: needs uv (pip install uv)"; exit 2; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# resolve PYTHON FILE: the packages that come out, or, with status 1, the reason in why.txt
resolve() {
  uv pip compile -q --no-header --no-annotate --python-version "$1" "$2" 2> "$folder/why.txt"
}

joined=0 all=0
while read -r python stack; do
  all=$((all + 1))
  tr ' ' '\n' <<< "$stack" > "$folder/alone.txt"
  if ! alone=$(resolve "$python" "$folder/alone.txt"); then
    echo "--   $python  $stack: not even alone: $(grep -m1 -oE "(because|Because).*" "$folder/why.txt" | cut -c1-160)"
    continue
  fi
  name=$(sed -E 's/[[<>=! ].*//' <<< "$stack" | tr '_.' '--')
  version=$(grep -iE "^$name(\[.*\])?==" <<< "$alone" | sed -E 's/.*==//')
  { echo "sightline @ file://$PWD"; echo "$name==$version"; cat "$folder/alone.txt"; } > "$folder/both.txt"
  if both=$(resolve "$python" "$folder/both.txt"); then
    joined=$((joined + 1))
    echo "ok   $python  $stack: $(grep -iE "^($name|gymnasium|numpy|transformers|torch)==" <<< "$both" | tr '\n' ' ')"
  else
    echo "--   $python  $stack: $name $version: $(grep -m1 -oE "(because|Because).*" "$folder/why.txt" | cut -c1-200)"
  fi
done <<'STACKS'
3.11 ray[rllib]>=2.50
3.11 gymnasium==1.2.0 numpy<2
3.12 gymnasium==1.2.0 numpy<2
3.11 openpi-client
3.11 robosuite==1.5.2 numpy<2
3.11 myosuite>=3.0
3.11 nle>=1.3
3.11 lerobot==0.4.4
3.12 lerobot>=0.6
3.11 browsergym
3.11 cleanrl
3.11 vllm>=0.13
3.11 mani-skill
3.11 envpool
3.11 gymnasium-robotics
3.11 metaworld==3.1.1
STACKS
echo "beside: $joined of $all stacks can be resolved together with Sightline"
