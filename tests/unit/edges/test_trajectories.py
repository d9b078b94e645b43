"""TrajectoryBuilder: what was collected, cut for the actor ranks; copied only where it is cut."""

from __future__ import annotations

import numpy as np
import pytest

from rlrun.edges.actions import ActionChunk
from rlrun.edges.frames import ChunkResult, Frames
from rlrun.edges.observations import Observation
from rlrun.edges.trajectories import TrajectoryBuilder

NUM_STEPS, NUM_ENVS, NUM_CONTROL_STEPS = 3, 4, 2


def built() -> TrajectoryBuilder:
    """Each row's numbers tell its step and its env."""
    builder = TrajectoryBuilder(NUM_STEPS, NUM_ENVS)
    never, every = np.zeros(NUM_ENVS, bool), np.ones((NUM_ENVS, NUM_CONTROL_STEPS), bool)
    for t in range(NUM_STEPS):
        mark = (10 * t + np.arange(NUM_ENVS)).astype(np.float32)
        frames = Frames(np.zeros((NUM_ENVS, 1, 8, 8, 3), np.uint8), mark[:, None], ("press",) * NUM_ENVS)
        asked = Observation(0, frames, np.zeros(NUM_ENVS, np.uint64), 1.0, None)
        tokens = mark[:, None].astype(np.uint8)
        chunk = ActionChunk.answer(asked, np.zeros((NUM_ENVS, 2, 1)), tokens, mark[:, None], mark, None, 7)
        rewards = np.repeat(mark[:, None], NUM_CONTROL_STEPS, axis=1)
        result = ChunkResult(frames, rewards, every, never, never, never, mark, never, ({},) * NUM_ENVS)
        builder.add(t, np.arange(NUM_ENVS), asked, chunk, result)
    return builder


@pytest.mark.parametrize("num_ranks", [1, 2, 4])
def test_each_rank_gets_its_rows_of_every_array(num_ranks: int) -> None:
    share = NUM_ENVS // num_ranks
    shards = built().shards(first_env=0, envs_per_rank=share, group_size=1)
    assert sorted(shards) == list(range(num_ranks))
    for rank, shard in shards.items():
        envs = np.arange(rank * share, (rank + 1) * share)
        marks = 10 * np.arange(NUM_STEPS)[:, None] + envs
        np.testing.assert_array_equal(shard.group, envs)
        np.testing.assert_array_equal(shard.proprio[..., 0], marks)
        np.testing.assert_array_equal(shard.rewards[..., -1], marks)
        assert shard.valid.all() and (shard.policy_version == 7).all()
        assert all(array.flags.c_contiguous for array in vars(shard).values() if isinstance(array, np.ndarray))


def test_pictures_are_copied_for_a_rank_only_where_they_are_cut() -> None:
    def images(builder: TrajectoryBuilder, envs_per_rank: int) -> list[bool]:
        shards = builder.shards(0, envs_per_rank, 1).values()
        return [np.shares_memory(shard.images, builder._arrays["images"]) for shard in shards]

    assert images(built(), NUM_ENVS) == [True]
    assert images(built(), NUM_ENVS // 2) == [False, False]


def test_a_collection_in_which_every_row_broke_at_once_has_the_version_that_was_asked() -> None:
    builder = built()
    builder._arrays["step_valid"][...] = False
    assert builder.policy_version == 7 and builder.num_control_steps == 0
