"""Every row of the comparison with a started world: what is right passes in silence, what is not names its key.

The world is a point with two coordinates, which move by a tenth of the two actions; a third number never moves.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import yaml

from rlrun.config.schema import DemoKeysConfig, DemosConfig
from rlrun.data.fit import World, compare
from rlrun.data.fit_numbers import _start_finding
from rlrun.data.fit_pictures import judge_pictures
from rlrun.data.fit_replay import MIN_STARTS, Replay, replayed_actions
from rlrun.data.fit_report import FITS, CompatibilityReport
from rlrun.data.lerobot import DemoFeatures, DemoWriter, Episode
from rlrun.data.lerobot.reader import DatasetInfo, ShownPictures, dataset_info
from rlrun.data.thumbnails import thumbnail
from rlrun.edges.frames import ChunkResult, Frames
from rlrun.edges.spaces import PolicySpaces, Spaces
from rlrun.edges.world_sample import WorldSample
from rlrun.envs.sampling import sample_world
from rlrun.envs.vector_env import VectorEnv

SPACES = Spaces(
    *(2, None, (-1.0, -1.0), (1.0, 1.0), 3, 1),
    cameras=("top",),
    proprio_names=("x", "y", "height"),
    action_names=("move_x", "move_y"),
    control_hz=10.0,
    instructions=("go to the mark",),
)
SPEED = 0.1


def drawn(state: np.ndarray) -> np.ndarray:
    """A picture without any symmetry, with a white square at the point, uint8 [64, 64, 3]."""
    rows, columns = np.mgrid[:64, :64]
    picture = np.stack([2 * rows, 3 * columns // 2, np.full((64, 64), 40)], 2).astype(np.uint8)
    picture[:20, :30] = (200, 60, 10)
    row, column = np.clip(32 + 20 * state[:2], 0, 55).astype(int)
    picture[row : row + 8, column : column + 8] = 255
    return picture


class PointWorld(VectorEnv):
    """B points. is_blank: its camera shows one colour."""

    spaces = SPACES

    def __init__(self, num_envs: int = MIN_STARTS, is_blank: bool = False, height: float = 0.3):
        self.num_envs = num_envs
        self.is_blank = is_blank
        self._height = height
        self._state = np.zeros((num_envs, 3), np.float32)

    def reset(self, env_ids: np.ndarray, seeds: np.ndarray) -> Frames:
        for row, seed in zip(env_ids, seeds, strict=True):
            start = np.random.default_rng(seed).uniform(0.2, 0.4, 2)
            self._state[row] = (*start, self._height)
        return self._frames(env_ids)

    def step_chunk(self, actions: np.ndarray, active: np.ndarray | None = None) -> ChunkResult:
        self._state[:, :2] += SPEED * np.clip(actions[:, 0], -1, 1)
        result = ChunkResult.broken(self._frames(np.arange(self.num_envs)), 1, np.zeros(self.num_envs, bool))
        return dataclasses.replace(result, rewards=-np.linalg.norm(self._state[:, :2], axis=1, keepdims=True))

    def _frames(self, rows: np.ndarray) -> Frames:
        state = self._state[rows].copy()
        images = np.stack([drawn(one) * (not self.is_blank) for one in state])
        return Frames(images[:, None], state, ("go to the mark",) * len(rows))

    def render(self, env_id: int, height: int, width: int) -> np.ndarray:
        raise NotImplementedError

    def expert_action(self, env_ids: np.ndarray) -> np.ndarray:
        raise NotImplementedError

    def close(self) -> None:
        pass


def recorded(number: int = 10) -> list[Episode]:
    """Episodes of an expert of that world, which wanders."""
    episodes = []
    for seed in range(number):
        world = PointWorld(1)
        random = np.random.default_rng(seed)
        frames = world.reset(np.arange(1), np.array([seed]))
        images, states, actions, rewards = [], [], [], []
        for _ in range(12):
            action = random.uniform(-1, 1, 2).astype(np.float32)
            images.append(frames.images[0])
            states.append(frames.proprio[0])
            actions.append(action)
            result = world.step_chunk(action[None, None])
            rewards.append(result.rewards[0, 0])
            frames = result.frames
        parts = (np.stack(part) for part in (images, states, actions))
        episodes.append(Episode(*parts, "go to the mark", True, seed, np.array(rewards, np.float32), True))
    return episodes


Change = Callable[[Episode], dict[str, Any]]


def judged(
    folder: Any, change: Change | None = None, keys: DemoKeysConfig | None = None, world: PointWorld | None = None
) -> CompatibilityReport:
    """Compare a changed recording with the world."""
    features = DemoFeatures(("top",), ((64, 64),), 3, 2, 10.0, action_names=SPACES.action_names, has_rewards=True)
    if not (folder / "set").exists():
        with DemoWriter(folder / "set", features) as writer:
            for episode in recorded():
                writer.add(dataclasses.replace(episode, **(change(episode) if change else {})))
            writer.finish()
    demos = DemosConfig(keys=keys or DemoKeysConfig())
    data = dataset_info(demos, str(folder / "set"))
    world = world or PointWorld()
    actions = replayed_actions(data, SPACES, MIN_STARTS)
    assert actions is not None
    sample = sample_world(world, 100 + np.arange(MIN_STARTS), actions)
    policy = PolicySpaces(2, 3, ("top",))
    return compare(data, World(SPACES, 64, sample=sample), policy, learns_rewards=True)


def column(number: int, factor: float) -> Change:
    def change(episode: Episode) -> dict[str, Any]:
        state = episode.proprio.copy()
        state[:, number] *= np.float32(factor)
        return {"proprio": state}

    return change


def declared(fit: CompatibilityReport) -> DemoKeysConfig:
    """The keys that the first warning or refusal says."""
    (text,) = fit.warnings or [f"{fit.refusals[0].remedy}"]
    found = dict(re.findall(r"demos\.keys\.(scale|offset|pictures)=(\{[^}]*\})", text))
    return DemoKeysConfig(**{key: yaml.safe_load(value) for key, value in found.items()})


def test_the_worlds_own_recording_fits_in_silence_with_a_row_for_each_number(tmp_path: Any) -> None:
    fit = judged(tmp_path)
    assert not fit.refusals and not fit.warnings
    rows = {row.name: row for row in fit.rows}
    for name in ("camera top", "state 0 (x)", "state 2 (height)", "action 1 (move_y)", "reward"):
        assert rows[name].verdict == FITS and rows[name].data and rows[name].world
    assert rows["state 0 (x)"].policy == "taken"
    assert fit.lines()[0].split() == ["data", "set", "world", "policy", "verdict"]


def test_other_starts_with_motions_of_one_size_are_no_other_unit() -> None:
    """The data set begins at 1.0, the world at 0.01, and both move alike: the motions disprove another unit."""
    generator = np.random.default_rng(0)
    actions = generator.uniform(-1.0, 1.0, (8, 60, 1))
    moved = np.concatenate([np.zeros((8, 1, 1)), np.cumsum(0.004 * actions, axis=1)], axis=1)
    ours = 1.0 + moved
    theirs = (0.01 + moved)[:, :9].astype(np.float32)
    pictures = np.zeros((8, 0, 1, 1, 3), np.uint8)
    sample = WorldSample(pictures, pictures, theirs, np.zeros((8, 8), np.float32), np.ones(1, bool))
    replay = Replay(sample, actions[:, :8].astype(np.float32), ours[:, :9].astype(np.float32), np.zeros((8, 8)))
    found = _start_finding(ours[..., 0].ravel(), ours[:, 0, 0], theirs[:, 0, 0], replay, 0)
    assert found.change is None and "outside of the data set's range" in found.verdict


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            column(0, 57.29578),
            "state 0 (x): the data set's numbers are about 57.3 times the world's (degrees for radians)",
        ),
        (column(0, 1000), "about 1e+03 times the world's (thousandths for wholes)"),
        (column(2, 0.0174533), "state 2 (height): the data set's numbers are about 0.0175 times"),
        (column(2, -1), "state 2 (height): the world's first states have the other sign"),
        (lambda e: {"actions": e.actions / 50}, "move_y): the world moves 0.02 times as far by it as the data set"),
        (lambda e: {"actions": e.actions * np.float32([-1, 1])}, "action 0 (move_x): it moves the world the other way"),
        (lambda e: {"actions": e.actions * 57.29578}, "They fit as radians for degrees would"),
        (lambda e: {"actions": np.float32([1, 0.5]) * (e.actions > 0) + np.float32([0, 0.2])}, "has only 0 and 1"),
        (lambda e: {"actions": (e.actions + np.float32([1, 1])) / 2}, "move_y): the data set has only"),
        (lambda e: {"rewards": e.rewards * 100}, "rewards of the data set are about 100 times the world's"),
        (lambda e: {"images": e.images[:, :, ::-1, ::-1]}, "fit the world's first ones best turned by 180 degrees"),
        (lambda e: {"images": e.images[:, :, ::-1]}, "best upside down"),
        (lambda e: {"images": e.images[:, :, :, ::-1]}, "best mirrored (likeness"),
        (lambda e: {"images": np.rot90(e.images, 1, (2, 3))}, "best turned by 270 degrees"),
        (lambda e: {"images": e.images[..., ::-1]}, "best with red and blue exchanged"),
        (lambda e: {"images": e.images[:, :, ::-1, ::-1, ::-1]}, "turned by 180 degrees and with red and blue"),
    ],
)
def test_what_looks_wrong_names_the_key_that_mends_it(tmp_path: Any, change: Change, said: str) -> None:
    fit = judged(tmp_path, change)
    told = " ".join([*fit.warnings, *(str(refusal) for refusal in fit.refusals)])
    assert said in told
    mended = judged(tmp_path, change, declared(fit))
    assert not mended.refusals and not mended.warnings, "the remedy was followed"
    assert any("(demos.keys)" in note for note in mended.notes)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda e: {"proprio": e.proprio + np.float32([5, 0, 0])}, "the world's first states lie outside of the data"),
        (
            lambda e: {"proprio": e.proprio * np.float32([0, 1, 1]) + np.float32([0.3, 0, 0])},
            "it never moves in the data",
        ),
        (
            lambda e: {"proprio": np.stack([e.proprio[:, 0], e.proprio[:, 1], e.proprio[:, 0]], 1)},
            "and never in the world",
        ),
        (
            lambda e: {"proprio": e.proprio * np.float32([-1, 1, 1]) + np.float32([0.6, 0, 0])},
            "it moves the world the other way",
        ),
        (lambda e: {"rewards": np.zeros(12, np.float32)}, "rewards of the data set are 0, and the world gives"),
    ],
)
def test_what_looks_wrong_is_one_line(tmp_path: Any, change: Change, said: str) -> None:
    fit = judged(tmp_path, change)
    assert not fit.refusals and len(fit.warnings) == 1 and said in fit.warnings[0]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda e: {"images": 0 * e.images}, "shows one colour in all frames of every episode"),
        (lambda e: {"images": np.repeat(e.images[:1], 12, 0)}, "shows one picture in all frames of every episode"),
    ],
)
def test_pictures_that_show_nothing_are_refused(tmp_path: Any, change: Change, said: str) -> None:
    fit = judged(tmp_path, change)
    assert said in str(fit.refusals[0]) and fit.refusals[0].key == "demos.keys.images"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda e: {"images": e.images * (e.seed != 2)}, "shows one colour in all frames of episode 2:"),
        (
            lambda e: {"images": np.repeat(e.images[:1], 12, 0) if e.seed == 3 else e.images},
            "one picture in all frames of episode 3",
        ),
    ],
)
def test_pictures_of_some_episodes_are_told(tmp_path: Any, change: Change, said: str) -> None:
    fit = judged(tmp_path, change)
    assert not fit.refusals and len(fit.warnings) == 1 and said in fit.warnings[0]


def test_a_world_that_shows_nothing_itself_accuses_no_pictures(tmp_path: Any) -> None:
    fit = judged(tmp_path, lambda e: {"images": 0 * e.images}, world=PointWorld(is_blank=True))
    assert not fit.refusals and not fit.warnings


def test_a_small_part_of_the_limits_is_no_fault_where_the_world_moves_alike(tmp_path: Any) -> None:
    def change(episode: Episode) -> dict[str, Any]:
        small = np.float32(0.02)
        steps = np.vstack([np.zeros((1, 2)), np.cumsum(SPEED * small * episode.actions, 0)[:-1]])
        state = episode.proprio.copy()
        state[:, :2] = state[:1, :2] + steps
        return {"actions": small * episode.actions, "proprio": state}

    fit = judged(tmp_path, change)
    assert all(row.verdict.startswith("uses ") for row in fit.rows if "action " in row.name)
    assert not fit.warnings and not fit.refusals


def test_exchanged_cameras_are_told() -> None:
    one = np.stack([drawn(np.full(3, x)) for x in (0.1, 0.3, 0.5)])
    other = np.rot90(one, 1, (1, 2))[..., ::-1]
    some = np.zeros(3, bool)
    small = [np.stack([thumbnail(picture) for picture in pictures]) for pictures in (other, one)]
    shown = tuple(ShownPictures(pictures, some, ~some, np.arange(3)) for pictures in small)
    data = DatasetInfo(("top", "side"), ((64, 64), (64, 64)), 3, 2, 10.0, shown=shown)
    images = np.stack([one, other], 1)
    sample = WorldSample(images, images, np.zeros((3, 2, 3)), np.zeros((3, 1)), np.ones(3, bool))
    fit = CompatibilityReport(cameras=("top", "side"))
    judge_pictures(fit, data, World(dataclasses.replace(SPACES, cameras=("top", "side")), 64, sample=sample), None)
    assert "top shows what the world shows where side is taken" in fit.warnings[0] and "side, top" in fit.warnings[0]


def test_a_gripper_of_two_values_is_told_without_the_world() -> None:
    actions = np.where(np.arange(50)[:, None] % 2, 1.0, [[0.0, -1.0]]).astype(np.float32)
    data = DatasetInfo((), (), 3, 2, 10.0, actions=actions)
    fit = compare(data, World(dataclasses.replace(SPACES, num_images=0, cameras=()), 64))
    assert len(fit.warnings) == 1
    assert "'demos.keys.scale={action/0: 2}' 'demos.keys.offset={action/0: -1}' converts them" in fit.warnings[0]


@pytest.mark.parametrize("share", [0.3, 1.0])
def test_experts_that_use_a_part_of_the_limits_are_not_accused(share: float) -> None:
    actions = np.random.default_rng(0).uniform(0.6 - 0.4 * share, 0.6 + 0.4 * share, (50, 2)).astype(np.float32)
    actions[:, 1] = -1
    fit = compare(DatasetInfo((), (), 3, 2, 10.0, actions=actions), World(dataclasses.replace(SPACES, num_images=0)))
    assert not fit.warnings and not fit.refusals
