"""Who holds a port of this machine."""

from __future__ import annotations

import os
import socket

from rlrun.system.network import port_holder


def test_a_port_is_free_or_its_holder_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert f"(pid {os.getpid()})" in str(port_holder(port))
    assert port_holder(port) is None


def test_connections_that_ended_hold_no_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        client = socket.create_connection(("127.0.0.1", port))
        accepted, _ = server.accept()
        accepted.close()  # this side waits in TIME_WAIT
        client.close()
    assert port_holder(port) is None


def test_a_port_that_this_user_may_not_have() -> None:
    if os.geteuid() == 0:
        os.seteuid(65534)
        try:
            assert port_holder(81) in ("Permission denied", None)  # None where unprivileged ports begin below
        finally:
            os.seteuid(0)
    else:
        assert port_holder(81) in ("Permission denied", None)
