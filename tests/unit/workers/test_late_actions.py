"""Late actions: the old chunk goes on, every action is executed once and in order, whatever other rows do."""

from __future__ import annotations

import numpy as np
import pytest

from rlrun.config.checks_of_machines import actions_arrive_within_a_chunk
from rlrun.config.loader import compose_only
from rlrun.edges.frames import ChunkResult, Frames
from rlrun.workers.late_actions import LateActions

CHUNK = 4


class World:
    """Rows that note what they execute; the frames show its last action. A row ends at a number of control steps."""

    def __init__(self, num_rows: int, ends_at: int = 10**6):
        self.executed: list[list[float]] = [[] for _ in range(num_rows)]
        self._ends_at = ends_at

    def simulate(self, rows: np.ndarray, actions: np.ndarray) -> ChunkResult:
        num_rows = len(self.executed)
        num_steps = actions.shape[1]
        rewards = np.zeros((num_rows, num_steps), np.float32)
        valid = np.zeros((num_rows, num_steps), bool)
        truncated, no = np.zeros((2, num_rows), bool)
        proprio = np.zeros((num_rows, 1), np.float32)
        for row, chunk in zip(rows.tolist(), actions, strict=True):
            for k, (action,) in enumerate(chunk.tolist()):
                if len(self.executed[row]) == self._ends_at:
                    break
                self.executed[row].append(action)
                rewards[row, k] = action
                valid[row, k] = True
            truncated[row] = len(self.executed[row]) == self._ends_at
            proprio[row] = self.executed[row][-1]
        frames = Frames(np.zeros((num_rows, 0, 1, 1, 3), np.uint8), proprio, ("",) * num_rows)
        infos = tuple({"row": row} if row in rows else {} for row in range(num_rows))
        return ChunkResult(frames, rewards, valid, no, truncated, no, np.zeros(num_rows, np.float32), no, infos)


def chunk_of(first: float, num_rows: int = 1) -> np.ndarray:
    """Actions first, first + 1, … of each row, [R, C, 1]."""
    return np.tile(first + np.arange(CHUNK, dtype=np.float32)[None, :, None], (num_rows, 1, 1))


@pytest.mark.parametrize("delay", range(CHUNK))
def test_every_action_is_executed_once_and_in_order(delay: int) -> None:
    world = World(1)
    late = LateActions(delay, 1)
    row = np.array([0])
    late.begin(row)
    results = [late.step(row, chunk_of(CHUNK * number), world.simulate) for number in range(3)]
    assert world.executed[0] == list(range(3 * CHUNK - delay))
    assert [int(result.step_valid.sum()) for result in results] == [CHUNK - delay, CHUNK, CHUNK]
    assert all(result.rewards.shape == (1, CHUNK) for result in results)
    assert results[1].rewards[0].tolist() == world.executed[0][CHUNK - delay : 2 * CHUNK - delay]


def test_rows_whose_episodes_begin_do_not_move_the_others() -> None:
    world = World(3)
    late = LateActions(1, 3)
    late.begin(np.arange(3))
    late.step(np.arange(3), chunk_of(0, 3), world.simulate)
    late.begin(np.array([1]))
    result = late.step(np.arange(3), chunk_of(100, 3), world.simulate)
    assert world.executed[0] == world.executed[2] == [0, 1, 2, 3, 100, 101, 102]
    assert world.executed[1] == [0, 1, 2, 100, 101, 102], "nothing is left of the episode before"
    assert result.step_valid.sum(axis=1).tolist() == [4, 3, 4]
    assert result.frames.proprio[:, 0].tolist() == [102, 102, 102]
    assert [info["row"] for info in result.infos] == [0, 1, 2]


def test_an_episode_that_ends_within_the_old_chunk_is_over() -> None:
    world = World(2, ends_at=4)
    late = LateActions(2, 2)
    rows = np.arange(2)
    late.begin(rows)
    assert not late.step(rows, chunk_of(0, 2), world.simulate).truncated.any()
    result = late.step(rows, chunk_of(10, 2), world.simulate)
    assert result.truncated.all() and world.executed[0] == [0, 1, 2, 3]


def test_a_delay_as_long_as_a_chunk_is_refused() -> None:
    config = compose_only(["run=debug", "env.action_delay=4", "policy.num_action_chunks=4"])
    (fault,) = actions_arrive_within_a_chunk(config)
    assert fault.key == "env.action_delay" and "at most 3" in fault.remedy
    assert list(actions_arrive_within_a_chunk(compose_only(["run=debug", "env.action_delay=3"]))) == []
