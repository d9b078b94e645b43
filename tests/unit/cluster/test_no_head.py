"""An address without a Ray head is refused within seconds, before Ray's own client prints lines for a minute."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from rlrun.cluster import membership
from rlrun.cluster.launch import Machines
from rlrun.cluster.membership import no_head
from rlrun.config.loader import load
from rlrun.system.errors import ExitStatus, RunError


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def address(server: socket.socket) -> str:
    return f"127.0.0.1:{server.getsockname()[1]}"


def answering(server: socket.socket, answer: bytes) -> None:
    """Give one client an answer."""

    def serve() -> None:
        connection, _ = server.accept()
        with connection:
            connection.recv(64)
            connection.sendall(answer)

    threading.Thread(target=serve, daemon=True).start()


def test_a_port_that_nobody_listens_to(listener: socket.socket) -> None:
    place = address(listener)
    listener.close()
    assert no_head(place) == "nothing listens there"


def test_another_server(listener: socket.socket) -> None:
    answering(listener, b"HTTP/1.1 400 Bad Request\r\n\r\n")
    assert no_head(address(listener)) == "what listens there is not Ray"


def test_a_server_that_says_nothing(listener: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership, "_GREETING_S", 0.2)
    assert no_head(address(listener)) == "nothing there answers"


def test_a_server_of_http2(listener: socket.socket) -> None:
    answering(listener, bytes([0, 0, 6, 4, 0, 0, 0, 0, 0]) + bytes(6))
    assert no_head(address(listener)) is None


def test_words_for_an_address_are_left_to_ray() -> None:
    assert no_head("auto") is None


def test_a_run_at_such_an_address_is_refused(listener: socket.socket) -> None:
    answering(listener, b"SSH-2.0-OpenSSH_9.2\r\n")
    began = time.monotonic()
    with pytest.raises(RunError) as caught:
        Machines(load([f"cluster.address='{address(listener)}'"]))
    assert (caught.value.key, caught.value.exit_status) == ("cluster.address", ExitStatus.placement)
    assert "not Ray" in str(caught.value.cause) and time.monotonic() - began < 30
