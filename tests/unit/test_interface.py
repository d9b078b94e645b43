"""rlrun from Python: nothing heavy is imported before it is used; a policy acts, a simulator steps, a run trains."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.wrappers import vector as wrappers

import rlrun
from rlrun.system.errors import ExitStatus, RunError

LINES = """
import rlrun

config = rlrun.load_config(["run=cartpole", "cluster.kind=local", "num_steps=1", "output_dir=runs/first"])
rlrun.run(config)  # train: checkpoints, policy and report in runs/first
policy = rlrun.load_policy("runs/first")
with rlrun.make_env(config) as env:
    seen, _ = env.reset(seed=7)
    for _ in range(100):
        actions = [policy.chunk(proprio=state) for state in seen["proprio"]]
        seen, rewards, terminated, truncated, info = env.step(actions)
"""
SMALL = [
    *("env.num_envs=2", "algorithm.horizon=8", "algorithm.global_batch_size=16"),
    "evaluation.num_episodes=2",
]


def test_importing_it_is_cheap() -> None:
    """Of its own modules only that of the path, and some small ones of Python: time would depend on the machine."""
    code = (
        "import sys, json; before = set(sys.modules); import rlrun; "
        "print(json.dumps([sorted(set(sys.modules) - before), callable(rlrun.load_config)]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    imported, is_callable = json.loads(done.stdout)
    own = [name for name in imported if name.startswith("rlrun")]
    assert own == ["rlrun", "rlrun.system", "rlrun.system.import_path"]
    assert {name.partition(".")[0] for name in imported} <= {"rlrun", "typing", *sys.stdlib_module_names}
    assert len(imported) < 60 and is_callable


def test_ten_lines_train_and_act(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the README, with fewer envs and a shorter horizon."""
    assert len([line for line in LINES.splitlines() if line]) == 9
    monkeypatch.chdir(tmp_path)
    load = rlrun.load_config
    monkeypatch.setattr(rlrun, "load_config", lambda overrides: load([*overrides, *SMALL]), raising=False)
    names: dict = {}
    exec(LINES, names)  # the very text of the README
    assert (tmp_path / "runs/first/policy/config.json").is_file()
    assert names["rewards"].shape == (2,) and names["rewards"].dtype == np.float32
    assert names["actions"][0].shape == (1, 1)


class Counting:
    """A policy whose chunks count up: chunk k of a seed is [[10 k], [10 k + 1], [10 k + 2]]."""

    num_actions, num_action_chunks = 1, 3

    def __init__(self) -> None:
        self.num_looks = 0

    def __call__(self, images, instructions, proprio, temperature):
        self.num_looks += 1
        return self, None

    def most_likely(self):
        return torch.arange(3.0).reshape(1, 3, 1) + 10 * (self.num_looks - 1)

    def sample(self, keys):
        return torch.arange(3.0).reshape(1, 3, 1) + 100 * int(keys[0])

    def decode_actions(self, tokens):
        return tokens


def test_act_takes_one_action_of_a_chunk_after_another() -> None:
    policy = rlrun.LoadedPolicy(Counting())  # type: ignore[arg-type]
    taken = [policy.act(proprio=np.zeros(2)) for _ in range(4)]
    assert [float(action[0]) for action in taken] == [0, 1, 2, 10] and taken[0].shape == (1,)
    policy.reset(seed=5)  # drops 11 and 12
    drawn = [float(policy.act(proprio=np.zeros(2), temperature=1.0)[0]) for _ in range(4)]
    assert drawn == [500, 501, 502, 600]


def test_its_types_are_shipped() -> None:
    assert (Path(rlrun.__file__).parent / "py.typed").is_file()


def test_rows_that_ended_are_reset_by_the_next_step() -> None:
    with rlrun.make_env(rlrun.load_config(["run=cartpole", *SMALL])) as env:
        with pytest.raises(RuntimeError, match="reset"):
            env.step(np.zeros((2, 1)))
        seen, _ = env.reset(seed=3)
        first = seen["proprio"]
        again, _ = env.reset(seed=3)
        assert np.array_equal(first, again["proprio"])
        ends, was_over = 0, np.zeros(2, bool)
        for _ in range(40):  # always pushed to one side, the pole falls
            seen, rewards, terminated, truncated, _ = env.step(np.ones((2, 1)))
            assert (rewards[was_over] == 0).all() and (rewards[~was_over] == 1).all()
            assert (np.abs(seen["proprio"][was_over]) < 0.06).all()  # where episodes begin
            was_over = terminated | truncated
            ends += int(was_over.sum())
        assert ends >= 4


