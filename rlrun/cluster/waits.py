"""The one wait on Ray: bounded, first failure first, the late ones named."""

from __future__ import annotations

import time
from typing import Any

import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError, GetTimeoutError, RayTaskError

from rlrun.config.errors import RunError
from rlrun.config.exit_status import ExitStatus

_POLL_S = 1.0  # so that signals are served while waiting


def wait_for(labels: dict[ray.ObjectRef, str], subject: str, deadline_s: float) -> list[Any]:
    """The values of the references, in their order.

    labels: what each reference stands for, as "env/0.collect". Whichever fails first is raised at
    once. Raises RunError naming those that are late after `deadline_s` seconds.
    """
    values: dict[ray.ObjectRef, Any] = {}
    open_refs = list(labels)
    end = time.monotonic() + deadline_s
    while open_refs:
        ready, open_refs = ray.wait(open_refs, num_returns=1, timeout=min(_POLL_S, max(0.0, end - time.monotonic())))
        for ref in ready:
            values[ref] = _value(ref, labels[ref], max(_POLL_S, end - time.monotonic()))
        if not ready and time.monotonic() >= end:
            raise _late([labels[ref] for ref in open_refs], subject, deadline_s)
    return [values[ref] for ref in labels]


def _value(ref: ray.ObjectRef, label: str, timeout_s: float) -> Any:
    try:
        return ray.get(ref, timeout=timeout_s)
    except RayTaskError as error:
        cause = error.cause
        if isinstance(cause, RunError):
            raise cause from None
        raise RunError(
            f"{label} failed: {type(cause).__name__}: {cause}",
            cause=str(error).strip(),
            remedy="the worker's log in the run folder has what came before",
            exit_status=ExitStatus.unexpected,
        ) from error
    except (ActorDiedError, ActorUnavailableError) as error:
        raise RunError(
            f"{label}: its process ended",
            cause=str(error).strip(),
            remedy="see the worker's log in the run folder, and the kernel log for out-of-memory kills",
            exit_status=ExitStatus.worker_lost,
        ) from error
    except GetTimeoutError as error:
        raise _late([label], "the value of a finished request", timeout_s) from error


def _late(late: list[str], subject: str, deadline_s: float) -> RunError:
    return RunError(
        f"{subject}: not there after {deadline_s:.0f} s; late: {', '.join(late)}",
        cause="the worker is stuck, or slower than the deadline allows",
        remedy="read its log in the run folder; if it is only slow, raise cluster.step_deadline_s",
        exit_status=ExitStatus.stalled,
    )
