"""What a language model computes of an observation, once, for all flow steps of an action expert.

Shape legend: B rows, S tokens of the prefix, K key/value heads, E width of a head, D width of the language model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import Any, Self

import torch
from torch import Tensor, nn


@dataclass(frozen=True, eq=False)
class LayeredPrefix:
    """What the VLM computed of an observation: all that the expert needs, and the critic's input."""

    keys: tuple[Tensor, ...]  # by layer [B, S, K, E], rotated
    values: tuple[Tensor, ...]  # by layer [B, S, K, E]
    mask: Tensor  # bool [B, S], False at padding
    num_positions: Tensor  # int64 [B]: tokens that are not padding; the first action's position
    hidden: Tensor  # [B, S, D]: the last layer's output after its norm

    @classmethod
    def computed(
        cls, layers: Iterable[nn.Module], norm: nn.Module, hidden: Tensor, mask: Tensor, sees: Tensor, **own: Tensor
    ) -> Self:
        """Run the language model over embeddings [B, S, D].

        layers: each returns (hidden, keys, values); mask: bool [B, S]; sees: bool [B, S, S] of `visibility`; own: what
        a subclass has beside.
        """
        positions, keys, values = mask.cumsum(dim=1) - 1, [], []
        for layer in layers:
            hidden, key, value = layer(hidden, positions, sees)
            keys.append(key)
            values.append(value)
        return cls(tuple(keys), tuple(values), mask, mask.sum(dim=1), norm(hidden), **own)

    def map(self, function: Callable[[Tensor], Tensor]) -> Self:
        """Return a prefix of which every tensor is function(tensor). Example: prefix.map(lambda x: x[rows])."""
        mapped: dict[str, Any] = {}
        for entry in fields(self):
            value = getattr(self, entry.name)
            mapped[entry.name] = tuple(map(function, value)) if isinstance(value, tuple) else function(value)
        return type(self)(**mapped)

    def summary(self) -> Tensor:
        """Return the mean of the prefix and its last token, which sees all others: float32 [B, 2 D]."""
        return token_summary(self.hidden, self.mask)


torch.export.register_dataclass(LayeredPrefix)  # so that FSDP finds the tensors of an output


def token_summary(hidden: Tensor, mask: Tensor) -> Tensor:
    """Return the mean over the tokens that are no padding, and the last of them: float32 [B, 2 D].

    hidden: [B, S, D]; mask: bool [B, S].
    """
    hidden, weights = hidden.float(), mask.float().unsqueeze(-1)
    mean = (hidden * weights).sum(1) / weights.sum(1).clamp(min=1.0)
    places = torch.arange(mask.shape[1], device=mask.device)
    last = torch.where(mask, places, 0).amax(1)
    return torch.cat([mean, hidden[torch.arange(len(last), device=last.device), last]], dim=1)


def visibility(mask: Tensor, state_at: int) -> Tensor:
    """Return bool [B, S, S], True where a row's token attends to a column's.

    mask: bool [B, S], False at padding. Pictures and words do not see the state, which is at position state_at.
    Tokens of padding see themselves, so that no softmax is empty; nothing sees them.
    """
    place = torch.arange(mask.shape[1], device=mask.device)
    is_allowed = (place[:, None] >= state_at) | (place < state_at)
    return (mask[:, None] & is_allowed) | (place[:, None] == place)
