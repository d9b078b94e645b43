"""Record episodes of the scripted expert as a LeRobot dataset of demonstrations."""

from __future__ import annotations

from rlrun.config.loader import entry_point
from rlrun.config.program import OF_A_RUN, OF_MACHINES
from rlrun.config.schema import RunConfig
from rlrun.system.errors import ExitStatus


@entry_point(
    "Record demonstrations of the scripted expert as a LeRobot dataset.",
    reads=(*OF_A_RUN, *OF_MACHINES, "env", "demos", "seed", "cache_dir"),
)
def main(config: RunConfig) -> ExitStatus:
    from rlrun.cluster.launch import Machines
    from rlrun.training.policy_folders import demonstrations
    from rlrun.training.session import open_session

    with open_session(config, Machines(config), ["env"]) as session:
        with session.phase("start simulators"):
            session.controller.load_simulators()
        folder = demonstrations(session)
        session.console.result(f"demonstrations {folder}")
    return ExitStatus.ok


if __name__ == "__main__":
    main()
