"""The members of a cluster, read while its head ends."""

from __future__ import annotations

import socket
import time
from types import SimpleNamespace

import pytest

from rlrun.cluster import membership, node_service
from rlrun.config.schema import RunConfig
from rlrun.system.errors import RunError

RAY_TRIES_S = 40.0
TWO = {"train": "10.77.0.1", "sim.cluster": "10.77.0.2"}


def test_a_head_that_listens_and_does_not_answer_is_not_waited_for(monkeypatch):
    """A head may end between the probe and the request."""
    monkeypatch.setattr(membership, "_ANSWER_S", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        head = f"127.0.0.1:{silent.getsockname()[1]}"
        began = time.monotonic()
        assert membership.is_listening(head) is True
        assert membership.joined(head) == {}
        assert time.monotonic() - began < RAY_TRIES_S / 2
    assert membership.is_listening(head) is False and membership.joined(head) == {}


def test_without_a_token_no_request_is_sent(monkeypatch):
    """Ray would end this process."""
    monkeypatch.setenv("RAY_AUTH_TOKEN", "")
    with socket.create_server(("127.0.0.1", 0)) as head:
        assert membership.admits(f"127.0.0.1:{head.getsockname()[1]}") is False


@pytest.mark.parametrize("expected", [["train", "sim"], ["10.77.0.1", "10.77.0.2"], ["train.cluster", "10.77.0.2"]])
def test_nodes_are_expected_by_name_or_address(monkeypatch, expected):
    config = RunConfig()
    config.node.expected = expected
    config.cluster.start_deadline_s = 0.0
    process = SimpleNamespace(is_alive=True, settings=SimpleNamespace(head="10.77.0.1:6379"))
    monkeypatch.setattr(node_service, "joined", lambda head: TWO)
    node_service._wait_nodes(config, process, lambda: False)
    config.node.expected = [*expected, "10.77.0.3"]
    with pytest.raises(RunError, match=r"1 of 3 nodes have not joined within 0 s: 10\.77\.0\.3\."):
        node_service._wait_nodes(config, process, lambda: False)
