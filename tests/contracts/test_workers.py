"""One suite for every way to run workers: in one process, and on Ray."""

from __future__ import annotations

import time

import numpy as np
import pytest

from rlrun.config.loader import load
from rlrun.controller import startup
from rlrun.controller.controller import Controller
from rlrun.placement.plan import ROLES
from rlrun.placement.planner import plan
from rlrun.placement.this_machine import known_inventory
from rlrun.placement.workload import Workload
from rlrun.system.errors import ExitStatus, RunError
from tests.workers import start_workers

SMALL = ["demos.num_episodes=4", "sft.num_steps=4", "env.num_envs=4", "algorithm.horizon=4", "rollout.num_workers=1"]
KINDS = {
    "local": ["cluster.kind=local", "env.num_workers=2", "actor.num_workers=1"],
    "ray": ["env.num_workers=2", "actor.num_workers=2"],
    "ray-collective": ["env.num_workers=2", "actor.num_workers=2", "weight_sync.transport=collective"],
}


MARKS = {kind: [pytest.mark.integration] for kind in KINDS} | {"ray-collective": [pytest.mark.long]}


@pytest.fixture(scope="module", params=[pytest.param(kind, marks=MARKS[kind]) for kind in KINDS])
def controller(request, tmp_path_factory):
    """A loaded controller with policy version 0 on its rollout workers."""
    run_dir = tmp_path_factory.mktemp(request.param)
    config = load(
        ["run=debug", *SMALL, *KINDS[request.param], f"output_dir={run_dir}", "weight_sync.bucket_bytes=200000"]
    )
    workers = start_workers(config, plan(Workload(config), known_inventory(config)), ROLES, run_dir)
    try:
        controller = Controller(config, workers)
        controller.load_simulators()
        controller.form_mesh()
        controller.record_demos(str(run_dir / "demos"))
        controller.imitate(str(run_dir / "demos"), ("zed_link",))
        controller.export(str(run_dir / "policy"))
        with pytest.MonkeyPatch.context() as small_node:
            if request.param == "ray-collective":  # as where memory bears one loading worker at a time
                small_node.setattr(startup, "loading_room", lambda plan, free: {n.node.name: 1 for n in plan.nodes})
            controller.load_actor(str(run_dir / "policy"))
            controller.load_rollout(str(run_dir / "policy"))
        controller.sync_weights(0)
        yield controller
    finally:
        workers.close()
        workers.close()  # closing twice is safe


def test_a_training_step(controller):
    batch = controller.collect(0, policy_version=0)
    assert batch.num_control_steps == 4 * 4 * 4 and batch.policy_version == 0
    owned = 2 // controller.config.actor.num_workers  # env workers that hold rows of a rank
    assert [len(shards) for shards in batch.shards] == [owned] * controller.config.actor.num_workers
    metrics = controller.update(0, batch)
    assert metrics["num_chunk_steps"] == 16 and metrics["rollout_logprob_gap"] < 1e-5
    batch = controller.collect(1, policy_version=1)
    assert batch.policy_version == 1 == controller.held_version
    assert controller.update(1, batch)["rollout_logprob_gap"] < 1e-5  # so the rollout worker acted with the new weights


@pytest.mark.parametrize(("version", "lost"), [(2, None), (3, "env/1"), (4, "rollout/0")])
def test_observations_wait_for_the_version_that_they_need(controller, version, lost):
    collection = controller.start_collection(version, version)
    time.sleep(0.5)  # env workers have asked
    if lost is not None:
        controller.recovery.replace(RunError("lost", exit_status=ExitStatus.worker_lost, worker=lost))
    controller.sync_weights(version)
    batch = controller.finish_collection(collection)
    metrics = controller.update(version, batch)
    assert batch.policy_version == version and metrics["num_chunk_steps"] == 16
    assert metrics["rollout_logprob_gap"] < 1e-5
    assert [loss.worker for loss in controller.recovery.drain()] == ([lost] if lost else [])


def test_collecting_is_reproducible(controller):
    def tokens():
        batch = controller.collect(7, policy_version=5)
        shards = [shard for shards in batch.shards for shard in shards]
        return [shard.tokens for shard in controller.workers.wait(shards, "shards", 60.0)]

    first, second = tokens(), tokens()
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


def test_evaluation_covers_every_seed(controller):
    parts = controller.evaluate(list(range(5)), num_videos=1, policy_version=5)
    assert sorted(e.seed for part in parts for e in part.episodes) == list(range(5))
    assert len([video for part in parts for video in part.videos]) == 1


def test_statuses_and_spans_name_every_worker(controller):
    names = {f"{role}/{rank}" for role, count in controller.workers.sizes.items() for rank in range(count)}
    assert {status.worker for status in controller.workers.statuses()} == names
    controller.collect(2, 5)
    spans = controller.workers.spans()
    assert set(spans) == names and "simulate" in {span.name for span in spans["env/1"]}


def test_a_failure_in_a_worker_reaches_the_caller(controller):
    with pytest.raises((RunError, AttributeError), match="no_such_method"):
        controller.envs.wait([controller.envs.submit(1, lambda env: env.no_such_method())], "nothing", 30.0)


def test_a_replaced_worker_is_brought_to_where_its_peers_are(controller):
    before = controller.collect(9, 5).num_control_steps
    for worker in ("env/1", "rollout/0"):
        controller.recovery.replace(RunError("lost", exit_status=ExitStatus.worker_lost, worker=worker))
        assert controller.collect(9, 5).num_control_steps == before
    assert [loss.worker for loss in controller.recovery.drain()] == ["env/1", "rollout/0"]


def test_what_is_no_loss_is_raised(controller):
    for failure in (
        RunError("full", exit_status=ExitStatus.storage, worker="env/1"),
        RunError("nobody's", exit_status=ExitStatus.worker_lost),
        RunError("its shard is gone", exit_status=ExitStatus.worker_lost, worker="actor/0"),
    ):
        with pytest.raises(RunError) as raised:
            controller.recovery.replace(failure)
        assert raised.value is failure
    assert controller.recovery.drain() == []
