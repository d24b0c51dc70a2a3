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
#SBATCH --cpus-per-task={{ cores }}
#SBATCH --mem={{ memory }}G
{% if gpus %}
#SBATCH --gres=gpu:{{ gpus }}
{% endif %}
{% if partition %}
#SBATCH --partition={{ partition }}
{% endif %}
#SBATCH --time={{ hours }}:00:00
#SBATCH --requeue
#SBATCH --signal=B:TERM@{{ grace }}
set -u
export PATH={{ programs }}:"$PATH" OMP_NUM_THREADS={{ threads }}

{% if cells %}
# Whoever comes first writes the plan.
test -f {{ folder }}/sweep.json || {{ sweep }} --plan || test -f {{ folder }}/sweep.json || exit
sightline sweep-cell {{ folder }} "$SLURM_ARRAY_TASK_ID" &
job=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID
{% else %}
{{ train }} &
job=$SLURM_JOB_ID
{% endif %}
child=$!
# Slurm signals this shell alone, {{ grace }} seconds before the time is up.
trap 'kill -TERM "$child"' TERM
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
