#!/bin/bash
# A {{ "sweep" if cells else "run" }} of Sightline. Checked by shellcheck and against a stand-in; not run on a real cluster.
#
#   sbatch {{ file }}
#
#SBATCH --job-name={{ name }}
#SBATCH --chdir={{ working_folder }}
{% if cells %}
#SBATCH --array=0-{{ cells - 1 }}%{{ parallel }}
#SBATCH --output={{ name }}-%A_%a.log
{% else %}
#SBATCH --output={{ name }}-%j.log
{% endif %}
#SBATCH --open-mode=append
{% if processes > 1 %}
#SBATCH --nodes={{ nodes }}
#SBATCH --ntasks-per-node={{ per_node }}
{% endif %}
#SBATCH --cpus-per-task={{ cores }}
#SBATCH --mem={{ memory * per_node }}G
{% if gpus %}
#SBATCH --gres=gpu:{{ gpus * per_node }}
{% endif %}
{% if partition %}
#SBATCH --partition={{ partition }}
{% endif %}
#SBATCH --time={{ hours }}:00:00
#SBATCH --requeue
#SBATCH --signal={{ "" if processes > 1 else "B:" }}TERM@{{ grace }}
set -u
export PATH={{ programs }}:"$PATH" OMP_NUM_THREADS={{ threads }}

{% if cells %}
# Whoever comes first writes the plan.
test -f {{ folder }}/sweep.json || {{ sweep }} --plan || test -f {{ folder }}/sweep.json || exit
sightline sweep-cell {{ folder }} "$SLURM_ARRAY_TASK_ID" &
job=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID
{% elif processes > 1 %}
# What torchrun would tell each process. Without torchrun between, signals and exit codes are the run's own; the highest
# code of all processes counts.
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_ADDR MASTER_PORT=$((20000 + SLURM_JOB_ID % 20000)) WORLD_SIZE={{ processes }} LOCAL_WORLD_SIZE={{ per_node }}
# shellcheck disable=SC2016
srun --kill-on-bad-exit=0 --cpus-per-task={{ cores }} bash -c 'RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID exec "$@"' process {{ train }} &
job=$SLURM_JOB_ID
{% else %}
{{ train }} &
job=$SLURM_JOB_ID
{% endif %}
child=$!
{% if processes > 1 %}
# Slurm signals the processes, {{ grace }} seconds before the time is up; this shell waits.
trap : TERM
{% else %}
# Slurm signals this shell alone, {{ grace }} seconds before the time is up.
trap 'kill -TERM "$child"' TERM
{% endif %}
wait "$child"
code=$?
# The signal ends the first wait before the run has saved.
while kill -0 "$child" 2> /dev/null; do
  wait "$child"
  code=$?
done

# 0: done. 2: input has to be changed first. 75: another process still writes the folder. 143: stopped after saving.
case $code in
  0 | 2) exit "$code" ;;
  75) sleep "${SIGHTLINE_BUSY_SECONDS:-60}" ;;
  143) ;;
  *) [ "${SLURM_RESTART_COUNT:-0}" -lt 4 ] || exit "$code" ;;
esac
scontrol requeue "$job"
