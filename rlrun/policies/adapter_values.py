"""Names and values of low-rank adapters, for those who need no peft: how they begin, what they make of a weight."""

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
    """What is added to a weight [out, in]: scale * b.weight [out, rank] @ a.weight [rank, in]."""

    a: nn.Linear
    b: nn.Linear
    scale: float


def is_adapter_name(name: str) -> bool:
    """Whether a parameter belongs to an adapter, not to the policy."""
    return ".lora_A." in name or ".lora_B." in name


def plain_name(name: str) -> str:
    """The policy's own name of a parameter that an adapter wraps. Example: "fc1.base_layer.bias" -> "fc1.bias"."""
    return name.replace(_BASE, ".")


def first_value(name: str, shape: torch.Size, seed: int) -> Tensor:
    """How an adapter's parameter begins, float32: A spread as a linear layer's weight, B zero, so that nothing changes.

    The same on every rank and for every sharding.
    """
    if ".lora_B." in name:
        return torch.zeros(shape)
    generator = torch.Generator().manual_seed(seed * 2**32 + zlib.crc32(name.encode()))
    bound = 1 / math.sqrt(shape[1])  # Kaiming's for a linear layer, as peft has it
    return torch.empty(shape).uniform_(-bound, bound, generator=generator)


def merged(weight: Tensor, a: Tensor, b: Tensor, scale: float) -> Tensor:
    """Rows of a weight with their share of the adapter, float32: weight [R, in], a [rank, in], b [R, rank]."""
    return torch.addmm(weight.float(), b.float(), a.float(), alpha=scale)


def unchanging_names(names: Iterable[str], adapted: Set[str], dead: Set[str], config: LoraConfig) -> set[str]:
    """Those of a policy's own `names` that stay as its folder has them: rollout workers have them already.

    adapted: weights with an adapter, which change by being merged. dead: what no forward pass reads. Without adapters
    everything else changes.
    """
    if config.rank == 0:
        return set(dead)
    adapted = adapted if config.is_sent_merged else set()
    whole = tuple(f"{part}." for part in config.trained_whole)
    return {name for name in names if name in dead or not (name in adapted or name.startswith(whole))}
