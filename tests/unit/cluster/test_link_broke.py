"""A lost connection between two living processes is put down to the link, if that broke; else to the far end."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from rlrun.cluster import ray_workers
from rlrun.cluster.ray_workers import RayWorkers
from rlrun.config.schema import RunConfig
from rlrun.edges.endpoints import _server_lost_error
from rlrun.system.errors import ExitStatus, RunError

BROKE = "the link between train and sim broke 4 times in 60 s (12 of 60 tries failed)"


def workers(monkeypatch, faults: list[str], has_ended: bool) -> RayWorkers:
    """Workers with one rollout worker, whose process has ended or not, and a link with these faults."""
    made = RayWorkers.__new__(RayWorkers)
    made._config, made._lifelines = RunConfig(), {("rollout", 0): "lifeline"}
    links = SimpleNamespace(sentences=lambda: faults, wait_up=lambda limit_s: None)
    made._watchdog = SimpleNamespace(network=SimpleNamespace(links=links))
    monkeypatch.setattr(ray_workers.ray, "wait", lambda refs, timeout: (refs, []) if has_ended else ([], refs))
    return made


def test_a_broken_link_is_blamed_and_not_the_well_worker_at_its_end(monkeypatch):
    found = workers(monkeypatch, [BROKE], has_ended=False)._link_broke(
        _server_lost_error("rollout/0", OSError("no heartbeat"))
    )
    assert found is not None and found.kind == "link-broke" and found.exit_status is ExitStatus.worker_lost
    assert found.message == f"{BROKE}: the connection to rollout/0 was lost, which still runs"
    assert (found.worker, found.cause) == ("rollout/0", "no heartbeat")


@pytest.mark.parametrize(("faults", "has_ended"), [([], False), ([BROKE], True), ([], True)])
def test_a_worker_that_ended_or_a_link_that_is_well_changes_nothing(monkeypatch, faults, has_ended):
    assert (
        workers(monkeypatch, faults, has_ended)._link_broke(_server_lost_error("rollout/0", OSError("no heartbeat")))
        is None
    )


def test_other_losses_are_no_links(monkeypatch):
    loss = RunError("rollout/0: its process ended", exit_status=ExitStatus.worker_lost, worker="rollout/0")
    assert workers(monkeypatch, [BROKE], has_ended=False)._link_broke(loss) is None
