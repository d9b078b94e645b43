#!/usr/bin/env bash
# Starts Ray on another node, in the foreground; it ends with the head. The head prints a command that copies its token.
# Use the same placement as on the head:
#   scripts/start_worker.sh HEAD:6379 +placement=dual_node
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
head="${1:?usage: scripts/start_worker.sh HEAD:PORT [group=file …] [key=value …]}"
exec "${PYTHON:-.venv/bin/python}" -m rlrun.node start node.is_head=false "address=$head" "${@:2}"
