"""Low-rank adapters (LoRA, by peft) in a policy: selects the layers, and the parts that are trained beside them."""

from __future__ import annotations

from peft import LoraConfig as PeftLoraConfig
from peft import inject_adapter_in_model
from peft.tuners.lora import LoraLayer
from torch import nn

from rlrun.config.schema import LoraConfig
from rlrun.policies.adapter_values import Adapter, is_adapter_name, is_within
from rlrun.policies.policy import Policy

_NEVER_CALLED = "lm_head"  # its weight is sliced, so an adapter on it would do nothing


def add_adapters(policy: Policy, config: LoraConfig) -> None:
    """Put adapters on the linear layers of `config.targets`, in place; afterwards only these and
    `config.trained_whole` are trained. The module may be on the meta device, and must not be sharded yet."""
    frozen = policy.frozen_names()
    inject_adapter_in_model(
        PeftLoraConfig(
            r=config.rank,
            lora_alpha=config.alpha,
            target_modules=adapted_layers(policy.module, config, frozen),
        ),
        policy.module,
        low_cpu_mem_usage=True,
    )
    for name, parameter in policy.module.named_parameters():
        is_adapter = is_adapter_name(name)
        parameter.requires_grad_(is_adapter or (is_within(name, config.trained_whole) and name not in frozen))


def adapted_layers(module: nn.Module, config: LoraConfig, frozen: set[str]) -> list[str]:
    """Return the names of the linear layers that get adapters."""
    return [
        name
        for name, layer in module.named_modules()
        if isinstance(layer, nn.Linear)
        and is_within(name, config.targets)
        and _NEVER_CALLED not in name
        and f"{name}.weight" not in frozen
        and not is_within(name, config.trained_whole)
    ]


def adapters(module: nn.Module) -> dict[str, Adapter]:
    """Return the plain name of each adapted weight -> its adapter."""
    return {
        f"{name}.weight": Adapter(_linear(layer.lora_A), _linear(layer.lora_B), layer.scaling["default"])
        for name, layer in module.named_modules()
        if isinstance(layer, LoraLayer)
    }


def _linear(layers: nn.ModuleDict) -> nn.Linear:
    layer = layers["default"]
    assert isinstance(layer, nn.Linear)
    return layer
