#!/usr/bin/env bash
# Ray on a further node, in the foreground; it ends with the head. It needs the head's token: the head prints how to get it.
# With the same placement as the head:
#   scripts/start_worker.sh HEAD:6379 +placement=dual_node
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
head="${1:?usage: scripts/start_worker.sh HEAD:PORT [group=file …] [key=value …]}"
exec "${PYTHON:-.venv/bin/python}" -m rlrun.node start node.is_head=false "address=$head" "${@:2}"
