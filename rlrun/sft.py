"""Supervised fine-tuning: train a policy on demonstrations, as a warm start of reinforcement learning."""

from __future__ import annotations

from rlrun.config.loader import entry_point
from rlrun.config.program import OF_A_POLICY, OF_A_RUN, OF_MACHINES
from rlrun.config.schema import RunConfig
from rlrun.system.errors import ExitStatus


@entry_point(
    "Train a policy by imitation of demonstrations.",
    reads=(*OF_A_RUN, *OF_MACHINES, *OF_A_POLICY, "env", "actor", "demos", "sft", "seed"),
)
def main(config: RunConfig) -> ExitStatus:
    from rlrun.cluster.launch import Machines
    from rlrun.training.policy_folders import demonstrations, imitate
    from rlrun.training.session import open_session

    with open_session(config, Machines(config), ["env", "actor"]) as session:
        with session.phase("start simulators"):
            session.controller.load_simulators()
            session.controller.form_mesh()
        folder = session.run_dir / "policy"
        imitate(session, demonstrations(session), folder)
        session.console.result(f"policy {folder}")
    return ExitStatus.ok


if __name__ == "__main__":
    main()
