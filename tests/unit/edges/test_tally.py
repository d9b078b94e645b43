"""What the chunk steps of an env worker were like."""

from __future__ import annotations

import dataclasses

import numpy as np

from rlrun.edges.frames import ChunkResult, Frames
from rlrun.edges.tally import StepTally

B, C, A = 3, 2, 2
ROWS = np.arange(B)
LOW, HIGH = np.full(A, -1.0, np.float32), np.full(A, 1.0, np.float32)


def frames(number: int, frozen_cameras: tuple[int, ...] = (), text: str = "go") -> Frames:
    """Two cameras, whose pictures and the proprioception tell a number."""
    images = np.full((B, 2, 8, 8, 3), number, np.uint8)
    images[:, list(frozen_cameras)] = 0
    return Frames(images, np.full((B, 1), number, np.float32), (text,) * B)


def result(after: Frames, ended: np.ndarray | None = None) -> ChunkResult:
    nothing = np.zeros(B, bool)
    chunk = ChunkResult.broken(after, C, nothing)
    return dataclasses.replace(chunk, terminated=nothing if ended is None else ended)


def actions(value: float) -> np.ndarray:
    return np.full((B, C, A), value, np.float32)


def test_a_camera_that_shows_the_same_while_the_robot_moves() -> None:
    tally = StepTally(LOW, HIGH)
    for t in range(5):
        tally.add(ROWS, frames(t, (1,)), actions(0.1 * t), result(frames(t + 1, (1,))))
    found = tally.drain()
    assert (found.num_chunk_steps, found.num_moves, found.num_frozen) == (15, 15, (0, 15))
    assert found.instructions == ("go",) and found.outside == 0
    assert tally.drain().num_chunk_steps == 0


def test_a_robot_that_stands_still_on_purpose_is_no_frozen_camera() -> None:
    tally = StepTally(LOW, HIGH)
    for _ in range(5):
        tally.add(ROWS, frames(3), actions(0.0), result(frames(3)))
    assert tally.drain().num_moves == 0


def test_frozen_pictures_and_state_show_by_the_actions() -> None:
    tally = StepTally(LOW, HIGH)
    for t in range(5):
        tally.add(ROWS, frames(3), actions(0.1 * t), result(frames(3)))
    found = tally.drain()
    assert found.num_moves == 12 and found.num_frozen == (12, 12)  # in the first chunk nothing tells what is new


def test_ends_of_episodes_do_not_count() -> None:
    tally = StepTally(LOW, HIGH)
    tally.add(ROWS, frames(1), actions(0.0), result(frames(2), np.ones(B, bool)))
    tally.add(ROWS, frames(5), actions(0.5), result(frames(5)))  # of new episodes
    assert tally.drain().num_moves == 0


def test_episodes_in_which_a_camera_showed_no_change() -> None:
    tally = StepTally(LOW, HIGH)
    for t in range(3):
        tally.add(ROWS, frames(t, (1,)), actions(0.1 * t), result(frames(t + 1, (1,)), np.full(B, t == 2)))
    found = tally.drain()
    assert (found.num_moved_episodes, found.num_still) == (B, (0, B))


def test_the_picture_of_a_reset_may_be_true_where_the_camera_is_frozen() -> None:
    tally = StepTally(LOW, HIGH)
    old = frames(7).images
    for t in range(4):
        before = frames(0) if t == 0 else dataclasses.replace(frames(t), images=old)
        after = dataclasses.replace(frames(t + 1), images=old)
        tally.add(ROWS, before, actions(0.1 * t), result(after, np.full(B, t == 3)))
    found = tally.drain()
    assert (found.num_moved_episodes, found.num_still) == (B, (B, B))


def test_a_reset_between_two_steps_ends_an_episode() -> None:
    tally = StepTally(LOW, HIGH)
    tally.add(ROWS, frames(1), actions(0.0), result(frames(2)))
    tally.add(ROWS, frames(2), actions(0.0), result(frames(3)))
    tally.drain()
    tally.add(ROWS, frames(9), actions(0.5), result(frames(9)))
    found = tally.drain()
    assert (found.num_moved_episodes, found.num_moves) == (B, 0)


