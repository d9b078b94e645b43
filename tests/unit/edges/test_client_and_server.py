"""Env workers and a policy server over real connections, of either kind, and strangers who knock."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace

import numpy as np
import pytest
import zmq

from rlrun.edges import authentication, connection
from rlrun.edges.actions import ActionChunk
from rlrun.edges.authentication import new_token
from rlrun.edges.batcher import Pipeline
from rlrun.edges.connection import Connection, ConnectionLost, Request, Response, encode
from rlrun.edges.endpoints import PolicyClient, PolicyServer
from rlrun.edges.frames import Frames
from rlrun.edges.observations import Observation
from rlrun.system.errors import ExitStatus, RunError
from rlrun.system.telemetry import Telemetry

NODES = {"the same node": "here", "another node": "there"}


def observation(rank, value, size=8, policy_version=0):
    frames = Frames(np.full((2, 1, size, size, 3), value, np.uint8), np.zeros((2, 3), np.float32), ("go",) * 2)
    keys = np.arange(2, dtype=np.uint64)
    return Observation(rank, frames, keys, 1.0, None, policy_version=policy_version)


def answer_with_the_first_pixel(observations):
    nothing = np.zeros((2, 1), np.float32)
    return [
        ActionChunk(np.full((2, 1, 1), o.frames.images.flat[0], np.float32), nothing, nothing, nothing[:, 0], None, 7)
        for o in observations
    ]


class Policy:
    """What a rollout worker is to its server."""

    def __init__(self) -> None:
        self.act: Callable = answer_with_the_first_pixel
        self.version = 0


class Server:
    """A policy server, and the policy behind it."""

    def __init__(self, stack: ExitStack, num_groups=1, deadline_s=30.0):
        self.policy, self.telemetry = Policy(), Telemetry("rollout/0")
        pipeline = Pipeline(
            self._act,
            lambda: self.policy.version,
            self.telemetry,
            num_groups,
            threading.Lock(),
            deadline_s,
        )
        self.server = PolicyServer(pipeline, "127.0.0.1", "here", 10.0, self.telemetry)
        stack.callback(self.server.close)
        self.address, self.open = self.server.address, self.server.open
        host, port = self.address.tcp.removeprefix("tcp://").split(":")
        self.tcp = (host, int(port))

    def _act(self, observations):
        return self.policy.act(observations)


@pytest.fixture
def stack():
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def server(stack):
    return Server(stack)


@pytest.fixture
def client(stack):
    """Makes policy clients."""

    def make(rank, node="here"):
        client = PolicyClient(rank, Telemetry(f"env/{rank}"), node, 10.0, 30.0)
        stack.callback(client.close)
        return client

    return make


def episodes(rank, num_steps, size=8, policy_version=0):
    """Asks with images of one value, and returns what came back."""
    heard = []
    for value in range(num_steps):
        chunk = yield observation(rank, value, size, policy_version)
        chunk.actions[:] += 0  # what arrives may be written to
        heard.append(float(chunk.actions[0, 0, 0]))
    return heard, "shard"


@pytest.mark.parametrize("node", NODES.values(), ids=NODES)
@pytest.mark.parametrize("size", [8, 600])  # within one frame, and in frames of its own
def test_collections(server, client, node, size):
    clients = [client(0, node), client(1, node)]
    for collection in (1, 2):  # the second over the same connections
        server.open(collection, {0, 1})
        with ThreadPoolExecutor(2) as pool:  # an env worker that ends first frees the other
            runs = [
                pool.submit(clients[rank].run, episodes(rank, num, size), server.address, "rollout/0", collection)
                for rank, num in ((0, 5), (1, 3))
            ]
            assert [run.result(30) for run in runs] == [([0, 1, 2, 3, 4], "shard"), ([0, 1, 2], "shard")]


def test_a_group_simulates_while_another_is_answered(stack, client):
    server = Server(stack, num_groups=2)
    server.open(1, {0, 1})
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(client(0).run, episodes(0, 3), server.address, "rollout/0", 1)
        assert first.result(30) == ([0, 1, 2], "shard")  # the other group has sent nothing
        assert client(1).run(episodes(1, 2), server.address, "rollout/0", 1) == ([0, 1], "shard")


def test_a_collection_that_broke_off_leaves_nothing_to_the_next(server, client):
    asker = client(0)

    def broken():
        yield observation(0, 9)
        raise OSError("the simulator broke")

    server.open(1, {0})
    with pytest.raises(OSError, match="the simulator broke"):
        asker.run(broken(), server.address, "rollout/0", 1)
    server.open(2, {0})
    asker._connection.send(encode(Request(1, observation(0, 9))))  # its error comes before the next responses
    assert asker.run(episodes(0, 4), server.address, "rollout/0", 2) == ([0, 1, 2, 3], "shard")


def test_a_policy_that_raises_is_reported_and_the_next_collection_is_sound(server, client):
    server.policy.act = lambda observations: 1 / 0
    server.open(1, {0})
    asker = client(0, "there")
    with pytest.raises(RunError, match="rollout/0.act failed: ZeroDivisionError") as raised:
        asker.run(episodes(0, 1), server.address, "rollout/0", 1)
    assert (raised.value.worker, raised.value.exit_status) == ("rollout/0", ExitStatus.unexpected)
    server.policy.act = answer_with_the_first_pixel
    server.open(2, {0})
    assert asker.run(episodes(0, 4), server.address, "rollout/0", 2) == ([0, 1, 2, 3], "shard")


def test_requests_before_the_collection_is_open_wait_for_it(server, client):
    with ThreadPoolExecutor(2) as pool:
        early = pool.submit(client(0).run, episodes(0, 3), server.address, "rollout/0", 1)
        gone = pool.submit(client(1).run, episodes(1, 0), server.address, "rollout/0", 1)
        assert gone.result(30) == ([], "shard")
        with pytest.raises(TimeoutError):
            early.result(0.2)
        server.open(1, {0, 1})  # and the one that has ended already holds nobody up
        assert early.result(30) == ([0, 1, 2], "shard")


def test_observations_wait_for_the_policy_version_that_they_need(server, client):
    server.open(1, {0})
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(client(0).run, episodes(0, 2, policy_version=3), server.address, "rollout/0", 1)
        with pytest.raises(TimeoutError):
            run.result(0.3)
        (wait,) = server.telemetry.status().waits
        assert (wait.what, wait.on) == ("weights", ("actor/0",))
        server.policy.version = 3
        server.server.notify()
        assert run.result(30) == ([0, 1], "shard")
        assert server.telemetry.status().waits == ()


def test_a_simulator_that_raises_frees_the_others(server, client):
    server.open(1, {0, 1})

    def broken():
        raise OSError("the simulator broke")
        yield

    with pytest.raises(OSError, match="the simulator broke"):
        client(1).run(broken(), server.address, "rollout/0", 1)
    assert client(0).run(episodes(0, 2), server.address, "rollout/0", 1) == ([0, 1], "shard")


def assert_lost(run: Callable) -> RunError:
    with pytest.raises(RunError, match="rollout/0.act: its process ended") as raised:
        run()
    assert (raised.value.worker, raised.value.exit_status) == ("rollout/0", ExitStatus.worker_lost)
    return raised.value


@pytest.mark.parametrize("node", NODES.values(), ids=NODES)
def test_a_server_that_is_gone_is_named(stack, client, node):
    with ExitStack() as early:
        address = Server(early).address
    started = time.monotonic()
    assert_lost(lambda: client(0, node).run(episodes(0, 1), address, "rollout/0", 1))
    assert time.monotonic() - started < 5.0


@pytest.mark.parametrize("node", NODES.values(), ids=NODES)
def test_a_server_that_ends_is_noticed(client, node):
    with ExitStack() as early, ThreadPoolExecutor(1) as pool:
        server = Server(early)
        run = pool.submit(client(0, node).run, episodes(0, 1), server.address, "rollout/0", 1)
        with pytest.raises(TimeoutError):
            run.result(0.5)  # the collection is not open
        early.close()
        assert_lost(lambda: run.result(10))


@pytest.mark.parametrize("node", NODES.values(), ids=NODES)
def test_silence_ends_a_wait(stack, server, node):
    link = Connection(server.address, node, 10.0)
    stack.callback(link.close)
    with pytest.raises(ConnectionLost, match="no response for 0 s"):
        link.receive(0.2)


def test_an_array_that_no_frame_holds_is_refused_by_its_sender(server, client, monkeypatch):
    monkeypatch.setattr("rlrun.edges.connection.MAX_FRAME_BYTES", 100_000)
    server.open(1, {0})
    with pytest.raises(RunError, match="too large for the channel") as raised:
        client(0).run(episodes(0, 1, size=200), server.address, "rollout/0", 1)
    assert raised.value.key == "env.num_workers"


# --- strangers --------------------------------------------------------------------------------


def refusals(caplog) -> list[str]:
    return [record.message for record in caplog.records if "refused connections" in record.message]


def wait_until(condition: Callable[[], bool], deadline_s: float = 20.0) -> None:
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.parametrize("node", NODES.values(), ids=NODES)
def test_a_wrong_token_is_refused_and_reported(server, client, caplog, node):
    server.open(1, {0})
    wrong = replace(server.address, token=new_token())
    with caplog.at_level(logging.WARNING):
        error = assert_lost(lambda: client(0, node).run(episodes(0, 1), wrong, "rollout/0", 1))
        wait_until(lambda: bool(refusals(caplog)))
    assert "refuses this worker's token" in error.cause
    where = "127.0.0.1" if node == "there" else f"user {os.getuid()} of this node"
    assert refusals(caplog) == [f"1 refused connections or messages from {where}; the last one: has a wrong token"]
    assert server.telemetry.status().counters == {"strangers": 1}
    assert client(0, node).run(episodes(0, 1), server.address, "rollout/0", 1) == ([0], "shard")


@pytest.mark.parametrize("mechanism", [None, "CURVE"])
def test_a_client_of_another_mechanism_is_refused(stack, server, client, caplog, mechanism):
    server.open(1, {0})
    context = stack.enter_context(zmq.Context())
    stranger = context.socket(zmq.DEALER)
    stranger.linger = 0
    if mechanism is not None:
        public, secret = zmq.curve_keypair()
        stranger.curve_publickey = public
        stranger.curve_secretkey = secret
        stranger.curve_serverkey = public
    with caplog.at_level(logging.WARNING):
        stranger.connect(server.address.tcp)
        wait_until(lambda: bool(refusals(caplog)))
    stranger.close()
    assert client(0, "there").run(episodes(0, 1), server.address, "rollout/0", 1) == ([0], "shard")


def test_a_token_is_in_no_text_of_an_address(server):
    assert server.address.token.decode() not in repr(server.address)


@pytest.mark.parametrize("node", NODES.values(), ids=NODES)
def test_half_open_connections_delay_nobody_and_are_reported(stack, client, caplog, monkeypatch, node):
    monkeypatch.setattr(connection, "HANDSHAKE_S", 2.0)
    server = Server(stack)
    silent = [stack.enter_context(socket.create_connection(server.tcp, 10)) for _ in range(25)]
    silent[0].sendall(b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\0PLAIN")  # the beginning of a greeting
    with caplog.at_level(logging.WARNING):
        started = time.monotonic()
        server.open(1, {0})
        assert client(0, node).run(episodes(0, 3), server.address, "rollout/0", 1) == ([0, 1, 2], "shard")
        assert time.monotonic() - started < 10.0
        for each in silent:
            while each.recv(4096):  # libzmq greets first
                pass
        wait_until(lambda: server.telemetry.status().counters.get("strangers") == 25)
    assert [text.split(";")[0] for text in refusals(caplog)] == [
        f"{count} refused connections or messages from 127.0.0.1" for count in (1, 10)
    ]


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.0\r\nHost: nobody\r\n\r\n" * 4,
        os.urandom(256),
        b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\0PLAIN" + bytes(47) + b"\x06" + (1 << 40).to_bytes(8, "big") + b"HELLO",
    ],
    ids=["HTTP", "noise", "a frame of a terabyte"],
)
def test_other_protocols_are_disconnected_and_reported(server, client, caplog, said):
    server.open(1, {0})
    with caplog.at_level(logging.WARNING), socket.create_connection(server.tcp, 10) as stranger:
        stranger.sendall(said)
        stranger.settimeout(15)
        try:
            while stranger.recv(4096):
                pass
        except ConnectionResetError:
            pass
        wait_until(lambda: bool(refusals(caplog)))
    assert client(0, "there").run(episodes(0, 2), server.address, "rollout/0", 1) == ([0, 1], "shard")


def test_a_flood_of_strangers_keeps_no_env_worker_out(stack, server, client):
    for _ in range(200):
        stack.enter_context(socket.create_connection(server.tcp, 10))
    server.open(1, {0})
    assert client(0, "there").run(episodes(0, 2), server.address, "rollout/0", 1) == ([0, 1], "shard")


@pytest.mark.parametrize(
    "frames",
    [
        [b""],
        [b"\xc1"],
        [b"\x93\x01\x02\x03"],
        [encode(Request(1, observation(0, 0, 200)))[0]],  # without its array
        encode(Request(1, observation(0, 0, 200)))[:1] + [b"short"],
        encode(Response(1, RunError("a server's"))),
    ],
    ids=["empty", "no msgpack", "another type", "an array is missing", "an array is short", "a response"],
)
def test_malformed_messages_cost_nothing_and_are_reported(stack, server, client, caplog, frames):
    server.open(1, {0, 1})
    link = Connection(server.address, "there", 10.0)
    stack.callback(link.close)
    with caplog.at_level(logging.WARNING):
        link.send(frames)
        wait_until(lambda: bool(refusals(caplog)))
        server.open(2, {0})
        assert client(0, "there").run(episodes(0, 2), server.address, "rollout/0", 2) == ([0, 1], "shard")
    assert server.telemetry.failure == ""


def test_an_oversized_frame_ends_its_connection_alone(stack, client, monkeypatch):
    monkeypatch.setattr(connection, "MAX_FRAME_BYTES", 100_000)
    server = Server(stack)
    server.open(1, {0})
    link = Connection(server.address, "there", 10.0)
    stack.callback(link.close)
    link.send([bytes(200_000)])
    with pytest.raises(ConnectionLost, match="closed the connection"):
        link.receive(20)
    assert client(0, "there").run(episodes(0, 2), server.address, "rollout/0", 1) == ([0, 1], "shard")


def test_the_host_of_a_connection_that_has_ended_is_unknown():
    assert authentication.peer_host(-1) == "an unknown host"
