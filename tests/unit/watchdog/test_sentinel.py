"""The sentinel ignores requests without its token."""

from __future__ import annotations

import socket
import struct
import threading

from rlrun.watchdog import sentinel

RESET = struct.pack("ii", 1, 0)  # closing then sends a reset


def test_requests_without_the_token_get_no_answer_and_leave_no_traceback(monkeypatch, capfd):
    monkeypatch.setattr(sentinel._Handler, "timeout", 0.3)
    with sentinel._Server(socket.create_server(("127.0.0.1", 0)), "secret", []) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        strangers = [socket.create_connection(server.server_address, 10) for _ in range(20)]
        for stranger in strangers[:5]:
            stranger.sendall(b'{"token": "wrong", "processes": {}, "is_full": true}\n')
        for stranger in strangers[5:10]:
            stranger.sendall(b"\x00\xff" * 100)
        for stranger in strangers[10:12]:
            stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            stranger.close()
        assert [stranger.recv(1) for stranger in strangers[:5] + strangers[12:]] == [b""] * 13
        server.shutdown()
    assert capfd.readouterr().err == ""
