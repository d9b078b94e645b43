"""The network of SmolVLA by itself: precision, padding, batches, and modules that can be wrapped one by one."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from rlrun.policies.flow.networks import LayeredPrefix
from rlrun.policies.smolvla.config import SmolVLAConfig, small
from rlrun.policies.smolvla.network import SmolVLANetwork
from tests.numerics import assert_all_norm_close, assert_norm_close, norm_error

BATCH, IMAGES, WORDS, CHUNK = 3, 2, 5, 6


def made(**changes: object) -> SmolVLANetwork:
    torch.manual_seed(0)
    return SmolVLANetwork(small(chunk_size=CHUNK, patch_size=16, **changes)).eval()


def observed(batch: int = BATCH) -> tuple[Tensor, ...]:
    drawn = torch.Generator().manual_seed(1)
    pixels = torch.rand(batch, IMAGES, 3, 64, 64, generator=drawn) * 2 - 1
    tokens = torch.randint(0, 64, (batch, WORDS), generator=drawn)
    words = torch.arange(WORDS) < torch.tensor([WORDS, 3, 4])[:batch, None]
    pictures = torch.tensor([[True, True], [True, True], [True, False]])[:batch]
    return pixels, pictures, tokens, words, torch.randn(batch, 32, generator=drawn)


def noisy(batch: int = BATCH) -> tuple[Tensor, Tensor]:
    drawn = torch.Generator().manual_seed(2)
    return torch.randn(batch, CHUNK, 32, generator=drawn), torch.rand(batch, generator=drawn)


def computed(network: SmolVLANetwork, observation: tuple[Tensor, ...], x: Tensor, time: Tensor) -> Tensor:
    return network.velocity(x, time, network.prefix(*observation))[0]


def test_shapes() -> None:
    network = made()
    prefix = network.prefix(*observed())
    num_tokens = IMAGES * 4 + WORDS + 1
    assert num_tokens == network.config.prefix_tokens(IMAGES, WORDS)
    assert prefix.hidden.shape == (BATCH, num_tokens, 96)
    assert [key.shape for key in prefix.keys] == [(BATCH, num_tokens, 1, 32)] * 4
    assert prefix.num_positions.tolist() == [num_tokens, num_tokens - 2, num_tokens - 5]
    velocity, hidden = network.velocity(*noisy(), prefix)
    assert velocity.shape == (BATCH, CHUNK, 32)
    assert velocity.dtype == torch.float32
    assert hidden.shape == (BATCH, CHUNK, 72)


def test_rows_do_not_depend_on_each_other() -> None:
    network, observation, (x, time) = made(), observed(), noisy()
    prefix, together = network.prefix(*observation), computed(network, observation, x, time)
    for row in range(BATCH):
        only = slice(row, row + 1)
        alone = computed(network, tuple(part[only] for part in observation), x[only], time[only])
        assert_norm_close(alone, together[only], 1e-5)
        taken: LayeredPrefix = prefix.map(lambda tensor, only=only: tensor[only])
        assert_norm_close(network.velocity(x[only], time[only], taken)[0], together[only], 1e-5)


@pytest.mark.parametrize("length", [-1, 30])
def test_padding_changes_nothing(length: int) -> None:
    """What stands at padding, a missing picture, or how long the prefix is padded."""
    expected = computed(made(), observed(), *noisy())
    pixels, pictures, tokens, words, state = observed()
    pixels[2, 1] = -1.0
    tokens = tokens.where(words, (tokens + 7) % 64)
    assert_norm_close(
        computed(made(prefix_length=length), (pixels, pictures, tokens, words, state), *noisy()), expected, 1e-5
    )


@pytest.mark.parametrize("part", range(5))
def test_every_input_counts(part: int) -> None:
    observation = list(observed())
    before = computed(made(), observed(), *noisy())
    changed = observation[part].clone()
    changed[0] = ~changed[0] if changed.dtype == torch.bool else changed[0].flip(-1)
    observation[part] = changed
    after = computed(made(), tuple(observation), *noisy())
    assert norm_error(after[0], before[0]) > 1e-4
    assert_norm_close(after[1:], before[1:], 1e-5)


def test_actions_see_only_earlier_ones() -> None:
    network, observation, (x, time) = made(), observed(), noisy()
    before = computed(network, observation, x, time)
    x[:, 3] += 1.0
    after = computed(network, observation, x, time)
    assert_norm_close(after[:, :3], before[:, :3], 1e-5)
    assert norm_error(after[:, 4:], before[:, 4:]) > 1e-4


def test_half_precision() -> None:
    expected = computed(made(), observed(), *noisy())
    found = computed(made().bfloat16(), observed(), *noisy())
    assert found.dtype == torch.float32
    assert norm_error(found, expected) < 0.05


def test_a_frozen_vlm_in_half_precision_below_an_expert_in_float32() -> None:
    """As LeRobot holds them after loading SmolVLM2."""
    network = made()
    network.model.vlm_with_expert.vlm.bfloat16()
    velocity = computed(network, observed(), *noisy())
    assert norm_error(velocity, computed(made(), observed(), *noisy())) < 0.05


def test_layers_can_be_checkpointed_one_by_one() -> None:
    plain, recomputed = made(), made()
    for layer in (*recomputed.vision_layers(), *recomputed.vlm_layers(), *recomputed.expert_layers()):
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)
    gradients = []
    for network in (plain, recomputed):
        computed(network, observed(), *noisy()).square().sum().backward()
        gradients.append({name: p.grad for name, p in network.named_parameters() if p.grad is not None})
    assert_all_norm_close(gradients[1], gradients[0], 1e-5)


def test_every_trained_parameter_has_a_gradient() -> None:
    network = made()
    prefix = network.prefix(*observed())
    (network.velocity(*noisy(), prefix)[0].square().sum() + prefix.hidden.square().sum()).backward()
    without = [name for name, p in network.named_parameters() if p.requires_grad and not p.grad.norm() > 0]
    assert without == []
    assert [name for name, p in network.named_parameters() if not p.requires_grad] == [
        "model.vlm_with_expert.vlm.lm_head.weight"
    ]


def test_special_tokens_enclose_pictures() -> None:
    network = made(add_image_special_tokens=True)
    prefix = network.prefix(*observed())
    assert prefix.hidden.shape[1] == network.config.prefix_tokens(IMAGES, WORDS) == IMAGES * (4 + 3) + WORDS + 1


def test_the_full_size_needs_no_memory() -> None:
    with torch.device("meta"):
        network = SmolVLANetwork(SmolVLAConfig())
    assert sum(parameter.numel() for parameter in network.parameters()) == 450_046_176


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_expert_layers": 2}, "one expert layer per VLM layer"),
        ({"adapt_to_pi_aloha": True}, "ALOHA"),
        ({"n_action_steps": 100}, "exceeds"),
        ({"n_obs_steps": 2}, "one observation"),
        ({"attention_mode": "none"}, "cross_attn and self_attn"),
        ({"resize_imgs_with_padding": (64, 48)}, "64 pixels per side"),
    ],
)
def test_a_variant_that_rlrun_lacks_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        small(**changes)