class Seeing(rlrun.Callback):
    def __init__(self) -> None:
        self.steps: list[int] = []

    def on_step(self, step, metrics):
        self.steps.append(step)


def test_a_run_returns_what_it_left_and_calls_objects(tmp_path: Path) -> None:
    seeing = Seeing()
    few = ["run=cartpole", "cluster.kind=local", "num_steps=2", f"output_dir={tmp_path / 'run'}", *SMALL]
    result = rlrun.run(rlrun.load_config(few), callbacks=[seeing])
    assert result.status is ExitStatus.ok and seeing.steps == [1, 2]
    assert result.folder == tmp_path / "run" and result.policy == tmp_path / "run/policy"
    assert result.evaluation is not None and len(result.evaluation.outcomes) == 2
    again = rlrun.load_config(result.folder, changes=["seed=4"])
    assert (again.name, again.env.num_envs, again.seed, again.output_dir) == ("cartpole", 2, 4, None)
    with rlrun.make_env(result.policy) as env:
        assert env.num_envs == 2
    with pytest.raises(RunError, match="no configuration of a run"):
        rlrun.load_config(tmp_path)
    with pytest.raises(RunError, match="no callback"):
        rlrun.run(rlrun.load_config([*few, f"output_dir={tmp_path / 'other'}"]), callbacks=["no object"])  # type: ignore[list-item]


def test_a_simulator_needs_no_whole_batches() -> None:
    arguments = ["run=cartpole", "env.num_envs=3", "algorithm.horizon=5"]
    with pytest.raises(RunError, match="whole batches"):
        rlrun.load_config(arguments)
    with rlrun.make_env(arguments) as env:
        assert env.num_envs == 3


def test_unknown_names_are_refused() -> None:
    with pytest.raises(AttributeError, match="no attribute 'lod_config'"):
        rlrun.lod_config  # noqa: B018


def test_a_result_prints_its_status_its_evaluation_and_its_policy(tmp_path: Path) -> None:
    few = ["run=cartpole", "cluster.kind=local", "num_steps=1", f"output_dir={tmp_path / 'run'}", *SMALL]
    text = str(rlrun.run(rlrun.load_config(few)))
    assert text.splitlines()[0] == f"{tmp_path / 'run'}: status 0 (done)"
    assert re.search(r"after step 1: success \d/2 = \d+ % \(95 % interval .*\), mean return", text)
    assert f"policy {tmp_path / 'run/policy'}" in text and len(text) < 500


class Measured(gymnasium.Env):
    """Its info has a distance, which falls, and a text."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.number = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.number += 1
        return np.zeros(2, np.float32), 2.0, self.number == 5, False, {"distance": -self.number, "word": "far"}


gymnasium.register("Measured-v0", Measured)


def test_make_env_is_a_vector_environment_of_gymnasium_and_takes_its_wrappers() -> None:
    env = rlrun.make_env(["run=cartpole", f"env.gymnasium.id={__name__}:Measured-v0", "env.num_envs=3"])
    assert "num_envs=3" in repr(env) and isinstance(env, gymnasium.vector.VectorEnv)
    seen, _ = env.reset(seed=1)
    assert env.observation_space.contains(seen) and env.action_space.shape == (3, 1)
    assert env.single_observation_space["proprio"].shape == (2,) and env.single_action_space.shape == (1,)
    _, _, _, _, info = env.step(np.zeros((3, 2, 1)))
    assert info["distance"].tolist() == [-2, -2, -2] and info["_distance"].all() and "word" not in info
    recorded = wrappers.RecordEpisodeStatistics(wrappers.ClipReward(env, -1, 1))
    recorded.reset(seed=2)
    episodes = [recorded.step(recorded.action_space.sample())[-1].get("episode") for _ in range(12)]
    assert [one["l"].tolist() for one in episodes if one is not None] == [[5, 5, 5]] * 2
    assert {value for one in episodes if one is not None for value in one["r"]} == {5.0}
    flat = wrappers.NormalizeObservation(wrappers.FlattenObservation(wrappers.FilterObservation(env, ["proprio"])))
    assert flat.reset(seed=[4, 5, 6])[0].shape == (3, 2)
    mask = np.array([False, True, False])
    env.step(np.zeros((3, 1)))
    env.reset(seed=9, options={"reset_mask": mask})
    *_, info = env.step(np.zeros((3, 1)))
    assert info["distance"].tolist() == [-2, -1, -2]
    env.close()
    env.close()  # as Gymnasium allows
    with rlrun.make_env(["run=cartpole", "env.num_envs=2"]) as drawn:
        drawn.reset()
        assert [picture.shape for picture in drawn.render()] == [(240, 320, 3)] * 2
