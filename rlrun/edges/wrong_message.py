"""The error for an invalid message, which is a fault of the worker that sent it.

The first invalid message counts as the loss of its sender: the sender is replaced, and its peers continue. If its
replacement sends an invalid message in the same training step, the run ends (`controller.recovery.Recovery`).
"""

from __future__ import annotations

from rlrun.system.errors import ExitStatus, RunError

WRONG_MESSAGE = "wrong-message"  # kind of these errors
WRONG_AGAIN = "wrong-message-again"  # kind of the error that ends the run


def wrong_message(sender: str, what: str, cause: str, exit_status: ExitStatus = ExitStatus.worker_lost) -> RunError:
    """Return the error for an invalid message. sender: the worker at fault, as "env/1"."""
    remedy = (
        "resume from an earlier checkpoint with a lower actor.lr, or actor.param_precision=fp32"
        if exit_status is ExitStatus.diverged
        else "read the log of that worker in the run folder; if its node is well (memory, versions), report it"
    )
    return RunError(
        f"{sender}: {what}",
        cause=cause,
        remedy=remedy,
        exit_status=exit_status,
        worker=sender,
        kind=WRONG_MESSAGE,
    )
