"""Simulators that break one promise each are named by what is wrong."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest

from rlrun.config.schema import EnvConfig
from rlrun.edges.frames import Frames
from rlrun.edges.spaces import Spaces
from rlrun.envs.rows import RowsEnv, SingleEnv, Step
from rlrun.envs.vector_env import VectorEnv
from rlrun.testing.simulators import TIME_LIMIT, EnvUnderTest, Note, broken_promises, findings

SIZE = 16
SPACES = Spaces(2, None, (-1.0, -1.0), (1.0, 1.0), 2, 1, action_names=("x", "y"))


class Point(SingleEnv):
    """A point that moves; keeps all promises."""

    instruction = "go"

    def start(self, seed: int) -> None:
        self.place = np.random.default_rng(seed).uniform(-1, 1, 2)

    def step(self, action: np.ndarray) -> Step:
        self.place = self.place + 0.01 * action
        return Step(float(action[0]), False, False, False)

    def perceive(self) -> tuple[np.ndarray, np.ndarray]:
        return self.render(SIZE, SIZE)[None], self.place.astype(np.float32)

    def render(self, height: int, width: int) -> np.ndarray:
        return np.resize(np.arange(251, dtype=np.uint8), (height, width, 3)) + np.uint8(10 * (self.place[0] + 1))

    def close(self) -> None:
        pass


def rows(single: type[SingleEnv] = Point, kind: type[RowsEnv] = RowsEnv) -> VectorEnv:
    return kind(single, 3, SPACES, SIZE, TIME_LIMIT, lambda: None)


class Unseeded(Point):
    num_starts = itertools.count()

    def start(self, seed: int) -> None:
        super().start(next(self.num_starts))


class DeafToSeeds(Point):
    def start(self, seed: int) -> None:
        super().start(1)


class Narrow(Point):
    """Its engine takes 32 bits."""

    def start(self, seed: int) -> None:
        super().start(int(np.uint32(seed)))


class Remembering(Point):
    warmth = 0.0

    def step(self, action: np.ndarray) -> Step:
        self.warmth += 0.1
        self.place = self.place + self.warmth
        return super().step(action)


class Blind(Point):
    def render(self, height: int, width: int) -> np.ndarray:
        return np.zeros((height, width, 3), np.uint8)


class Numb(Point):
    def perceive(self) -> tuple[np.ndarray, np.ndarray]:
        return self.render(SIZE, SIZE)[None], self.place * np.nan


class Raising(Point):
    def step(self, action: np.ndarray) -> Step:
        raise OSError("the display is gone")


class Speechless(Point):
    instruction = ""


class Misshapen(RowsEnv):
    def _blank(self, num_rows: int) -> Frames:
        blank = super()._blank(num_rows)
        return Frames(blank.images, blank.proprio.astype(np.float64), blank.instructions)


class Unclipped(RowsEnv):
    def checked(self, actions, active, is_over):
        super().checked(actions, active, is_over)
        return actions


class Trusting(RowsEnv):
    def checked(self, actions, active, is_over):
        return np.clip(np.nan_to_num(actions[:, :, : self.spaces.num_actions]), -1, 1)


class Hasty(RowsEnv):
    """Resets on its own where an episode ends, and shows the next one."""

    def step_chunk(self, actions, active=None):
        result = super().step_chunk(actions, active)
        over = np.flatnonzero(result.truncated)
        if len(over):
            begun = self.reset(over, over)
            result.frames.images[over], result.frames.proprio[over] = begun.images, begun.proprio
        return result


class HastyAlike(Hasty):
    """The same, and its next episodes begin all alike."""

    def reset(self, env_ids, seeds):
        return super().reset(env_ids, np.ones_like(seeds))


class ResettingAll(RowsEnv):
    def reset(self, env_ids, seeds):
        super().reset(np.arange(3), np.resize(seeds, 3))
        return super().reset(env_ids, seeds)


class Timeless(RowsEnv):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        self._max_control_steps = 10**6


class Sharing(RowsEnv):
    """Returns one array again and again."""

    kept: np.ndarray | None = None

    def step_chunk(self, actions, active=None):
        result = super().step_chunk(actions, active)
        if self.kept is None or self.kept.shape != result.rewards.shape:
            self.kept = result.rewards
        self.kept[:] = result.rewards
        return dataclasses.replace(result, rewards=self.kept)


class StepwiseReward(RowsEnv):
    """Pays at the end of a chunk."""

    def step_chunk(self, actions, active=None):
        result = super().step_chunk(actions, active)
        result.rewards[:, -1] += 1.0
        return result


class Restless(RowsEnv):
    """Steps all rows, whichever are active."""

    def step_chunk(self, actions, active=None):
        return super().step_chunk(actions)


class Misdescribed(RowsEnv):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.spaces = exchanged(self.spaces)

    def checked(self, actions, active, is_over):
        declared = self.spaces
        self.spaces = exchanged(declared)
        checked = super().checked(actions, active, is_over)
        self.spaces = declared
        return checked


def exchanged(spaces: Spaces) -> Spaces:
    return dataclasses.replace(spaces, action_low=spaces.action_high, action_high=spaces.action_low)


class Tireless(RowsEnv):
    """Goes on with a chunk after the episode has ended in it."""

    def step_chunk(self, actions, active=None):
        result = super().step_chunk(actions, active)
        result.step_valid[result.truncated] = True
        return result


class Undead(RowsEnv):
    def close(self) -> None:
        pass


BROKEN = {
    "unseeded": (lambda: rows(Unseeded), "a_seed_decides", "starts differently in another row"),
    "refusing large seeds": (lambda: rows(Narrow), "seeds_are_taken", "one of those of training: OverflowError"),
    "remembering": (lambda: rows(Remembering), "a_past_does_not_matter", "something survives reset()"),
    "blind": (lambda: rows(Blind), "pictures_show_something", "of one colour"),
    "numb": (lambda: rows(Numb), "shapes_and_types", "proprioception 0 is nan"),
    "raising": (lambda: rows(Raising), "shapes_and_types", "breaks in the same way again and again"),
    "speechless": (lambda: rows(Speechless), "shapes_and_types", "instructions"),
    "misshapen": (lambda: rows(kind=Misshapen), "shapes_and_types", "proprioception are float64 [2, 2]"),
    "unclipped": (lambda: rows(kind=Unclipped), "actions_are_clipped", "not clipped"),
    "trusting": (lambda: rows(kind=Trusting), "wrong_actions_are_refused", "that hold NaN are taken"),
    "steps the dead": (lambda: rows(kind=Trusting), "an_ended_row_is_refused", "stepped without a reset"),
    "hasty with one start": (lambda: rows(kind=HastyAlike), "final_frames_are_shown", "not those of its last step"),
    "hasty": (lambda: rows(kind=Hasty), "final_frames_are_shown", "not those of its last step"),
    "resetting all": (lambda: rows(kind=ResettingAll), "a_reset_touches_its_rows", "changes the others"),
    "timeless": (lambda: rows(kind=Timeless), "the_time_limit_truncates", "not truncated"),
    "sharing": (lambda: rows(kind=Sharing), "results_are_the_callers", "writes into frames or rewards"),
    "chunk rewards": (lambda: rows(kind=StepwiseReward), "a_chunk_is_its_steps", "other rewards in shorter chunks"),
    "restless": (lambda: rows(kind=Restless), "inactive_rows_stand_still", "was left out has steps"),
    "misdescribed": (lambda: rows(kind=Misdescribed), "spaces_are_described", "not below action_high"),
    "tireless": (lambda: rows(kind=Tireless), "the_time_limit_truncates", "after the end of an episode are valid"),
    "undead": (lambda: rows(kind=Undead), "a_closed_one_refuses", "must raise RuntimeError"),
}


def test_the_healthy_one_keeps_all_promises() -> None:
    assert list(broken_promises(EnvUnderTest(EnvConfig(image_size=SIZE), rows, rows()))) == []


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_broken_is_named(name: str) -> None:
    make, check, words = BROKEN[name]
    found = list(broken_promises(EnvUnderTest(EnvConfig(image_size=SIZE), make, make())))
    assert any(where == check and words in fault for where, fault in found), found


class Crashing(Point):
    """Ends at its third control step, as a car that crashes."""

    num_steps = 0

    def start(self, seed: int) -> None:
        super().start(seed)
        self.num_steps = 0

    def step(self, action: np.ndarray) -> Step:
        self.num_steps += 1
        return super().step(action)._replace(terminated=self.num_steps == 3)


class LeavingTheMap(Crashing):
    """The same, truncated by the world itself."""

    def step(self, action: np.ndarray) -> Step:
        step = super().step(action)
        return step._replace(terminated=False, truncated=step.terminated)


class Arriving(Crashing):
    """Some of its episodes end, others go on."""

    def start(self, seed: int) -> None:
        super().start(seed)
        self.num_steps = 0 if seed % 3 == 1 else 10


class Corridor(Point):
    """One start, few places: paths meet, and pictures repeat."""

    def start(self, seed: int) -> None:
        self.place = np.zeros(2)

    def step(self, action: np.ndarray) -> Step:
        self.place = np.clip(self.place + np.sign(action), -1, 1)
        return Step(0.0, False, False, False)


class DarkAtFirst(Point):
    """Shows nothing before its third control step."""

    num_steps = 0

    def start(self, seed: int) -> None:
        super().start(seed)
        self.num_steps = 0

    def step(self, action: np.ndarray) -> Step:
        self.num_steps += 1
        return super().step(action)

    def render(self, height: int, width: int) -> np.ndarray:
        return super().render(height, width) * np.uint8(self.num_steps > 2)


class Undrawn(Point):
    """Has no overview for people."""

    def perceive(self) -> tuple[np.ndarray, np.ndarray]:
        return super().render(SIZE, SIZE)[None], self.place.astype(np.float32)

    def render(self, height: int, width: int) -> np.ndarray:
        raise NotImplementedError("no renderer")


class Closed(RowsEnv):
    """Raises something else after close()."""

    def reset(self, env_ids, seeds):
        if not self._rows:
            raise ValueError("closed")
        return super().reset(env_ids, seeds)


def unbounded() -> VectorEnv:
    spaces = dataclasses.replace(SPACES, action_low=(-np.inf, -1.0), action_high=(np.inf, np.inf))
    return RowsEnv(Point, 3, spaces, SIZE, TIME_LIMIT, lambda: None)


SOUND = {
    "one start": (lambda: rows(DeafToSeeds), ["the first observations of 4 seeds are equal"]),
    "a crash": (lambda: rows(Crashing), ["not judged: each of 20 episodes ended within"] * 4),
    "out of the map": (lambda: rows(LeavingTheMap), ["20 of them truncated"] * 4),
    "some crash": (lambda: rows(Arriving), []),
    "few places": (lambda: rows(Corridor), ["the first observations of 4 seeds are equal"]),
    "dark at first": (lambda: rows(DarkAtFirst), []),
    "without a renderer": (lambda: rows(Undrawn), ["render() draws nothing for people: NotImplementedError"]),
    "another exception": (lambda: rows(kind=Closed), ["reset() raises ValueError after close()"]),
    "unbounded actions": (unbounded, []),
}


@pytest.mark.parametrize("name", SOUND)
def test_a_sound_world_is_not_called_broken(name: str) -> None:
    make, notes = SOUND[name]
    subject = EnvUnderTest(EnvConfig(image_size=SIZE), make, make())
    assert list(broken_promises(subject)) == []
    found = [sentence for _, sentence in findings(subject)]
    assert all(isinstance(sentence, Note) for sentence in found)
    assert len(found) == len(notes) and all(note in sentence for note, sentence in zip(notes, found, strict=True)), (
        found
    )
