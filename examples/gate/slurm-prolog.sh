#!/usr/bin/env bash
# In a job script, before `srun python train.py`: one task per node checks that node and runs small kernels on one
# GPU. The job ends here, after seconds, if the training cannot work on a node.
#
#   #SBATCH --nodes=4 --gres=gpu:8
#   source slurm-prolog.sh /shared/envs/train/bin/python configs/llama-3-8b.json
#
# The doctor lives in its own environment (`python3 -m venv /shared/doctor && /shared/doctor/bin/pip install /path/to/attn-doctor`).
DOCTOR=${ATTN_DOCTOR:-/shared/doctor/bin/attn-doctor}
TRAIN_PYTHON=${1:?the interpreter of the training environment}
MODEL=${2:?the config.json of the model}

reports=$(mktemp -d "${TMPDIR:-/tmp}/attn-doctor-${SLURM_JOB_ID:-0}-XXXXXX")
export DOCTOR TRAIN_PYTHON MODEL
if ! srun --ntasks-per-node=1 --kill-on-bad-exit=0 --output "$reports/%N.txt" \
    bash -c '"$DOCTOR" check --python "$TRAIN_PYTHON" --model "$MODEL" --timeout 60'; then
  echo "attn-doctor: this job's attention will not work on every node" >&2
  for report in "$reports"/*.txt; do
    echo "--- $(basename "$report" .txt)" >&2
    cat "$report" >&2
  done
  exit 1
fi
rm -rf "$reports"
