"""Messages that cannot be right are refused where they arrive, and the sender is at fault."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from rlrun import load_config
from rlrun.config.schema import EnvConfig, RunConfig
from rlrun.edges.actions import ActionChunk, AnswerCheck
from rlrun.edges.frames import ChunkResult, Frames
from rlrun.edges.observations import Observation, check_observation
from rlrun.edges.reports import Collected, CollectedCheck, EnvTally, EpisodeReport, LeftOutEpisode, check_episodes
from rlrun.edges.seeds import episode_seeds, epoch_keys
from rlrun.edges.spaces import Spaces, check_equal_spaces
from rlrun.edges.starts import EpisodeStart
from rlrun.edges.trajectories import Trajectory, TrajectoryBuilder, TrajectoryCheck
from rlrun.edges.wrong_message import WRONG_MESSAGE
from rlrun.system.errors import ExitStatus, RunError

B, C, A, K, P = 3, 2, 2, 4, 5
SPACES = Spaces(A, None, (-1.0, -np.inf), (1.0, np.inf), P, 1)
CHECK = AnswerCheck("rollout/4", SPACES, C, largest_return=10.0)


def frames(rows: int = B, size: int = 8) -> Frames:
    return Frames(np.zeros((rows, 1, size, size, 3), np.uint8), np.zeros((rows, P), np.float32), ("go",) * rows)


def question(**fields: object) -> Observation:
    keys = np.arange(B, dtype=np.uint64) + 2**63
    return dataclasses.replace(Observation(1, frames(), keys, 1.0, frames(2), policy_version=5), **fields)


def answer(asked: Observation | None = None, **fields: object) -> ActionChunk:
    rows = np.arange(B, dtype=np.float32)
    parts = {
        "actions": np.tile(rows[:, None, None], (1, C, A)) / 10,
        "tokens": np.tile(rows[:, None], (1, K)).astype(np.uint8),
        "logprobs": np.tile(-1 - rows[:, None], (1, K)),
        "values": rows,
        "final_values": np.ones(2, np.float32),
        "policy_version": 5,
    }
    return ActionChunk.answer(asked or question(), **(parts | fields))


def changed(array: np.ndarray, index: object, value: float) -> np.ndarray:
    result = array.copy()
    result[index] = value
    return result


def test_an_answer_with_too_few_rows() -> None:
    with pytest.raises(RunError, match=r"rollout/4: .* answers actions of shape \(2, 2, 2\)"):
        CHECK(question(), dataclasses.replace(answer(), actions=answer().actions[:2]))


def test_a_right_answer_passes() -> None:
    CHECK(question(), answer())
    CHECK(question(final_frames=None), answer(final_values=None))
    CHECK(question(), answer(policy_version=6))
    gaussian = {"tokens": np.full((B, K), 3.0, np.float32), "logprobs": np.full((B, K), 2.5, np.float32)}
    CHECK(question(), answer(**gaussian))
    CHECK(question(), answer(actions=changed(answer().actions, (0, 0, 1), 1e8)))  # this dimension has no limits
    CHECK(question(), answer(actions=changed(answer().actions, (0, 0, 0), 30.0)))  # outside, as exploration may be


WRONG = {
    "NaN in an action": ({"actions": changed(answer().actions, (1, 0, 0), np.nan)}, "answers NaN", True),
    "NaN in a log-probability": ({"logprobs": changed(answer().logprobs, (2, 1), np.nan)}, "answers NaN", True),
    "an infinite value": ({"values": changed(answer().values, 0, np.inf)}, "answers infinity", True),
    "NaN in a final value": ({"final_values": np.full(2, np.nan, np.float32)}, "answers NaN", True),
    "a value beyond all returns": ({"values": answer().values + 1e8}, "answers a value of 1e.08", True),
    "actions that miss a dimension": ({"actions": answer().actions[..., :1]}, r"shape \(3, 2, 1\)", False),
    "values of another shape": ({"values": np.zeros((B, 1), np.float32)}, "shape", False),
    "choices that are no multiple of the chunk": ({"logprobs": np.zeros((B, 3), np.float32)}, "log-prob", False),
    "no final values": ({"final_values": None}, "final values", False),
    "final values of another number": ({"final_values": np.zeros(3, np.float32)}, "final values", False),
    "an older policy": ({"policy_version": 4}, "is older than the one asked for", False),
    "actions a million times too large": ({"actions": answer().actions * 1e6}, "an action of 2e.05", False),
    "a probability above 1": ({"logprobs": answer().logprobs + 3}, "a log-probability of 2", False),
    "a choice that nobody draws": ({"logprobs": answer().logprobs - 500}, "a log-probability of -5", False),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_answer_is_a_fault_of_the_rollout_worker(name: str) -> None:
    fields, text, is_divergence = WRONG[name]
    with pytest.raises(RunError, match=f"rollout/4: the policy of version . .*{text}") as caught:
        CHECK(question(), answer(**fields))
    assert (caught.value.worker, caught.value.kind) == ("rollout/4", WRONG_MESSAGE)
    assert caught.value.exit_status is (ExitStatus.diverged if is_divergence else ExitStatus.worker_lost)


CHANGED_ON_THE_WAY = {
    "actions of the neighbouring row": lambda chunk: {"actions": np.roll(chunk.actions, 1, axis=0)},
    "log-probabilities of the neighbouring row": lambda chunk: {"logprobs": np.roll(chunk.logprobs, 1, axis=0)},
    "a value that is a little larger": lambda chunk: {"values": chunk.values + 1e-6 * (chunk.values == 1)},
    "smaller log-probabilities": lambda chunk: {"logprobs": chunk.logprobs - 5},
    "one other token": lambda chunk: {"tokens": changed(chunk.tokens, (0, 0), 7)},
    "no seals": lambda chunk: {"seals": None},
}


@pytest.mark.parametrize("name", CHANGED_ON_THE_WAY)
def test_an_answer_that_changed_after_it_was_made(name: str) -> None:
    chunk = answer()
    chunk = dataclasses.replace(chunk, **CHANGED_ON_THE_WAY[name](chunk))
    with pytest.raises(RunError, match="another question, or its answer changed") as caught:
        CHECK(question(), chunk)
    assert caught.value.worker == "rollout/4"


def test_the_answer_to_another_question() -> None:
    """All its numbers are in order; it is for other rows, or for another moment."""
    other = question(sampling_keys=question().sampling_keys + np.uint64(1))
    with pytest.raises(RunError, match="another question"):
        CHECK(question(), answer(other))


OBSERVATIONS = {
    "pictures of floats": {"frames": dataclasses.replace(frames(), images=np.zeros((B, 1, 8, 8, 3)))},
    "pictures without colours": {"frames": dataclasses.replace(frames(), images=np.zeros((B, 1, 8, 8), np.uint8))},
    "rows without pictures": {"frames": dataclasses.replace(frames(), images=frames(2).images)},
    "a state of another size": {"frames": dataclasses.replace(frames(), proprio=np.zeros((B, P + 1), np.float32))},
    "a state that is NaN": {"frames": dataclasses.replace(frames(), proprio=np.full((B, P), np.nan, np.float32))},
    "final frames that are NaN": {"final_frames": dataclasses.replace(frames(2), proprio=np.full((2, P), np.inf))},
    "final frames of another size": {"final_frames": frames(2, size=16)},
    "keys of too few rows": {"sampling_keys": np.zeros(2, np.uint64)},
    "keys of another type": {"sampling_keys": np.zeros(B, np.int64)},
    "pictures of another size": {"frames": frames(size=16), "final_frames": None},
    "another temperature": {"temperature": 0.5},
    "a temperature that is NaN": {"temperature": float("nan")},
    "a negative temperature": {"temperature": -1.0},
}


SEEN = RunConfig(env=EnvConfig(image_size=8))


@pytest.mark.parametrize("name", OBSERVATIONS)
def test_a_wrong_observation_is_a_fault_of_the_env_worker(name: str) -> None:
    check_observation(question(), P, SEEN)
    check_observation(question(), 0, SEEN)  # a policy that takes no proprioception
    with pytest.raises(RunError) as caught:
        check_observation(question(**OBSERVATIONS[name]), P, SEEN)
    assert (caught.value.worker, caught.value.kind) == ("env/1", WRONG_MESSAGE)


T = 4
CONFIG = load_config(
    [
        *("run=cartpole", f"env.num_envs={2 * B}", "env.num_workers=2", "actor.num_workers=1", "rollout.num_workers=2"),
        *(f"algorithm.horizon={T}", f"algorithm.global_batch_size={2 * T * B}", "actor.micro_batch_size=4"),
        *("env.max_abs_reward=10", "algorithm.carry_episodes=false", f"output_dir={Path(__file__).parent}"),
    ]
)
CHECK_TRAJECTORIES = TrajectoryCheck(CONFIG, rank=0)
STEP = 5


def decoded(tokens: np.ndarray) -> np.ndarray:
    return np.repeat(tokens[:, :C, None].astype(np.float32), A, axis=2)


def shard(worker: int, answered: Callable[[ActionChunk], ActionChunk] = lambda chunk: chunk) -> Trajectory:
    """Return what an honest env worker sends, whose rollout worker answers as `answered` says."""
    envs = worker * B + np.arange(B)
    keys = epoch_keys(CONFIG.seed, STEP, 0, envs, T, 0)
    builder = TrajectoryBuilder(T, B)
    every = np.ones((B, C), bool)
    never = np.zeros(B, bool)
    for t in range(T):
        state = np.full((B, P), t, np.float32) + envs[:, None].astype(np.float32)
        seen = Frames(np.full((B, 1, 8, 8, 3), t, np.uint8), state, ("go",) * B)
        asked = Observation(worker, seen, keys[t], 1.0, None, policy_version=STEP)
        tokens = ((envs[:, None] + np.arange(K) + t) % 5).astype(np.uint8)
        logprobs = -1 - tokens.astype(np.float32)
        values = envs.astype(np.float32)
        chunk = ActionChunk.answer(asked, decoded(tokens), tokens, logprobs, values, None, STEP)
        chunk = answered(chunk)
        chunk = dataclasses.replace(chunk, seals=chunk.expected_seals(asked))
        result = ChunkResult(
            seen, np.ones((B, C), np.float32), every, never, never, never, np.ones(B, np.float32), never, ({},) * B
        )
        builder.add(t, np.arange(B), asked, chunk, result)
    return builder.shards(worker * B, 2 * B, 1)[0]


def with_answers(part: Trajectory, **fields: object) -> Trajectory:
    return dataclasses.replace(part, answers=dataclasses.replace(part.answers, **fields))


def lie(part: Trajectory, name: str, index: object, value: float) -> Trajectory:
    return dataclasses.replace(part, **{name: changed(getattr(part, name), index, value)})


BY_THE_ENV_WORKER = {
    "a reward that is NaN": (lambda p: lie(p, "rewards", (2, 1, 0), np.nan), "chunk step 2 of row 1"),
    "a reward that the world does not pay": (lambda p: lie(p, "rewards", (2, 1, 0), 1e30), "a reward of 1e.30"),
    "an infinite next value": (lambda p: lie(p, "next_values", (3, 2), np.inf), "next_values"),
    "too few chunk steps": (lambda p: dataclasses.replace(p, valid=p.valid[1:]), "valid of shape"),
    "rewards of other rows": (lambda p: dataclasses.replace(p, rewards=p.rewards[:, 1:]), "rewards of shape"),
    "two ends": (lambda p: lie(lie(p, "terminated", (1, 1), True), "truncated", (1, 1), True), "both"),
    "a sentence that is not there": (lambda p: lie(p, "instruction_index", ..., 1), "sentences"),
    "tokens out of range": (lambda p: lie(p, "tokens", ..., 255), "seals"),
    "one other token": (lambda p: lie(p, "tokens", (0, 0, 0), 9), "1 of 12 seals"),
    "tokens of the row before": (lambda p: dataclasses.replace(p, tokens=np.roll(p.tokens, 1, 1)), "seals"),
    "log-probabilities of -50": (lambda p: lie(p, "logprobs", ..., -50.0), "seals"),
    "other values": (lambda p: lie(p, "values", (1, 1), 7.0), "seals"),
    "a version that did not answer": (lambda p: lie(p, "policy_version", ..., 4), "seals"),
    "a state of the step before": (lambda p: dataclasses.replace(p, proprio=np.roll(p.proprio, 1, 0)), "seals"),
    "a grey picture": (lambda p: lie(p, "images", (1, 1), 128), "1 of 12 seals"),
    "another sentence": (lambda p: dataclasses.replace(p, instructions=("stop",)), "seals"),
    "no seals": (lambda p: dataclasses.replace(p, answers=None), "without the seals"),
    "actions that it did not execute": (lambda p: with_answers(p, actions=p.answers.actions + 1), "other actions"),
    "sampling keys of another row": (
        lambda p: with_answers(p, sampling_keys=np.roll(p.answers.sampling_keys, 1, 1)),
        "other sampling keys",
    ),
}
BY_THE_ROLLOUT_WORKER = {
    "actions that are not those of its tokens": (
        lambda chunk: dataclasses.replace(chunk, actions=chunk.actions + 0.5),
        "other actions than those of its tokens",
    ),
    "a policy that was never sent": (
        lambda chunk: dataclasses.replace(chunk, policy_version=STEP + 1),
        "policy version 6",
    ),
}


def refused(*parts: Trajectory) -> RunError:
    with pytest.raises(RunError) as caught:
        CHECK_TRAJECTORIES(parts, STEP, decoded)
    assert caught.value.kind == WRONG_MESSAGE
    return caught.value


def test_honest_trajectories_pass() -> None:
    CHECK_TRAJECTORIES([shard(0), shard(1)], STEP, decoded)


@pytest.mark.parametrize("name", BY_THE_ENV_WORKER)
def test_a_trajectory_that_the_env_worker_changed(name: str) -> None:
    change, text = BY_THE_ENV_WORKER[name]
    failure = refused(shard(0), change(shard(1)))
    assert failure.worker == "env/1" and re.search(text, str(failure))


@pytest.mark.parametrize("name", BY_THE_ROLLOUT_WORKER)
def test_an_answer_that_an_honest_env_worker_passed_on(name: str) -> None:
    answered, text = BY_THE_ROLLOUT_WORKER[name]
    failure = refused(shard(0), shard(1, answered))
    assert failure.worker == "rollout/1" and text in str(failure)


def test_a_trajectory_of_another_step() -> None:
    with pytest.raises(RunError, match="env/0: .*other sampling keys"):
        CHECK_TRAJECTORIES([shard(0), shard(1)], STEP + 1, decoded)


def test_void_chunk_steps_may_hold_anything() -> None:
    part = lie(lie(lie(shard(1), "valid", (2, 1), False), "rewards", (2, 1, 0), np.nan), "tokens", (2, 1), 99)
    CHECK_TRAJECTORIES([shard(0), part], STEP, decoded)


def episode(env: int = 4, seed: int = 17, **fields: object) -> EpisodeReport:
    report = EpisodeReport(env, seed, True, 1.0, 2.5, 8, True, False, False)
    return dataclasses.replace(report, **fields)


@pytest.mark.parametrize(
    ("reports", "seeds"),
    [
        ([episode(episode_return=float("nan"))], None),
        ([episode(env=7)], None),
        ([episode(truncated=True)], None),
        ([episode(num_control_steps=-1)], None),
        ([episode(seed=1)], [1, 2]),
        ([episode(seed=1), episode(seed=1)], [1, 2]),
    ],
)
def test_episodes_that_cannot_have_happened(reports: list[EpisodeReport], seeds: list[int] | None) -> None:
    check_episodes("env/2", [episode(), episode(env=5, seed=3)], range(4, 6), [3, 17])
    with pytest.raises(RunError, match="env/2: it reported"):
        check_episodes("env/2", reports, range(4, 6), seeds)


def test_episodes_that_are_left_out_are_exactly_those_without_a_report() -> None:
    left_out = LeftOutEpisode(3, 3, "it broke")
    check_episodes("env/2", [episode()], range(4, 6), [3, 17], [left_out])
    for reports, asked in (([episode()], [17]), ([episode(), episode(seed=3)], [3, 17]), ([episode()], [3, 5, 17])):
        with pytest.raises(RunError, match="other episodes than"):
            check_episodes("env/2", reports, range(4, 6), asked, [left_out])


def test_simulators_with_other_spaces_than_their_peers() -> None:
    check_equal_spaces(dict.fromkeys(range(3), SPACES))
    check_equal_spaces({})
    with pytest.raises(RunError, match="simulator of env/1 has other observations or actions"):
        check_equal_spaces({0: SPACES, 1: dataclasses.replace(SPACES, num_proprio=P + 1), 2: SPACES})


def collected(env: int, numbers: range, step: int = STEP) -> Collected:
    """What env worker 1 reports of its row `env`: the episodes of these numbers."""
    seeds = episode_seeds(CONFIG.seed, step, 0, np.array([env]), np.array(numbers)[:, None]).ravel().tolist()
    tally = EnvTally(T * B, 0, 0, (), 0.0, ("go",))
    starts = [EpisodeStart(seed, str(seed)) for seed in seeds]
    return Collected([episode(env, seed) for seed in seeds], 8, STEP, tally, starts=starts, num_valid=(T * B,))


def test_seeds_of_a_step_follow_from_its_rows_unless_episodes_are_carried() -> None:
    carrying = dataclasses.replace(CONFIG, algorithm=dataclasses.replace(CONFIG.algorithm, carry_episodes=True))
    right = collected(B, range(T))
    for config in (CONFIG, carrying):
        CollectedCheck(config, 1, has_one_episode=False)(1, STEP, right)
    strange = (collected(B, range(T), STEP - 1), collected(B, range(90, 92)))
    for report in strange:
        CollectedCheck(carrying, 1, has_one_episode=False)(1, STEP, report)  # rows count through the run
        with pytest.raises(RunError, match="env/1: it reported episodes of other seeds than its own"):
            CollectedCheck(CONFIG, 1, has_one_episode=False)(1, STEP, report)
    twice = dataclasses.replace(right, episodes=[*right.episodes, *right.episodes])
    for config in (CONFIG, carrying):
        with pytest.raises(RunError, match="env/1: it reported (an episode|episodes) twice"):
            CollectedCheck(config, 1, has_one_episode=False)(1, STEP, twice)


def test_episodes_of_a_row_may_share_a_seed_by_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seeds are 32-bit hashes: a row with many short episodes has two of one seed in some step."""

    def few(seed: int, step: int, epoch: int, groups: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        return episode_seeds(seed, step, epoch, groups, numbers % 2)

    monkeypatch.setattr("rlrun.edges.reports.episode_seeds", few)
    seeds = few(CONFIG.seed, STEP, 0, np.array([B]), np.arange(T)[:, None]).ravel().tolist()
    right = dataclasses.replace(
        collected(B, range(T)), episodes=[episode(B, seed) for seed in seeds], starts=[EpisodeStart(seeds[0], "")]
    )
    CollectedCheck(CONFIG, 1, has_one_episode=False)(1, STEP, right)
    many = dataclasses.replace(right, episodes=right.episodes * 10)
    with pytest.raises(RunError, match="env/1: it reported an episode twice"):
        CollectedCheck(CONFIG, 1, has_one_episode=False)(1, STEP, many)


def test_a_return_of_rewards_that_are_all_the_limit() -> None:
    """float32 rounds 0.1 up, and a return is the sum in float64."""
    config = dataclasses.replace(CONFIG, env=dataclasses.replace(CONFIG.env, max_abs_reward=0.1))
    right = collected(B, range(1))
    paid = float(np.full(20, 0.1, np.float32).sum(dtype=np.float64))
    assert paid > 20 * 0.1
    for value, is_right in ((paid, True), (2.01, False)):
        ended = dataclasses.replace(right.episodes[0], episode_return=value, num_control_steps=20)
        report = dataclasses.replace(right, episodes=[ended])
        if is_right:
            CollectedCheck(config, 1, has_one_episode=False)(1, STEP, report)
        else:
            with pytest.raises(RunError, match="a return of 2.01"):
                CollectedCheck(config, 1, has_one_episode=False)(1, STEP, report)


def test_every_chunk_step_without_a_fault_is_sent() -> None:
    few = dataclasses.replace(collected(B, range(T)), num_valid=(T * B - 1,))
    with pytest.raises(RunError, match="env/1: it sent 11 chunk steps to learn from, and had no fault"):
        CollectedCheck(CONFIG, 1, has_one_episode=False)(1, STEP, few)
    CollectedCheck(CONFIG, 1, has_one_episode=False)(1, STEP, dataclasses.replace(few, row_faults=("it broke",)))
    CollectedCheck(CONFIG, 1, has_one_episode=True)(1, STEP, few)  # rows rest after their episode
