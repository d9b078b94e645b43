"""rlrun.serve and rlrun.eval with a policy's path alone: openpi's own client at an R1Pro and at a LIBERO policy."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from rlrun.config.loader import load
from rlrun.envs import r1pro
from rlrun.envs.r1pro_keys import R1ProConfig
from rlrun.policies.openvla_oft.policy import new_policy, save_policy
from rlrun.policies.spec import DemonstratedTask
from tests.integration.openpi import OpenpiClient
from tests.integration.served import LOCAL, save_libero_policy, served, with_configuration

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(1500)]


@pytest.fixture(scope="module")
def robot_policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new policy of the R1Pro's right arm, exported with the configuration of its run."""
    config = load(["run=debug", *LOCAL, "actor.num_workers=1", "env.max_control_steps=8", "env.renderer=raycast"])
    low, high = r1pro.action_limits()
    world = config.env.section(R1ProConfig)
    driven = [i for part in world.controlled for i in range(23)[r1pro.ACTION_PARTS[part]]]
    stats = {
        "action": {"q01": low[driven].tolist(), "q99": high[driven].tolist()},
        "proprio": {"q01": [-1.0] * 61, "q99": [1.0] * 61},
    }
    folder = tmp_path_factory.mktemp("robot") / "policy"
    folder.mkdir()
    task = DemonstratedTask(len(driven), 61, stats, ("turn on the radio",), tuple(world.cameras))
    save_policy(folder, *new_policy(config.policy, config.env, task, seed=0))
    return with_configuration(folder, config)


@pytest.fixture(scope="module")
def libero_policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_libero_policy(tmp_path_factory.mktemp("libero") / "policy")


def picture(size: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (size, size, 3), dtype=np.uint8)


def test_openpi_s_client_at_a_libero_policy(libero_policy: Path) -> None:
    with served(libero_policy) as port, OpenpiClient(port) as client:
        expected = client.metadata["observation"]
        assert expected["observation/state"]["shape"] == [8]
        assert expected["observation/agentview"]["names"][0] == "observation/image"
        chunk = client.metadata["actions"]["shape"]
        assert chunk == [client.metadata["num_action_chunks"], 7]
        seen = {
            "observation/image": picture(224, 0),
            "observation/wrist_image": picture(224, 1),
            "observation/state": np.zeros(8),
            "prompt": "put the bowl on the plate",
        }
        answer = client.infer(seen)
        assert answer["actions"].shape == tuple(chunk) and np.isfinite(answer["actions"]).all()
        by_own_names = {"observation/agentview": seen["observation/image"], "observation/state": np.zeros(8)}
        by_own_names["observation/robot0_eye_in_hand"] = seen["observation/wrist_image"]
        assert np.array_equal(client.infer(by_own_names)["actions"], answer["actions"])
        for row in answer["actions"]:
            assert np.array_equal(client.next_of_chunk(seen, horizon=chunk[0])["actions"], row)
        with pytest.raises(RuntimeError, match="observation/state"):
            client.infer({name: value for name, value in seen.items() if name != "observation/state"})


def test_openpi_s_client_at_an_r1pro_policy(robot_policy: Path) -> None:
    with served(robot_policy) as port, OpenpiClient(port) as client:
        names = client.metadata["observation"]["robot_r1::proprio"]["names"]
        assert names == ["observation/state"]
        state = np.random.default_rng(0).uniform(0, 0.05, 61).astype(np.float32)
        seen = {"observation/image": picture(224, 0), "observation/state": state}
        answer = client.infer(seen | {"prompt": "turn on the radio"})
        assert answer["actions"].shape == tuple(client.metadata["actions"]["shape"]) == (4, 23)
        assert np.array_equal(answer["actions"], client.infer(seen)["actions"]), "the run's sentence without a prompt"
        assert np.allclose(answer["actions"][:, 3:7], state[53:57]), "the trunk stays where it is"
        moved = state.copy()
        moved[53:57] += 0.1
        later = client.infer(seen | {"observation/state": moved})["actions"]
        assert np.allclose(later[:, 3:7], moved[53:57]), "also when the client has begun another episode"


def test_an_r1pro_policy_is_evaluated_by_its_path_alone(robot_policy: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "rlrun.eval", f"checkpoint={robot_policy}", "output_dir=evaluation"]
    few = ["evaluation.num_episodes=2", "env.num_envs=2", "logging.video_episodes=0"]
    done = subprocess.run([*command, *few], check=False, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads((tmp_path / "evaluation" / "evaluation.json").read_text())["episodes"] == 2
