"""Start Ray on this node, in the foreground; on the head, run a command once all nodes have joined."""

from __future__ import annotations

import sys

from rlrun.config.loader import entry_point
from rlrun.config.schema import NodeCommand, RunConfig
from rlrun.system.errors import ExitStatus

# Short keys of the programs that a node is given the arguments of, as scripts/slurm/launch.sh does.
OF_EVALUATIONS = {"checkpoint": "evaluation.checkpoint", "server": "evaluation.server"}
OF_PROGRAMS = {"replay": "replay.path", **OF_EVALUATIONS}


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Split the arguments into those of this program and the command after "--"."""
    if "--" not in arguments:
        return arguments, []
    at = arguments.index("--")
    return arguments[:at], arguments[at + 1 :]


def main(arguments: list[str] | None = None) -> None:
    """`start [address=HOST:PORT] [-- COMMAND…]`, or `stop`."""
    overrides, command = _split(sys.argv[1:] if arguments is None else arguments)
    evaluated = {f"{key}=" for pair in OF_EVALUATIONS.items() for key in pair}

    @entry_point(
        "Start Ray on this node, in the foreground: the same command on every node, `address` naming the head. "
        "What follows `--` runs on the head once all nodes have joined.",
        positional="node.command",
        aliases={"address": "cluster.address", **OF_PROGRAMS},
        resumes=True,
        uses_policy=any(override.startswith(tuple(evaluated)) for override in overrides),
        reads=("node", "cluster", "placement"),
    )
    def program(config: RunConfig) -> ExitStatus | int:
        from rlrun.cluster.node_service import StatusFile, start_node, stop_node

        if config.node.command is NodeCommand.stop:
            return stop_node(config)
        with StatusFile(config) as ended:
            ended.status = start_node(config, command)
        return ended.status

    program(overrides)


if __name__ == "__main__":
    main()
