"""The asynchronous loop: it collects while it learns, so each batch was chosen by the policy of one update before.

A batch is at most one update old (`policy_age` in the metrics): weights are sent between two collections, and no
collection is open during evaluation, checkpoints and the end of the run. The first batch, and the first one after a
loss, is new.
"""

from __future__ import annotations

from rlrun.controller.controller import Batch
from rlrun.system.errors import ExitStatus, RunError
from rlrun.training.lifecycle import Run


def asynchronous(run: Run) -> ExitStatus:
    """Train until all steps are done. Raises StopRequested after a signal, and RunError."""
    ahead: Batch | None = None  # the batch that was collected during the last update
    while True:
        try:
            run.evaluate_if_owed()
            if run.is_over():
                return run.finish()
            run.begin_step()
            step = run.progress.step
            if ahead is None:
                collection = run.start_collection(step)
                run.sync_weights()
                ahead = run.finish_collection(collection)
            batch, ahead = ahead, None
            following = run.start_collection(step + 1) if run.is_followed() else None
            run.sync_weights()
            metrics = run.update(batch)
            if following is not None:
                ahead = run.finish_collection(following)
            run.log(batch, metrics)
            run.evaluate_and_save_if_due()
        except RunError as failure:
            ahead = None  # the batch belongs to a state that no longer exists
            run.recover(failure)
