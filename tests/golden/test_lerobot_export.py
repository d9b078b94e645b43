"""Exported policies open in the released LeRobot's own classes and act as in rlrun, through LeRobot's processors.

LeRobot has an environment of its own (`make lerobot`). Its pi0 and pi0.5 need openpi's change of transformers in it:
`python scripts/lerobot_environment.py .cache/lerobot CLONE_OF_OPENPI`.
"""

from __future__ import annotations

import itertools
import os
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from rlrun.config.schema import PrefixSchedule, RealTimeChunkingConfig
from rlrun.export import export
from rlrun.policies.flow.policy import FlowPolicy
from rlrun.policies.pi import folder as pi_folder
from rlrun.policies.pi.policy import PiPolicy
from tests.numerics import assert_norm_close, norm_error
from tests.unit.policies.flow.test_policies import A, P, new_policy

ROOT = Path(__file__).parents[2]
ENVIRONMENT = ROOT / ".cache" / "lerobot"
PYTHON, OF_PI = ENVIRONMENT / "bin" / "python", ENVIRONMENT / "pi"
TOLERANCE, ROWS, SENTENCE, ACT_S = 1e-5, 3, "turn on the radio", 600
pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(2 * ACT_S),
    pytest.mark.skipif(not (ENVIRONMENT / "installed").exists(), reason="LeRobot's environment: make lerobot"),
]


def observed(num_cameras: int) -> tuple[np.ndarray, np.ndarray]:
    """Pictures uint8 [B, N, H, W, 3], of which no side is that of the vision tower, and states float32 [B, P]."""
    generator = np.random.default_rng(0)
    pictures = generator.integers(0, 256, (ROWS, num_cameras, 40, 48, 3), dtype=np.uint8)
    return pictures, generator.standard_normal((ROWS, P)).astype(np.float32)


@torch.no_grad()
def ours(policy: FlowPolicy) -> np.ndarray:
    """The most likely chunk, float32 [B, C, A]."""
    pictures, state = observed(len(policy.processor.config.cameras))
    distribution, _ = policy(pictures, [SENTENCE] * ROWS, state, temperature=1.0)
    return policy.decode_actions(distribution.most_likely().numpy())


def theirs(
    folders: Iterable[Path],
    cameras: list[str],
    place: Path,
    is_exact: bool = True,
    beside: str = "",
    guidance: dict[str, object] | None = None,
) -> dict[str, np.ndarray]:
    """What LeRobot makes of the same pictures, states and sentence, by "FOLDER chunk" and "FOLDER first".

    guidance: of real-time chunking, see lerobot_acts.py; its chunk is "FOLDER guided".
    """
    pictures, state = observed(len(cameras))
    shown = {name: pictures[:, i].transpose(0, 3, 1, 2) / np.float32(255) for i, name in enumerate(cameras)}
    given = {"observation.state": state, "sentence": SENTENCE, "is_exact": is_exact}
    np.savez(place / "observed.npz", **shown, **given, **(guidance or {}))
    script, acted = ROOT / "tests" / "golden" / "lerobot_acts.py", place / "acted.npz"
    command = [PYTHON, "-W", "ignore", script, place / "observed.npz", acted, *folders]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "PYTHONPATH": beside}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=ACT_S, check=False)
    assert done.returncode == 0, done.stderr
    with np.load(acted) as stored:
        return dict(stored)


def saved(kind: str, place: Path) -> FlowPolicy:
    policy = new_policy(kind, "env.embedded.cameras=[zed_link,left_realsense_link]")
    policy.save(place / kind)
    return policy


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("exports")


@pytest.fixture(scope="module")
def smolvla(place: Path) -> FlowPolicy:
    """A policy whose export lies in place / "smolvla_out"."""
    policy = saved("smolvla", place)
    export(place / "smolvla", place / "smolvla_out", None)
    return policy


def test_smolvla_acts_alike(smolvla: FlowPolicy, place: Path) -> None:
    found = theirs([place / "smolvla_out"], smolvla.processor.config.cameras, place)
    assert_norm_close(found["smolvla_out chunk"], ours(smolvla), TOLERANCE)
    assert_norm_close(found["smolvla_out first"], ours(smolvla)[:, 0], TOLERANCE)
    assert found["smolvla_out first"].shape == (ROWS, A)


def schedules() -> Iterator[object]:
    """Yield schedules with a falling horizon, and with one that is longer than what is coming; all but one are long."""
    for one in itertools.product(PrefixSchedule, (4, 10)):
        yield pytest.param(*one, marks=() if one == (PrefixSchedule.exp, 4) else pytest.mark.long)


@pytest.mark.parametrize(("schedule", "horizon"), list(schedules()))
def test_smolvla_goes_on_alike_under_real_time_chunking(schedule: PrefixSchedule, horizon: int, place: Path) -> None:
    longer = ("policy.num_action_chunks=8", "policy.smolvla.num_flow_steps=4", "env.embedded.cameras=[zed_link]")
    policy = new_policy("smolvla", *longer)
    folder = place / f"continued_{schedule.value}_{horizon}"
    policy.save(folder)
    export(folder, place / f"{folder.name}_out", None)
    coming = np.random.default_rng(1).standard_normal((ROWS, 5, A)).astype(np.float32)
    pictures, state = observed(1)
    settings = RealTimeChunkingConfig(True, horizon, 5.0, schedule)
    with torch.inference_mode():
        plan = policy.plan(
            *(pictures, [SENTENCE] * ROWS, state, 0.0, np.zeros(ROWS, np.uint64)),
            *(policy.processor.denormalize(coming), np.ones(ROWS, bool), 2, settings),
        )
    given = {"coming": coming, "delay": 2, "horizon": horizon, "max_weight": 5.0, "schedule": schedule.name.upper()}
    cameras = policy.processor.config.cameras
    found = theirs([place / f"{folder.name}_out"], cameras, place, guidance=given)
    assert_norm_close(found[f"{folder.name}_out guided"], plan, TOLERANCE)
    assert norm_error(found[f"{folder.name}_out chunk"], plan) > 1000 * TOLERANCE


@pytest.mark.long
def test_shifted_positions_of_older_transformers_are_told(smolvla: FlowPolicy, place: Path) -> None:
    """The pictures reach the actions: with other positions of their patches these are others."""
    found = theirs([place / "smolvla_out"], smolvla.processor.config.cameras, place, is_exact=False)
    assert norm_error(found["smolvla_out chunk"], ours(smolvla)) > 100 * TOLERANCE


@pytest.mark.skipif(not OF_PI.is_dir(), reason="python scripts/lerobot_environment.py .cache/lerobot CLONE_OF_OPENPI")
def test_pi_acts_alike(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both are of small sizes, which LeRobot's classes get in that process; their own are too large for a test."""
    policies = {kind: saved(kind, place) for kind in ("pi0", "pi05")}
    for kind, policy in policies.items():
        assert isinstance(policy, PiPolicy)
        monkeypatch.setattr(pi_folder, "EXPORTED_SIZES", policy.processor.config.sizes)
        export(place / kind, place / f"{kind}_out", None)
    cameras = policies["pi0"].processor.config.cameras
    found = theirs([place / f"{kind}_out" for kind in policies], cameras, place, beside=str(OF_PI))
    for kind, policy in policies.items():
        assert_norm_close(found[f"{kind}_out chunk"], ours(policy), TOLERANCE, name=kind)
