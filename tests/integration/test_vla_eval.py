"""rlrun.serve and rlrun.eval with vla-eval's own runner, client and model servers, each in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import rlrun
from rlrun.config.schema import RunConfig
from rlrun.edges.starts import VALIDATION_SEEDS
from rlrun.serving.vla_eval_formats import shortest_rotation
from rlrun.system.errors import ExitStatus
from tests.integration.libero import libero_python, libero_scenes
from tests.integration.served import LOCAL, save_libero_policy, served
from tests.integration.vla_eval_program import (
    GOAL_TASK,
    NUM_EPISODES,
    NUM_STEPS,
    SENTENCE,
    balancing,
    hand_action,
    program,
    robot_action,
    world_at,
)
from tests.numerics import assert_norm_close

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(1500)]


# --- vla-eval evaluates a policy of rlrun's --------------------------------------------------------


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new policy for LIBERO's spaces."""
    return save_libero_policy(tmp_path_factory.mktemp("libero") / "policy")


def expected_actions(policy: Path, num_episodes: int) -> np.ndarray:
    """What the policy does in the test's world without any wire: [episodes, steps, 7]."""
    opened = rlrun.load_policy(policy)
    found = []
    for episode in range(num_episodes):
        opened.reset()
        for step in range(NUM_STEPS):
            first, second, state = world_at(episode, step)
            found.append(opened.act(np.stack([first, second]), SENTENCE, state.astype(np.float32)))
    return np.stack(found).reshape(num_episodes, NUM_STEPS, -1)


def lines(*arguments: str | Path, packages: str = "") -> dict | list:
    """The last line of a program that ends by itself, decoded."""
    with program(*arguments, packages=packages) as running:
        printed = running.stdout.read()
        assert running.wait(300) == 0, printed
        return json.loads(printed.splitlines()[-1])


def test_its_client_gets_the_policy_s_actions(policy: Path, tmp_path: Path) -> None:
    """The policy answers equal pictures equally: they arrive to the bit, as PNG and as raw bytes."""
    with served(policy) as port:
        found = lines("exchange", f"ws://127.0.0.1:{port}/vla-eval", tmp_path)
    actions = np.load(tmp_path / "actions.npy")
    assert actions.dtype == np.float32
    assert np.array_equal(actions.reshape(2, NUM_STEPS, 7), expected_actions(policy, 2))
    assert np.unique(actions, axis=0).shape[0] > 2, "the actions depend on what is seen"
    assert found["hello"]["protocol_version"] == 1 and found["hello"]["observation_params"]["send_wrist_image"]
    assert "images has agentview, and the policy takes agentview, wrist" in found["refusal"]
    assert "send_wrist_image" in found["refusal"]


def test_its_runner_evaluates_the_policy(policy: Path, tmp_path: Path) -> None:
    """The server asks for the wrist camera and the state, which the benchmark otherwise does not send."""
    with served(policy) as port:
        (result,) = lines("evaluate", "Shelf", f"ws://127.0.0.1:{port}/vla-eval", tmp_path)
    expected = expected_actions(policy, NUM_EPISODES)
    for episode in range(NUM_EPISODES):
        assert np.array_equal(np.load(tmp_path / f"episode_{episode}.npy"), expected[episode])
    (task,) = result["tasks"]
    assert [one["metrics"]["success"] for one in task["episodes"]] == [True, False]
    assert [one["steps"] for one in task["episodes"]] == [NUM_STEPS] * NUM_EPISODES


LIBERO = ["run=single_process", *LOCAL, "env=libero", "policy.kind=cnn", "env.libero.suite=libero_goal"]
LIBERO += [f"env.libero.task_ids=[{GOAL_TASK}]", "policy.num_action_chunks=1"]


