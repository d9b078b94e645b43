"""The work of a policy, counted on the meta device, beside hand counts and torch's own counter on real tensors."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from rlrun.config.loader import load
from rlrun.config.schema import RunConfig
from rlrun.config.simulator_spec import simulator_spec
from rlrun.policies import counting
from rlrun.policies.counting import count, made_without_folder
from rlrun.policies.counts import PassCount, PolicyCounts
from rlrun.policies.device_work import META, DeviceWork, FusedAttention
from rlrun.policies.spec import policy_spec


def worked(call: object, *held: Tensor) -> DeviceWork:
    """Count what a call does."""
    with FusedAttention(), DeviceWork(held) as work:
        call()
    return work


def test_operations_bytes_and_kernels_of_a_layer() -> None:
    x, layer = torch.empty(100, 16, device=META), nn.Linear(16, 8, device=META)
    work = worked(lambda: F.relu(layer(x)), x, *layer.parameters())
    assert work.num_kernels == 2
    assert work.flops == 2 * 100 * 16 * 8
    assert work.num_bytes == 2 * 100 * 8 * 4  # of ReLU: its input and its output
    assert work.thin_bytes == 4 * (100 * 16 + 16 * 8 + 8 + 100 * 8)
    assert work.peak_bytes == 2 * 100 * 8 * 4


def test_views_new_memory_and_copies_from_the_host_are_no_kernels() -> None:
    x = torch.empty(4, 6, device=META)
    assert (
        worked(lambda: (x.view(24), x.T, x[1:], torch.empty(3, device=META), torch.ones(4).to(META)), x).num_kernels
        == 0
    )
    assert worked(lambda: (x.clone(), torch.zeros(3, device=META)), x).num_kernels == 2


def test_repeated_numbers_and_unread_rows_move_once_or_never() -> None:
    x, table = torch.empty(1, 8, device=META), torch.empty(1000, 8, device=META)
    assert worked(lambda: x.expand(50, 8) + 1.0).num_bytes == 4 * (8 + 50 * 8)
    rows = torch.zeros(5, dtype=torch.int64, device=META)
    assert worked(lambda: F.embedding(rows, table)).num_bytes == 4 * (5 * 8 + 5 * 8) + 8 * 5


def test_a_repeated_operator_counts_as_often_and_makes_new_memory() -> None:
    x = torch.empty(10, device=META)
    work = worked(lambda: [x.add_(1), x.add_(1), x * 2, x * 2, x * 2.0], x)
    assert (work.num_kernels, work.num_bytes) == (5, 5 * 80)
    assert work.peak_bytes == 2 * 40 + 40  # what was added in place has none of its own
    made = [x * 3 for _ in range(2)]
    assert made[0].untyped_storage() is not made[1].untyped_storage()


@pytest.mark.parametrize("has_mask", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_attention_is_one_kernel_each_way(has_mask: bool, dtype: torch.dtype) -> None:
    B, H, T, E = 2, 3, 64, 16
    query = torch.empty(B, H, T, E, device=META, dtype=dtype, requires_grad=True)
    mask = torch.ones(T, T, device=META, dtype=dtype) if has_mask else None
    made: list[Tensor] = []
    forward = worked(lambda: made.append(F.scaled_dot_product_attention(query, query, query, attn_mask=mask)))
    assert forward.num_kernels == 1 and forward.num_bytes == 0
    assert forward.flops == 4 * B * H * T * T * E
    assert made[0].shape == query.shape
    backward = worked(lambda: made[0].backward(torch.empty_like(made[0])))
    assert backward.flops == 10 * B * H * T * T * E  # the products are computed again


def test_the_line_through_two_passes() -> None:
    few, many = PassCount(110.0, 25.0, 7, 9.0, 3.0), PassCount(210.0, 45.0, 7, 17.0, 3.0)
    found = PassCount.from_two((few, many), (1, 2))
    assert (found.flops, found.fixed_flops, found.num_kernels) == (100.0, 10.0, 7)
    assert found.of(2) == many
    assert found.of(4).saved_bytes == 9.0 + 3 * 8.0


def test_a_perceptron_is_counted_as_by_hand() -> None:
    config = load(["run=cartpole"])
    own, spaces = config.policy, simulator_spec(config.env).world.planned_spaces(config.env)
    num_choices = own.num_action_chunks * spaces.num_actions
    layers = []
    for sizes, outputs in ((own.section(kind_of(config)).hidden_sizes, num_choices), (own.value_hidden_sizes, 1)):
        widths = [spaces.num_proprio, *sizes, outputs]
        layers += [list(pairwise(widths))]
    products = sum(2 * a * b for net in layers for a, b in net)
    first = sum(2 * a * b for net in layers for a, b in net[:1])  # nothing needs the gradient of observations
    counts = count(config)
    assert counts.act.flops == products
    assert counts.update.flops == counts.recompute.flops == 3 * products - first
    parameters = sum((a + 1) * b for net in layers for a, b in net) + num_choices
    assert (counts.num_parameters, counts.num_trained, counts.num_frozen) == (parameters, parameters, 0)
    assert counts.stacks == () and counts.choice_bytes == 4 * num_choices


def kind_of(config: RunConfig) -> type:
    section = policy_spec(config).section
    assert section is not None
    return section


SMALL = {
    "openvla_oft": [],
    "pi0": ["policy=pi0"],
    "pi05": ["policy=pi05"],
    "smolvla": ["policy=smolvla"],
    "gr00t": ["policy=gr00t"],
    "small": ["policy=small"],
    "small, bins": ["policy=small", "policy.small.distribution=bins"],
    "cnn": ["run=cartpole", "policy.kind=cnn", "env.simulator=embedded"],
}


RELATED = ("pi0", "small, bins", "cnn")  # each has another one of its network in `make test`


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long if name in RELATED else ()) for name in SMALL]
)
def test_operations_are_those_of_real_tensors(name: str) -> None:
    """A forward pass to learn, by torch's counter; attention by plain products, which that counter sees on a CPU."""
    config = load(SMALL[name])
    policy = made_without_folder(policy_spec(config), config)
    policy.module.requires_grad_(False)
    passes = counting.Passes(policy, config, counting.INSTRUCTION)
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        distribution, _ = passes.observed(lambda *shown: policy(*shown, 1.0), rows=3)
        distribution.sample(np.arange(3, dtype=np.uint64))
    counts = count(config)
    assert counts.act.of(3).flops == pytest.approx(counter.get_total_flops(), rel=1e-6)
    assert counts.num_parameters == sum(x.numel() for x in policy.module.parameters())
    assert counts.num_trained + counts.num_frozen == counts.num_parameters
    assert counts.update.num_kernels <= counts.recompute.num_kernels
    assert PolicyCounts.from_json(counts.to_json()) == counts