def test_the_used_part_of_a_range_is_measured_from_its_middle() -> None:
    for value, used in ((2.0, 0.0), (3.0, 1.0), (1.5, 0.5)):
        tally = StepTally(np.full(A, 1.0, np.float32), np.full(A, 3.0, np.float32))
        tally.add(ROWS, frames(0), actions(value), result(frames(1)))
        assert tally.drain().used == used


def test_a_change_in_any_line_of_a_picture_counts() -> None:
    tally = StepTally(LOW, HIGH)
    after = frames(0)
    after.images[:, 0, 1, 0] = 7
    after.proprio[:] = 1
    tally.add(ROWS, frames(0), actions(0.0), result(after))
    assert tally.drain().num_frozen == (0, B)


def test_pictures_of_one_colour_and_noise_are_counted() -> None:
    tally = StepTally(LOW, HIGH)
    tally.add(ROWS, frames(1), actions(0.0), result(frames(1)))
    noise = frames(1)
    noise.images[:] = np.random.default_rng(0).integers(0, 256, noise.images.shape)
    tally.add(ROWS, frames(1), actions(0.0), result(noise))
    usual = frames(1)
    usual.images[:, :, :, 4:] = 40
    tally.add(ROWS, frames(1), actions(0.0), result(usual))
    assert tally.drain().num_odd == 2 * B


def test_how_far_the_state_and_the_actions_reach() -> None:
    tally = StepTally(LOW, HIGH)
    assert tally.drain().reach == 1
    for start in (0.0, 100.0):
        tally.add(ROWS, frames(int(start)), actions(0.03), result(moved(start + 0.01)))
    found = tally.drain()
    assert found.reach < 2e-4 and abs(found.used - 0.03) < 1e-6


def test_actions_without_limits_are_not_small() -> None:
    tally = StepTally(np.full(A, -np.inf, np.float32), HIGH)
    tally.add(ROWS, frames(0), actions(0.01), result(frames(1)))
    assert tally.drain().used == 1


def moved(value: float) -> Frames:
    return dataclasses.replace(frames(3), proprio=np.full((B, 1), value, np.float32))


def test_actions_beyond_their_limits() -> None:
    tally = StepTally(LOW, HIGH)
    beyond = actions(0.0)
    beyond[0, 0, 0], beyond[1, 1, 1] = 1.5, -7.0
    tally.add(ROWS, frames(1), beyond, result(frames(2)))
    assert tally.drain().outside == 2 / beyond.size


def test_rows_that_act_alone_and_worlds_without_cameras() -> None:
    tally = StepTally(LOW, HIGH)
    blind = Frames(np.zeros((B, 0, 8, 8, 3), np.uint8), np.zeros((B, 1), np.float32), ("b", "a", "a"))
    tally.add(ROWS[1:], blind.rows(ROWS[1:]), actions(0.0)[1:], result(blind))
    found = tally.drain()
    assert (found.num_chunk_steps, found.num_frozen, found.instructions) == (2, (), ("a",))


def test_a_row_whose_robot_does_not_move_in_whole_episodes() -> None:
    tally = StepTally(LOW, HIGH)
    for t in range(4):
        before = frames(t)
        after = frames(t + 1)
        before.proprio[1] = after.proprio[1] = 7.0
        tally.add(ROWS, before, actions(0.1 * t), result(after, np.full(B, t == 3)))
    found = tally.drain()
    assert (found.row_episodes, found.row_still) == ((1, 1, 1), (0, 1, 0))
    assert tally.drain().row_episodes == ()


def test_rows_keep_their_numbers_where_one_had_no_episode_with_moves() -> None:
    """Row 0 ends in its first chunk, and row 2 does not move."""
    tally = StepTally(LOW, HIGH)
    for t in range(4):
        before = frames(t)
        after = frames(t + 1)
        before.proprio[2] = after.proprio[2] = 7.0
        tally.add(ROWS, before, actions(0.1 * t), result(after, np.array([True, t == 3, t == 3])))
    found = tally.drain()
    assert (found.row_episodes, found.row_still) == ((0, 1, 1), (0, 0, 1))


def test_a_number_with_one_allowed_value_has_no_range_to_use() -> None:
    tally = StepTally(np.array([-1.0, 0.5], np.float32), np.array([1.0, 0.5], np.float32))
    moves = actions(0.5)
    moves[..., 0] = 1.0
    tally.add(ROWS, frames(0), moves, result(frames(1)))
    assert tally.drain().used == 1
