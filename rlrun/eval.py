"""Measure a policy: success rate with a confidence interval over seeded episodes, video, JSON."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from rlrun.config.loader import entry_point
from rlrun.config.schema import RunConfig
from rlrun.system.errors import RunError
from rlrun.system.exit_status import ExitStatus


@entry_point(
    "Evaluate a policy on seeded episodes, from a folder or behind a policy server.",
    aliases={"checkpoint": "evaluation.checkpoint", "server": "evaluation.server"},
)
def main(config: RunConfig) -> ExitStatus:
    from rlrun.training.evaluation import instance_lines, instance_results, record, run_episodes, sentence
    from rlrun.training.session import Session

    policy = config.evaluation.server or str(policy_folder(config))
    with Session(config, ["env", "rollout"]) as session:
        with session.phase("start"):
            session.controller.load_simulators()
            session.controller.load_rollout(policy, is_final=True)
        episodes = run_episodes(session, 0, is_filmed=True)
        summary, instances = record(session, 0, episodes), instance_results(config, episodes)
        told = asdict(summary) | ({"instances": [asdict(one) for one in instances]} if instances else {})
        (session.run_dir / "evaluation.json").write_text(json.dumps(told, indent=2) + "\n")
        lines = [*instance_lines(instances), sentence(summary), str(session.run_dir / "evaluation.json")]
        session.console.result("\n".join(lines))
    return ExitStatus.ok


def policy_folder(config: RunConfig) -> Path:
    """The folder that `evaluation.checkpoint` means: itself, or the one inside a run or checkpoint folder.

    Raises RunError where there is none, or where it is damaged.
    """
    from rlrun.training.whole_policy import require_whole_policy

    checkpoint = config.evaluation.checkpoint
    if checkpoint is None:
        raise RunError(
            "No policy was named.",
            key="evaluation.checkpoint",
            value=None,
            remedy="Add checkpoint=runs/<name>/<time>, or server=ws://host:port.",
        )
    folder = Path(checkpoint)
    for candidate in (folder, folder / "policy"):
        if (candidate / "config.json").is_file():
            require_whole_policy(candidate, "evaluation.checkpoint", config.checkpoint.verify)
            return candidate
    raise RunError(
        f"There is no policy at {folder}.",
        key="evaluation.checkpoint",
        value=checkpoint,
        cause="neither the folder nor a folder `policy` in it has a config.json",
        remedy="Name a run folder that ended, a checkpoint folder, or an exported policy folder.",
        exit_status=ExitStatus.bad_input,
    )


if __name__ == "__main__":
    main()
