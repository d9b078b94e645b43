"""Low-rank adapters (LoRA) in a policy: the layer, which layers get one, and the parts that are trained beside them."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Set
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rlrun.config.schema import LoraConfig

_BASE = ".base_layer."
_NAME = "default"  # of the only adapter of a layer, in peft's names
_NEVER_CALLED = "lm_head"  # its weight is sliced, so an adapter on it would do nothing


class LoraLinear(nn.Module):
    """A linear layer with an adapter (Hu et al. 2021): base(x) + scale * B(A(x)), where scale is alpha / rank.

    The product adds the adapter's part to the outputs itself, so that no kernel reads them again. Parameters are called
    as in peft: `base_layer.weight`, `lora_A.default.weight` [rank, in], `lora_B.default.weight` [out, rank].
    """

    def __init__(self, base: nn.Linear, rank: int, alpha: float):
        """Create the adapter on the meta device; `first_value` returns its initial values."""
        super().__init__()
        self.base_layer = base
        self.scale = alpha / rank
        with torch.device("meta"):
            self.lora_A = nn.ModuleDict({_NAME: nn.Linear(base.in_features, rank, bias=False)})
            self.lora_B = nn.ModuleDict({_NAME: nn.Linear(rank, base.out_features, bias=False)})

    @property
    def adapter(self) -> Adapter:
        """The two matrices and their scale."""
        a = self.lora_A[_NAME]
        b = self.lora_B[_NAME]
        assert isinstance(a, nn.Linear) and isinstance(b, nn.Linear)
        return Adapter(a, b, self.scale)

    @property
    def weight(self) -> Tensor:
        """The frozen weight, whose type networks ask for."""
        return self.base_layer.weight

    def forward(self, x: Tensor) -> Tensor:
        """Return [..., out] of [..., in]."""
        a = self.adapter.a.weight
        b = self.adapter.b.weight
        rows = x.reshape(-1, x.shape[-1])
        made = self.base_layer(rows)
        low = F.linear(rows.to(a.dtype), a)
        made.addmm_(low.to(made.dtype), b.t().to(made.dtype), alpha=self.scale)
        return made.view(*x.shape[:-1], made.shape[-1])


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


def matrix_names(weight: str) -> tuple[str, str]:
    """Return the names under which an adapter's A and B are sent. Example: ("fc.weight.lora_a", "fc.weight.lora_b")."""
    return f"{weight}.lora_a", f"{weight}.lora_b"


def unchanging_names(names: Iterable[str], adapted: Set[str], dead: Set[str], config: LoraConfig) -> set[str]:
    """Return those of a policy's own `names` that keep the folder's values: rollout workers have them already.

    adapted: weights with an adapter, which change by merging. dead: parameters that no forward pass reads. Without
    adapters everything else changes.
    """
    if config.rank == 0:
        return set(dead)
    whole = config.trained_whole or ()
    return {name for name in names if name in dead or not (name in adapted or is_within(name, whole))}


def add_adapters(module: nn.Module, config: LoraConfig, frozen: set[str]) -> None:
    """Put adapters on the linear layers of `config.targets`, in place; afterwards only these and
    `config.trained_whole` are trained. The module may be on the meta device, and must not be sharded yet.

    frozen: parameters that stay as they are.
    """
    for name in adapted_layers(module, config, frozen):
        base = module.get_submodule(name)
        assert isinstance(base, nn.Linear)
        module.set_submodule(name, LoraLinear(base, config.rank, config.alpha))
    for name, parameter in module.named_parameters():
        is_adapter = is_adapter_name(name)
        parameter.requires_grad_(is_adapter or (is_within(name, config.trained_whole or ()) and name not in frozen))


def adapted_layers(module: nn.Module, config: LoraConfig, frozen: set[str]) -> list[str]:
    """Return the names of the linear layers that get adapters."""
    return [
        name
        for name, layer in module.named_modules()
        if isinstance(layer, nn.Linear)
        and is_within(name, config.targets or ())
        and _NEVER_CALLED not in name
        and f"{name}.weight" not in frozen
        and not is_within(name, config.trained_whole or ())
    ]


def adapters(module: nn.Module) -> dict[str, Adapter]:
    """Return the plain name of each adapted weight -> its adapter."""
    layers = module.named_modules()
    return {f"{name}.weight": layer.adapter for name, layer in layers if isinstance(layer, LoraLinear)}
