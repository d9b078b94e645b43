"""Train a policy by reinforcement learning."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlrun.config.loader import entry_point
from rlrun.config.program import OF_A_RUN, OF_MACHINES, OF_TRAINING
from rlrun.config.schema import RunConfig
from rlrun.system.errors import ExitStatus

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlrun.config.program import SweepRequest
    from rlrun.training.callbacks import Callback


def train(config: RunConfig, more_callbacks: Sequence[Callback] = ()) -> ExitStatus:
    """Start a run, or resume it if its folder has checkpoints; train; evaluate; write policy and report.

    more_callbacks: called after the callbacks of the configuration.
    """
    from rlrun.cluster.launch import Machines
    from rlrun.training.callbacks import make_callbacks
    from rlrun.training.lifecycle import Run
    from rlrun.training.loop import synchronous
    from rlrun.training.session import open_session

    callbacks = make_callbacks(config, more_callbacks)
    run: type[Run] = Run
    if config.record.num_steps:
        from rlrun.training.replay import RecordedTraining as run
    with open_session(config, Machines(config), resumed_by="rlrun.train") as session:
        return run(session, callbacks).complete(synchronous)


def sweep(request: SweepRequest, script: str | None) -> int:
    """Run or submit a sweep; see `rlrun.training.sweep.start_sweep`."""
    from rlrun.training.sweep import start_sweep

    return start_sweep(request, script)


@entry_point(
    "Train a policy by reinforcement learning, from a given policy or from demonstrations.",
    aliases={"replay": "replay.path"},
    resumes=True,
    sweep=sweep,
    reads=(*OF_A_RUN, *OF_MACHINES, *OF_TRAINING),
)
def main(config: RunConfig) -> ExitStatus:
    if config.replay.path is None:
        return train(config)
    from rlrun.cluster.launch import Machines
    from rlrun.training.replay import replay

    return replay(config, Machines)


if __name__ == "__main__":
    main()
