"""The synchronous and the asynchronous training loop; this is a step of the synchronous one.

| | env workers | rollout workers | actor workers |
|---|---|---|---|
| start_collection | reset their rows, ask for actions | | |
| sync_weights | | take the newest policy | pack it |
| finish_collection | simulate | answer | |
| update | send trajectories | | learn |
"""

from __future__ import annotations

from rlrun.controller.controller import Batch
from rlrun.system.errors import ExitStatus, RunError
from rlrun.training.lifecycle import Run


def synchronous(run: Run) -> ExitStatus:
    """Train until all steps are done. Raises StopRequested after a signal, and RunError."""
    while True:
        try:
            run.run_pending_evaluation()
            if run.is_over():
                return run.finish()
            run.begin_step()
            collection = run.start_collection(run.progress.step)
            run.sync_weights()
            batch = run.finish_collection(collection)
            metrics = run.update(batch)
            run.log(batch, metrics)
            del batch  # its trajectories leave the object store before the next ones arrive
            run.evaluate_and_save_if_due()
        except RunError as failure:
            run.recover(failure)  # after a lost actor worker, back to the last checkpoint; raises other failures


def asynchronous(run: Run) -> ExitStatus:
    """Train until all steps are done. Raises StopRequested after a signal, and RunError."""
    ahead: Batch | None = None  # the batch that was collected during the last update
    while True:
        try:
            run.run_pending_evaluation()
            if run.is_over():
                return run.finish()
            run.begin_step()
            step = run.progress.step
            if ahead is None:
                collection = run.start_collection(step)
                run.sync_weights()
                ahead = run.finish_collection(collection)
            batch = ahead
            ahead = None
            following = run.start_collection(step + 1) if run.has_next_step() else None
            run.sync_weights()
            metrics = run.update(batch)
            if following is not None:
                ahead = run.finish_collection(following)
            run.log(batch, metrics)
            run.evaluate_and_save_if_due()
        except RunError as failure:
            ahead = None  # the batch belongs to a state that no longer exists
            run.recover(failure)
