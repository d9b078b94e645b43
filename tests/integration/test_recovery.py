"""Workers that die in the middle of a run: what was lost is brought again, and nothing else changes."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rlrun.cluster.launch import Machines
from rlrun.config.loader import load
from rlrun.config.schema import RunConfig, WeightTransport
from rlrun.controller import collection
from rlrun.observability.run_files import TIMELINE, read_json_lines
from rlrun.observability.timeline import read_events
from rlrun.placement.plan import Plan
from rlrun.placement.weight_ways import Way
from rlrun.system.errors import ExitStatus
from rlrun.training.lifecycle import Run
from rlrun.training.loop import asynchronous, synchronous
from rlrun.training.session import Session, open_session

pytestmark = pytest.mark.integration

SMALL = ["run=debug", "policy.kind=cnn"]  # a policy that starts from scratch
SMALL += ["logging.tensorboard=false", "logging.video_episodes=0", "evaluation.num_episodes=1"]
SHAPE = ["env.num_workers=2", "env.num_envs=4", "actor.num_workers=2"]
SHAPE += ["algorithm.horizon=16"]  # episodes reach their time limit
# Where demonstrations or adapters matter; it takes twice as long.
ADAPTERS = ["policy.kind=openvla_oft", "actor.lora.rank=4", "actor.lr=1e-3"]
ROUNDING = 1e-3  # a batch of other rows is summed in another order
PHASES = {"env": "simulate", "rollout": "act", "actor": "update"}


class Killer(threading.Thread):
    """Ends workers one after another, each in its phase and with at least so many training steps done as it says."""

    def __init__(self, session: Session, workers: dict[str, int], before: Callable[[Path], None] | None):
        super().__init__(daemon=True)
        self.session, self.waiting, self.before = session, dict(workers), before

    def run(self):
        end = time.monotonic() + 120
        while time.monotonic() < end and self.waiting:
            time.sleep(0.01)
            worker, step = next(iter(self.waiting.items()))
            if len(list(read_json_lines(self.session.run_dir / "metrics.jsonl"))) < step:
                continue
            phase = PHASES[worker.split("/")[0]]
            for status in self.session.controller.workers.statuses():
                if status.worker == worker and status.phase == phase:
                    if self.before is not None:
                        self.before(self.session.run_dir)
                    os.kill(status.pid, signal.SIGKILL)
                    del self.waiting[worker]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Call with a name and overrides, and whom to kill after how many steps; returns (run folder, metrics)."""
    root = tmp_path_factory.mktemp("recovery")

    def call(
        name: str,
        *overrides: str,
        kill: dict[str, int] | None = None,
        before: Callable[[Path], None] | None = None,
        kind: type[Run] = Run,
        loop: Callable[[Run], ExitStatus] = synchronous,
    ):
        folder = root / name
        config = load([*SMALL, *SHAPE, "num_steps=3", f"output_dir={folder}", f"cache_dir={root}/cache", *overrides])
        with open_session(config, Machines(config), resumed_by="rlrun.train") as session:
            training = kind(session)
            killer = Killer(session, kill or {}, before)
            begin = training.begin_step
            training.begin_step = lambda: (None if killer.ident else killer.start(), begin())
            assert training.complete(loop) is ExitStatus.ok
            assert not killer.waiting
        return folder, [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]

    return call


@pytest.fixture(scope="module")
def undisturbed(run):
    return run("undisturbed")


def losses(folder: Path) -> list[dict]:
    return list(read_json_lines(folder / "losses.jsonl"))


def weights(folder: Path) -> bytes:
    return (folder / "policy" / "model.safetensors").read_bytes()


def check_learned_alike(ours: tuple[Path, list[dict]], clean: tuple[Path, list[dict]]):
    """The same episodes in every step, and the same results and losses up to the one in which the first worker was
    lost: the episodes of broken parts are in none of them. Later steps only begin alike, as rounding grows."""
    (folder, metrics), (clean_folder, clean_metrics) = ours, clean
    for line, other in zip(metrics, clean_metrics, strict=True):
        assert seeds(folder, line["step"]) == seeds(clean_folder, line["step"]) != []
        assert line["num_chunk_steps"] == other["num_chunk_steps"] and line["num_episodes"] == other["num_episodes"]
    lost = next(i for i, line in enumerate(metrics) if line["num_worker_restarts"])  # the first step, if it was caught
    for line, other in zip(metrics[: lost + 1], clean_metrics[: lost + 1], strict=True):
        assert line["success_rate"] == other["success_rate"]
        for name in ("episode_return", "policy_loss", "value_loss"):
            assert line[name] == pytest.approx(other[name], rel=ROUNDING, abs=ROUNDING)


def seeds(folder: Path, step: int) -> list[int]:
    """Of the sound episodes that a step counted."""
    lines = read_json_lines(folder / "episodes.jsonl")
    return sorted(line["seed"] for line in lines if line["step"] == step and not line["infra_fault"])


