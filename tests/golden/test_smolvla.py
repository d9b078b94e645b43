"""SmolVLA against LeRobot's own classes, from pictures to gradients and actions, with small random weights.

The outputs in tests/data/published were made by scripts/oracles/smolvla.py with LeRobot 0.4.4.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from rlrun.policies.flow.networks import LayeredPrefix
from rlrun.policies.flow.spec import PatchPositions
from rlrun.policies.smolvla.config import SmolVLAConfig
from rlrun.policies.smolvla.network import SmolVLANetwork
from rlrun.policies.smolvla.policy import pixels
from scripts.oracles.openvla_oft import drawn
from scripts.oracles.smolvla import VARIANTS, configured, learned, observed, sketch
from tests.numerics import assert_norm_close, norm_error

DATA = Path(__file__).parents[1] / "data" / "published"
TOLERANCE = 1e-5


@cache
def golden(name: str) -> dict[str, np.ndarray]:
    with np.load(DATA / f"smolvla_{name}.npz") as stored:
        return dict(stored)


def made(config: SmolVLAConfig) -> SmolVLANetwork:
    network = SmolVLANetwork(config).eval()
    with torch.no_grad():
        for name, tensor in network.state_dict().items():
            tensor.copy_(drawn(name, tuple(tensor.shape)))
    return network


def prefix_of(network: SmolVLANetwork) -> LayeredPrefix:
    given = {name: torch.from_numpy(value) for name, value in observed().items()}
    size = network.config.vlm.vision.image_size
    return network.prefix(
        pixels(given["pictures"], size), given["picture_masks"], given["tokens"], given["token_masks"], given["state"]
    )


def losses(network: SmolVLANetwork) -> torch.Tensor:
    """LeRobot's training pass: squared errors of the velocity [B, T, 32]."""
    given = {name: torch.from_numpy(value) for name, value in learned().items()}
    actions, noise, time = given["actions"], given["noise"], given["time"]
    at = time[:, None, None]
    velocity, _ = network.velocity(at * noise + (1 - at) * actions, time, prefix_of(network))
    return (velocity - (noise - actions)).square()


@torch.no_grad()
def sampled(network: SmolVLANetwork) -> torch.Tensor:
    x, prefix, num_steps = torch.from_numpy(learned()["noise"]), prefix_of(network), network.config.num_steps
    for step in range(num_steps):
        time = torch.full((len(x),), 1 - step / num_steps)
        x = x - network.velocity(x, time, prefix)[0] / num_steps
    return x


def test_pictures_are_theirs() -> None:
    found = pixels(torch.from_numpy(observed()["pictures"]), 32)
    assert_norm_close(found, golden("cross")["pixels"], TOLERANCE)
    assert (found[:, :, :, :12] == -1).all()  # 24 x 40 becomes 19 x 32, below black


@pytest.mark.parametrize("name", VARIANTS)
def test_padding_of_the_prefix_is_theirs(name: str) -> None:
    assert np.array_equal(prefix_of(made(configured(name))).mask.numpy(), golden(name)["seen"])


@pytest.mark.order_of_sums
@pytest.mark.parametrize("name", VARIANTS)
def test_losses_are_theirs(name: str) -> None:
    assert_norm_close(losses(made(configured(name))), golden(name)["losses"], TOLERANCE)


@pytest.mark.order_of_sums
@pytest.mark.parametrize("name", VARIANTS)
def test_sampled_actions_are_theirs(name: str) -> None:
    assert_norm_close(sampled(made(configured(name))), golden(name)["actions"], TOLERANCE)


@pytest.mark.order_of_sums
@pytest.mark.parametrize("name", VARIANTS)
def test_gradients_are_theirs(name: str) -> None:
    network = made(configured(name))
    losses(network).mean().backward()
    found = {key: p.grad for key, p in network.named_parameters() if p.grad is not None and p.grad.norm() > 0}
    expected = {key.removeprefix("gradient "): x for key, x in golden(name).items() if key.startswith("gradient ")}
    assert found.keys() == expected.keys()
    for key, gradient in found.items():
        alike = key.replace("k_proj.bias", "q_proj.bias")  # a bias of all keys changes no softmax: its gradient cancels
        scale = float(np.linalg.norm(expected[alike]))
        assert_norm_close(sketch(key, gradient), expected[key], TOLERANCE, scale, name=key)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("cross", {"attention_mode": "self_attn"}),
        ("cross", {"self_attn_every_n_layers": 3}),
        ("cross", {"max_period": 5.0}),
        ("special_tokens", {"add_image_special_tokens": False}),
        ("self", {"num_vlm_layers": 3}),
    ],
)
def test_another_setting_gives_other_actions(name: str, wrong: dict[str, object]) -> None:
    if wrong.get("attention_mode") == "self_attn":  # other shapes of two matrices: weights by name are other ones
        assert norm_error(golden("self")["actions"], golden("cross")["actions"]) > 100 * TOLERANCE
    found = sampled(made(configured(name).with_(**wrong)))
    assert norm_error(found, golden(name)["actions"]) > 100 * TOLERANCE


def test_the_full_size_has_their_tensors() -> None:
    with torch.device("meta"):
        network = SmolVLANetwork(SmolVLAConfig())
    found = {name: list(tensor.shape) for name, tensor in network.state_dict().items()}
    expected = json.loads((DATA / "smolvla_state_dict.json").read_text())
    assert len(expected) == 500
    assert found == expected


def test_empty_cameras_show_their_special_tokens() -> None:
    """As in LeRobot: the picture is masked, the tokens around it are not. They stand after those of the cameras."""
    empty = made(configured("special_tokens").with_(empty_cameras=2))
    without = made(configured("special_tokens"))
    found, expected = prefix_of(empty), prefix_of(without)
    assert int(found.mask.sum()) == int(expected.mask.sum()) + 2 * 3 * len(expected.mask)
    assert norm_error(sampled(empty), golden("special_tokens")["actions"]) > 100 * TOLERANCE
    plain = configured("cross").with_(empty_cameras=2)  # no tokens around pictures: nothing is seen of them
    assert_norm_close(sampled(made(plain)), golden("cross")["actions"], TOLERANCE)


def test_shifted_positions_give_other_actions() -> None:
    shifted = made(configured("cross").with_(patch_positions=PatchPositions.shifted))
    assert norm_error(sampled(shifted), golden("cross")["actions"]) > 100 * TOLERANCE
