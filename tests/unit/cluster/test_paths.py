"""Paths from this process to the other nodes of the cluster are measured, and reported with both names."""

from __future__ import annotations

import socket

import pytest

from rlrun.cluster import probe
from rlrun.cluster.probe import path_fault, path_faults, require_paths
from rlrun.cluster.ray_nodes import RayNode
from rlrun.placement.network import PathMtu
from rlrun.system.errors import RunError

HERE = RayNode("train", "a", "127.0.0.1", 2, 0, is_head=True, port=7001)
SIM = RayNode("sim", "b", "10.77.0.2", 2, 0, is_head=False, port=7002)


@pytest.fixture
def asked(monkeypatch) -> list[tuple[str, int]]:
    """The measured paths; that to 10.77.0.2 loses large packets."""
    measured: list[tuple[str, int]] = []

    def measure(address: str, port: int) -> PathMtu:
        measured.append((address, port))
        return PathMtu("enp3s0", 1500, 1400)

    monkeypatch.setattr(probe, "ray_nodes", lambda: [HERE, SIM])
    monkeypatch.setattr(probe, "measure_path", measure)
    return measured


def test_a_path_that_loses_packets_ends_the_program_before_any_request(asked) -> None:
    here = socket.gethostname()
    with pytest.raises(RunError, match=f"packets of 1500 bytes from {here} to sim get lost, 1400 arrive"):
        require_paths()
    assert asked == [("10.77.0.2", 7002)]


def test_a_worker_behind_such_a_path_is_not_blamed(asked) -> None:
    assert path_fault(HERE) is None
    assert "to sim get lost, 1400 arrive" in str(path_fault(SIM))


def test_the_paths_of_a_run_are_tried_without_asking_ray_again(asked) -> None:
    measure = path_faults([HERE, SIM])
    (fault,) = measure()
    assert "to sim get lost, 1400 arrive" in fault and asked == [("10.77.0.2", 7002)]


@pytest.mark.parametrize(
    ("path", "words"),
    [
        (PathMtu("enp3s0", 1500, 1400), "the network loses large packets: packets of 1500 bytes from "),
        (PathMtu("enp3s0", 1500, 1500, 2.34), "to sim take 2.3 s or more to be acknowledged, but are not lost"),
        (PathMtu("enp3s0", 1500, 1500), None),
        (None, None),
    ],
)
def test_delay_is_told_from_loss(asked, monkeypatch, path, words) -> None:
    monkeypatch.setattr(probe, "measure_path", lambda address, port: path)
    found = path_faults([HERE, SIM])()
    assert [words in fault for fault in found] == ([True] if words else [])


def test_a_cluster_of_one_node_has_no_path(asked, monkeypatch) -> None:
    monkeypatch.setattr(probe, "ray_nodes", lambda: [HERE])
    require_paths()
    assert asked == []


@pytest.mark.parametrize("answer", [True, False, None])
def test_a_link_is_up_if_anything_answers_and_the_message_says_what_to_do(monkeypatch, answer) -> None:
    tried = []
    monkeypatch.setattr(probe, "is_listening", lambda address: (tried.append(address), answer)[1])
    ((link, attempt),) = probe.link_tries([HERE, SIM]).items()
    assert link == "the link between train and sim" and attempt() is (answer is not None)
    assert tried == ["10.77.0.2:7002"]
    told = probe.node_state(SIM, 10.0)
    assert ("sim (10.77.0.2) is up, but not in the cluster" in told) is (answer is not None)
    assert "start Ray there again" in told and ("lost_after_s=10 s" in told) is (answer is not None)
