"""Env workers that share a rollout worker: batched alike always, none waits without end."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from rlrun.edges.batcher import Batcher, Pipeline, split_into_groups
from rlrun.system.errors import ExitStatus, RunError
from rlrun.system.telemetry import Telemetry


def asked(member, policy_version=0):
    return SimpleNamespace(env_worker=member, policy_version=policy_version)


def chunks(observations):
    return ["chunk" for _ in observations]


def batcher_of(act, deadline_s=10.0, version=lambda: 0):
    telemetry = Telemetry("rollout/0")
    return Batcher(act, version, telemetry, deadline_s), telemetry


def test_batches_are_whole_and_ordered():
    batches = []

    def act(observations):
        batches.append([o.env_worker for o in observations])
        return [o.env_worker * 10 for o in observations]

    batcher, telemetry = batcher_of(act)
    batcher.open(1, {0, 1, 2})
    for member in (2, 0):
        batcher.add(1, asked(member), f"client {member}")
        assert batcher.results() == []
    assert telemetry.status().waits[0].on == ("env/1",)
    batcher.add(1, asked(1), "client 1")
    assert batcher.results() == [("client 0", 0), ("client 1", 10), ("client 2", 20)]
    assert batches == [[0, 1, 2]]
    assert telemetry.status().waits == () and batcher.results() == []


def test_leaving_frees_the_others():
    batcher, _ = batcher_of(chunks)
    batcher.open(1, {0, 1})
    batcher.add(1, asked(0), "client")
    batcher.leave(1, 1)
    assert batcher.results() == [("client", "chunk")]


def test_an_env_worker_that_died_after_its_request_is_in_no_batch():
    batcher, _ = batcher_of(chunks)
    batcher.open(1, {0, 1})
    batcher.add(1, asked(0), "dead")
    batcher.leave(1, 0)
    batcher.add(1, asked(1), "alive")
    assert batcher.results() == [("alive", "chunk")]


def test_a_failed_pass_reaches_all():
    def act(observations):
        raise ValueError("no weights")

    batcher, _ = batcher_of(act)
    batcher.open(1, {0, 1})
    for member in (0, 1):
        batcher.add(1, asked(member), member)
    results = batcher.results()
    assert [to for to, _ in results] == [0, 1]
    for _, failure in results:
        assert failure.message == "rollout/0.act failed: ValueError: no weights"
        assert (failure.worker, failure.exit_status) == ("rollout/0", ExitStatus.unexpected)
        assert "in act" in failure.cause


def test_the_missing_one_is_named():
    batcher, _ = batcher_of(chunks, deadline_s=-1.0)
    batcher.open(1, {0, 3})
    batcher.add(1, asked(0), "client")
    ((to, failure),) = batcher.results()
    assert to == "client" and "[3]" in failure.message
    assert (failure.worker, failure.exit_status) == ("env/3", ExitStatus.stalled)


def test_a_batch_waits_for_the_newest_version_that_it_needs():
    version = [-1]
    batcher, telemetry = batcher_of(chunks, version=lambda: version[0])
    batcher.open(1, {0, 1})
    batcher.add(1, asked(0, 2), "a")
    batcher.add(1, asked(1, 3), "b")
    for version[0] in (-1, 2):
        assert batcher.results() == []
        (wait,) = telemetry.status().waits
        assert (wait.what, wait.on) == ("weights", ("actor/0",))
    version[0] = 4
    assert batcher.results() == [("a", "chunk"), ("b", "chunk")]
    assert telemetry.status().waits == ()


@pytest.mark.parametrize(("version", "cause"), [(-1, "has no weights yet"), (2, "has version 2")])
def test_weights_that_do_not_arrive_are_reported(version, cause):
    batcher, telemetry = batcher_of(chunks, deadline_s=-1.0, version=lambda: version)
    batcher.open(1, {0})
    batcher.add(1, asked(0, 3), "client")
    ((to, failure),) = batcher.results()
    assert to == "client" and "policy version 3 has not arrived" in failure.message and cause in failure.cause
    assert (failure.worker, failure.exit_status) == ("actor/0", ExitStatus.stalled)
    assert telemetry.status().waits == ()


def test_a_new_collection_refuses_the_old_one():
    batcher, _ = batcher_of(chunks)
    batcher.open(1, {0, 1})
    batcher.add(1, asked(0), "old")
    batcher.open(2, {0})
    batcher.add(2, asked(0), "new")
    batcher.leave(1, 0)  # of the old one: changes nothing
    (old, over), new = batcher.results()
    assert old == "old" and isinstance(over, RunError) and "collection 1, which is over" in over.message
    assert over.exit_status is ExitStatus.worker_lost
    assert new == ("new", "chunk")
    batcher.add(1, asked(0), "late")
    batcher.add(2, asked(7), "no member")
    (late, over), (other, refused) = batcher.results()
    assert (late, other) == ("late", "no member")
    assert "collection 1, which is over" in over.message and "env worker 7" in refused.message


def test_a_collection_given_up_during_the_pass_is_not_answered():
    def act(observations):
        batcher.open(2, {0})
        return ["chunk"]

    batcher, _ = batcher_of(act)
    batcher.open(1, {0})
    batcher.add(1, asked(0), "client")
    ((to, over),) = batcher.results()
    assert to == "client" and "collection 1, which is over" in over.message


# --- groups -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("members", "num_groups", "groups"),
    [({2, 0, 1}, 2, [[0, 1], [2]]), ({3, 5}, 3, [[3], [5]]), ({4}, 1, [[4]]), (set(), 2, [[]])],
)
def test_groups(members, num_groups, groups):
    assert split_into_groups(members, num_groups) == groups


def pipeline_of(act):
    return Pipeline(act, lambda: 0, Telemetry("rollout/0"), 2, threading.Lock(), 10.0)


def test_a_group_is_answered_while_the_other_has_not_asked():
    batches = []

    def act(observations):
        batches.append([o.env_worker for o in observations])
        return [o.env_worker * 10 for o in observations]

    pipeline = pipeline_of(act)
    pipeline.open(1, {0, 1, 2, 3})
    for member in (1, 0):
        assert list(pipeline.results()) == []
        pipeline.add(1, asked(member), member)
    assert list(pipeline.results()) == [(0, 0), (1, 10)]
    for member in (2, 3):
        pipeline.add(1, asked(member), member)
    assert list(pipeline.results()) == [(2, 20), (3, 30)]
    assert batches == [[0, 1], [2, 3]]


def test_the_results_of_a_group_are_there_before_the_next_one_is_inferred():
    events = []

    def act(observations):
        events.append([o.env_worker for o in observations])
        return ["chunk"] * len(observations)

    pipeline = pipeline_of(act)
    pipeline.open(1, {0, 1})
    for member in (0, 1):
        pipeline.add(1, asked(member), member)
    for to, _ in pipeline.results():
        events.append(to)
    assert events == [[0], 0, [1], 1]


def test_leaving_concerns_the_own_group():
    pipeline = pipeline_of(chunks)
    pipeline.open(1, {0, 1, 2})
    pipeline.leave(1, 1)
    for member in (0, 2):
        pipeline.add(1, asked(member), member)
    assert list(pipeline.results()) == [(0, "chunk"), (2, "chunk")]


def test_an_env_worker_that_was_replaced_meanwhile_is_refused():
    pipeline = pipeline_of(chunks)
    pipeline.open(1, {0, 1})
    pipeline.open(2, {1})
    pipeline.leave(1, 0)
    pipeline.add(1, asked(0), "late")
    ((to, over),) = pipeline.results()
    assert to == "late" and isinstance(over, RunError) and "collection 1, which is over" in over.message
    pipeline.add(2, asked(1), "in time")
    assert list(pipeline.results()) == [("in time", "chunk")]


def test_a_worker_that_takes_weights_is_itself_what_its_batch_waits_for():
    """Its engine may hang while it takes them; then the sender of the weights is not to blame."""
    lock, telemetry = threading.Lock(), Telemetry("rollout/0")
    pipeline = Pipeline(chunks, lambda: -1, telemetry, 1, lock, 10.0)
    pipeline.open(1, {0})
    pipeline.add(1, asked(0, 1), "client")
    assert list(pipeline.results()) == []
    assert telemetry.status().waits[0].on == ("actor/0",)
    with lock:
        assert telemetry.status().waits == ()
