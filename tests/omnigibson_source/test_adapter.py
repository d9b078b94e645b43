"""The adapter over OmniGibson's real environments, task, goal, rewards, limits and controllers; physics is faked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rlrun.envs.omnigibson.configuration import CONTROLLERS

Results = Callable[[str], Any]


def test_the_action_is_in_the_robots_order(results: Results) -> None:
    robot = results("robot")
    assert robot["actions"] == CONTROLLERS and robot["order"] == list(range(23))
    assert robot["grasping"] == "assisted"


def test_the_scene_gets_the_rooms_and_no_robot(results: Results) -> None:
    scene = results("robot")["scene"]
    assert scene["load_room_types"] == ["corridor", "kitchen", "living_room"] and scene["include_robots"] is False


def test_robots_start_in_their_own_scene(results: Results) -> None:
    """The task itself would place the second robot 30 m away, in the frame of the first scene."""
    assert results("robot")["places"] == [pytest.approx([2.0, 3.0, 0.0])] * 2
    assert results("instance")["places"] == [pytest.approx([4.0, 5.0, 0.0])] * 2


def test_objects_of_an_instance_stand_in_their_own_scene(results: Results) -> None:
    assert results("instance")["objects"] == [pytest.approx([1.0, 2.0, 0.5])] * 2


def test_a_chunk_renders_three_times_and_observes_each_row_once(results: Results) -> None:
    counts = results("chunk")
    assert counts["steps"] == 8 and counts["physics_steps"] == 8 * 4
    assert counts["renders"] <= 3 and counts["observations"] == 2
    assert counts["dumps"] == counts["loads"] == 0


def test_a_row_that_waits_is_put_back_once_a_call(results: Results) -> None:
    counts = results("ragged")
    assert counts["dumps"] == counts["loads"] == 2


def test_the_real_goal_ends_the_episode_at_its_step(results: Results) -> None:
    goal = results("goal")
    assert goal["terminated"] == goal["success"] == [True, False] and goal["truncated"] == [False, False]
    assert goal["steps"] == [4, 8] and goal["q_score"] == [1.0, 0.0] and goal["rewards"] == pytest.approx([1.0, 0.0])


def test_the_time_limit_comes_before_the_real_one(results: Results) -> None:
    assert results("limit") == [[8, False, False], [4, True, False]]


def test_the_grasp_window_is_the_real_macro(results: Results) -> None:
    assert results("grasp_window") == 0.75
