"""Messages that cannot be right are refused where they arrive, and the sender is at fault."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from rlrun.edges.actions import ActionChunk, AnswerCheck
from rlrun.edges.frames import Frames
from rlrun.edges.observations import Observation, check_observation
from rlrun.edges.reports import EpisodeReport, LeftOutEpisode, check_episodes
from rlrun.edges.spaces import Spaces, check_equal_spaces
from rlrun.edges.trajectories import Trajectory, check_trajectories
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
    "no echo": lambda chunk: {"echo": None},
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
    "a temperature that is NaN": {"temperature": float("nan")},
    "a negative temperature": {"temperature": -1.0},
}


@pytest.mark.parametrize("name", OBSERVATIONS)
def test_a_wrong_observation_is_a_fault_of_the_env_worker(name: str) -> None:
    check_observation(question(), P)
    check_observation(question(), 0)  # a policy that takes no proprioception
    with pytest.raises(RunError) as caught:
        check_observation(question(**OBSERVATIONS[name]), P)
    assert (caught.value.worker, caught.value.kind) == ("env/1", WRONG_MESSAGE)


T = 4


def shard(**fields: object) -> Trajectory:
    flags, numbers = np.zeros((T, B), bool), np.zeros((T, B), np.float32)
    part = Trajectory(
        images=np.zeros((T, B, 1, 8, 8, 3), np.uint8),
        proprio=np.zeros((T, B, P), np.float32),
        instructions=("go",),
        instruction_index=np.zeros((T, B), np.int16),
        tokens=np.zeros((T, B, K), np.uint8),
        logprobs=np.zeros((T, B, K), np.float32),
        values=numbers,
        next_values=numbers,
        rewards=np.zeros((T, B, C), np.float32),
        step_valid=np.ones((T, B, C), bool),
        terminated=flags,
        truncated=flags,
        valid=~flags,
        group=np.zeros(B, np.int32),
        policy_version=np.full((T, B), 5, np.int32),
    )
    return dataclasses.replace(part, **fields)


TRAJECTORIES = {
    "a reward that is NaN": ({"rewards": changed(shard().rewards, (2, 1, 0), np.nan)}, "chunk step 2 of row 1"),
    "a log-probability that is NaN": ({"logprobs": changed(shard().logprobs, (0, 0, 0), np.nan)}, "logprobs"),
    "an infinite next value": ({"next_values": changed(shard().next_values, (3, 2), np.inf)}, "next_values"),
    "too few chunk steps": ({"valid": np.ones((T - 1, B), bool)}, "flags of shape"),
    "rewards of other rows": ({"rewards": np.zeros((T, B - 1, C), np.float32)}, "rewards of shape"),
    "two ends": ({name: changed(shard().valid, (1, 1), True) for name in ("terminated", "truncated")}, "both"),
    "a sentence that is not there": ({"instruction_index": np.ones((T, B), np.int16)}, "sentences"),
    "a policy that was never sent": ({"policy_version": np.full((T, B), 6, np.int32)}, "policy version 6"),
}


@pytest.mark.parametrize("name", TRAJECTORIES)
def test_a_wrong_trajectory_is_a_fault_of_its_env_worker(name: str) -> None:
    fields, text = TRAJECTORIES[name]
    check_trajectories([shard(), shard()], ["env/0", "env/1"], T, 5)
    with pytest.raises(RunError, match="env/1: it sent a trajectory with") as caught:
        check_trajectories([shard(), shard(**fields)], ["env/0", "env/1"], T, 5)
    assert caught.value.worker == "env/1" and text in str(caught.value)


def test_void_chunk_steps_may_hold_anything() -> None:
    valid = changed(np.ones((T, B), bool), (2, 1), False)
    check_trajectories([shard(valid=valid, rewards=changed(shard().rewards, (2, 1, 0), np.nan))], ["env/0"], T, 5)


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
