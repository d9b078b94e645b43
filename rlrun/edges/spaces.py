"""Observation and action spaces of simulators and policies, and their check at the driver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rlrun.system.errors import ExitStatus, RunError


@dataclass(frozen=True)
class Spaces:
    """env -> driver, actor: observation and action spaces of a simulator, `VectorEnv.spaces`.

    Limits are rounded to float32, as which simulators take actions.

    Example: CartPole: Spaces(num_actions=1, num_choices=2, action_low=(0.0,), action_high=(1.0,), num_proprio=4,
    num_images=0)
    """

    num_actions: int  # A
    num_choices: int | None  # discrete: every action is one of 0..num_choices-1; None: continuous
    action_low: tuple[float, ...]  # A numbers in simulator units; -inf: unbounded
    action_high: tuple[float, ...]
    num_proprio: int  # P
    num_images: int  # N
    observed: str = ""  # how the simulator's observation is interpreted, if that was guessed
    cameras: tuple[str, ...] = ()  # N names, in the order of the images; (): they have none
    proprio_names: tuple[str, ...] = ()  # P names; (): they have none
    action_names: tuple[str, ...] = ()  # A names such as "arm_right/3"; (): they have none
    control_hz: float | None = None  # control steps per second of the simulated world; None: unknown
    is_hz_nominal: bool = False  # the rate is only declared; the simulation does not depend on it
    instructions: tuple[str, ...] = ()  # sentences of its episodes; (): unknown before they begin

    def __post_init__(self) -> None:
        for name in ("action_low", "action_high"):
            object.__setattr__(self, name, tuple(np.asarray(getattr(self, name), np.float32).tolist()))

    @property
    def limits(self) -> tuple[np.ndarray, np.ndarray]:
        """The lowest and the highest action, float32 [A] each."""
        return np.array(self.action_low, np.float32), np.array(self.action_high, np.float32)

    def showing(self, cameras: Sequence[int] | None) -> Spaces:
        """Return the spaces with these cameras only, by their index, in this order; None: all of them."""
        if cameras is None:
            return self
        names = tuple(self.cameras[at] for at in cameras) if self.cameras else ()
        return replace(self, num_images=len(cameras), cameras=names)


@dataclass(frozen=True)
class PolicySpaces:
    """rollout -> driver: observation and action spaces of a loaded policy.

    Example: PolicySpaces(num_actions=8, num_proprio=61, cameras=("zed_link",))
    """

    num_actions: int  # A
    num_proprio: int  # P; 0: it takes none
    cameras: tuple[str, ...] = ()  # names of its pictures, in its order; (): its folder names none
    notes: tuple[str, ...] = ()  # what the user should know about the policy, a sentence each


def check_equal_spaces(spaces: Mapping[int, Spaces], known: Spaces | None = None) -> None:
    """Raise RunError naming the first env worker whose simulator has other spaces than its peers.

    spaces: by rank. known: spaces of the peers of replaced workers; None: the most frequent ones of `spaces`.
    """
    texts = {rank: repr(one) for rank, one in spaces.items()}
    usual = max(texts.values(), key=list(texts.values()).count, default="") if known is None else repr(known)
    for rank, text in texts.items():
        if text != usual:
            cause = f"it has {text}; its peers have {usual}"
            raise RunError(
                f"The simulator of env/{rank} has other observations or actions than those of its peers.",
                key="env",
                cause=cause,
                remedy="Compare the versions, files and settings of the simulator on their nodes.",
                exit_status=ExitStatus.placement,
            )
