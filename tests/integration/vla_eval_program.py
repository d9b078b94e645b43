"""vla-eval as it is published, in an environment of its own: its runner, its client and its model servers.

A test opens `program`; that environment's interpreter runs this file, which hands observations and actions over as
.npz files in a folder. The rules by which model servers and worlds answer are functions of numpy alone, for both ends.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import numpy as np

PACKAGES = ("vla-eval==0.8.0",)
NUM_BYTES = 0.35e9
SIZE, NUM_STEPS, NUM_EPISODES = 64, 5, 2
SENTENCE = "put the bowl on the plate"
GOAL_TASK = 7  # of libero_goal


@contextmanager
def program(*arguments: str | Path, packages: str = "") -> Iterator[subprocess.Popen]:
    """This file as a program of vla-eval's environment; it ends when its standard input does.

    With -P its folder is not searched for packages, since the tests have files of the same names.
    packages: a folder of further packages, which precede those of the environment.
    """
    from tests.integration.environments import environment_python

    command = [environment_python("vla_eval", PACKAGES, NUM_BYTES), "-P", __file__, *map(str, arguments)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=os.environ | {"PYTHONPATH": packages}, **pipes) as process:
        try:
            yield process
        finally:
            process.stdin.close()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


# --- rules for both ends --------------------------------------------------------------------------


def world_at(episode: int, step: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return what the test's world shows: agentview and wrist uint8 [SIZE, SIZE, 3], state float64 [8]."""
    draw = np.random.default_rng([episode, step])
    first, second = draw.integers(0, 256, (2, SIZE, SIZE, 3), dtype=np.uint8)
    return first, second, draw.uniform(-1, 1, 8)


def robot_action(images: dict[str, np.ndarray], state: np.ndarray, step: int) -> np.ndarray:
    """Return an R1Pro's action, float32 [23], which depends on every picture, the state and the step."""
    seen = sum(float(picture.astype(np.int64).sum()) for picture in images.values()) + float(np.abs(state).sum())
    return (0.3 * np.sin(seen + step + np.arange(23))).astype(np.float32)


def hand_action(images: dict[str, np.ndarray], state: np.ndarray, step: int) -> np.ndarray:
    """Return an action of LIBERO's hand, float32 [7], within its limits."""
    return robot_action(images, state, step)[:7]


def balancing(state: np.ndarray) -> np.ndarray:
    """Return CartPole's choice, float32 [1]: push to the side to which the pole falls."""
    return np.array([float(state[2] + 0.5 * state[3] > 0)], np.float32)


# --- in vla-eval's environment ---------------------------------------------------------------------


def exchange(url: str, folder: Path) -> None:
    """Play one episode with vla-eval's Connection, in each of its lossless picture formats."""
    import anyio
    from vla_eval.connection import Connection
    from vla_eval.protocol.numpy_codec import set_image_format

    async def play() -> dict:
        async with Connection(url, max_retries=1) as connection:
            actions = []
            for episode, name in enumerate(("png", "raw")):
                set_image_format(name)
                await connection.start_episode({"task": {"name": SENTENCE}})
                for step in range(NUM_STEPS):
                    first, second, state = world_at(episode, step)
                    seen = {"images": {"agentview": first, "wrist": second}, "states": state}
                    actions.append((await connection.act(seen | {"task_description": SENTENCE}))["actions"])
                await connection.end_episode({"metrics": {"success": np.bool_(True)}})
            try:
                await connection.act({"images": {"agentview": first}, "states": state})
                refusal = ""
            except RuntimeError as error:
                refusal = str(error)
            return {"hello": connection.server_info, "refusal": refusal, "actions": actions}

    found = anyio.run(play)
    np.save(folder / "actions.npy", np.stack(found.pop("actions")))
    print(json.dumps(found), flush=True)


def evaluate(name: str, url: str, folder: Path) -> None:
    """Run vla-eval's own runner with a benchmark of this file."""
    from vla_eval.api import run

    if name == "Goal":  # vla-eval changes torch.load for LIBERO, whose later package has no torch
        sys.modules["torch"] = SimpleNamespace(load=None)
    benchmark = {"benchmark": f"__main__:{name}", "episodes_per_task": NUM_EPISODES, "max_steps": NUM_STEPS}
    benchmark["params"] = {"path": str(folder)}
    results = run({"benchmarks": [benchmark], "output_dir": str(folder)}, server_url=url, no_save=True, docker=False)
    print(json.dumps(results, default=str), flush=True)


def serve(kind: str, folder: Path) -> None:
    """Serve one of the model servers below until standard input ends; prints the port first."""
    from vla_eval.api import serve_background

    server = make_server(kind, folder)
    with serve_background(server) as handle:
        print(handle.port, flush=True)
        sys.stdin.read()


