# What is peculiar to your cluster: launch.sh sources this file first, on the first node of the job, and srun passes the variables
# on to all nodes. Nothing is needed where .venv/bin/python and the disk of this folder will do.

# The environment: modules, and one of a venv, conda, or a script that opens a container (docs/slurm.md).
# source /etc/profile.d/modules.sh # where batch jobs have no `module`
# module load cuda/13.0
# source "$HOME/rlrun/.venv/bin/activate"
# source "$HOME/miniforge3/etc/profile.d/conda.sh" && conda activate rlrun
# export PYTHON="$HOME/python-apptainer"

# Scratch, under the same path on all nodes: run folders; demonstrations and warm-started policies that rlrun makes.
# export RLRUN_RUNS="$SCRATCH/rlrun/runs" RLRUN_CACHE="$SCRATCH/rlrun/cache"

# The disk of each node, for Ray's sockets and objects: a short path.
# export RAY_TMPDIR=/tmp

# Nodes without the internet: models and data are folders, metrics are sent later by `wandb sync`.
# export HF_HOME="$SCRATCH/huggingface" HF_HUB_OFFLINE=1 WANDB_MODE=offline
