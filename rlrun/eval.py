"""Measure a policy: success rate with a confidence interval over seeded episodes, video, JSON."""

from __future__ import annotations

from rlrun.config.loader import entry_point
from rlrun.config.program import OF_A_POLICY, OF_A_RUN, OF_MACHINES
from rlrun.config.schema import RunConfig
from rlrun.system.errors import ExitStatus


@entry_point(
    "Evaluate a policy on seeded episodes, from a folder or behind a policy server.",
    aliases={"checkpoint": "evaluation.checkpoint", "server": "evaluation.server"},
    uses_policy=True,
    reads=(*OF_A_RUN, *OF_MACHINES, *OF_A_POLICY, "env", "evaluation", "seed"),
)
def main(config: RunConfig) -> ExitStatus:
    from rlrun.cluster.launch import Machines
    from rlrun.training.evaluation import evaluate_alone
    from rlrun.training.policy_folders import newer_checkpoint, policy_folder
    from rlrun.training.session import open_session

    folder = None if config.evaluation.server else policy_folder(config)
    with open_session(config, Machines(config), ["env", "rollout"], is_evaluation=True) as session:
        if folder is not None and (newer := newer_checkpoint(folder)) is not None:
            session.console.warning(f"training went on after {folder} was written: checkpoint={newer} is newer")
        evaluate_alone(session, config.evaluation.server or str(folder))
    return ExitStatus.ok


if __name__ == "__main__":
    main()
