"""Env workers that share a rollout worker: always batched alike, none waits without end."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from rlrun.cluster.rendezvous import Rendezvous
from rlrun.config.errors import RunError
from rlrun.observability.telemetry import Telemetry


def ask(member):
    return SimpleNamespace(env_worker=member)


def test_rounds_are_whole_and_ordered():
    batches = []

    def act(observations):
        batches.append([o.env_worker for o in observations])
        return [o.env_worker * 10 for o in observations]

    meeting = Rendezvous(act, Telemetry("rollout/0"))
    meeting.open(1, {0, 1, 2})

    def client(member):
        return [meeting.act(1, ask(member), 10.0) for _ in range(20)]

    with ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(client, (2, 0, 1)))
    assert batches == [[0, 1, 2]] * 20
    assert answers == [[20] * 20, [0] * 20, [10] * 20]


def test_leaving_frees_the_others():
    meeting = Rendezvous(lambda observations: ["chunk" for _ in observations], Telemetry("rollout/0"))
    meeting.open(1, {0, 1})
    threading.Timer(0.1, meeting.leave, [1, 1]).start()
    assert meeting.act(1, ask(0), 10.0) == "chunk"


def test_a_failed_pass_reaches_everyone():
    def act(observations):
        raise ValueError("no weights")

    meeting = Rendezvous(act, Telemetry("rollout/0"))
    meeting.open(1, {0, 1})
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(meeting.act, 1, ask(member), 10.0) for member in (0, 1)]
        for future in waiting:
            with pytest.raises(ValueError, match="no weights"):
                future.result(10)


def test_the_missing_one_is_named():
    meeting = Rendezvous(lambda observations: [], Telemetry("rollout/0"))
    meeting.open(1, {0, 3})
    with pytest.raises(RunError, match=r"\[3\]"):
        meeting.act(1, ask(0), 0.05)


def test_a_new_conversation_turns_the_old_one_away():
    meeting = Rendezvous(lambda observations: ["chunk" for _ in observations], Telemetry("rollout/0"))
    meeting.open(1, {0, 1})
    threading.Timer(0.1, meeting.open, [2, {0}]).start()
    with pytest.raises(RunError, match="conversation 1; 2 is going on"):
        meeting.act(1, ask(0), 10.0)
    meeting.leave(1, 0)  # of the old one: changes nothing
    assert meeting.act(2, ask(0), 10.0) == "chunk"