def test_adapters_are_counted_beside_frozen_weights() -> None:
    whole, adapted = count(load([])), count(load(["actor.lora.rank=4"]))
    assert adapted.num_parameters == whole.num_parameters
    assert 0 < adapted.num_trained < whole.num_trained
    assert adapted.num_trained + adapted.num_frozen > adapted.num_parameters
    assert adapted.act == whole.act
    assert adapted.update.flops < whole.update.flops and adapted.update.num_kernels > whole.update.num_kernels
    assert 0 < adapted.num_sent < whole.num_sent  # merged matrices, without norms and biases
    assert adapted.num_adapters == adapted.num_trained + adapted.num_frozen - adapted.num_parameters
    assert 0 < adapted.num_trained_whole < adapted.num_trained


def test_recomputation_costs_a_forward_pass_and_saves_memory() -> None:
    counts = count(load([]))
    blocks = counts.recompute.flops - counts.update.flops
    assert 0.5 * counts.act.flops < blocks < counts.act.flops
    assert counts.recompute.saved_bytes < 0.7 * counts.update.saved_bytes


def test_a_steered_policy_learns_by_its_head_alone() -> None:
    counts = count(load(["policy=smolvla_dsrl"]))
    assert counts.update.flops < counts.act.flops / 20


def test_a_folder_is_counted_by_its_own_sizes(tmp_path: Path) -> None:
    config = load([])
    policy = made_without_folder(policy_spec(config), config)
    policy.save(tmp_path)
    assert count(load([f"policy.path={tmp_path}"])).act.flops == count(config).act.flops
