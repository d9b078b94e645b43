"""Ray's errors as RunErrors."""

from __future__ import annotations

import errno

import pytest
from ray.exceptions import ActorDiedError, ActorUnavailableError, ObjectLostError, OutOfDiskError, RayTaskError

from rlrun.cluster import waits
from rlrun.system.exit_status import ExitStatus

MAKER = "ray::Host.run() (pid=779, ip=10.77.0.1)\n  ray::Host.converse() (pid=980, ip=10.77.0.2)\n  OutOfDiskError"


def outcome(monkeypatch, error):
    def get(ref, timeout):
        raise error

    monkeypatch.setattr(waits.ray, "get", get)
    return waits._outcome("ref", "actor/0.update", 1.0)


def died(text):
    error = ActorDiedError()
    error.error_msg = text
    return error


@pytest.mark.parametrize(
    ("error", "what"),
    [
        (died("The actor is dead because its worker process has died."), "its process ended"),
        (died("The actor died because its node has died. Node Id: ab"), "its node left the cluster"),
        (died("raised in its creation task, ray::…\nTypeError: no"), "it could not be started: TypeError: no"),
        (ActorUnavailableError("…", b"0" * 16), "its process ended, or it cannot be reached"),
        (ObjectLostError("ab" * 28, None, ""), "what it held is gone"),
    ],
)
def test_a_lost_worker(monkeypatch, error, what):
    found = outcome(monkeypatch, error)
    assert found.message == f"actor/0.update: {what}"
    assert (found.worker, found.exit_status) == ("actor/0", ExitStatus.worker_lost)


def test_a_full_disk_is_on_the_node_that_could_not_store_its_result(monkeypatch):
    found = outcome(monkeypatch, RayTaskError("run", MAKER, OutOfDiskError("full")))
    assert found.message == "The object store of node 10.77.0.2 is full, and so is the disk that it spills to."
    assert (found.worker, found.exit_status) == (None, ExitStatus.storage)


def test_a_full_disk_is_no_loss_of_the_worker(monkeypatch):
    found = outcome(monkeypatch, RayTaskError("run", "…", OSError(errno.ENOSPC, "No space left on device")))
    assert found.message == "actor/0.update could not write: a disk is full."
    assert (found.worker, found.exit_status) == (None, ExitStatus.storage)
    other = outcome(monkeypatch, RayTaskError("run", "…", OSError(errno.EPERM, "Operation not permitted")))
    assert (other.worker, other.exit_status) == ("actor/0", ExitStatus.unexpected)


def test_lost_input_is_a_loss_of_its_consumer(monkeypatch):
    found = outcome(monkeypatch, RayTaskError("run", "…", ObjectLostError("ab" * 28, None, "")))
    assert "gone with the node that held it" in found.message and found.exit_status is ExitStatus.worker_lost
