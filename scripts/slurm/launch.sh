#!/usr/bin/env bash
# The sbatch files call this script from the folder in which sbatch was run: the repository, or a project of `rlrun init`.
# Every node runs the same command; the first node is the head, and runs the training once all others have joined.
# The run folder is runs/slurm-JOB in every attempt of the job, so that a requeued job resumes by itself.
set -euo pipefail
site="${RLRUN_SITE:-scripts/slurm/site.sh}"
if [ -e "$site" ] || [ -n "${RLRUN_SITE:-}" ]; then
    set +u # scripts of modules, venv and conda read variables that are not set
    source "$site"
    set -u
fi
python="${PYTHON:-$PWD/.venv/bin/python}"
if [ -z "${PYTHON:-}" ] && [ ! -e "$python" ]; then # that of the environment which the site's file activates
    python="$(command -v python || command -v python3)" || { echo "launch.sh: no Python here: name one in $site" >&2 && exit 2; }
fi
run="${RLRUN_RUNS:-$PWD/runs}/slurm-$SLURM_JOB_ID"
if [ -n "${SLURM_ARRAY_TASK_ID:-}" ]; then # of `rlrun.train -m … --sbatch FILE`; a task's file: folder, then arguments
    mapfile -t task <"${!#}/$SLURM_ARRAY_TASK_ID.txt"
    run="${task[0]}"
    set -- "${@:1:$#-1}" "${task[@]:1}"
fi

# Print a value as an argument takes it: a run of a sweep has = in its path, and a folder may have spaces.
quoted() {
    local text="${1//\\/\\\\}"
    printf "'%s'" "${text//\'/\\\'}"
}
output_dir="output_dir=$(quoted "$run")"
if [ -n "${RLRUN_CACHE:-}" ]; then
    set -- "cache_dir=$(quoted "$RLRUN_CACHE")" "$@" # before the arguments of the job, which decide
fi
program="${RLRUN_PROGRAM:-rlrun.train}"
command="${program#rlrun.}"
command="${command//_/-}"
# As the command `rlrun` does it: modules of the working folder come after all packages. `-m` and `-c` put them first.
start='import sys; sys.path[:] = [entry for entry in sys.path if entry]; from rlrun.command import main; main()'
rlrun=("$python" -c "$start")
logs="$run/attempts/${SLURM_RESTART_COUNT:-0}"
mkdir -p "$logs/status"
token="$logs/ray_token" # lets a process join the job's Ray: readable by this user only, removed with the attempt
(umask 077 && "$python" -P -c 'import secrets; print(secrets.token_hex(32))' >"$token")
trap 'rm -f "$token"' EXIT
"${rlrun[@]}" "$command" "$@" "$output_dir" --cfg job >"$logs/config.yaml" # an invalid configuration ends here

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

# SLURM signals the tasks themselves (--signal=USR1, preemption); this shell only has to outlive them. SIGUSR1 is blocked
# until Python has a handler, since it would kill Python before.
trap : USR1 TERM
status=0
srun "${components[@]}" --kill-on-bad-exit=1 --cpu-bind=none --label --output="$logs/nodes.log" \
    env --block-signal=USR1 RAY_AUTH_MODE=token RAY_AUTH_TOKEN= "RAY_AUTH_TOKEN_PATH=$token" "${rlrun[@]}" node start "address=${hosts[0]}:$port" "node.expected=[$expected]" \
    "node.status_dir=$(quoted "$logs/status")" "$@" \
    -- "${rlrun[@]}" "$command" "$@" "$output_dir" || status=$?

# The status of the first node that failed counts; --kill-on-bad-exit has ended the others.
for file in $(ls -tr "$logs/status"); do
    first="$(cat "$logs/status/$file")"
    if [ "$first" -ne 0 ]; then
        status=$first
        break
    fi
done

# 75: saved after a signal. A job that still runs received a warning (time limit, preemption) and is requeued. A
# cancelled job no longer runs, and is not requeued. (squeue prints one line for each component of the job.) One task of an
# array has the number of the whole array as its own, so that a task is named by array and index.
job="${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID:-}}"
job="${job:-$SLURM_JOB_ID}"
echo "attempt ${SLURM_RESTART_COUNT:-0} ended with status $status"
if [ "$status" -eq 75 ] && [ "$(squeue --noheader --format=%T --jobs="$job" | sort -u)" = RUNNING ]; then
    scontrol requeue "$job"
fi
exit "$status"
