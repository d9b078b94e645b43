"""A conversation between an env worker and a rollout worker over a real connection, of either kind."""

from __future__ import annotations

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace

import numpy as np
import pytest

from rlrun.channel.inquirer import Inquirer
from rlrun.channel.lane import Door, LaneClosed, connect
from rlrun.channel.reception import Reception
from rlrun.channel.stages import Stages
from rlrun.data.messages import ActionChunk, Frames, Observation
from rlrun.observability.telemetry import Telemetry
from rlrun.system.errors import RunError
from rlrun.system.exit_status import ExitStatus

NODES = {"the same node": "here", "another node": "there"}


def observation(rank, value, size=8):
    frames = Frames(np.full((2, 1, size, size, 3), value, np.uint8), np.zeros((2, 3), np.float32), ("go",) * 2)
    return Observation(rank, frames, np.arange(2, dtype=np.uint64), 1.0, None)


def answer_with_the_first_pixel(observations):
    nothing = np.zeros((2, 1), np.float32)
    return [
        ActionChunk(np.full((2, 1, 1), o.frames.images.flat[0], np.float32), nothing, nothing, nothing[:, 0], None, 7)
        for o in observations
    ]


@pytest.fixture
def desk():
    """A reception, and a rollout worker behind it."""
    telemetry = Telemetry("rollout/0")
    stages = Stages(answer_with_the_first_pixel, telemetry, 1, 1, threading.Lock(), 30.0)
    return Reception(stages, Door("127.0.0.1", "here", 10.0, 10.0), telemetry)


def inquirer(rank, node):
    return Inquirer(rank, Telemetry(f"env/{rank}"), node, 10.0, 30.0)


def talk(rank, num_questions, size=8):
    """Asks with images of one value, and returns what came back."""
    heard = []
    for value in range(num_questions):
        chunk = yield observation(rank, value, size)
        chunk.actions[:] += 0  # what arrives may be written to
        heard.append(float(chunk.actions[0, 0, 0]))
    return heard, "shard"


@pytest.mark.parametrize("node", NODES.values(), ids=NODES)
@pytest.mark.parametrize("size", [8, 600])  # larger than any socket's buffer
def test_conversations(desk, node, size):
    askers = [inquirer(0, node), inquirer(1, node)]
    for conversation in (1, 2):  # the second over the same connections
        desk.open(conversation, {0, 1})
        with ThreadPoolExecutor(2) as pool:  # who leaves first frees the other
            talks = [
                pool.submit(askers[rank].converse, [talk(rank, num, size)], desk.address, "rollout/0", conversation)
                for rank, num in ((0, 5), (1, 3))
            ]
            assert [each.result(30) for each in talks] == [[([0, 1, 2, 3, 4], "shard")], [([0, 1, 2], "shard")]]


@pytest.fixture
def desk_of_two_parts():
    """The same, where the rows of an env worker ask in two parts."""
    telemetry = Telemetry("rollout/0")
    stages = Stages(answer_with_the_first_pixel, telemetry, 2, 2, threading.Lock(), 30.0)
    return Reception(stages, Door("127.0.0.1", "here", 10.0, 10.0), telemetry)


def part_of(talked, part):
    """The same conversation, of a part of the rows."""
    answer = None
    while True:
        try:
            answer = yield replace(talked.send(answer), part=part)
        except StopIteration as finished:
            return finished.value


@pytest.mark.parametrize("node", NODES.values(), ids=NODES)
@pytest.mark.parametrize("size", [8, 600])
def test_parts_of_unlike_length_each_get_their_own_answers(desk_of_two_parts, node, size):
    desk, lengths = desk_of_two_parts, {0: (5, 2), 1: (1, 4)}
    desk.open(1, {0, 1})
    with ThreadPoolExecutor(2) as pool:
        talks = [
            pool.submit(
                inquirer(rank, node).converse,
                [part_of(talk(rank, num, size), part) for part, num in enumerate(lengths[rank])],
                desk.address,
                "rollout/0",
                1,
            )
            for rank in (0, 1)
        ]
        heard = [[part[0] for part in each.result(30)] for each in talks]
    assert heard == [[list(range(num)) for num in lengths[rank]] for rank in (0, 1)]


