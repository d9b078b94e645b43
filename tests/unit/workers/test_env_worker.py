"""The env worker against a simulator that counts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rlrun.algorithms.spec import GRPOConfig
from rlrun.config.schema import RunConfig
from rlrun.envs.vector_env import SimulatorFault
from rlrun.system.errors import RunError
from rlrun.system.telemetry import Telemetry
from rlrun.workers import env_worker as module
from rlrun.workers.env_worker import EnvWorker
from rlrun.workers.late_actions import LateActions
from tests.unit.workers.counting_env import LIMIT, NUM_ACTIONS, CountingEnv, answer, talk


def make_worker(
    monkeypatch, length_of=lambda seed: LIMIT + 1, num_workers=1, rank=0, num_ranks=1, every_steps=0, **algorithm
):
    config = RunConfig()
    config.evaluation.every_steps = every_steps
    config.env.num_envs, config.env.num_workers, config.env.max_control_steps = 4, num_workers, LIMIT
    config.env.restart_limit = 1
    config.actor.num_workers = num_ranks
    config.rollout.num_workers = 1
    config.policy.num_action_chunks = 2
    config.algorithm.horizon = 8
    for key, value in algorithm.items():
        setattr(config.algorithm, key, value)
    envs = []
    monkeypatch.setattr(
        module, "make_env", lambda _, n, loaded, python: envs.append(CountingEnv(n, length_of)) or envs[-1]
    )
    worker = EnvWorker(config, rank, Telemetry(f"env/{rank}"))
    worker.load()
    return worker, envs


def test_values_of_next_observations(monkeypatch):
    worker, _ = make_worker(monkeypatch)
    collected, shard = talk(worker.collect(0))
    # 12 control steps to the time limit, 2 per chunk: chunk 5 is cut off, chunk 6 starts anew, 7 is the last
    assert shard.truncated[5].all() and shard.truncated.sum() == 4 and not shard.terminated.any()
    assert np.array_equal(shard.values[:, 0], [100, 102, 104, 106, 108, 110, 100, 102])
    assert np.array_equal(shard.next_values[:, 0], [102, 104, 106, 108, 110, 112, 102, 104])
    assert collected.num_control_steps == 8 * 2 * 4
    assert (shard.policy_version == 5).all() and shard.valid.all()


@pytest.mark.parametrize("is_carried", [False, True])
def test_what_ends_with_the_epoch_is_asked_where_it_stopped(monkeypatch, is_carried):
    """Nothing is simulated that nobody will see, and the last question is as large as the others."""
    worker, envs = make_worker(monkeypatch, horizon=LIMIT // 2, carry_episodes=is_carried)
    asked = []

    def answered(observation):
        asked.append(observation)
        if len(asked) == LIMIT // 2:
            envs[0].fault_in_row = 2
        return answer(observation)

    _, shard = talk(worker.collect(0), answered)
    assert shard.truncated[-1].tolist() == [True, True, False, True]
    assert shard.next_values[-1].tolist() == [112, 112, 0, 112]
    assert [question.final_frames for question in asked] == [None] * (LIMIT // 2 + 1)
    assert asked[-1].frames.proprio[:, 1].tolist() == [12, 12, 10, 12], "of the broken row what was seen before"
    assert len(envs[0].resets) == (8 if is_carried else 4)
    _, shard = talk(worker.collect(1))
    assert len(envs[0].resets) == (8 + 4 if is_carried else 4 + 4)
    assert shard.values[0].tolist() == [100] * 4 and shard.next_values[-1].tolist() == [112] * 4


def test_termination_inside_a_chunk(monkeypatch):
    worker, _ = make_worker(monkeypatch, length_of=lambda seed: 3)
    _, shard = talk(worker.collect(0))
    assert np.array_equal(shard.terminated[:, 0], [False, True] * 4)
    assert np.array_equal(shard.step_valid[:2, 0], [[True, True], [True, False]])
    assert shard.rewards[1, 0].tolist() == [1.0, 0.0]


def test_only_episodes_with_room_are_counted(monkeypatch):
    worker, _ = make_worker(monkeypatch, length_of=lambda seed: 2 if seed % 2 else LIMIT + 1)
    collected, _ = talk(worker.collect(3))
    first = [e for e in collected.episodes if e.num_control_steps == LIMIT]
    starts_in_time = 8 - LIMIT // 2  # chunk steps 0, 1, 2
    assert len(collected.episodes) <= 4 * (starts_in_time + 1) and first


def test_short_episodes_are_counted_only_if_a_long_one_would_have_had_room(monkeypatch):
    """Else those that end early, such as successes, would be counted more often than the others."""
    worker, _ = make_worker(monkeypatch, length_of=lambda seed: 2)
    collected, _ = talk(worker.collect(0))
    assert len(collected.episodes) == 4 * (8 - LIMIT // 2 + 1)


def test_carried_episodes_go_on_in_the_next_step(monkeypatch):
    worker, envs = make_worker(monkeypatch, carry_episodes=True)
    first, shard = talk(worker.collect(0))
    # 16 control steps: the episodes of 12 ended, the next ones are 4 steps old
    assert len(first.episodes) == 4 and shard.next_values[-1].tolist() == [104] * 4
    num_resets = len(envs[0].resets)
    second, shard = talk(worker.collect(1))
    assert shard.values[:, 0].tolist() == [104, 106, 108, 110, 100, 102, 104, 106]
    assert shard.next_values[3].tolist() == [112] * 4, "bootstrapped from the final observation"
    assert [e.num_control_steps for e in second.episodes] == [LIMIT] * 4
    assert [e.episode_return for e in second.episodes] == [float(LIMIT)] * 4
    assert len(envs[0].resets) == num_resets + 4
    assert len({seed for _, seed in envs[0].resets}) == len(envs[0].resets)


def test_an_evaluation_between_steps_cuts_no_carried_episode_off(monkeypatch):
    worker, envs = make_worker(monkeypatch, every_steps=1, carry_episodes=True)
    talk(worker.collect(0))
    (evaluated,) = talk(worker.evaluate([1, 2], 0))
    assert sorted(one.seed for one in evaluated.episodes) == [1, 2] and len(envs) == 2
    _, shard = talk(worker.collect(1))
    assert shard.values[0].tolist() == [104] * 4
    worker.close()
    assert all(env.is_closed for env in envs)


def test_an_evaluation_between_steps_leaves_the_late_actions_of_training(monkeypatch):
    worker, _ = make_worker(monkeypatch, every_steps=1, carry_episodes=True)
    late = worker._collector.late = LateActions(1, 4)
    talk(worker.collect(0))
    coming = late.coming(np.arange(4), NUM_ACTIONS)
    assert coming.shape == (4, 1, NUM_ACTIONS)
    talk(worker.evaluate([1, 2], 0))
    assert worker._collector.late is late
    assert np.array_equal(late.coming(np.arange(4), NUM_ACTIONS), coming)


def test_only_evaluations_under_real_time_chunking_tell_what_is_coming(monkeypatch):
    worker, _ = make_worker(monkeypatch)
    asked = []

    def continued(observation):
        asked.append(observation)
        chunk = answer(observation)
        if observation.coming is None:
            return chunk
        further = np.full((len(observation.frames), 5, NUM_ACTIONS), len(asked), np.float32)
        changed = replace(chunk, further=further)
        return replace(changed, seals=changed.expected_seals(observation))

    talk(worker.collect(0), continued)
    talk(worker.evaluate([1, 2], 0), continued)
    assert all(one.coming is None for one in asked)
    asked.clear()
    worker.config.evaluation.real_time_chunking.enable = True
    talk(worker.collect(1), continued)
    assert all(one.coming is None for one in asked)
    asked.clear()
    talk(worker.evaluate([1, 2], 0), continued)
    assert [one.coming.shape for one in asked] == [(2, 0, NUM_ACTIONS)] + [(2, 5, NUM_ACTIONS)] * (LIMIT // 2 - 1)
    assert [one.coming[0, 0, 0] for one in asked[1:]] == list(range(1, LIMIT // 2))


def test_an_evaluation_that_breaks_leaves_the_simulator_of_training(monkeypatch):
    worker, _ = make_worker(monkeypatch, every_steps=1, carry_episodes=True)
    training = worker.env
    asked = worker.evaluate([1, 2], 0)
    next(asked)
    assert worker.env is not training
    asked.close()
    assert worker.env is training


def test_only_carried_episodes_need_a_simulator_for_evaluations(monkeypatch):
    for every_steps, is_carried in ((0, True), (1, False)):
        _, envs = make_worker(monkeypatch, every_steps=every_steps, carry_episodes=is_carried)
        assert len(envs) == 1


def test_a_fault_voids_of_a_carried_episode_what_this_step_saw(monkeypatch):
    worker, envs = make_worker(monkeypatch, carry_episodes=True)
    talk(worker.collect(0))
    envs[0].fault_in_row = 2
    _, shard = talk(worker.collect(1))
    assert shard.valid[:, 2].tolist() == [False] + [True] * 7
    assert shard.valid[:, 0].all()


def test_seeds_depend_on_step_env_and_episode_only(monkeypatch):
    worker, envs = make_worker(monkeypatch)
    again, more = make_worker(monkeypatch)
    talk(worker.collect(0))
    talk(again.collect(1))
    talk(again.collect(0))
    num_resets = len(envs[0].resets)
    assert more[0].resets[num_resets:] == envs[0].resets != more[0].resets[:num_resets]
    seeds = [seed for _, seed in envs[0].resets]
    assert len(set(seeds)) == len(seeds)


def test_shards_follow_the_rank_that_owns_the_env(monkeypatch):
    worker, _ = make_worker(monkeypatch, num_workers=2, rank=1, num_ranks=2)
    _, *shards = talk(worker.collect(0))
    assert [shard.values.shape for shard in shards] == [(8, 2)]  # of the second rank; the first owns nothing here


def test_groups_share_seeds_and_episodes_are_whole(monkeypatch):
    worker, envs = make_worker(
        monkeypatch, length_of=lambda seed: 4 + 2 * (seed % 2), name="grpo", sections={"grpo": GRPOConfig(group_size=2)}
    )
    collected, shard = talk(worker.collect(0))
    seeds = dict(envs[0].resets)
    assert len(envs[0].resets) == 4 and seeds[0] == seeds[1] != seeds[2] == seeds[3]
    assert shard.group.tolist() == [0, 0, 1, 1]
    assert len(collected.episodes) == 4 and (shard.valid.sum(axis=0) == shard.step_valid.any(-1).sum(axis=0)).all()
    assert not shard.valid[4:].any()


def test_infra_fault_of_a_row_voids_its_episode_only(monkeypatch):
    worker, envs = make_worker(monkeypatch)
    interaction = worker.collect(0)
    reply = None
    for t in range(100):
        if t == 3:
            envs[0].fault_in_row = 2
        try:
            reply = answer(interaction.send(reply))
        except StopIteration as finished:
            collected, shard = finished.value
            break
    assert not shard.valid[:3, 2].any() and shard.valid[3:, 2].all() and shard.valid[:, [0, 1, 3]].all()
    assert sum(e.infra_fault for e in collected.episodes) == 1
    assert not any(e.success for e in collected.episodes if e.infra_fault)


def test_broken_simulator_is_replaced_until_the_limit(monkeypatch):
    worker, envs = make_worker(monkeypatch)
    interaction = worker.collect(0)
    asked = next(interaction)
    envs[0].is_broken = True
    asked = interaction.send(answer(asked))
    assert len(envs) == 2 and envs[0].is_closed
    envs[1].is_broken = True
    with pytest.raises(RunError, match="restart_limit"):
        interaction.send(answer(asked))


def test_evaluation_runs_every_seed_once_and_films(monkeypatch):
    worker, envs = make_worker(monkeypatch, length_of=lambda seed: 1 + seed % 5)
    (evaluated,) = talk(worker.evaluate(list(range(7)), num_videos=2))
    assert sorted(e.seed for e in evaluated.episodes) == list(range(7))
    assert all(e.success and e.num_control_steps == 1 + e.seed % 5 for e in evaluated.episodes)
    assert all(e.instruction for e in evaluated.episodes) and evaluated.void == []
    assert len(evaluated.videos) == 2 and evaluated.videos[0][1].shape[1:] == (240, 320, 3)


def test_void_evaluation_episodes_are_told_and_their_seeds_repeated(monkeypatch):
    worker, envs = make_worker(monkeypatch)
    envs_asked = worker.evaluate([5, 6, 7], num_videos=0)
    asked = next(envs_asked)
    envs[0].fault_in_row = 1
    try:
        while True:
            asked = envs_asked.send(answer(asked))
    except StopIteration as finished:
        (evaluated,) = finished.value
    assert sorted(e.seed for e in evaluated.episodes) == [5, 6, 7]
    assert [(e.seed, e.infra_fault) for e in evaluated.void] == [(6, True)]


def breaking(env: CountingEnv, bad_seeds: set[int], is_whole: bool) -> None:
    """Let every chunk of an episode with one of these seeds break its row, or the whole simulator."""
    step = env.step_chunk

    def step_chunk(actions, active=None):
        rows = np.flatnonzero(np.isin(env.seeds, list(bad_seeds)) & active)
        if is_whole and rows.size:
            raise SimulatorFault(f"seed {env.seeds[rows[0]]} diverged after chunk {len(env.resets)}")
        env.fault_in_row = int(rows[0]) if rows.size else None
        return step(actions, active)

    env.step_chunk = step_chunk


@pytest.mark.parametrize("is_whole", [False, True], ids=["one row", "the whole simulator"])
def test_a_seed_that_breaks_each_time_is_left_out_and_its_neighbours_are_not(monkeypatch, is_whole):
    worker, envs = make_worker(monkeypatch)
    make = module.make_env

    def make_env(*given):
        env = make(*given)
        breaking(env, {6}, is_whole)
        return env

    worker.env._make = lambda: make_env(None, 4, None, None)
    worker.env._limit = 8
    breaking(envs[0], {6}, is_whole)
    counted = []
    monkeypatch.setattr(
        worker.telemetry, "count", lambda name, n=1, **_: counted.append(n) if name == "evaluation_episodes" else None
    )
    (evaluated,) = talk(worker.evaluate(list(range(5, 12)), num_videos=1))
    assert sorted(e.seed for e in evaluated.episodes) == [5, 7, 8, 9, 10, 11]
    (left_out,) = evaluated.left_out
    assert (left_out.seed, left_out.num_attempts) == (6, 3)
    assert ("seed 6 diverged" if is_whole else "it broke") in left_out.fault
    assert [e.seed for e in evaluated.void].count(6) == 3
    assert sum(counted) == 7, "an attempt that is repeated is no progress"
    assert worker.env.drain_row_faults() == (), "they are no faults of the next training step"


def test_an_evaluation_of_which_nothing_works_ends(monkeypatch):
    worker, envs = make_worker(monkeypatch)
    breaking(envs[0], {1, 2}, is_whole=False)
    (evaluated,) = talk(worker.evaluate([1, 2], 0))
    assert evaluated.episodes == [] and sorted(one.seed for one in evaluated.left_out) == [1, 2]


def test_evaluation_of_fewer_seeds_than_rows(monkeypatch):
    worker, _ = make_worker(monkeypatch)
    (evaluated,) = talk(worker.evaluate([9], num_videos=0))
    assert [e.seed for e in evaluated.episodes] == [9] and evaluated.episodes[0].truncated
    assert talk(worker.evaluate([], num_videos=0))[0].episodes == []


def test_without_pictures_an_evaluation_has_no_video_and_says_so_once(monkeypatch):
    def render(*_):
        raise RuntimeError("no display")

    worker, envs = make_worker(monkeypatch, length_of=lambda seed: 3)
    envs[0].render = render
    for told in ("RuntimeError: no display", ""):
        (evaluated,) = talk(worker.evaluate(list(range(4)), num_videos=2))
        assert len(evaluated.episodes) == 4 and evaluated.videos == []
        assert evaluated.no_video == told
    assert len(envs) == 1  # the simulator was not made again


def test_next_observations_are_those_of_the_episode_and_only_where_an_algorithm_asks(monkeypatch):
    """Also of its last one, and of the last chunk step of a training step: nothing is lost to resets."""
    worker, _ = make_worker(monkeypatch, name="sac", carry_episodes=True)
    _, shard = talk(worker.collect(0))
    assert shard.truncated[5].all() and not shard.truncated[:5].any()
    assert shard.proprio[:, 0, 1].tolist() == [0, 2, 4, 6, 8, 10, 0, 2]
    assert shard.next_proprio[:, 0, 1].tolist() == [2, 4, 6, 8, 10, 12, 2, 4]
    assert not shard.next_values.any()  # nobody asked for them
    worker, _ = make_worker(monkeypatch)
    assert talk(worker.collect(0))[1].next_proprio is None
