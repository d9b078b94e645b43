"""The end of the head is noticed in every state of another node, also while that node still joins."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time

import pytest

from rlrun.cluster.node_process import Head, NodeProcess, NodeSettings
from rlrun.system.errors import RunError


@pytest.fixture
def listener():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def _address(listener: socket.socket) -> str:
    return f"127.0.0.1:{listener.getsockname()[1]}"


def test_three_refusals_in_a_row_are_an_end(listener):
    head = Head(_address(listener), is_here=False)
    assert head.is_running and not head.has_ended
    listener.close()
    assert [(head.is_running, head.has_ended) for _ in range(3)] == [(False, False), (False, False), (False, True)]


def test_the_head_is_always_running_on_its_own_node(listener):
    head = Head(_address(listener), is_here=True)
    listener.close()
    head.wait(0.0, lambda: False)
    assert all(head.is_running for _ in range(4)) and not head.has_ended


def test_a_head_that_does_not_start_is_named(listener):
    address = _address(listener)
    listener.close()
    with pytest.raises(RunError, match=f"{address} refuses connections"):
        Head(address, is_here=False).wait(0.3, lambda: False)


def test_a_head_whose_ray_is_started_a_second_time_is_waited_for(listener, monkeypatch):
    """It listens before its own node has joined; if that takes too long on a busy host, Ray begins anew there."""
    asked = []
    answers = iter([None, None, None, None, True])  # of the first start, of none for a while, and of the second one
    monkeypatch.setattr("rlrun.cluster.node_process.admits", lambda address: asked.append(address) or next(answers))
    head = Head(_address(listener), is_here=False)
    head.wait(60.0, lambda: False)
    assert len(asked) == 5 and not head.has_ended


def test_a_head_that_listens_without_a_node_is_named(listener, monkeypatch):
    monkeypatch.setattr("rlrun.cluster.node_process.admits", lambda address: None)
    with pytest.raises(RunError, match="listens, but Ray has not started there"):
        Head(_address(listener), is_here=False).wait(0.3, lambda: False)


def test_joining_ends_with_the_head(listener, tmp_path, monkeypatch):
    monkeypatch.setattr(
        NodeProcess, "_start", lambda self: subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    )
    monkeypatch.setattr(
        "rlrun.cluster.node_process._prctl", lambda *_: None
    )  # this would change the process of the tests
    monkeypatch.setattr("rlrun.cluster.node_process.joined", lambda head: {})  # the node never joins
    head = Head(_address(listener), is_here=False)
    settings = NodeSettings("sim", "127.0.0.1", _address(listener), False, str(tmp_path), None, 1, 0, None, 10.0)
    process = NodeProcess(settings, head)
    try:
        threading.Timer(0.5, listener.close).start()
        begin = time.monotonic()
        process.wait_joined(60.0, lambda: False)
        assert head.has_ended and time.monotonic() - begin < 30
    finally:
        process._sentinel.close()  # not `close`, which ends all children of the tests
        process._process.kill()
        process._process.wait()
