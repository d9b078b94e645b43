"""Ray's errors as RunErrors."""

from __future__ import annotations

import errno
from types import SimpleNamespace

import pytest
from ray.exceptions import (
    ActorDiedError,
    ActorUnavailableError,
    ActorUnschedulableError,
    GetTimeoutError,
    ObjectLostError,
    ObjectStoreFullError,
    OutOfDiskError,
    RayError,
    RayTaskError,
    TaskUnschedulableError,
)

from rlrun.cluster import waits
from rlrun.system.errors import ExitStatus, RunError
from rlrun.system.telemetry import Telemetry

MAKER = "ray::Host.run() (pid=779, ip=10.77.0.1)\n  ray::Host.run_episodes() (pid=980, ip=10.77.0.2)\n  OutOfDiskError"


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
        (ObjectLostError("ab" * 28, None, ""), "an object it held is lost"),
    ],
)
def test_a_lost_worker(monkeypatch, error, what):
    found = outcome(monkeypatch, error)
    assert found.message == f"actor/0.update: {what}"
    assert (found.worker, found.exit_status) == ("actor/0", ExitStatus.worker_lost)


def classes_of(error: type) -> list[type]:
    return [error, *(found for below in error.__subclasses__() for found in classes_of(below))]


@pytest.mark.parametrize("kind", [kind for kind in classes_of(RayError)[1:] if not issubclass(kind, RayTaskError)])
def test_every_error_of_ray_is_a_named_failure(monkeypatch, kind):
    """Also those that a later Ray adds."""
    error = kind.__new__(kind)
    monkeypatch.setattr(kind, "__str__", lambda self: "its own words")
    found = outcome(monkeypatch, error)
    if issubclass(kind, GetTimeoutError):
        assert found.exit_status is ExitStatus.stalled
    elif issubclass(kind, (OutOfDiskError, ObjectStoreFullError)):
        assert found.exit_status is ExitStatus.storage and "actor/0.update" in found.cause
    else:
        assert found.exit_status is ExitStatus.worker_lost and found.message.startswith("actor/0.update: ")
    inside = outcome(monkeypatch, RayTaskError("run", "its own words", error))
    assert inside.exit_status in (ExitStatus.worker_lost, ExitStatus.storage)


@pytest.mark.parametrize("kind", [TaskUnschedulableError, ActorUnschedulableError])
def test_what_was_to_start_on_a_node_that_left_names_the_node(monkeypatch, kind):
    monkeypatch.setattr(waits.ray, "get", lambda ref, timeout: (_ for _ in ()).throw(kind("no node")))
    found = waits._outcome("ref", "sim (10.77.0.2).probe", 1.0)
    assert found.message == "sim (10.77.0.2).probe: its node left the cluster"
    assert (found.worker, found.exit_status) == (None, ExitStatus.worker_lost)


def test_a_wait_that_no_watchdog_watches_says_after_20_s_what_it_waits_for(monkeypatch, caplog):
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(waits.time, "monotonic", lambda: clock.now)

    def wait(refs, num_returns, timeout):
        clock.now += timeout
        return [], refs

    monkeypatch.setattr(waits.ray, "wait", wait)
    with pytest.raises(RunError, match=r"reports: not there after 60 s; late: sim\.probe"):
        waits.wait_for({"ref": "sim.probe"}, "reports", 60.0, Telemetry("driver/0"))
    assert caplog.messages == ["reports: 20 s so far, at most 60 s; not there: sim.probe"]


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
    assert "input lost: its node died" in found.message and found.exit_status is ExitStatus.worker_lost