def make_server(kind: str, folder: Path):
    """Return a model server that keeps every observation in `folder`."""
    from vla_eval.model_servers.predict import PredictModelServer
    from vla_eval.specs import GRIPPER_CLOSE_POS, IMAGE_RGB, LANGUAGE, POSITION_DELTA, RAW, ROTATION_AA, DimSpec

    class Recording(PredictModelServer):
        def __init__(self, **settings: object):
            super().__init__(**settings)
            self.numbers, self.lock, self.batches = count(), threading.Lock(), []

        def get_action_spec(self) -> dict:
            joints = {"joints": DimSpec("joints", 23, "joint_positions_r1pro")}
            hand = {"position": POSITION_DELTA, "rotation": ROTATION_AA, "gripper": GRIPPER_CLOSE_POS}
            return {"pole": {"actions": RAW}, "hand": hand}.get(kind, joints)

        def get_observation_spec(self) -> dict:
            return {"language": LANGUAGE} | ({"image": IMAGE_RGB} if kind != "pole" else {"state": RAW})

        def get_observation_params(self) -> dict:
            hand = {"quat_no_antipodal": True, "env_seed": 0, "send_state": True, "send_wrist_image": True}
            return {"pole": {}, "hand": hand}.get(kind, {"send_proprio": True})

        def predict(self, obs: dict, ctx: object) -> dict:
            with self.lock:
                number = next(self.numbers)
            kept = {f"image_{name}": picture for name, picture in obs.get("images", {}).items()}
            kept |= {"state": obs["states"], "step": ctx.step, "sentence": obs["task_description"]}
            np.savez(folder / f"{number:04}.npz", session=ctx.session_id, episode=ctx.episode_id, **kept)
            return {"actions": self.act(obs, ctx.step, number)}

        def predict_batch(self, obs_batch: list, ctx_batch: list) -> list:
            (folder / "batches").open("a").write(f"{len(obs_batch)}\n")
            return [self.predict(obs, ctx) for obs, ctx in zip(obs_batch, ctx_batch, strict=True)]

        def act(self, obs: dict, step: int, number: int) -> np.ndarray:
            if kind == "pole":
                return balancing(obs["states"])
            if kind == "hand":
                return hand_action(obs["images"], obs["states"], step)
            if kind == "vanishing" and number == 5:
                os._exit(3)
            if kind == "stuck" and number == 5:
                time.sleep(1000)
            action = robot_action(obs["images"], obs["states"], step)
            if kind == "chunks":
                return np.stack([action * scale for scale in (1.0, 0.5, 0.25, 0.0, 1.0)])
            return action[:22] if kind == "narrow" and number == 5 else action

    return Recording(max_batch_size=2, max_wait_time=0.5) if kind == "batched" else Recording()


try:
    from vla_eval.benchmarks.base import StepBenchmark, StepResult
    from vla_eval.benchmarks.libero_pro.benchmark import LIBEROProBenchmark
except ImportError:  # the test's own interpreter
    pass
else:

    class Shelf(StepBenchmark):
        """A world like LIBERO's, which keeps what it showed and what it was told."""

        render_backends = frozenset({"gpu", "cpu"})

        def __init__(self, path: str, send_state: bool = False, send_wrist_image: bool = False):
            super().__init__()
            self._folder, self._sends = Path(path), (send_state, send_wrist_image)
            self._episode = -1

        def get_tasks(self) -> list:
            return [{"name": SENTENCE}]

        def reset(self, task: dict) -> tuple:
            self._episode, self._step, self._actions = self._episode + 1, 0, []
            return world_at(self._episode, 0)

        def step(self, action: dict) -> StepResult:
            self._actions.append(action["actions"])
            self._step += 1
            is_over = self._step == NUM_STEPS
            if is_over:
                np.save(self._folder / f"episode_{self._episode}.npy", np.stack(self._actions))
            return StepResult(world_at(self._episode, self._step), 0.0, is_over, {})

        def make_obs(self, raw_obs: tuple, task: dict) -> dict:
            first, second, state = raw_obs
            has_state, has_wrist = self._sends
            images = {"agentview": first} | ({"wrist": second} if has_wrist else {})
            seen = {"images": images, "task_description": task["name"]}
            return seen | ({"states": state} if has_state else {})

        def get_step_result(self, step_result: StepResult) -> dict:
            return {"success": step_result.done and self._episode == 0}

        def get_action_spec(self) -> dict:
            from vla_eval.benchmarks.libero.benchmark import LIBEROBenchmark

            return LIBEROBenchmark.get_action_spec(self)

        def get_observation_spec(self) -> dict:
            from vla_eval.specs import IMAGE_RGB, LANGUAGE, STATE_EEF_POS_AA_GRIP

            return {"agentview": IMAGE_RGB, "wrist": IMAGE_RGB, "state": STATE_EEF_POS_AA_GRIP, "language": LANGUAGE}

    class Goal(LIBEROProBenchmark):
        """One task of vla-eval's LIBERO-PRO, which keeps what it showed."""

        def __init__(self, path: str, seed: int = 7, send_state: bool = False, send_wrist_image: bool = False):
            super().__init__("libero_goal", seed=seed, send_state=send_state, send_wrist_image=send_wrist_image)
            self._folder, self._numbers = Path(path), count()

        def get_tasks(self) -> list:
            return super().get_tasks()[GOAL_TASK : GOAL_TASK + 1]

        def make_obs(self, raw_obs: dict, task: dict) -> dict:
            seen = super().make_obs(raw_obs, task)
            np.savez(self._folder / f"{next(self._numbers):04}.npz", state=seen["states"], **seen["images"])
            return seen


if __name__ == "__main__":
    task, *arguments, folder = sys.argv[1:]
    {"exchange": exchange, "evaluate": evaluate, "serve": serve}[task](*arguments, Path(folder))