def test_its_libero_shows_what_rlrun_s_world_shows(policy: Path, tmp_path: Path) -> None:
    """The first published start. Their MuJoCo is 3.3.7; another one brings objects to rest 0.01 mm elsewhere.

    vla-eval seeds LIBERO once, so that the fixtures of its later episodes stand elsewhere.
    """
    scenes = libero_scenes("libero_goal", GOAL_TASK)
    command = [libero_python(), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    packages = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout.strip()
    with served(policy) as port:
        (result,) = lines("evaluate", "Goal", f"ws://127.0.0.1:{port}/vla-eval", tmp_path, packages=packages)
    assert result["num_errors"] == 0
    shown = [dict(np.load(file)) for file in sorted(tmp_path.glob("*.npz"))]
    with rlrun.make_env([*LIBERO, f"env.libero.scenes={scenes}", "env.image_size=256", "env.num_envs=1"]) as env:
        seen, _ = env.reset(VALIDATION_SEEDS.start)
    state, theirs = seen["proprio"][0], shown[0]
    assert np.linalg.norm(state[3:6]) > np.pi, "so that robosuite's rotation is not the shortest one"
    ours = np.concatenate([state[:3], shortest_rotation(state[3:6]), state[6:]])
    assert_norm_close(ours, theirs["state"], 1e-3)
    for picture, name in zip(seen["images"][0], ("agentview", "wrist"), strict=True):
        assert np.abs(picture.astype(int) - theirs[name]).mean() < 0.6, "grey levels"


# --- rlrun evaluates a model server of vla-eval's --------------------------------------------------


@dataclass
class Played:
    """An episode without a server."""

    seen: list[dict[str, np.ndarray]]  # images [N, H, W, 3] and proprio [P] before each chunk
    success: bool
    episode_return: float


Rule = Callable[[np.ndarray, np.ndarray, int], np.ndarray]  # images, proprio, number of the chunk -> [C, A]


def played(overrides: list[str], seed: int, rule: Rule) -> Played:
    """Play the episode of one reset seed by a rule."""
    with rlrun.make_env([*overrides, "env.num_envs=1"]) as env:
        seen, total, kept = env.reset(seed)[0], 0.0, []
        while True:
            kept.append({"images": seen["images"][0], "proprio": seen["proprio"][0]})
            actions = rule(seen["images"][0], seen["proprio"][0], len(kept) - 1)
            seen, rewards, terminated, truncated, info = env.step(actions[None])
            total += float(rewards[0])
            if terminated[0] or truncated[0]:
                return Played(kept, bool(info["success"][0]), total)


def evaluated(folder: Path, overrides: list[str], port: str, *more: str) -> subprocess.CompletedProcess:
    address = f"server=ws://127.0.0.1:{port.strip()}/vla-eval"
    command = [sys.executable, "-m", "rlrun.eval", *overrides, address, f"output_dir={folder / 'out'}", *more]
    quiet = ["logging.video_episodes=0", "logging.tensorboard=false"]
    return subprocess.run([*command, *quiet], check=False, capture_output=True, text=True, timeout=400)


def received(folder: Path) -> list[list[dict[str, np.ndarray]]]:
    """The observations that a model server kept, by episode."""
    episodes: dict[str, list] = {}
    for file in sorted(folder.glob("*.npz")):
        content = dict(np.load(file))
        episodes.setdefault(str(content["episode"]), []).append(content)
    return list(episodes.values())


def compare(folder: Path, overrides: list[str], names: list[str], num_episodes: int, rule: Rule) -> None:
    """Require that a server saw what the world showed, and that results are those of the same play without it."""
    outcomes = json.loads((folder / "out" / "evaluation.json").read_text())["outcomes"]
    assert len(outcomes) == num_episodes
    kept = received(folder)
    assert len(kept) == num_episodes
    by_start = {episode[0]["state"].tobytes(): episode for episode in kept}
    for outcome in outcomes:
        own = played(overrides, outcome["seed"], rule)
        theirs = by_start[own.seen[0]["proprio"].tobytes()]
        assert len(theirs) == len(own.seen) and [int(one["step"]) for one in theirs] == list(range(len(theirs)))
        for mine, sent in zip(own.seen, theirs, strict=True):
            assert np.array_equal(sent["state"], mine["proprio"]) and sent["state"].dtype == np.float32
            for name, picture in zip(names, mine["images"], strict=True):
                assert np.array_equal(sent[f"image_{name}"], picture)
        assert outcome["success"] == own.success
        assert outcome["episode_return"] == pytest.approx(own.episode_return, rel=1e-5, abs=1e-6)


ROBOT = [
    *("run=debug", *LOCAL, "actor.num_workers=1", "env.max_control_steps=6", "env.renderer=raycast"),
    *("env.image_size=32", "env.embedded.cameras=[zed_link,right_realsense_link]", "evaluation.num_episodes=3"),
]
NAMES = ["head", "right_wrist"]


def arm(config: RunConfig, images: np.ndarray, proprio: np.ndarray, step: int) -> np.ndarray:
    """The driven parts of the robot's action."""
    from rlrun.serving.robot import RobotWire

    whole = robot_action(dict(zip(NAMES, images, strict=True)), proprio, step)
    return RobotWire(config.env).controlled_actions(whole[None])


@pytest.mark.parametrize(("kind", "scales"), [("batched", [1.0]), ("chunks", [1.0, 0.5])])
def test_the_embedded_world_is_evaluated(kind: str, scales: list[float], tmp_path: Path) -> None:
    """Two rows are two sessions of the server, which puts their observations into one batch where it can."""
    overrides = [*ROBOT, f"policy.num_action_chunks={len(scales)}"]
    config = rlrun.load_config(overrides)
    with program("serve", kind, tmp_path) as server:
        done = evaluated(tmp_path, overrides, server.stdout.readline())
    assert done.returncode == 0, done.stdout + done.stderr

    def rule(images: np.ndarray, proprio: np.ndarray, step: int) -> np.ndarray:
        return np.concatenate([arm(config, images, proprio, step) * np.float32(scale) for scale in scales])

    compare(tmp_path, overrides, NAMES, 3, rule)
    if kind == "batched":
        sizes = [int(line) for line in (tmp_path / "batches").read_text().split()]
        assert max(sizes) == 2


def test_a_gymnasium_world_is_evaluated(tmp_path: Path) -> None:
    """Its actions are numbered choices, and only the running world knows its sizes."""
    overrides = ["run=cartpole", *LOCAL, "policy.num_action_chunks=1", "env.num_envs=2", "env.max_control_steps=40"]
    overrides += ["evaluation.num_episodes=3", "env.gymnasium.success_return=35"]
    with program("serve", "pole", tmp_path) as server:
        done = evaluated(tmp_path, overrides, server.stdout.readline())
    assert done.returncode == 0, done.stdout + done.stderr
    compare(tmp_path, overrides, [], 3, lambda images, proprio, step: balancing(proprio)[None])
    assert json.loads((tmp_path / "out" / "evaluation.json").read_text())["successes"] == 3


def test_libero_is_evaluated(tmp_path: Path) -> None:
    overrides = [*LIBERO, f"env.libero.scenes={libero_scenes('libero_goal', GOAL_TASK)}", "env.image_size=64"]
    overrides += ["env.num_envs=2", "env.max_control_steps=6", "evaluation.num_episodes=2"]
    with program("serve", "hand", tmp_path) as server:
        done = evaluated(tmp_path, overrides, server.stdout.readline())
    assert done.returncode == 0, done.stdout + done.stderr
    names = ["agentview", "wrist"]

    def rule(images: np.ndarray, proprio: np.ndarray, step: int) -> np.ndarray:
        return hand_action(dict(zip(names, images, strict=True)), proprio, step)[None]

    compare(tmp_path, overrides, names, 2, rule)


@pytest.mark.parametrize(
    ("kind", "cause"),
    [("vanishing", "ConnectionClosed"), ("stuck", "no answer within 3 s"), ("narrow", "this world takes 23 numbers")],
)
def test_a_server_that_fails_in_mid_episode_ends_the_run(kind: str, cause: str, tmp_path: Path) -> None:
    began = time.monotonic()
    with program("serve", kind, tmp_path) as server:
        port = server.stdout.readline()
        overrides = [*ROBOT, "policy.num_action_chunks=1", "evaluation.server_timeout_s=3"]
        done = evaluated(tmp_path, overrides, port)
    assert done.returncode == ExitStatus.bad_input, done.stdout + done.stderr
    assert f"ws://127.0.0.1:{port.strip()}/vla-eval" in done.stderr and cause in done.stderr, done.stderr
    assert "Traceback" not in done.stderr and time.monotonic() - began < 300
