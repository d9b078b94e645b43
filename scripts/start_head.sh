#!/usr/bin/env bash
# Starts Ray on the head node, in the foreground; Ctrl-C ends it. The command after `--` runs once all nodes have joined:
#   scripts/start_head.sh +placement=dual_node -- .venv/bin/python -m rlrun.train +placement=dual_node
# Port 6379, or: scripts/start_head.sh address=HOST:PORT …
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec "${PYTHON:-.venv/bin/python}" -m rlrun.node start node.is_head=true "$@"