def test_an_env_worker_and_an_actor_worker_are_replaced(run):
    """Each in its turn. What the run then learns is judged by the tests that `make long` has."""
    folder, metrics = run("replaced", "num_steps=2", kill={"env/1": 0, "actor/1": 1})
    assert [loss["worker"] for loss in losses(folder)] == ["env/1", "actor/1"]
    assert [line["step"] for line in metrics] == [1, 2]  # the second from the checkpoint of the first
    assert sum(line["num_infra_faults"] for line in metrics) == 2  # the episodes of env/1
    assert all(line["num_worker_restarts"] for line in metrics)
    assert all(line["rollout_logprob_gap"] < 1e-5 for line in metrics)
    assert seeds(folder, 2) != []
    log = (folder / "logs" / "driver-0.log").read_text()
    assert log.count("env/1 are collected again, in batches of another size: the run may not go on bit for bit") == 1


@pytest.mark.long
def test_an_env_worker_dies_and_then_a_rollout_worker_in_its_turn(run, undisturbed):
    """The successor of the second loads, and gets the weights from an actor whose tensors are offloaded."""
    settings = ("weight_sync.transport=collective", "placement.offload=true")
    folder, metrics = run("turns", *settings, kill={"env/1": 0, "rollout/0": 1})
    assert [line["step"] for line in metrics] == [1, 2, 3]
    env, rollout = losses(folder)
    assert env["worker"] == "env/1" and env["num_envs"] == 2 and rollout["worker"] == "rollout/0"
    (disturbed,) = [line for line in metrics if line["num_infra_faults"]]
    assert disturbed["num_infra_faults"] == 2 and disturbed["step"] == env["step"] and disturbed["num_worker_restarts"]
    assert all(line["rollout_logprob_gap"] < 1e-5 for line in metrics)  # it uses the weights of its step
    check_learned_alike((folder, metrics), undisturbed)  # everything was collected, nothing twice


@pytest.fixture(scope="module")
def with_adapters(run):
    """A run whose rollout worker dies in the second step, and which merges adapters into its copy of the base."""
    return run("apart", *ADAPTERS, kill={"rollout/0": 1})


@pytest.mark.long
def test_a_rollout_worker_dies_that_has_adapters_of_its_own(with_adapters):
    """Its successor gets the newest ones."""
    folder, metrics = with_adapters
    assert [line["step"] for line in metrics] == [1, 2, 3]
    assert [loss["worker"] for loss in losses(folder)] == ["rollout/0"]
    assert all(line["rollout_logprob_gap"] < 1e-5 for line in metrics)  # it acts with the adapters of its step
    assert metrics[0]["approx_kl"] > 1e-5  # which are not those of the beginning


def beside(config: RunConfig, plan: Plan, has_ipc: bool = True) -> tuple[Way, ...]:
    """The ways as if each rollout worker were on the accelerator of the actor rank of its number."""
    assert has_ipc, "the actor ranks could not open the memory"
    return tuple(Way(slot.rank, WeightTransport.device, slot.rank, False, "") for slot in plan.of("rollout"))


