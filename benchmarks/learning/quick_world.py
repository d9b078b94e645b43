"""A quick world for learning: a hand reaches a target in a plane, seen from above.

It is the default task made small: 20 control steps in chunks of 4, a success that ends the episode, a dense reward, and
experts that take spirals to the target, wide ones and narrow ones, so that a policy which imitates them has actions to
choose from, and something left to learn. A control step costs microseconds: a run takes as long as its policy does.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rlrun.config.schema import EnvConfig
from rlrun.config.sections import POSITIVE, Section, bounded
from rlrun.config.simulator_spec import PlannedSpaces, SimulatorSpec, WorldSpec
from rlrun.edges.spaces import Spaces
from rlrun.envs.rows import RowsEnv, SingleEnv, Step

ACTIONS = ("x", "y")
PROPRIO = ("hand_x", "hand_y", "target_x", "target_y")
HAND, TARGET, TABLE = (30, 30, 30), (210, 50, 50), (225, 225, 215)
HAND_RADIUS = 0.1
HAND_START = 0.2  # the hand begins between minus and plus this
PROGRESS_REWARD = 1.0  # for a way of 1 towards the target
EXPERT_ANGLES = np.deg2rad((30.0, 100.0))  # between the way of an expert and the straight one; drawn by episode


@dataclass
class QuickConfig(Section):
    """The section `env.quick`; the plane is 2 by 2."""

    radius: float = bounded(0.2, POSITIVE)  # of the target; the hand's middle inside it is a success
    speed: float = bounded(0.045, POSITIVE)  # of the hand, a control step, in each direction


class QuickWorld(SingleEnv):
    """One plane with a hand and a target."""

    def __init__(self, own: QuickConfig, image_size: int):
        self._own = own
        self._size = image_size
        self._hand = np.zeros(2)
        self._target = np.zeros(2)
        self._angle = 0.0

    @property
    def instruction(self) -> str:
        return "reach the red target"

    def start(self, seed: int) -> None:
        random = np.random.default_rng(seed)
        self._hand = random.uniform(-HAND_START, HAND_START, 2)
        self._target = random.uniform(-1, 1, 2)
        self._angle = random.uniform(*EXPERT_ANGLES)

    def step(self, action: np.ndarray) -> Step:
        before = self._distance()
        self._hand = np.clip(self._hand + self._own.speed * action, -1, 1)
        success = self._distance() < self._own.radius
        reward = PROGRESS_REWARD * (before - self._distance()) + float(success)
        return Step(reward, terminated=success, truncated=False, success=success)

    def _distance(self) -> float:
        return float(np.linalg.norm(self._target - self._hand))

    def perceive(self) -> tuple[np.ndarray, np.ndarray]:
        return self.render(self._size, self._size)[None], np.concatenate([self._hand, self._target])

    def render(self, height: int, width: int) -> np.ndarray:
        """Return the plane from above, uint8 [height, width, 3]; edges are smooth, so that small moves are seen."""
        y, x = np.mgrid[1 : -1 : height * 1j, -1 : 1 : width * 1j]
        picture = np.broadcast_to(np.array(TABLE, float), (height, width, 3)).copy()
        for place, radius, colour in ((self._target, self._own.radius, TARGET), (self._hand, HAND_RADIUS, HAND)):
            inside = (radius - np.hypot(x - place[0], y - place[1])) * width / 2 + 0.5  # in pixels from the edge
            share = np.clip(inside, 0, 1)[..., None]
            picture += share * (np.array(colour) - picture)
        return picture.round().astype(np.uint8)

    def expert_action(self) -> np.ndarray:
        """Return a step at full speed on a spiral to the target, which is longer the larger the episode's angle is."""
        way = self._target - self._hand
        x, y = way / max(float(np.linalg.norm(way)), 1e-9)
        cos, sin = np.cos(self._angle), np.sin(self._angle)
        return np.array([cos * x - sin * y, sin * x + cos * y], np.float32)

    def close(self) -> None:
        pass


def make_quick_world(config: EnvConfig, num_envs: int, progress) -> RowsEnv:
    """Return `num_envs` rows."""
    own = config.section(QuickConfig)
    size = config.image_size
    spaces = Spaces(
        num_actions=len(ACTIONS),
        num_choices=None,
        action_low=(-1.0, -1.0),
        action_high=(1.0, 1.0),
        num_proprio=len(PROPRIO),
        num_images=1,
        cameras=("above",),
        proprio_names=PROPRIO,
        action_names=ACTIONS,
        instructions=("reach the red target",),
    )
    return RowsEnv(lambda: QuickWorld(own, size), num_envs, spaces, size, config.max_control_steps, progress)


SPEC = SimulatorSpec(
    "quick",
    make_quick_world,
    WorldSpec(
        lambda env: PlannedSpaces(1, len(PROPRIO), len(ACTIONS), cameras=("above",)),
        has_expert=lambda env: True,
    ),
    QuickConfig,
)
