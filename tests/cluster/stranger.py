"""The attempts of an uninvited host; run there as `python -m tests.cluster.stranger`, it prints JSON.

Knows the open ports, as whoever scans for them would, and no token.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

_CONNECT_S = 3.0
_SILENCE_S = 12.0  # longer than rlrun waits for a token
_RAY_S = 60.0
_JOIN = """
import subprocess, sys, ray
ray.init(address=sys.argv[1], log_to_driver=False)
alive = [node for node in ray.nodes() if node["Alive"]]
run = ray.remote(num_cpus=0)(lambda: subprocess.run(["id"], capture_output=True, text=True).stdout)
print("joined", len(alive), ray.get(run.remote(), timeout=20))
"""
REQUESTS = {
    "random bytes": os.urandom(64),
    "nothing": b"",
    "a token's length": os.urandom(32),
    "HTTP": b"POST /get_or_create_runtime_env HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
}


def call(address: str, port: int, request: bytes) -> str:
    """Return the answer of a port: "refused", "silent" (it stays open), or the bytes until it closes, in hex."""
    received = b""
    try:
        with socket.create_connection((address, port), timeout=_CONNECT_S) as connection:
            connection.settimeout(_SILENCE_S)
            connection.sendall(request)
            while part := connection.recv(4096):
                received += part
    except ConnectionRefusedError:
        return "refused"
    except TimeoutError:
        return received.hex() or "silent"
    except OSError:
        return received.hex()  # reset
    return received.hex()


def join(head: str, environment: dict[str, str]) -> str:
    """Return the output of a driver that joins the cluster and runs `id` there."""
    return _output([sys.executable, "-c", _JOIN, head], environment)


def add_node(head: str, environment: dict[str, str]) -> str:
    """Return the output of `ray start`, which offers this host to the cluster."""
    words = [sys.executable, "-m", "ray.scripts.scripts", "start", f"--address={head}", "--num-cpus=1"]
    return _output([*words, "--disable-usage-stats", "--object-store-memory=100000000"], environment)


def _output(words: Sequence[str], environment: dict[str, str]) -> str:
    try:
        done = subprocess.run(
            words,
            env=os.environ | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_RAY_S,
            check=False,
        )
    except subprocess.TimeoutExpired as late:
        return f"no end: {(late.output or b'').decode(errors='replace')}"
    return f"status {done.returncode}: {done.stdout.decode(errors='replace')}"


def main() -> None:
    """Arguments: HEAD CLIENT ADDRESS:PORT…, of Ray, its server for remote clients ("" for none), and all ports."""
    head, client, *ports = sys.argv[1:]
    none, wrong = {"RAY_AUTH_MODE": "disabled"}, {"RAY_AUTH_TOKEN": "ab" * 32}
    ways = {"driver, no token": (join, head, none), "driver, a wrong token": (join, head, wrong)} if head else {}
    if client:
        ways |= {"node, a wrong token": (add_node, head, wrong), "client, no token": (join, f"ray://{client}", none)}
    with ThreadPoolExecutor(128) as pool:
        joins = {name: pool.submit(*way) for name, way in ways.items()}
        calls = {
            f"{port} {name}": pool.submit(call, *_parts(port), request)
            for port in ports
            for name, request in REQUESTS.items()
        }
        received = {"joins": joins, "calls": calls}
        print(json.dumps({kind: {key: one.result() for key, one in of.items()} for kind, of in received.items()}))


def _parts(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


if __name__ == "__main__":
    main()