@pytest.mark.long
def test_a_rollout_worker_dies_into_whose_memory_an_actor_rank_writes(run, monkeypatch):
    """Here it is the CPU's. What is learned until the loss is what the store would have brought, bit for bit."""
    settings = (*ADAPTERS, "rollout.num_workers=2", "weight_sync.bucket_bytes=200000")
    _, stored = run("store", *settings, "num_steps=2")
    paths = [str(Path(__file__).parent / "one_key"), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    monkeypatch.setattr(collection, "weight_ways", beside)
    folder, metrics = run("memory", *settings, kill={"rollout/1": 2})
    assert [line["step"] for line in metrics] == [1, 2, 3]
    assert [loss["worker"] for loss in losses(folder)] == ["rollout/1"]
    assert all(line["rollout_logprob_gap"] < 1e-5 for line in metrics)
    for name in ("episode_return", "policy_loss", "value_loss", "grad_norm", "approx_kl"):
        assert [line[name] for line in metrics[:2]] == [line[name] for line in stored]
    opened = [event for event in read_events(folder / TIMELINE) if event["name"] == "open device memory"]
    assert len({event["pid"] for event in opened}) == 2  # both ranks did


@pytest.mark.long
def test_an_actor_worker_dies_in_its_turn_and_the_newest_checkpoint_is_damaged(run, undisturbed):
    """The end is that of a run without losses, in which no role ever left its device, bit for bit."""

    def damage(folder: Path):
        (shard,) = (folder / "checkpoints" / "step_00000002" / "shards").glob("__0_*")
        shard.write_bytes(shard.read_bytes()[:100])

    folder, metrics = run("actor", "placement.offload=true", kill={"actor/1": 2}, before=damage)
    assert [loss["worker"] for loss in losses(folder)] == ["actor/1"]
    assert [line["step"] for line in metrics] == [1, 2, 2, 3]
    assert weights(folder) == weights(undisturbed[0])


@pytest.mark.long
def test_an_actor_worker_dies_while_a_checkpoint_is_written(run, undisturbed):
    """The checkpoint of step 2 counts if it was complete; the end is the same either way, bit for bit."""
    folder, metrics = run("beside", "checkpoint.is_asynchronous=true", kill={"actor/1": 2})
    assert [loss["worker"] for loss in losses(folder)] == ["actor/1"]
    assert [line["step"] for line in metrics] in ([1, 2, 3], [1, 2, 2, 3])
    assert weights(folder) == weights(undisturbed[0])


def end_of(training: Run, worker: str) -> str:
    """The name of a worker whose process was killed as soon as it answered."""
    while not (found := [s for s in training.controller.workers.statuses() if s.worker == worker]):
        time.sleep(0.05)
    os.kill(found[0].pid, signal.SIGKILL)
    return worker


class StruckAtStart(Run):
    """Loses workers of two roles before they have anything, and all actor workers once more while they imitate."""

    struck: tuple[str, ...] = ()

    def load(self) -> None:
        if not self.struck:
            self.struck = (end_of(self, "rollout/0"), end_of(self, "actor/0"))
        elif len(self.struck) == 2:
            imitate = self.controller.imitate
            self.controller.imitate = lambda *words: (end_of(self, "actor/1"), imitate(*words))[1]
            self.struck += ("actor/1",)
        else:
            del self.controller.imitate
        super().load()


@pytest.mark.long
def test_workers_die_while_the_run_starts(run, with_adapters, tmp_path):
    """Demonstrations, warm start and first step come out bit for bit as in a run that lost nobody until then. The
    rollout worker also loses its place in the group that weights are broadcast in."""
    settings = (*ADAPTERS, f"cache_dir={tmp_path}", "weight_sync.transport=collective", "num_steps=1")
    folder, (first,) = run("start", *settings, kind=StruckAtStart)
    assert sorted(loss["worker"] for loss in losses(folder)) == ["actor/0", "actor/1", "rollout/0"]
    for name in ("episode_return", "policy_loss", "value_loss", "grad_norm", "approx_kl"):
        assert first[name] == with_adapters[1][0][name]


@pytest.mark.long
def test_workers_die_while_collection_and_update_go_on(run, undisturbed):
    """`env/1` and `rollout/0` are at work for the next batch, `actor/1` on this one, which it begins again."""
    kill = {"env/1": 1, "rollout/0": 1, "actor/1": 2}
    folder, metrics = run("async-losses", "num_steps=7", kill=kill, loop=asynchronous)
    # Each is lost once. Which of two that die at about the same time is noticed first depends on the machine.
    assert sorted(loss["worker"] for loss in losses(folder)) == sorted(kill)
    # The actor was lost in a step from the third on, before it was told or after it.
    steps = [line["step"] for line in metrics]
    assert sorted(set(steps)) == [1, 2, 3, 4, 5, 6, 7] and steps == sorted(steps) and len(steps) <= 8
    assert all(line["policy_age"] == 0 for line in undisturbed[1])
    ages = [line["policy_age"] for line in metrics]
    assert ages[0] == 0 and set(ages) == {0, 1}  # after the first, learned beside the collection of the next batch
    assert ["behavior_weight" in line for line in metrics] == [age > 0 for age in ages]
    assert all(line["behavior_weight"] == pytest.approx(1, abs=0.2) for line in metrics if line["policy_age"])
    for name in ("episode_return", "num_chunk_steps", "policy_loss", "value_loss"):  # the first batch is as ever
        assert metrics[0][name] == pytest.approx(undisturbed[1][0][name], rel=ROUNDING, abs=ROUNDING)
    for other in undisturbed[1]:
        lines = [line for line in metrics if line["step"] == other["step"]]
        assert {line["num_chunk_steps"] for line in lines} == {other["num_chunk_steps"]}
        assert seeds(folder, other["step"]) == seeds(undisturbed[0], other["step"]) != []


@pytest.mark.long
def test_an_env_worker_dies_while_its_groups_are_collected_again(run):
    """No episode of the untrained policy succeeds, so every group is collected to the bound, by its successor too."""
    groups = ["algorithm.name=grpo", "algorithm.grpo.group_size=2", "algorithm.filter_groups.enable=true"]
    groups += ["algorithm.filter_groups.metric=success", "algorithm.filter_groups.max_num_gen_batches=3", "num_steps=2"]
    clean_folder, clean = run("groups undisturbed", *groups)
    folder, metrics = run("groups", *groups, kill={"env/1": 0})
    assert [loss["worker"] for loss in losses(folder)] == ["env/1"]
    for line, other in zip(metrics, clean, strict=True):
        assert seeds(folder, line["step"]) == seeds(clean_folder, line["step"])
        assert len(set(seeds(folder, line["step"]))) == 3 * 2 and line["num_dropped_groups"] == 3 * 2
        for name in ("num_gen_batches", "num_missing_groups", "num_episodes", "env_steps"):
            assert line[name] == other[name] > 0
