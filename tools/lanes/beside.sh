#!/usr/bin/env bash
# Which version of each stack of simulators and robots comes out when it is resolved together with Sightline.
#
#   tools/lanes/beside.sh            # a row for each; nothing is installed; minutes
#
# Needs uv. A stack that is pinned and cannot be joined is a row too: docs/beside-other-stacks.md says the way round.
set -uo pipefail
cd "$(dirname "$0")/../.."
command -v uv > /dev/null || { echo "beside: needs uv (pip install uv)"; exit 2; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

joined=0 all=0
while read -r python stack; do
  all=$((all + 1))
  rm -f "$folder/found.txt"  # which would be preferred
  { echo "sightline @ file://$PWD"; tr ' ' '\n' <<< "$stack"; } > "$folder/wanted.txt"
  if uv pip compile -q --python-version "$python" "$folder/wanted.txt" -o "$folder/found.txt" 2> "$folder/why.txt"; then
    joined=$((joined + 1))
    name=$(sed -E 's/[[<>=! ].*//' <<< "${stack%% *}" | tr '_.' '--')
    found=$(grep -iE "^($name|gymnasium|numpy|transformers|torch)==" "$folder/found.txt" | tr '\n' ' ')
    echo "ok   $python  $stack: $found"
  else
    echo "--   $python  $stack: $(grep -m1 -oE "(because|Because).*" "$folder/why.txt" | cut -c1-160)"
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
