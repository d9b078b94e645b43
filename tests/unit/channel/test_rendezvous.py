"""Env workers that share a rollout worker: always batched alike, none waits without end."""

from __future__ import annotations

from types import SimpleNamespace

from rlrun.channel.rendezvous import Rendezvous
from rlrun.observability.telemetry import Telemetry
from rlrun.system.errors import RunError
from rlrun.system.exit_status import ExitStatus


def question(member):
    return SimpleNamespace(env_worker=member)


def meeting_of(act, deadline_s=10.0):
    telemetry = Telemetry("rollout/0")
    return Rendezvous(act, telemetry, deadline_s), telemetry


def test_rounds_are_whole_and_ordered():
    batches = []

    def act(observations):
        batches.append([o.env_worker for o in observations])
        return [o.env_worker * 10 for o in observations]

    meeting, telemetry = meeting_of(act)
    meeting.open(1, {0, 1, 2})
    for member in (2, 0):
        meeting.ask(1, question(member), f"lane {member}")
        assert meeting.replies() == []
    assert telemetry.status().waits[0].on == ("env/1",)
    meeting.ask(1, question(1), "lane 1")
    assert meeting.replies() == [("lane 0", 0), ("lane 1", 10), ("lane 2", 20)]
    assert batches == [[0, 1, 2]]
    assert telemetry.status().waits == () and meeting.replies() == []


def test_leaving_frees_the_others():
    meeting, _ = meeting_of(lambda observations: ["chunk" for _ in observations])
    meeting.open(1, {0, 1})
    meeting.ask(1, question(0), "lane")
    meeting.leave(1, 1)
    assert meeting.replies() == [("lane", "chunk")]


def test_a_failed_pass_reaches_everyone():
    def act(observations):
        raise ValueError("no weights")

    meeting, _ = meeting_of(act)
    meeting.open(1, {0, 1})
    for member in (0, 1):
        meeting.ask(1, question(member), member)
    replies = meeting.replies()
    assert [asker for asker, _ in replies] == [0, 1]
    for _, failure in replies:
        assert failure.message == "rollout/0.act failed: ValueError: no weights"
        assert (failure.worker, failure.exit_status) == ("rollout/0", ExitStatus.unexpected)
        assert "in act" in failure.cause


def test_the_missing_one_is_named():
    meeting, _ = meeting_of(lambda observations: [], deadline_s=-1.0)
    meeting.open(1, {0, 3})
    meeting.ask(1, question(0), "lane")
    ((asker, failure),) = meeting.replies()
    assert asker == "lane" and "[3]" in failure.message
    assert (failure.worker, failure.exit_status) == ("env/3", ExitStatus.stalled)


def test_a_new_conversation_turns_the_old_one_away():
    meeting, _ = meeting_of(lambda observations: ["chunk" for _ in observations])
    meeting.open(1, {0, 1})
    meeting.ask(1, question(0), "old")
    meeting.open(2, {0})
    meeting.ask(2, question(0), "new")
    meeting.leave(1, 0)  # of the old one: changes nothing
    (old, over), new = meeting.replies()
    assert old == "old" and isinstance(over, RunError) and "conversation 2, which is over" not in str(over)
    assert over.exit_status is ExitStatus.worker_lost
    assert new == ("new", "chunk")
    meeting.ask(1, question(0), "late")
    ((late, over),) = meeting.replies()
    assert late == "late" and "conversation 1, which is over" in over.message


def test_a_conversation_given_up_during_the_pass_is_not_answered():
    def act(observations):
        meeting.open(2, {0})
        return ["chunk"]

    meeting, _ = meeting_of(act)
    meeting.open(1, {0})
    meeting.ask(1, question(0), "lane")
    ((asker, over),) = meeting.replies()
    assert asker == "lane" and "conversation 1, which is over" in over.message
