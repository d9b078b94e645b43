"""Dynamic sampling against a loop over groups, in a simulator whose seeds say which groups have signal."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rlrun.config.loader import load
from rlrun.config.schema import GroupMetric, RunConfig
from rlrun.edges.reports import EpisodeReport
from rlrun.edges.seeds import episode_seeds
from rlrun.edges.starts import TRAINING_SEEDS
from rlrun.system.errors import RunError
from rlrun.system.telemetry import Telemetry
from rlrun.workers import env_worker as module
from rlrun.workers.env_worker import EnvWorker
from rlrun.workers.group_filter import signal_metrics
from tests.unit.workers.counting_env import LIMIT, CountingEnv, answer, talk

NUM_ENVS, GROUP, HORIZON = 8, 2, LIMIT // 2


class PayingEnv(CountingEnv):
    """An episode is paid once, at its end: in every other row of a group if its seed says so, else in none or all."""

    def __init__(self, num_envs, has_signal):
        super().__init__(num_envs)
        self.has_signal = has_signal

    def step_chunk(self, actions, active=None):
        result = super().step_chunk(actions, active)
        rows = np.arange(self.num_envs)
        differ = np.array([self.has_signal(int(seed)) for seed in self.seeds])
        is_paid = result.truncated & np.where(differ, rows % GROUP == 0, self.seeds % 3 == 0)
        rewards = np.zeros_like(result.rewards)
        rewards[:, -1] = is_paid
        return replace(result, rewards=rewards, success=is_paid)


def half(seed: int) -> bool:
    return seed % 2 == 0


def make_worker(monkeypatch, has_signal=half, bound=4, num_workers=1, rank=0, **algorithm):
    config = RunConfig()
    config.env.num_envs, config.env.num_workers, config.env.max_control_steps = NUM_ENVS, num_workers, LIMIT
    config.actor.num_workers = config.rollout.num_workers = 1
    config.policy.num_action_chunks = 2
    config.algorithm.name, config.algorithm.horizon, config.algorithm.rollout_epochs = "grpo", HORIZON, 2
    config.algorithm.sections = load(["algorithm.name=grpo", f"algorithm.grpo.group_size={GROUP}"]).algorithm.sections
    own = config.algorithm.filter_groups
    own.enable, own.max_num_gen_batches = True, bound
    for key, value in algorithm.items():
        setattr(own, key, value)
    envs = []
    make = lambda _, n, loaded, python: envs.append(PayingEnv(n, has_signal)) or envs[-1]  # noqa: E731
    monkeypatch.setattr(module, "make_env", make)
    worker = EnvWorker(config, rank, Telemetry(f"env/{rank}"))
    worker.load()
    return worker, envs


def expected_seeds(step: int, epoch: int, has_signal, bound: int) -> list[list[int]]:
    """Return, by group, the seeds of its collections; the last one is kept, if it has signal."""
    found = []
    for group in range(NUM_ENVS // GROUP):
        seeds: list[int] = []
        for repetition in range(bound):
            seeds += episode_seeds(0, step, epoch, np.array([group]), np.array([repetition])).tolist()
            if has_signal(seeds[-1]):
                break
        found.append(seeds)
    return found


@pytest.mark.parametrize("bound", [1, 2, 5])
def test_against_a_loop_over_groups(monkeypatch, bound):
    worker, (env,) = make_worker(monkeypatch, bound=bound)
    collected, shard = talk(worker.collect(3))
    by_epoch = [expected_seeds(3, epoch, half, bound) for epoch in range(2)]
    kept = [[half(seeds[-1]) for seeds in groups] for groups in by_epoch]
    for epoch, groups in enumerate(by_epoch):
        at = slice(epoch * HORIZON, (epoch + 1) * HORIZON)
        last = np.repeat(np.float32([seeds[-1] for seeds in groups]), GROUP)
        assert (shard.proprio[at, :, 0] == last).all(), "the last collection of each group is in the batch"
        assert (shard.valid[at] == np.repeat(kept[epoch], GROUP)).all(), "without signal, it is left out"
        assert shard.truncated[at][-1].all() and not shard.truncated[at][:-1].any()
    asked = [seed for groups in by_epoch for seeds in groups for seed in seeds for _ in range(GROUP)]
    assert sorted(seed for _, seed in env.resets) == sorted(asked) == sorted(start.seed for start in collected.starts)
    assert len(set(asked)) * GROUP == len(asked) and all(seed in TRAINING_SEEDS for seed in asked)
    assert collected.num_control_steps == LIMIT * len(asked) and len(collected.episodes) == len(asked)
    tally, flat = collected.groups, [seeds for groups in by_epoch for seeds in groups]
    assert tally.num_gen_batches == max(map(len, flat)) and tally.num_groups == len(flat)
    assert tally.num_dropped == sum(not half(seed) for seeds in flat for seed in seeds)
    assert tally.num_missing == sum(not is_kept for epoch in kept for is_kept in epoch)


def test_the_batch_is_full_of_signal(monkeypatch):
    worker, _ = make_worker(monkeypatch, bound=50)
    collected, shard = talk(worker.collect(0))
    assert shard.valid.all() and collected.groups.num_missing == 0 < collected.groups.num_dropped
    returns = shard.rewards.sum(-1).reshape(2, HORIZON, NUM_ENVS).sum(1)
    assert returns.tolist() == [[1, 0] * (NUM_ENVS // GROUP)] * 2


def test_at_the_bound_nothing_is_left_if_no_group_has_signal(monkeypatch):
    worker, _ = make_worker(monkeypatch, has_signal=lambda seed: False, bound=3)
    collected, shard = talk(worker.collect(0))
    groups = 2 * NUM_ENVS // GROUP
    assert not shard.valid.any() and shard.step_valid.any()
    tally = collected.groups
    assert (tally.num_gen_batches, tally.num_groups) == (3, groups)
    assert (tally.num_dropped, tally.num_missing) == (3 * groups, groups)
    assert collected.num_control_steps == 3 * 2 * NUM_ENVS * LIMIT


def test_another_worker_collects_the_same(monkeypatch):
    """A lost worker's share is repeated by another one, and a resumed run collects a step as the first one did."""
    worker, _ = make_worker(monkeypatch)
    talk(worker.collect(0))
    _, shard = talk(worker.collect(1))
    again, _ = make_worker(monkeypatch)
    unfinished = again.collect(1)
    next(unfinished)
    again, _ = make_worker(monkeypatch)
    _, other = talk(again.collect(1))
    for name in shard.__dataclass_fields__.keys() - {"answers"}:
        assert np.array_equal(getattr(shard, name), getattr(other, name)), name
    for name, array in vars(shard.answers).items():
        assert np.array_equal(array, getattr(other.answers, name)), name


