"""The newest transitions of an actor rank, in host memory.

Shape legend: M transitions, W features of an observation, A numbers of the noise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Transitions:
    """What SAC learns from."""

    features: Tensor  # float32 [M, W]
    noise: Tensor  # float32 [M, A], over its bound
    rewards: Tensor  # float32 [M]
    discounts: Tensor  # float32 [M], of what follows; 0: the episode terminated
    next_features: Tensor  # float32 [M, W]

    def __len__(self) -> int:
        return len(self.rewards)

    def to(self, device: torch.device) -> Transitions:
        """Return the same on a device."""
        return Transitions(*(getattr(self, name).to(device) for name in COLUMNS))


COLUMNS = tuple(entry.name for entry in fields(Transitions))


class ReplayBuffer:
    """At most `size` transitions, the oldest first."""

    def __init__(self, size: int):
        self._size = size
        self._kept: Transitions | None = None

    def __len__(self) -> int:
        return 0 if self._kept is None else len(self._kept)

    def add(self, new: Transitions) -> None:
        """Keep copies; the oldest transitions go where there is no room."""
        parts = [new] if self._kept is None else [self._kept, new]
        columns = (torch.cat([getattr(part, name) for part in parts]) for name in COLUMNS)
        self._kept = Transitions(*(column[-self._size :].clone() for column in columns))

    def sample(self, count: int, random: torch.Generator) -> Transitions:
        """Return `count` transitions, drawn with replacement. There must be one."""
        assert self._kept is not None
        rows = torch.randint(len(self), (count,), generator=random)
        return Transitions(*(getattr(self._kept, name)[rows] for name in COLUMNS))

    def state_dict(self) -> dict[str, Tensor]:
        """Return everything by name."""
        return {} if self._kept is None else {name: getattr(self._kept, name) for name in COLUMNS}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state_dict` returned; a smaller buffer keeps the newest part."""
        self._kept = None
        if state:
            self.add(Transitions(*(state[name] for name in COLUMNS)))
