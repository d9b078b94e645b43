"""Linear layers by oneDNN: the same numbers and gradients as torch's own, in float32 throughout."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from rlrun.config.schema import CompileBackend, PolicyConfig, PolicyKind
from rlrun.data.messages import Spaces
from rlrun.policies import cpu_linear
from rlrun.policies.actor_critic.policy import ActorCriticPolicy, new_actor_critic
from rlrun.policies.compilation import compile_policy
from tests.numerics import assert_as_exact, assert_norm_close, computed_in_double, rounding

NUM_INPUTS, NUM_OUTPUTS, NUM_ROWS = 64, 96, 1024
LAYOUTS: dict[str, tuple[tuple[int, ...], Callable[[Tensor], Tensor]]] = {
    "rows": ((NUM_ROWS, NUM_INPUTS), lambda x: x),
    "sequences": ((16, NUM_ROWS // 16, NUM_INPUTS), lambda x: x),
    "a_transposed_view": ((64, 16, NUM_INPUTS), lambda x: x.transpose(0, 1)),
    "a_slice": ((16, NUM_ROWS // 16 + 1, NUM_INPUTS), lambda x: x[:, 1:]),
    "one_row_expanded": ((1, NUM_INPUTS), lambda x: x.expand(NUM_ROWS, NUM_INPUTS)),
}
COSTS: dict[str, Callable[[Tensor], Tensor]] = {
    "sum": lambda y: y.sum(),  # its gradient is one number, expanded
    "part": lambda y: y[..., ::2].square().sum(),
    "transposed": lambda y: y.transpose(0, 1).square().mean(),
}


WAYS: dict[str, tuple[Callable, Callable]] = {  # ours and torch's
    "linear": (cpu_linear.linear, F.linear),
    "tanh": (partial(cpu_linear.linear, has_tanh=True), lambda x, weight, bias: F.linear(x, weight, bias).tanh()),
}


def computed(way: Callable, cost: Callable, view: Callable, tensors: list[Tensor], frozen: int | None) -> list[Tensor]:
    """The product, then the gradients of those of the tensors that are not frozen."""
    given = [tensor.clone().requires_grad_(i != frozen) for i, tensor in enumerate(tensors)]
    x, weight, *bias = given
    product = way(view(x), weight, bias[0] if bias else None)
    cost(product).backward()
    assert frozen is None or given[frozen].grad is None
    return [product.detach()] + [tensor.grad for tensor in given if tensor.requires_grad]


@pytest.mark.parametrize("frozen", [None, 0, 1, 2])
@pytest.mark.parametrize("cost", COSTS.values(), ids=COSTS)
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_it_computes_what_torch_does(
    way: tuple[Callable, Callable], layout: tuple[tuple[int, ...], Callable], cost: Callable, frozen: int | None
) -> None:
    (own, torchs), (shape, view) = way, layout
    draw = torch.Generator().manual_seed(0)
    sizes = [shape, (NUM_OUTPUTS, NUM_INPUTS), (NUM_OUTPUTS,)]
    tensors = [torch.randn(*size, generator=draw) / size[-1] ** 0.5 for size in sizes]
    for given in (tensors, tensors[:2]) if frozen != 2 else (tensors,):
        ours = computed(own, cost, view, given, frozen)
        exact = computed(torchs, cost, view, [tensor.double() for tensor in given], frozen)
        for found, wanted in zip(ours, exact, strict=True):
            assert found.dtype is torch.float32
            assert_norm_close(found, wanted, rounding(NUM_ROWS))


def test_it_keeps_the_digits_that_bfloat16_has_not() -> None:
    x = torch.full((NUM_ROWS, NUM_INPUTS), 1 + 2**-12)
    found = cpu_linear.linear(x, torch.full((NUM_OUTPUTS, NUM_INPUTS), 1 + 2**-12), None)
    assert found.unique().item() == pytest.approx(NUM_INPUTS * (1 + 2**-12) ** 2, rel=1e-6)


def network() -> ActorCriticPolicy:
    spaces = Spaces(2, None, (-1.0, -1.0), (1.0, 1.0), num_proprio=5, num_images=0)
    wide = PolicyConfig(kind=PolicyKind.mlp, num_action_chunks=1, hidden_sizes=[128, 128], value_hidden_sizes=[128])
    return new_actor_critic(wide, 16, spaces, seed=1)


def test_large_products_of_a_policy_go_to_onednn_and_small_ones_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """128 x 128 of many rows, forward and two gradients; nothing of a few rows, and never 5 inputs."""
    seen: list[tuple[int, ...]] = []
    product = cpu_linear._product
    monkeypatch.setattr(cpu_linear, "_product", lambda x, *rest: (seen.append(tuple(x.shape)), product(x, *rest))[1])
    policy, plain = network(), network()
    names = list(policy.module.state_dict())
    compile_policy(policy, None)
    assert list(policy.module.state_dict()) == names

    def passed(num_rows: int) -> None:
        state = torch.randn(num_rows, 5)
        (mean, _, values), (same_mean, _, same_values) = policy.module(None, state), plain.module(None, state)
        assert_norm_close(mean, same_mean, rounding(128))
        assert_norm_close(values, same_values, rounding(128))
        (mean.sum() + values.sum()).backward()

    passed(16)
    assert seen == []
    passed(512)
    assert seen == [(512, 128), (512, 128), (128, 512)]
    with torch.no_grad():
        policy.module(None, torch.randn(512, 5))
    assert seen[3:] == [(512, 128)]


def in_double(x: Tensor, layer: torch.nn.Linear) -> Tensor:
    return F.linear(x.double(), layer.weight.double(), layer.bias.double())


def test_a_tanh_that_follows_is_part_of_the_product_and_of_nothing_else() -> None:
    policy = network()
    compile_policy(policy, None)
    hidden, head = policy.module.policy[2:4], policy.module.policy[4]
    x = torch.randn(512, 128)
    assert_norm_close(hidden(x), in_double(x, hidden[0]).tanh(), rounding(128))
    assert_norm_close(head(x), in_double(x, head), rounding(128))


@pytest.mark.parametrize(("device", "backend"), [("cuda", None), ("cpu", CompileBackend.aot_eager)])
def test_elsewhere_and_compiled_layers_keep_their_own_way(device: str, backend: CompileBackend | None) -> None:
    policy = network()
    policy.device = torch.device(device)
    compile_policy(policy, backend)
    layers = [part for part in policy.module.modules() if isinstance(part, torch.nn.Linear)]
    assert layers and not any("forward" in vars(layer) for layer in layers)


PATCHES = {  # patch size, and the picture's: what does not fill a patch is left out
    "fitting": (16, (32, 48)),
    "with_a_margin": (14, (30, 45)),
}


class Patches(torch.nn.Module):
    """A policy's module that projects patches, and convolutions that do something else."""

    def __init__(self, size: int, has_bias: bool):
        super().__init__()
        self.proj = torch.nn.Conv2d(3, 64, size, stride=size, bias=has_bias)
        self.others = torch.nn.ModuleList(
            [
                torch.nn.Conv2d(3, 64, size, stride=size // 2),
                torch.nn.Conv2d(3, 64, size, stride=size, padding=1),
                torch.nn.Conv2d(3, 64, size, stride=size, dilation=2),
                torch.nn.Conv2d(3, 63, size, stride=size, groups=3),
            ]
        )


def projection(layer: torch.nn.Conv2d, pictures: Tensor) -> dict[str, Tensor]:
    """What the layer makes of the pictures, and the gradients of its square by the layer's parameters."""
    features = layer(pictures)
    features.square().sum().backward()
    return {"features": features, **{name: parameter.grad for name, parameter in layer.named_parameters()}}


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize(("size", "picture"), PATCHES.values(), ids=PATCHES)
def test_projected_patches_are_those_of_the_convolution(
    size: int, picture: tuple[int, int], has_bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, ...]] = []
    product = cpu_linear._product
    monkeypatch.setattr(cpu_linear, "_product", lambda x, *rest: (seen.append(tuple(x.shape)), product(x, *rest))[1])
    torch.manual_seed(0)
    policy, plain = network(), Patches(size, has_bias)
    policy.module = Patches(size, has_bias)
    policy.module.load_state_dict(plain.state_dict())
    compile_policy(policy, None)
    assert not any("forward" in vars(other) for other in policy.module.others)
    pictures = torch.randn(32, 6, *picture)[:, 3:]  # the second tower's channels
    num_patches = (picture[0] // size) * (picture[1] // size)
    projected = projection(policy.module.proj, pictures)
    assert seen[0] == (32, num_patches, 3 * size * size)
    exact = computed_in_double(plain.proj, projection, pictures)
    assert_as_exact(projected, projection(plain.proj, pictures), exact)
