"""The layer with an adapter beside peft's own: outputs, gradients, merged weights, names of parameters."""

from __future__ import annotations

import math

import pytest
import torch
from peft import LoraConfig, inject_adapter_in_model
from torch import Tensor, nn

from rlrun.config import schema
from rlrun.policies.adapters import adapters, add_adapters, merged
from tests.numerics import norm_error

IN, OUT, RANK, ALPHA = 48, 40, 4, 16.0


def plain(dtype: torch.dtype, has_bias: bool) -> nn.Module:
    torch.manual_seed(0)
    return nn.ModuleDict({"part": nn.ModuleDict({"q_proj": nn.Linear(IN, OUT, bias=has_bias)})}).to(dtype)


def ours(dtype: torch.dtype, has_bias: bool = True) -> nn.Module:
    module = plain(dtype, has_bias)
    config = schema.LoraConfig(rank=RANK, alpha=ALPHA, targets=["part"], trained_whole=[])
    add_adapters(module, config, frozen=set())
    for adapter in adapters(module).values():
        for matrix in (adapter.a, adapter.b):
            matrix.to_empty(device="cpu").to(dtype)
    return module


def theirs(dtype: torch.dtype, has_bias: bool = True) -> nn.Module:
    config = LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=["part.q_proj"])
    return inject_adapter_in_model(config, plain(dtype, has_bias)).to(dtype)


def set_adapters(module: nn.Module) -> None:
    draw = torch.Generator().manual_seed(1)
    for name, parameter in module.named_parameters():
        if ".lora_" in name:
            parameter.data.copy_(0.3 * torch.randn(parameter.shape, generator=draw))


def numbers(module: nn.Module, dtype: torch.dtype) -> dict[str, Tensor]:
    """Return outputs and gradients, of the input, too."""
    set_adapters(module)
    x = torch.randn(3, 5, IN, generator=torch.Generator().manual_seed(2)).to(dtype).requires_grad_()
    y = module["part"]["q_proj"](x)
    y.square().mean().backward()
    gradients = {name: p.grad for name, p in module.named_parameters() if p.requires_grad}
    return {"outputs": y.detach(), "inputs": x.grad, **gradients}


@pytest.mark.parametrize("has_bias", [True, False])
def test_outputs_and_gradients_are_those_of_peft(has_bias: bool) -> None:
    expected, found = (numbers(make(torch.float64, has_bias), torch.float64) for make in (theirs, ours))
    assert {name for name in found if ".lora_" in name} == {
        f"part.q_proj.lora_{matrix}.default.weight" for matrix in "AB"
    }
    assert found.keys() == expected.keys()
    for name in expected:
        assert norm_error(found[name], expected[name]) < 1e-12, name


def test_in_bf16_it_is_no_further_from_the_exact_result_than_peft() -> None:
    exact = numbers(ours(torch.float64), torch.float64)
    expected, found = (numbers(make(torch.bfloat16), torch.bfloat16) for make in (theirs, ours))
    for name in exact:
        usual, error = (norm_error(n[name].double(), exact[name]) for n in (expected, found))
        assert error < 1.2 * usual < 0.05, name


def test_merged_weights_are_those_of_peft() -> None:
    expected, found = theirs(torch.float32), ours(torch.float32)
    for module in (expected, found):
        set_adapters(module)
    expected["part"]["q_proj"].merge()
    (adapter,) = adapters(found).values()
    base = found["part"]["q_proj"].base_layer.weight
    made = merged(base, adapter.a.weight, adapter.b.weight, adapter.scale)
    assert norm_error(made.detach(), expected["part"]["q_proj"].base_layer.weight.detach()) < 1e-6


def test_names_and_shapes_are_those_of_peft() -> None:
    """Checkpoints of runs hold them."""
    (expected, found) = (
        {name: p.shape for name, p in m.named_parameters()} for m in (theirs(torch.float32), ours(torch.float32))
    )
    assert list(found.items()) == list(expected.items())


def test_without_gradients_nothing_is_written_into_the_weights() -> None:
    module = ours(torch.float32)
    set_adapters(module)
    before = {name: p.clone() for name, p in module.named_parameters()}
    with torch.no_grad():
        first, second = (module["part"]["q_proj"](torch.ones(2, IN)) for _ in range(2))
    assert torch.equal(first, second) and not math.isnan(float(first.sum()))
    assert all(torch.equal(p, before[name]) for name, p in module.named_parameters())
