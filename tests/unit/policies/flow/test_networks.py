"""The networks of SmolVLA, pi0 and pi0.5 by themselves: precision, padding, batches, modules that can be wrapped."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from rlrun.policies.flow.spec import VisionSizes
from rlrun.policies.pi.config import GemmaSizes, PiConfig, PiSizes
from rlrun.policies.pi.network import PiNetwork
from rlrun.policies.smolvla.config import SmolVLAConfig, TextSizes, VLMSizes
from rlrun.policies.smolvla.network import SmolVLANetwork
from tests.numerics import assert_all_norm_close, assert_norm_close, norm_error

KINDS = ("smolvla", "pi0", "pi05")
BATCH, IMAGES, WORDS, CHUNK, VOCABULARY, SIDE = 3, 2, 5, 6, 64, 64
VISION = VisionSizes(64, 256, 3, 4, image_size=SIDE, patch_size=16)
EXPERT_WIDTH = 72


def small_smolvla(**changes: Any) -> SmolVLAConfig:
    """A SmolVLA of 1 M parameters, with every part of the official one; a picture has 4 tokens."""
    text = TextSizes(
        hidden_size=96,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=3,
        num_key_value_heads=1,
        head_dim=32,
        vocab_size=VOCABULARY,
    )
    vlm = VLMSizes(VISION, text, scale_factor=2, fake_image_token_id=0, global_image_token_id=0)
    settings: dict[str, Any] = {
        "chunk_size": CHUNK,
        "n_action_steps": CHUNK,
        "num_vlm_layers": 4,
        "resize_imgs_with_padding": (SIDE, SIDE),
        "vlm_model_name": "vlm",
    }
    return SmolVLAConfig(**settings | changes, vlm=vlm)


def small_pi(kind: str) -> PiConfig:
    """A pi0 or pi0.5 of 1 M parameters; a picture has 16 tokens."""
    shared = {"depth": 4, "num_heads": 4, "num_kv_heads": 1, "head_dim": 24}
    sizes = PiSizes(
        language=GemmaSizes(width=96, mlp_dim=256, **shared),
        expert=GemmaSizes(width=EXPERT_WIDTH, mlp_dim=192, **shared),
        vision=VISION,
        vocab_size=VOCABULARY,
    )
    return PiConfig(type=kind, chunk_size=CHUNK, n_action_steps=CHUNK, image_resolution=(SIDE, SIDE), sizes=sizes)


def made(kind: str, **changes: Any) -> SmolVLANetwork | PiNetwork:
    torch.manual_seed(0)
    return (SmolVLANetwork(small_smolvla(**changes)) if kind == "smolvla" else PiNetwork(small_pi(kind))).eval()


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def observed(batch: int = BATCH) -> tuple[Tensor, ...]:
    drawn = torch.Generator().manual_seed(1)
    pixels = torch.rand(batch, IMAGES, 3, SIDE, SIDE, generator=drawn) * 2 - 1
    tokens = torch.randint(0, VOCABULARY, (batch, WORDS), generator=drawn)
    words = torch.arange(WORDS) < torch.tensor([WORDS, 3, 4])[:batch, None]
    pictures = torch.tensor([[True, True], [True, True], [True, False]])[:batch]
    return pixels, pictures, tokens, words, torch.randn(batch, 32, generator=drawn)


def noisy(batch: int = BATCH) -> tuple[Tensor, Tensor]:
    drawn = torch.Generator().manual_seed(2)
    return torch.randn(batch, CHUNK, 32, generator=drawn), torch.rand(batch, generator=drawn)


def computed(network: SmolVLANetwork | PiNetwork, observation: tuple[Tensor, ...], x: Tensor, time: Tensor) -> Tensor:
    return network.velocity(x, time, network.prefix(*observation))[0]


def test_shapes(kind: str) -> None:
    network = made(kind)
    prefix = network.prefix(*observed())
    tokens_per_image = 4 if kind == "smolvla" else 16
    num_tokens = IMAGES * tokens_per_image + WORDS + (kind == "smolvla")  # whose prefix has the state
    assert prefix.hidden.shape == (BATCH, num_tokens, 96)
    assert [key.shape for key in prefix.keys] == [(BATCH, num_tokens, 1, 32 if kind == "smolvla" else 24)] * 4
    assert prefix.num_positions.tolist() == [num_tokens, num_tokens - 2, num_tokens - 1 - tokens_per_image]
    velocity, hidden = network.velocity(*noisy(), prefix)
    assert velocity.shape == (BATCH, CHUNK, 32)
    assert velocity.dtype == torch.float32
    assert hidden.shape == (BATCH, CHUNK, EXPERT_WIDTH)


def test_rows_do_not_depend_on_each_other(kind: str) -> None:
    network, observation, (x, time) = made(kind), observed(), noisy()
    prefix, together = network.prefix(*observation), computed(network, observation, x, time)
    for row in range(BATCH):
        only = slice(row, row + 1)
        alone = computed(network, tuple(part[only] for part in observation), x[only], time[only])
        assert_norm_close(alone, together[only], 1e-5)
        taken = prefix.map(lambda tensor, only=only: tensor[only])
        assert_norm_close(network.velocity(x[only], time[only], taken)[0], together[only], 1e-5)


def test_padding_changes_nothing(kind: str) -> None:
    """Neither words at padding, nor a missing picture."""
    expected = computed(made(kind), observed(), *noisy())
    pixels, pictures, tokens, words, state = observed()
    pixels[2, 1] = -1.0
    tokens = tokens.where(words, (tokens + 7) % VOCABULARY)
    assert_norm_close(computed(made(kind), (pixels, pictures, tokens, words, state), *noisy()), expected, 1e-5)


@pytest.mark.parametrize("part", range(5))
def test_every_input_counts(kind: str, part: int) -> None:
    """pi0.5 has the state in its prompt, and reads it nowhere else."""
    observation = list(observed())
    before = computed(made(kind), observed(), *noisy())
    changed = observation[part].clone()
    changed[0] = ~changed[0] if changed.dtype == torch.bool else changed[0].flip(-1)
    observation[part] = changed
    after = computed(made(kind), tuple(observation), *noisy())
    assert (norm_error(after[0], before[0]) > 1e-4) is not (kind == "pi05" and part == 4)
    assert_norm_close(after[1:], before[1:], 1e-5)


def test_half_precision(kind: str) -> None:
    expected = computed(made(kind), observed(), *noisy())
    found = computed(made(kind).bfloat16(), observed(), *noisy())
    assert found.dtype == torch.float32
    assert norm_error(found, expected) < 0.05


def test_layers_can_be_checkpointed_one_by_one(kind: str) -> None:
    plain, recomputed = made(kind), made(kind)
    for layer in (*recomputed.vision_layers(), *recomputed.vlm_layers(), *recomputed.expert_layers()):
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)
    gradients = []
    for network in (plain, recomputed):
        computed(network, observed(), *noisy()).square().sum().backward()
        gradients.append({name: p.grad for name, p in network.named_parameters() if p.grad is not None})
    assert_all_norm_close(gradients[1], gradients[0], 1e-5)


def test_every_trained_parameter_has_a_gradient(kind: str) -> None:
    network = made(kind)
    prefix = network.prefix(*observed())
    (network.velocity(*noisy(), prefix)[0].square().sum() + prefix.hidden.square().sum()).backward()
    assert [name for name, p in network.named_parameters() if p.requires_grad and not p.grad.norm() > 0] == []
    unread = [name for name, p in network.named_parameters() if not p.requires_grad]
    assert unread == (["model.vlm_with_expert.vlm.lm_head.weight"] if kind == "smolvla" else [])


# --- SmolVLA alone ----------------------------------------------------------------------------


def test_the_length_of_the_prefix_changes_nothing() -> None:
    expected = computed(made("smolvla"), observed(), *noisy())
    assert_norm_close(computed(made("smolvla", prefix_length=30), observed(), *noisy()), expected, 1e-5)


def test_actions_see_only_earlier_ones() -> None:
    network, observation, (x, time) = made("smolvla"), observed(), noisy()
    before = computed(network, observation, x, time)
    x[:, 3] += 1.0
    after = computed(network, observation, x, time)
    assert_norm_close(after[:, :3], before[:, :3], 1e-5)
    assert norm_error(after[:, 4:], before[:, 4:]) > 1e-4


def test_a_frozen_vlm_in_half_precision_below_an_expert_in_float32() -> None:
    """As LeRobot holds them after loading SmolVLM2."""
    network = made("smolvla")
    network.model.vlm_with_expert.vlm.bfloat16()
    velocity = computed(network, observed(), *noisy())
    assert norm_error(velocity, computed(made("smolvla"), observed(), *noisy())) < 0.05


@pytest.mark.parametrize("special", [0, 3])
def test_special_tokens_enclose_pictures(special: int) -> None:
    network = made("smolvla", add_image_special_tokens=special > 0)
    prefix = network.prefix(*observed())
    assert prefix.hidden.shape[1] == IMAGES * (4 + special) + WORDS + 1
    assert prefix.hidden.shape[1] == network.config.prefix_tokens(IMAGES, WORDS)


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
        small_smolvla(**changes)
