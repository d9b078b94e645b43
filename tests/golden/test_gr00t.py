"""GR00T N1.7 computes what LeRobot's own file computes: outputs, losses and gradients, for small random weights.

tests/data/published/gr00t_* was made by LeRobot's code of August 2026 (scripts/oracles/gr00t.py). Other sizes, seeds,
embodiments and cameras are computed by it again where its environment is (scripts/gr00t_environment.py).
"""

from __future__ import annotations

import json
import os
import subprocess
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from rlrun.policies.gr00t.config import Gr00tConfig
from rlrun.policies.gr00t.network import Gr00tNetwork, Gr00tPrefix
from scripts.oracles.gr00t import FURTHER, GOLDEN, IMAGE, Case, learned, observed, weight
from scripts.oracles.smolvla import sketch
from tests.numerics import assert_norm_close, computed_in_double, norm_error

ROOT = Path(__file__).parents[2]
DATA, ENVIRONMENT = ROOT / "tests" / "data" / "published", ROOT / ".cache" / "gr00t"
TOLERANCE, ORACLE_S = 1e-5, 280
CASES = GOLDEN | FURTHER


@pytest.fixture(scope="session")
def computed_again(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the outputs of FURTHER lie."""
    if not (ENVIRONMENT / "installed").exists():
        pytest.skip("LeRobot's GR00T: python scripts/gr00t_environment.py .cache/gr00t CLONE_OF_LEROBOT")
    out = tmp_path_factory.mktemp("gr00t")
    command = [ENVIRONMENT / "bin" / "python", "-W", "ignore", "scripts/oracles/gr00t.py", "further", out]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}
    places = {"cwd": ROOT, "env": environment}
    done = subprocess.run(command, **places, capture_output=True, text=True, timeout=ORACLE_S, check=False)
    assert done.returncode == 0, done.stderr
    return out


@pytest.fixture(params=CASES)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def expected(name: str, request: pytest.FixtureRequest) -> dict[str, np.ndarray]:
    folder = DATA if name in GOLDEN else request.getfixturevalue("computed_again")
    with np.load(folder / f"gr00t_{name.replace(' ', '_')}.npz") as stored:
        return dict(stored)


@cache
def golden(name: str) -> dict[str, np.ndarray]:
    with np.load(DATA / f"gr00t_{name}.npz") as stored:
        return dict(stored)


def made(case: Case, config: Gr00tConfig | None = None) -> Gr00tNetwork:
    network = Gr00tNetwork(config or case.config).eval()
    with torch.no_grad():
        for key, tensor in network.state_dict().items():
            tensor.copy_(weight(case, key, tuple(tensor.shape)))
    return network


def pixels(case: Case) -> torch.Tensor:
    pictures = torch.from_numpy(observed(case)["pictures"])
    return pictures.permute(0, 1, 4, 2, 3) / 127.5 - 1.0


def numbers(case: Case) -> tuple[torch.Tensor, ...]:
    """Pixels, state, actions, noise, times."""
    given = {key: torch.from_numpy(value) for key, value in (observed(case) | learned(case)).items()}
    return pixels(case), given["state"], given["actions"], given["noise"], given["time"]


def prefix_of(
    network: Gr00tNetwork, case: Case, shown: torch.Tensor, state: torch.Tensor, num_padded: int = 0
) -> Gr00tPrefix:
    words = torch.from_numpy(observed(case)["tokens"])
    tokens = torch.cat([words, words.new_zeros(case.num_rows, num_padded)], dim=1)
    mask = torch.arange(tokens.shape[1]).expand(tokens.shape) < words.shape[1]
    masks = torch.ones(case.num_rows, case.num_cameras, dtype=torch.bool)
    return network.completed(network.prefix(shown, masks, tokens, mask, state))


def losses(network: Gr00tNetwork, case: Case, *given: torch.Tensor) -> torch.Tensor:
    """LeRobot's training pass: squared errors of the velocity [B, T, A]. given: `numbers`."""
    shown, state, actions, noise, time = given or numbers(case)
    at = time[:, None, None]
    velocity, _ = network.velocity((1 - at) * noise + at * actions, time, prefix_of(network, case, shown, state))
    return (velocity - (actions - noise)).square()


def gradients(network: Gr00tNetwork, case: Case, *given: torch.Tensor) -> dict[str, np.ndarray]:
    losses(network, case, *given).mean().backward()
    found = {key: p.grad for key, p in network.named_parameters() if p.grad is not None}
    return {key: sketch(key, gradient) for key, gradient in found.items()}


@torch.no_grad()
def sampled(network: Gr00tNetwork, case: Case) -> torch.Tensor:
    shown, state, _, x, _ = numbers(case)
    prefix = prefix_of(network, case, shown, state)
    for step in range(case.num_steps):
        time = torch.full((len(x),), step / case.num_steps)
        x = x + network.velocity(x, time, prefix)[0] / case.num_steps
    return x


@pytest.mark.order_of_sums
def test_outputs_are_theirs(name: str, expected: dict[str, np.ndarray]) -> None:
    network, (shown, state, *_) = made(CASES[name]), numbers(CASES[name])
    assert_norm_close(prefix_of(network, CASES[name], shown, state).hidden, expected["hidden"], TOLERANCE)
    assert_norm_close(sampled(network, CASES[name]), expected["actions"], TOLERANCE)
    assert_norm_close(losses(network, CASES[name]), expected["losses"], TOLERANCE)


def test_gradients_are_theirs(name: str, expected: dict[str, np.ndarray]) -> None:
    """Both in float64: through so many layers, gradients in float32 have lost more than the tolerance."""
    case = CASES[name]
    found = computed_in_double(made(case), lambda network, *given: gradients(network, case, *given), *numbers(case))
    of_theirs = {key.removeprefix("gradient "): x for key, x in expected.items() if key.startswith("gradient ")}
    assert found.keys() == of_theirs.keys()
    for key, values in found.items():
        alike = key.replace("to_k.bias", "to_q.bias")  # a bias of all keys changes no softmax: its gradient cancels
        assert_norm_close(values, of_theirs[key], TOLERANCE, float(np.linalg.norm(of_theirs[alike])), name=key)


@pytest.mark.parametrize("variant", GOLDEN)
def test_pictures_are_theirs(variant: str) -> None:
    """By patches, in blocks of 2 x 2, each for two frames."""
    side = GOLDEN[variant].side // 8
    x = pixels(GOLDEN[variant]).flatten(0, 1).unflatten(3, (side // 2, 2, 8)).unflatten(2, (side // 2, 2, 8))
    blocks = x.permute(0, 2, 5, 3, 6, 1, 4, 7)[..., None, :, :].expand(*[-1] * 6, 2, -1, -1)
    stored = golden(variant)["pixels"]
    assert_norm_close(blocks.reshape(stored.shape), stored, 1e-6)


@torch.no_grad()
def test_padding_changes_nothing() -> None:
    """LeRobot's class lets the blocks between the VLM and the actions see padding; here a row is its own."""
    case = GOLDEN["first"]
    network, (shown, state, _, x, time) = made(case), numbers(case)
    plain, padded = (prefix_of(network, case, shown, state, num_padded) for num_padded in (0, 3))
    assert_norm_close(padded.features[:, : plain.mask.shape[1]], plain.features, TOLERANCE)
    assert_norm_close(network.velocity(x, time, padded)[0], network.velocity(x, time, plain)[0], TOLERANCE)


@torch.no_grad()
def test_a_missing_picture_is_not_seen() -> None:
    case = GOLDEN["first"]
    network, (shown, state, _, x, time) = made(case), numbers(case)
    tokens, masks = torch.from_numpy(observed(case)["tokens"]), torch.tensor([[True, False]] * case.num_rows)
    found = []
    for factor in (1.0, -1.0):  # of the picture that is missing
        changed = shown * torch.tensor([1.0, factor])[:, None, None, None]
        prefix = network.prefix(changed, masks, tokens, torch.ones_like(tokens, dtype=torch.bool), state)
        found.append(network.velocity(x, time, network.completed(prefix))[0])
        assert int(prefix.pictures.sum()) == case.num_rows * case.config.tokens_per_image
        assert not (prefix.mask & (tokens == IMAGE) & ~prefix.pictures).any()
    assert torch.equal(*found)


@pytest.mark.parametrize(
    "changes", [{"embodiment": 1}, {"num_steps": 5}, {"turn": 1}, {"num_layers": 4}, {"seed": 2}], ids=str
)
def test_another_setting_gives_other_actions(changes: dict[str, int]) -> None:
    case = Case(**vars(GOLDEN["first"]) | changes)
    network = made(Case(**vars(case) | {"seed": changes.get("seed", 0)}))
    assert norm_error(sampled(network, case), golden("first")["actions"]) > 30 * TOLERANCE


def test_buckets_of_the_flow_time_are_theirs() -> None:
    """Theirs are cut in float64 when acting, ours in float32."""
    for num_steps in range(1, 101):
        theirs = [int(step / num_steps * 1000) for step in range(num_steps)]
        times = [torch.full((1,), step / num_steps) for step in range(num_steps)]
        assert [int((time * 1000).floor()) for time in times] == theirs, num_steps


def test_the_full_size_has_their_tensors() -> None:
    with torch.device("meta"):
        network = Gr00tNetwork(Gr00tConfig())
    found = {name: list(tensor.shape) for name, tensor in network.state_dict().items()}
    assert found == json.loads((DATA / "gr00t_state_dict.json").read_text())
