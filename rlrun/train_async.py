"""Train while collecting: step n+1 is collected while the actor trains on step n (one step off-policy)."""

from __future__ import annotations

from dataclasses import replace

from rlrun.config.loader import entry_point
from rlrun.config.program import OF_A_RUN, OF_MACHINES, OF_TRAINING
from rlrun.config.schema import RunConfig
from rlrun.config.sections import freeze
from rlrun.system.errors import ExitStatus, RunError
from rlrun.train import sweep


def train_async(config: RunConfig) -> ExitStatus:
    """Train like `rlrun.train.train`, but collect while learning. Raises RunError for unsupported keys."""
    from rlrun.cluster.launch import Machines
    from rlrun.training.callbacks import make_callbacks
    from rlrun.training.lifecycle import Run
    from rlrun.training.loop import asynchronous
    from rlrun.training.session import open_session

    config = collecting_ahead(config)
    callbacks = make_callbacks(config)
    with open_session(config, Machines(config), resumed_by="rlrun.train_async") as session:
        return Run(session, callbacks).complete(asynchronous)


def collecting_ahead(config: RunConfig) -> RunConfig:
    """Return the configuration as `rlrun.train_async` runs it. Raises RunError for unsupported keys."""
    _check(config)
    ahead = replace(config, placement=replace(config.placement, offload=False), collects_ahead=True)
    freeze(ahead)
    return ahead


def _check(config: RunConfig) -> None:
    for key, value, cause in (
        ("record.num_steps", config.record.num_steps, "Recorded steps must be on-policy."),
        ("replay.path", config.replay.path, "Recorded steps must be on-policy."),
        ("placement.offload", config.placement.offload, "Actor and rollout workers run at the same time."),
    ):
        if value:
            raise RunError(
                f"rlrun.train_async does not support {key}.",
                key=key,
                value=value,
                cause=cause,
                remedy="Use rlrun.train.",
                exit_status=ExitStatus.bad_config,
            )


@entry_point(
    "Train like rlrun.train, but collect while learning: batches are one update old.",
    resumes=True,
    sweep=sweep,
    reads=(*OF_A_RUN, *OF_MACHINES, *OF_TRAINING),
)
def main(config: RunConfig) -> ExitStatus:
    return train_async(config)


if __name__ == "__main__":
    main()
