"""pi0 and pi0.5 against LeRobot's own classes, from pixels to gradients and actions, with small random weights.

The outputs in tests/data/published were made by scripts/oracles/pi.py with LeRobot 0.4.4 and openpi's transformers.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from rlrun.policies.pi.config import HEADS, PiConfig
from rlrun.policies.pi.network import PiNetwork, PiPrefix
from scripts.oracles.openvla_oft import drawn
from scripts.oracles.pi import KINDS, configured, pixels
from scripts.oracles.smolvla import learned, observed, sketch
from tests.numerics import assert_norm_close, norm_error

DATA = Path(__file__).parents[1] / "data" / "published"
TOLERANCE = 1e-5


@cache
def golden(kind: str) -> dict[str, np.ndarray]:
    with np.load(DATA / f"{kind}.npz") as stored:
        return dict(stored)


def made(config: PiConfig) -> PiNetwork:
    network = PiNetwork(config).eval()
    with torch.no_grad():
        for name, tensor in network.state_dict().items():
            tensor.copy_(drawn(name, tuple(tensor.shape)))
    return network


def prefix_of(network: PiNetwork) -> PiPrefix:
    given = {name: torch.from_numpy(value) for name, value in observed().items()}
    return network.prefix(
        torch.from_numpy(pixels()), given["picture_masks"], given["tokens"], given["token_masks"], given["state"]
    )


def losses(network: PiNetwork) -> torch.Tensor:
    """LeRobot's training pass: squared errors of the velocity [B, T, 32]."""
    given = {name: torch.from_numpy(value) for name, value in learned().items()}
    actions, noise, time = given["actions"], given["noise"], given["time"]
    at = time[:, None, None]
    velocity, _ = network.velocity(at * noise + (1 - at) * actions, time, prefix_of(network))
    return (velocity - (noise - actions)).square()


@torch.no_grad()
def sampled(network: PiNetwork) -> torch.Tensor:
    x, prefix = torch.from_numpy(learned()["noise"]), prefix_of(network)
    num_steps = network.config.num_inference_steps
    for step in range(num_steps):
        time = torch.full((len(x),), 1 - step / num_steps)
        x = x - network.velocity(x, time, prefix)[0] / num_steps
    return x


@pytest.mark.order_of_sums
@pytest.mark.parametrize("kind", KINDS)
def test_losses_are_theirs(kind: str) -> None:
    assert_norm_close(losses(made(configured(kind))), golden(kind)["losses"], TOLERANCE)


@pytest.mark.order_of_sums
@pytest.mark.parametrize("kind", KINDS)
def test_sampled_actions_are_theirs(kind: str) -> None:
    assert_norm_close(sampled(made(configured(kind))), golden(kind)["actions"], TOLERANCE)


@pytest.mark.order_of_sums
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_theirs(kind: str) -> None:
    network = made(configured(kind))
    losses(network).mean().backward()
    found = {key: p.grad for key, p in network.named_parameters() if p.grad is not None and p.grad.norm() > 0}
    expected = {key.removeprefix("gradient "): x for key, x in golden(kind).items() if key.startswith("gradient ")}
    assert found.keys() == expected.keys()
    for key, gradient in found.items():
        alike = key.replace("k_proj.bias", "q_proj.bias")  # a bias of all keys changes no softmax: its gradient cancels
        scale = float(np.linalg.norm(expected[alike]))
        assert_norm_close(sketch(key, gradient), expected[key], TOLERANCE, scale, name=key)


@pytest.mark.parametrize("kind", KINDS)
def test_another_setting_gives_other_actions(kind: str) -> None:
    wrong = replace(configured(kind), max_period=5.0)
    assert norm_error(sampled(made(wrong)), golden(kind)["actions"]) > 100 * TOLERANCE


@pytest.mark.parametrize("kind", KINDS)
def test_the_full_size_has_their_tensors(kind: str) -> None:
    with torch.device("meta"):
        network = PiNetwork(PiConfig(type=kind))
    found = {name: list(tensor.shape) for name, tensor in network.state_dict().items()}
    expected = json.loads((DATA / f"{kind}_state_dict.json").read_text())
    assert [name for name in expected if name not in found] == list(HEADS)
    assert found == {name: shape for name, shape in expected.items() if name not in HEADS}


def test_sizes_that_do_not_fit_are_refused() -> None:
    config = configured("pi0")
    with pytest.raises(ValueError, match="differ in head_dim"):
        replace(config.sizes, expert=replace(config.sizes.expert, head_dim=8))
    with pytest.raises(ValueError, match="exceeds"):
        replace(config, n_action_steps=51)