def test_a_part_simulates_while_another_is_answered(desk_of_two_parts):
    """The second part's simulator goes on only when the first part has heard its answer, and the other way round."""
    events = []

    def steps(name, num):
        for value in range(num):
            events.append(f"{name}{value}")
            yield observation(0, value)

    desk_of_two_parts.open(1, {0})
    talks = [part_of(steps(name, 3), part) for part, name in enumerate("ab")]
    inquirer(0, "here").converse(talks, desk_of_two_parts.address, "rollout/0", 1)
    assert events == ["a0", "b0", "a1", "b1", "a2", "b2"]


def test_answers_that_a_broken_conversation_left_behind_are_not_taken_for_those_of_the_next(desk_of_two_parts):
    desk, asker = desk_of_two_parts, inquirer(0, "here")

    def broken():
        yield observation(0, 9)
        raise OSError("the simulator broke")

    desk.open(1, {0})
    with pytest.raises(OSError, match="the simulator broke"):  # while the other part's answer is on its way
        asker.converse([broken(), part_of(talk(0, 3), 1)], desk.address, "rollout/0", 1)
    desk.open(2, {0})
    talks = [part_of(talk(0, 4), part) for part in (0, 1)]
    assert asker.converse(talks, desk.address, "rollout/0", 2) == [([0, 1, 2, 3], "shard")] * 2


def test_a_policy_that_raises_is_told_once_and_the_next_conversation_is_sound(desk_of_two_parts):
    desk, asker = desk_of_two_parts, inquirer(0, "here")
    for meeting in desk._meetings._meetings:
        meeting._act = lambda observations: 1 / 0
    desk.open(1, {0})
    with pytest.raises(RunError, match="ZeroDivisionError"):
        asker.converse([part_of(talk(0, 3), part) for part in (0, 1)], desk.address, "rollout/0", 1)
    for meeting in desk._meetings._meetings:
        meeting._act = answer_with_the_first_pixel
    desk.open(2, {0})
    talks = [part_of(talk(0, 4), part) for part in (0, 1)]
    assert asker.converse(talks, desk.address, "rollout/0", 2) == [([0, 1, 2, 3], "shard")] * 2


@pytest.mark.parametrize("node", NODES.values(), ids=NODES)
def test_long_questions_and_long_answers_do_not_wait_for_each_other(node):
    """Each is larger than all buffers between the two, and both are sent at the same time."""
    telemetry, num_rows = Telemetry("rollout/0"), 1 << 20

    def act(observations):
        numbers = np.zeros((num_rows, 4), np.float32)
        return [ActionChunk(numbers[:, None], numbers, numbers, None, None, 7) for _ in observations]

    stages = Stages(act, telemetry, 2, 2, threading.Lock(), 30.0)
    desk = Reception(stages, Door("127.0.0.1", "here", 10.0, 10.0), telemetry)
    desk.open(1, {0})

    def asking(part):
        for _ in range(3):
            chunk = yield replace(observation(0, part, 2000), part=part)
            assert chunk.actions.shape == (num_rows, 1, 4)
        return part

    with ThreadPoolExecutor(1) as pool:
        talks = [asking(0), asking(1)]
        assert pool.submit(inquirer(0, node).converse, talks, desk.address, "rollout/0", 1).result(60) == [0, 1]


def test_who_comes_before_the_conversation_is_open_waits_for_it(desk):
    with ThreadPoolExecutor(2) as pool:
        early = pool.submit(inquirer(0, "here").converse, [talk(0, 3)], desk.address, "rollout/0", 1)
        gone = pool.submit(inquirer(1, "here").converse, [talk(1, 0)], desk.address, "rollout/0", 1)
        assert gone.result(30) == [([], "shard")]
        with pytest.raises(TimeoutError):
            early.result(0.2)
        desk.open(1, {0, 1})  # and nobody waits for the one that has left already
        assert early.result(30) == [([0, 1, 2], "shard")]


def test_a_simulator_that_raises_frees_the_others(desk):
    desk.open(1, {0, 1})

    def broken():
        raise OSError("the simulator broke")
        yield

    with pytest.raises(OSError, match="the simulator broke"):
        inquirer(1, "here").converse([broken()], desk.address, "rollout/0", 1)
    parts = inquirer(0, "here").converse([talk(0, 2)], desk.address, "rollout/0", 1)
    assert parts == [([0, 1], "shard")]


