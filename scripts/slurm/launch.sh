#!/usr/bin/env bash
# Called by the sbatch files, from the folder in which sbatch was typed: the root of the repository.
# Every node runs the same command; the first one is the head and runs the training once all others have joined.
# The run folder is runs/slurm-JOB, in every attempt of the job, so that a requeued one resumes by itself.
set -euo pipefail
python="${PYTHON:-$PWD/.venv/bin/python}"
run="${RLRUN_RUNS:-$PWD/runs}/slurm-$SLURM_JOB_ID"
logs="$run/attempts/${SLURM_RESTART_COUNT:-0}"
mkdir -p "$logs/status"
token="$logs/ray_token" # whoever knows it may join the job's Ray: for this user's eyes only, and gone with the attempt
(umask 077 && "$python" -c 'import secrets; print(secrets.token_hex(32))' >"$token")
trap 'rm -f "$token"' EXIT
"$python" -m rlrun.train "$@" "output_dir=$run" --cfg job >"$logs/config.yaml" # a configuration that cannot work ends here

components=()
nodelists=("$SLURM_JOB_NODELIST")
if [ -n "${SLURM_HET_SIZE:-}" ]; then
    nodelists=()
    for ((i = 0; i < SLURM_HET_SIZE; i++)); do
        name="SLURM_JOB_NODELIST_HET_GROUP_$i"
        nodelists+=("${!name}")
    done
    components=("--het-group=0-$((SLURM_HET_SIZE - 1))")
fi
mapfile -t hosts < <(for list in "${nodelists[@]}"; do scontrol show hostnames "$list"; done)
expected="$(IFS=,; echo "${hosts[*]}")"
port=$((20000 + SLURM_JOB_ID % 10000))
echo "attempt ${SLURM_RESTART_COUNT:-0}: head ${hosts[0]}:$port, nodes $expected; logs in $logs"

# SLURM signals the tasks themselves (--signal=USR1, preemption): this shell only has to outlive them. A warning that
# comes before Python has a handler must not kill it: it is blocked until then.
trap : USR1 TERM
status=0
srun "${components[@]}" --kill-on-bad-exit=1 --cpu-bind=none --label --output="$logs/nodes.log" \
    env --block-signal=USR1 RAY_AUTH_MODE=token RAY_AUTH_TOKEN= "RAY_AUTH_TOKEN_PATH=$token" "$python" -m rlrun.node start "address=${hosts[0]}:$port" "node.expected=[$expected]" \
    "node.status_dir=$logs/status" "$@" \
    -- "$python" -m rlrun.train "$@" "output_dir=$run" || status=$?

# The first node that failed tells why; the others were then ended by --kill-on-bad-exit.
for file in $(ls -tr "$logs/status"); do
    first="$(cat "$logs/status/$file")"
    if [ "$first" -ne 0 ]; then
        status=$first
        break
    fi
done

# 75: saved after a signal. A job that still runs was warned of its time limit or of preemption, and goes back into
# the queue; one that was cancelled no longer runs, and stays so. (One line for each component of the job.)
echo "attempt ${SLURM_RESTART_COUNT:-0} ended with status $status"
if [ "$status" -eq 75 ] && [ "$(squeue --noheader --format=%T --jobs="$SLURM_JOB_ID" | sort -u)" = RUNNING ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
