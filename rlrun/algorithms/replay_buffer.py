"""Transitions of an actor rank, kept for off-policy algorithms in host memory.

Shape legend: M transitions, W features of an observation, A numbers of a choice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Self

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Transitions:
    """M transitions. One may span several control steps: its reward is their discounted sum."""

    features: Tensor  # float32 [M, W]
    actions: Tensor  # float32 [M, A], choices over their bounds: -1 to 1
    rewards: Tensor  # float32 [M]
    discounts: Tensor  # float32 [M], of what follows; 0: the episode terminated
    next_features: Tensor  # float32 [M, W], of the true next observation; any where the discount is 0

    def __len__(self) -> int:
        return len(self.rewards)

    def to(self, device: torch.device) -> Transitions:
        """Return the same on a device."""
        return Transitions(*(getattr(self, name).to(device) for name in COLUMNS))

    @classmethod
    def concatenate(cls, parts: Sequence[Self]) -> Self:
        """Return all rows of `parts` (at least one part), in order."""
        return cls(*(torch.cat([getattr(part, name) for part in parts]) for name in COLUMNS))


COLUMNS = tuple(entry.name for entry in fields(Transitions))


class ReplayBuffer:
    """At most `size` transitions. Memory for all of them is taken with the first ones."""

    def __init__(self, size: int):
        self._size = size
        self._columns: dict[str, Tensor] = {}  # each [size, ...]; {}: nothing was added
        self._num_added = 0  # row n is in place n % size

    def __len__(self) -> int:
        return min(self._num_added, self._size)

    def add(self, new: Transitions) -> None:
        """Keep copies; the oldest transitions go where there is no room."""
        places = torch.arange(self._num_added, self._num_added + len(new))[-self._size :] % self._size
        for name in COLUMNS:
            column = getattr(new, name)
            if name not in self._columns:
                self._columns[name] = column.new_empty(self._size, *column.shape[1:])
            self._columns[name][places] = column[-self._size :]
        self._num_added += len(new)

    def sample(self, count: int, random: torch.Generator) -> Transitions:
        """Return `count` transitions, drawn with replacement. There must be one."""
        return self._oldest_first(torch.randint(len(self), (count,), generator=random))

    def state_dict(self) -> dict[str, Tensor]:
        """Return copies of all transitions by column, the oldest first."""
        if not len(self):
            return {}
        kept = self._oldest_first(torch.arange(len(self)))
        return {name: getattr(kept, name) for name in COLUMNS}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state_dict` returned; a smaller buffer keeps the newest part."""
        self._columns = {}
        self._num_added = 0
        if state:
            self.add(Transitions(*(state[name] for name in COLUMNS)))

    def _oldest_first(self, numbers: Tensor) -> Transitions:
        """Return transitions by number, 0 for the oldest."""
        places = (self._num_added - len(self) + numbers) % self._size
        return Transitions(*(self._columns[name][places] for name in COLUMNS))