def test_what_the_policy_raises_arrives(desk):
    desk._meetings._meetings[0]._act = lambda observations: 1 / 0
    desk.open(1, {0})
    with pytest.raises(RunError, match="rollout/0.act failed: ZeroDivisionError") as raised:
        inquirer(0, "there").converse([talk(0, 1)], desk.address, "rollout/0", 1)
    assert (raised.value.worker, raised.value.exit_status) == ("rollout/0", ExitStatus.unexpected)


@pytest.mark.parametrize("node", NODES.values(), ids=NODES)
def test_a_rollout_worker_that_is_gone_is_named(node):
    door = Door("127.0.0.1", "here", 10.0, 10.0)
    for listener in door.listeners:
        listener.close()
    with pytest.raises(RunError, match="rollout/0.act: its process ended") as raised:
        inquirer(0, node).converse([talk(0, 1)], door.address, "rollout/0", 1)
    assert (raised.value.worker, raised.value.exit_status) == ("rollout/0", ExitStatus.worker_lost)


def test_a_rollout_worker_that_dies_is_noticed():
    door = Door("127.0.0.1", "here", 10.0, 10.0)

    def die():
        door.listeners[0].setblocking(True)
        connection, _ = door.listeners[0].accept()
        connection.recv(len(door.address.token), socket.MSG_WAITALL)
        lane = door.lane(connection)
        lane.receive()
        lane.close()

    thread = threading.Thread(target=die)
    thread.start()
    with pytest.raises(RunError, match="rollout/0.act: its process ended"):
        inquirer(0, "there").converse([talk(0, 1)], door.address, "rollout/0", 1)
    thread.join(10)


@pytest.mark.parametrize("node", NODES.values(), ids=NODES)
def test_silence_ends_a_wait(desk, node):
    with pytest.raises(LaneClosed, match="nothing came for 0 s"):
        connect(desk.address, node, 10.0, 0.2).receive()


def test_strangers_are_not_heard(desk):
    with socket.create_connection((desk.address.host, desk.address.port), 10) as stranger:
        stranger.sendall(b"GET / HTTP/1.0\r\nHost: nobody\r\n\r\n"[:32])
        assert stranger.recv(1) == b""
    lane = connect(replace(desk.address, token=bytes(32)), "here", 10.0, 10.0)
    with pytest.raises(LaneClosed):
        lane.receive()
    desk.open(1, {0})
    assert inquirer(0, "here").converse([talk(0, 1)], desk.address, "rollout/0", 1) == [([0], "shard")]


@pytest.mark.parametrize("node", NODES.values(), ids=NODES)
def test_strangers_who_connect_and_say_nothing_delay_nobody(desk, node, caplog):
    """Each was once waited for, for five seconds, while no env worker was answered."""
    asker = inquirer(0, node)
    with ExitStack() as strangers, caplog.at_level("WARNING"):
        silent = [
            strangers.enter_context(socket.create_connection((desk.address.host, desk.address.port), 10))
            for _ in range(25)
        ]
        silent[0].sendall(desk.address.token[:-1])  # all but the last byte
        started = time.monotonic()
        desk.open(1, {0})
        assert asker.converse([talk(0, 3)], desk.address, "rollout/0", 1) == [([0, 1, 2], "shard")]
        assert time.monotonic() - started < 10.0  # 125 s, where each is waited for
        assert [stranger.recv(1) for stranger in silent] == [b""] * 25  # sent away, each at its deadline
        desk.open(2, {0})
        assert asker.converse([talk(0, 1)], desk.address, "rollout/0", 2) == [([0], "shard")]
    told = [record.message for record in caplog.records if "without the token" in record.message]
    assert [text.partition(":")[0] for text in told] == [
        f"{count} connections without the token from 127.0.0.1" for count in (1, 10)
    ]


def test_a_flood_of_strangers_keeps_no_env_worker_out(desk):
    with ExitStack() as strangers:
        for _ in range(200):
            strangers.enter_context(socket.create_connection((desk.address.host, desk.address.port), 10))
        desk.open(1, {0})
        assert inquirer(0, "there").converse([talk(0, 2)], desk.address, "rollout/0", 1) == [([0, 1], "shard")]
