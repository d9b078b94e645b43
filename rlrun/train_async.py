"""Train with collection and update side by side: what is learned was chosen by the policy of one update before."""

from __future__ import annotations

from rlrun.config.loader import entry_point
from rlrun.config.schema import RunConfig
from rlrun.controller.controller import Batch, Conversation
from rlrun.system.errors import RunError
from rlrun.system.exit_status import ExitStatus
from rlrun.train import Training


class AsyncTraining(Training):
    """While the actor learns from one batch, the next is collected with the weights that it began with.

    A batch is one update old, never more (`policy_age` in the metrics): weights follow between two conversations, and
    evaluation, checkpoints and exit find nothing under way. The first batch of a run, or after a loss, is new.
    """

    ahead: Batch | None = None  # collected beside the last update
    under_way: Conversation | None = None  # in which it is collected

    def collect_and_update(self) -> tuple[Batch, dict[str, float]]:
        """The batch that is there already, while the next one is made."""
        step, batch = self.progress.step, self.ahead
        if batch is None:
            first = self.begin_collect(step)
            with self.collecting():
                self.controller.open(first)
                batch = self.controller.collected(first)
        self.ahead = None
        if self.is_more(step + 1):
            self.under_way = self.begin_collect(step + 1)
            self.controller.open(self.under_way)
        self.tell_last()
        self.is_updating = True
        with self.updating() as updating:
            metrics = self.controller.update(step, batch)
        return batch, metrics | {"update_s": updating.seconds}

    def settle(self) -> dict[str, float]:
        """The batch that was begun is complete before the weights change; collect_s is what is waited for it."""
        with self.collecting() as collecting:
            if self.under_way is not None:
                self.ahead, self.under_way = self.controller.collected(self.under_way), None
        return {"collect_s": collecting.seconds}

    def is_more(self, step: int) -> bool:
        """Whether there will be this training step, as far as is known."""
        return step < self.config.num_steps and not self.session.stop.is_requested

    def rewind(self, failure: RunError) -> None:
        """As ever; what was collected for a state that is gone is dropped."""
        self.ahead = self.under_way = None
        super().rewind(failure)


def train_async(config: RunConfig) -> ExitStatus:
    """One run, from wherever its folder says it got to."""
    from rlrun.training.session import Session

    if config.placement.offload:
        raise RunError(
            "Roles that take turns on their accelerators cannot collect and update side by side.",
            key="placement.offload",
            value=True,
            remedy="Take rlrun.train, or placement.offload=false with accelerators that hold both roles.",
            exit_status=ExitStatus.bad_config,
        )
    return AsyncTraining.run_in(Session(config, is_patient=True))


@entry_point("Train as rlrun.train does, but collect while learning: batches are one update old.")
def main(config: RunConfig) -> ExitStatus:
    for key, value, cause in (
        ("record.num_steps", config.record.num_steps, "A recorded batch was chosen by the weights that learn from it."),
        ("replay.path", config.replay.path, "A recorded batch was chosen by the weights that learn from it."),
        ("placement.offload", config.placement.offload, "Actor and rollout workers are both at work here."),
    ):
        if value:
            raise RunError(
                f"rlrun.train_async cannot do with {key}.",
                key=key,
                value=value,
                cause=cause,
                remedy="Take rlrun.train for it.",
                exit_status=ExitStatus.bad_config,
            )
    return train_async(config)


if __name__ == "__main__":
    main()
