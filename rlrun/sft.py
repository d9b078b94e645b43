"""Train a policy by imitation of demonstrations: the warm start of reinforcement learning."""

from __future__ import annotations

from rlrun.config.exit_status import ExitStatus
from rlrun.config.loader import entry_point
from rlrun.config.schema import RunConfig


@entry_point("Train a policy by imitation of demonstrations.")
def main(config: RunConfig) -> ExitStatus:
    from rlrun.session import Session
    from rlrun.warm_start import demonstrations, imitate

    with Session(config, ["env", "actor"]) as session:
        with session.phase("start simulators"):
            session.team.load_simulators()
            session.team.form_mesh()
        folder = session.run_dir / "policy"
        imitate(session, demonstrations(session), folder)
        session.console.result(f"policy {folder}")
    return ExitStatus.ok


if __name__ == "__main__":
    main()
