"""The members of a cluster, read while its head ends."""

from __future__ import annotations

import socket
import time

from rlrun.cluster import membership

RAY_TRIES_S = 40.0


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