def test_a_group_depends_on_no_other(monkeypatch):
    worker, _ = make_worker(monkeypatch)
    _, whole = talk(worker.collect(0))
    halves = [talk(make_worker(monkeypatch, num_workers=2, rank=rank)[0].collect(0))[1] for rank in range(2)]
    for name in ("proprio", "valid", "rewards", "tokens"):
        assert np.array_equal(getattr(whole, name), np.concatenate([getattr(one, name) for one in halves], axis=1))


def test_keys_of_sampling_are_never_used_twice(monkeypatch):
    worker, _ = make_worker(monkeypatch)
    keys = []

    def answered(observation):
        keys.extend(observation.sampling_keys.tolist())
        return answer(observation)

    talk(worker.collect(0), answered)
    assert len(keys) > 2 * NUM_ENVS * HORIZON and len(set(keys)) == len(keys)


def test_void_episodes_are_not_compared(monkeypatch):
    """A group of which one episode is left has no signal, whatever its return."""
    worker, (env,) = make_worker(monkeypatch, has_signal=lambda seed: True)
    env.fault_in_row = 1
    collected, shard = talk(worker.collect(0))
    assert collected.groups.num_dropped == 1 and collected.groups.num_missing == 0 and shard.valid.all()


def test_the_metric_may_be_success(monkeypatch):
    """Returns that differ are signal; with metric=success only the outcome is."""
    worker, _ = make_worker(monkeypatch, has_signal=lambda seed: False, bound=2, metric=GroupMetric.success)
    step_chunk = PayingEnv.step_chunk

    def dense(self, actions, active=None):
        result = step_chunk(self, actions, active)
        return replace(result, rewards=result.step_valid * np.float32(0.1) * np.arange(self.num_envs)[:, None])

    monkeypatch.setattr(PayingEnv, "step_chunk", dense)
    collected, shard = talk(worker.collect(0))
    assert not shard.valid.any() and collected.groups.num_gen_batches == 2
    worker, _ = make_worker(monkeypatch, has_signal=lambda seed: False, bound=2)
    collected, shard = talk(worker.collect(0))
    assert shard.valid.all() and collected.groups.num_gen_batches == 1


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (["algorithm.name=ppo"], "ppo compares no episodes of a group"),
        (["algorithm.name=reinforce_plus_plus"], "Its groups have a single env"),
        (
            ["algorithm.name=grpo", "algorithm.grpo.group_size=8", "env.num_envs=24", "env.num_workers=2"],
            "Take env.num_workers=1",
        ),
    ],
)
def test_what_cannot_be_filtered_is_refused(keys, words):
    with pytest.raises(RunError) as refused:
        load(["run=single_process", "algorithm.filter_groups.enable=true", "algorithm.horizon=64", *keys])
    assert words in str(refused.value) and refused.value.key in ("algorithm.filter_groups.enable", "env.num_workers")


def episode_of(env, seed, success, episode_return=0.0, infra_fault=False):
    return EpisodeReport(env, seed, success, 0.0, episode_return, 5, success, not success, infra_fault)


def algorithm_of(*keys):
    return load(["algorithm.name=grpo", "algorithm.grpo.group_size=2", *keys]).algorithm


FILTERED = ["algorithm.filter_groups.enable=true", "env.num_workers=1"]


def test_the_share_of_groups_with_signal_and_the_success_of_the_batch():
    reports = [
        *(episode_of(0, 5, True), episode_of(1, 5, False)),
        *(episode_of(2, 6, False, 0.5), episode_of(3, 6, False)),  # differs in its return alone
        *(episode_of(4, 7, True), episode_of(5, 7, True)),
        *(episode_of(6, 5, True), episode_of(7, 5, False, infra_fault=True)),  # one alone, with a seed that another has
        *(episode_of(0, 8, True, 1.0), episode_of(1, 8, True, 0.8)),  # the next rollout epoch of the first group
    ]
    by_success = "algorithm.filter_groups.metric=success"
    assert signal_metrics(reports, algorithm_of(by_success)) == {"groups_with_signal": 1 / 5}
    assert signal_metrics(reports, algorithm_of()) == {"groups_with_signal": 2 / 5}
    filtered = signal_metrics(reports, algorithm_of(*FILTERED))
    assert filtered == {"groups_with_signal": 2 / 5, "batch_success_rate": 2 / 4}
    assert signal_metrics(reports, algorithm_of(*FILTERED, by_success))["batch_success_rate"] == 1 / 2
    assert signal_metrics(reports[4:6], algorithm_of(*FILTERED)) == {"groups_with_signal": 0.0}
    assert signal_metrics([], algorithm_of()) == signal_metrics(reports, load([]).algorithm) == {}
