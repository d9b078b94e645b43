"""Which failures are survived, and how often."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from rlrun.config.schema import RunConfig
from rlrun.controller import startup as startup_module
from rlrun.controller.recovery import Recovery
from rlrun.edges.wrong_message import wrong_message
from rlrun.system.errors import ExitStatus, RunError


class Workers:
    sizes = {"env": 2, "rollout": 1, "actor": 2}

    def __init__(self):
        self.can_replace = True
        self.replaced = []
        self.moved = []  # with the next one that is replaced
        self.failures = []  # of the next replacements

    def replace(self, role, rank):
        self.replaced.append(f"{role}/{rank}")
        if self.failures:
            raise self.failures.pop(0)
        moved, self.moved = self.moved, []
        return [(role, rank), *moved]


@pytest.fixture
def recovery():
    config = RunConfig()
    config.env.num_envs, config.env.num_workers = 8, 2
    config.rollout.num_workers = 2
    return made(config)


def made(config: RunConfig) -> SimpleNamespace:
    config.recovery.max_env_restarts, config.recovery.max_rollout_restarts, config.recovery.max_actor_restarts = 2, 1, 1
    workers, notes = Workers(), []
    return SimpleNamespace(of=Recovery(config, workers, notes.append), workers=workers, notes=notes)


def failure(worker, status=ExitStatus.worker_lost):
    return RunError(f"{worker}.collect: its process ended", exit_status=status, worker=worker)


@pytest.mark.parametrize("status", [ExitStatus.worker_lost, ExitStatus.stalled, ExitStatus.unexpected])
def test_a_lost_stuck_or_raising_worker_is_replaced_and_counted(recovery, status):
    recovery.of.replace(failure("env/1", status))
    assert recovery.workers.replaced == ["env/1"] and recovery.of.not_loaded() == [("env", 1)]
    assert recovery.notes == ["env/1.collect: its process ended; it is replaced (1 of at most 2)"]
    (loss,) = recovery.of.drain()
    assert (loss.worker, loss.num_envs) == ("env/1", 4) and recovery.of.drain() == []
    recovery.of.loaded("env", 1)
    assert recovery.of.not_loaded() == []


@pytest.mark.parametrize(
    ("worker", "status"),
    [
        ("actor/0", ExitStatus.worker_lost),  # the caller's: it knows the checkpoint
        ("env/0", ExitStatus.storage),
        ("rollout/0", ExitStatus.bad_input),
        (None, ExitStatus.worker_lost),
        ("train-0", ExitStatus.unexpected),
    ],
)
def test_everything_else_is_raised_as_it_is(recovery, worker, status):
    final = failure(worker, status)
    with pytest.raises(RunError) as raised:
        recovery.of.replace(final)
    assert raised.value is final and recovery.workers.replaced == []


def test_one_too_many_ends_the_run_with_the_key_that_says_so(recovery):
    recovery.of.replace(failure("rollout/0"))
    with pytest.raises(RunError, match="1 replacement went before") as raised:
        recovery.of.replace(failure("rollout/0"))
    with pytest.raises(RunError) as again:
        recovery.of.replace(raised.value)  # the operation around it looks at it, too
    assert again.value is raised.value
    assert raised.value.key == "recovery.max_rollout_restarts" and raised.value.exit_status is ExitStatus.worker_lost


def test_last_words_of_a_replaced_worker_count_once(recovery):
    on_failure = recovery.of.once()
    for worker in ("env/1", "env/1", "env/0"):
        on_failure(failure(worker))
    assert recovery.workers.replaced == ["env/1", "env/0"]


def test_last_words_of_a_worker_that_was_replaced_elsewhere_meanwhile(recovery):
    on_failure = recovery.of.once()
    recovery.of.replace(failure("env/1"))
    on_failure(failure("env/1"))
    assert recovery.workers.replaced == ["env/1"]
    recovery.of.once()(failure("env/1"))  # of a request to its successor
    assert recovery.workers.replaced == ["env/1", "env/1"]


def test_all_actor_ranks_go_together(recovery):
    recovery.of.replace_actors(failure("actor/1"))
    assert recovery.workers.replaced == ["actor/0", "actor/1"]
    with pytest.raises(RunError):
        recovery.of.replace_actors(failure("actor/0", ExitStatus.unexpected))  # it would raise again


def test_whoever_moves_with_a_lost_node_is_loaded_anew_and_counted_once(recovery):
    on_failure = recovery.of.once()
    recovery.workers.moved = [("env", 0), ("rollout", 0)]
    for worker in ("env/1", "env/0", "rollout/0"):
        on_failure(failure(worker))
    assert recovery.workers.replaced == ["env/1"]
    assert recovery.of.not_loaded() == [("env", 1), ("env", 0), ("rollout", 0)]
    assert [(loss.worker, loss.num_envs) for loss in recovery.of.drain()] == [
        ("env/1", 4),
        ("env/0", 4),
        ("rollout/0", 0),
    ]
    on_failure = recovery.of.once()
    on_failure(failure("rollout/0"))  # the node counted for the worker that was missed first, and for no other


def test_workers_that_move_with_an_actor_node_are_loaded_anew(recovery):
    recovery.workers.moved = [("actor", 1), ("env", 1)]
    recovery.of.replace_actors(failure("actor/0"))
    assert recovery.of.not_loaded() == [("env", 1)]
    assert [loss.worker for loss in recovery.of.drain()] == ["actor/0", "env/1"]


def test_a_cluster_that_has_ended_gives_no_successors(recovery):
    """Who saves the run waits for actors; what dies beside them is passed over, in that round only."""
    recovery.workers.can_replace = False
    replace = recovery.of.once()
    for worker in ("env/0", "rollout/0"):
        replace(failure(worker))
    with pytest.raises(RunError, match="actor/0"):
        replace(failure("actor/0"))
    assert recovery.workers.replaced == [] and recovery.notes == [] and recovery.of.drain() == []


def test_a_broken_link_replaces_nobody_and_counts_once(recovery):
    broken = failure("rollout/0")
    broken.message, broken.kind = "the link between train and sim broke 4 times in 60 s", "link-broke"
    replace = recovery.of.once()
    replace(broken)
    replace(broken)  # told by another env worker
    assert recovery.workers.replaced == [] == recovery.of.not_loaded() == recovery.of.drain()
    assert recovery.notes == [f"{broken.message}; its request is repeated (1 of at most 1)"]
    with pytest.raises(RunError, match="broke 4 times"):
        recovery.of.once()(broken)


@pytest.mark.parametrize("worker", ["env/1", "actor/1"])
def test_a_new_process_that_does_not_start_is_another_loss(recovery, worker):
    recovery.workers.failures = [failure(worker, ExitStatus.stalled)]
    replace = recovery.of.replace if worker == "env/1" else recovery.of.replace_actors
    limit = {"env/1": 2, "actor/1": 1}[worker]
    if limit == 1:
        with pytest.raises(RunError, match="1 replacement went before"):
            replace(failure(worker))
    else:
        replace(failure(worker))
        assert recovery.workers.replaced == ["env/1", "env/1"] and len(recovery.of.drain()) == 2
    recovery.workers.failures = [failure("rollout/0", ExitStatus.stalled)]
    with pytest.raises(RunError):
        replace(failure(worker))


def test_new_actor_processes_are_told_how_much_room_they_need(monkeypatch):
    """The killed ones give their accelerator back after their end."""
    config = RunConfig()
    monkeypatch.setattr(startup_module, "policy_counts", lambda _: None)
    monkeypatch.setattr(startup_module, "actor_memory", lambda *_: SimpleNamespace(resident_bytes=45))
    asked = []
    actor = SimpleNamespace(load=lambda folder, room: asked.append((folder, room)), num_buckets=lambda: (2, 1))
    actors = SimpleNamespace(call_first=lambda request, *_: request(actor))
    startup = startup_module.Startup(config, Workers(), actors, None, None)
    monkeypatch.setattr(startup, "_load_in_waves", lambda group, request: request(actor))
    assert startup.load_actor("policy") == (2, 1)
    assert asked == [("policy", 45)]


BATCHES = "the same episodes of env/1 are collected again, in batches of another size"
DROPPED = "running episodes of env/1 were dropped"
REPEATED = "steps are repeated with other running episodes"


@pytest.mark.parametrize(
    ("carries", "num_rollouts", "worker", "cause"),
    [
        (False, 1, "env/1", BATCHES),
        (False, 2, "env/1", ""),  # each env worker is answered alone
        (False, 1, "rollout/0", ""),  # what it had not answered is asked again
        (False, 1, "actor/0", ""),  # the steps since the checkpoint are repeated, equal to the bit
        (True, 2, "env/1", DROPPED),
        (True, 2, "rollout/0", ""),
        (True, 2, "actor/0", REPEATED),
    ],
)
def test_what_is_not_repeatable_after_a_replacement_is_said_once(carries, num_rollouts, worker, cause):
    config = RunConfig()
    config.env.num_envs, config.env.num_workers, config.rollout.num_workers = 8, 2, num_rollouts
    config.algorithm.carry_episodes = carries
    recovery = made(config)
    replace = recovery.of.replace_actors if worker == "actor/0" else recovery.of.replace
    replace(failure(worker))
    told = [note for note in recovery.notes if "bit for bit" in note]
    verb = "may" if cause == BATCHES else "does"
    assert told == ([f"{cause}: the run {verb} not go on bit for bit"] if cause else [])
    if worker == "env/1":
        replace(failure("env/0"))
        assert [note for note in recovery.notes if "bit for bit" in note] == told
    recovery.of.tell_inexact("running episodes were dropped")  # by the resume of the actor, for example
    assert sum("bit for bit" in note for note in recovery.notes) == 1


def test_a_wrong_answer_drops_the_carried_episodes_of_those_whom_it_was_for():
    config = RunConfig()
    config.env.num_envs, config.env.num_workers, config.rollout.num_workers = 8, 2, 2
    config.algorithm.carry_episodes = True
    recovery = made(config)
    recovery.of.replace(wrong_message("rollout/0", "it answers NaN", "in an action"))
    assert (
        "running episodes that it answered wrongly were dropped: the run does not go on bit for bit" in recovery.notes
    )
