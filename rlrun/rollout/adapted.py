"""Adapters at a rollout worker: copies of the weights under them, and the newest adapters, merged into the policy.

The actor sends the base once, and with each version only the adapters, which are a fiftieth of it. Merging is the same
product that exports a policy, so the policy is the one that the actor would have sent merged, bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rlrun.policies.adapters import adapted_layers, matrix_names, merged

if TYPE_CHECKING:
    from rlrun.config.schema import RunConfig
    from rlrun.policies.policy import Policy


def adapted_weights(policy: Policy, config: RunConfig, base_device: torch.device) -> AdaptedWeights | None:
    """Return the adapted weights of a rollout worker's policy; None if it gets them merged, or trains without adapters.

    base_device: where copies of the base are kept.
    """
    if not config.are_adapters_apart:
        return None
    lora = config.actor.lora
    tensors = policy.module.state_dict(keep_vars=True)
    names = [f"{layer}.weight" for layer in adapted_layers(policy.module, lora, policy.frozen_names())]
    return AdaptedWeights({name: tensors[name] for name in names}, lora.rank, lora.alpha / lora.rank, base_device)


class AdaptedWeights:
    """The adapted weights of a policy.

    Example::

        adapted = AdaptedWeights({"fc1.weight": weight}, rank=32, scale=0.5, base_device=torch.device("cpu"))
        for name in adapted.shapes: adapted.take(name, sent[name])    # base and matrices
        adapted.merge()                                               # weight is base + 0.5 * B @ A
        adapted.take("fc1.weight.lora_a", newer)                      # later versions have matrices only
        adapted.merge()
    """

    def __init__(self, weights: Mapping[str, Tensor], rank: int, scale: float, base_device: torch.device):
        """weights: of the policy [out, in], by name; `merge` writes into them. base_device: where the base is kept."""
        self._weights = dict(weights)
        self._scale = scale
        self._base_device = base_device
        self._base: dict[str, Tensor] = {}
        self._matrices: dict[str, Tensor] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}  # of all that may be sent for them
        for name, weight in self._weights.items():
            a, b = matrix_names(name)
            num_out, num_in = weight.shape
            self.shapes |= {name: (num_out, num_in), a: (rank, num_in), b: (num_out, rank)}

    @property
    def base_names(self) -> set[str]:
        """Names of what a version may omit, once it has been sent."""
        return set(self._weights)

    def take(self, name: str, sent: Tensor) -> None:
        """Copy a base weight or a matrix, without waiting for the device."""
        is_base = name in self._weights
        kept = self._base if is_base else self._matrices
        if name not in kept:
            on_card = next(iter(self._weights.values())).device
            device = self._base_device if is_base else on_card
            is_pinned = device.type == "cpu" and on_card.type == "cuda"
            kept[name] = torch.empty(sent.shape, dtype=sent.dtype, device=device, pin_memory=is_pinned)
        kept[name].copy_(sent, non_blocking=True)

    def merge(self) -> None:
        """Write every weight, from its base and its adapter. Raises ValueError if a base has not been sent."""
        missing = [name for name in self._weights if name not in self._base]
        if missing:
            raise ValueError(f"adapters of {missing[0]!r} arrived, but not the weight that they change")
        for name, weight in self._weights.items():
            a, b = (self._matrices[matrix] for matrix in matrix_names(name))
            base = self._base[name].to(weight.device, non_blocking=True)
            weight.copy_(merged(base, a, b, self._scale))

    def sent(self, name: str) -> Tensor | None:
        """Return the newest base weight or matrix as it was sent; None if there is none of this name."""
        return self._base.get(name, self._matrices.get(name))
