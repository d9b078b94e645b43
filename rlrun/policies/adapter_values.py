"""Names and values of low-rank adapters, without peft: initial values, and merging into a weight."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Set
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rlrun.config.schema import LoraConfig

_BASE = ".base_layer."


@dataclass(frozen=True, eq=False)
class Adapter:
    """The matrices added to a weight [out, in]: scale * b.weight [out, rank] @ a.weight [rank, in]."""

    a: nn.Linear
    b: nn.Linear
    scale: float


def is_adapter_name(name: str) -> bool:
    """Return whether a parameter belongs to an adapter, not to the policy."""
    return ".lora_A." in name or ".lora_B." in name


def is_within(name: str, parts: Iterable[str]) -> bool:
    """Return whether a module or parameter lies in one of the parts, at whatever depth these are.

    Example: "network.model.lm_expert.norm.weight" lies in "lm_expert".
    """
    return any(f".{part}." in f".{name}." for part in parts)


def plain_name(name: str) -> str:
    """Return the policy's own name of a parameter in an adapted layer. Example: "fc1.base_layer.bias" -> "fc1.bias"."""
    return name.replace(_BASE, ".")


def first_value(name: str, shape: torch.Size, seed: int) -> Tensor:
    """Return an adapter's initial parameter, float32: A as a linear layer's weight, B zero, so that nothing changes.

    The value is the same on every rank and for every sharding.
    """
    if ".lora_B." in name:
        return torch.zeros(shape)
    generator = torch.Generator().manual_seed(seed * 2**32 + zlib.crc32(name.encode()))
    bound = 1 / math.sqrt(shape[1])  # Kaiming's bound for a linear layer, as in peft
    return torch.empty(shape).uniform_(-bound, bound, generator=generator)


def merged(weight: Tensor, a: Tensor, b: Tensor, scale: float) -> Tensor:
    """Return rows of a weight plus their part of the adapter, float32: weight [R, in], a [rank, in], b [R, rank]."""
    return torch.addmm(weight.float(), b.float(), a.float(), alpha=scale)


def unchanging_names(names: Iterable[str], adapted: Set[str], dead: Set[str], config: LoraConfig) -> set[str]:
    """Return those of a policy's own `names` that keep the folder's values: rollout workers have them already.

    adapted: weights with an adapter, which change by merging. dead: parameters that no forward pass reads. Without
    adapters everything else changes.
    """
    if config.rank == 0:
        return set(dead)
    adapted = adapted if config.is_sent_merged else set()
    whole = config.trained_whole
    return {name for name in names if name in dead or not (name in adapted or is_within(name, whole))}
