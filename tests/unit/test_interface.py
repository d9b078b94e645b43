"""rlrun from Python: nothing heavy is imported before it is used; a policy acts, a simulator steps, a run trains."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import rlrun

LINES = """
import rlrun

config = rlrun.load_config(["run=cartpole", "cluster.kind=local", "num_steps=1", "output_dir=runs/first"])
rlrun.run(config)  # train: checkpoints, policy and report in runs/first
policy = rlrun.load_policy("runs/first")
with rlrun.make_env(config) as env:
    seen, _ = env.reset(seed=7)
    for _ in range(100):
        actions = [policy.act(proprio=state) for state in seen["proprio"]]
        seen, rewards, terminated, truncated, info = env.step(actions)
"""
SMALL = [
    *("env.num_envs=2", "algorithm.horizon=8", "algorithm.global_batch_size=16", "actor.micro_batch_size=16"),
    "evaluation.num_episodes=2",
]


def test_importing_it_is_cheap() -> None:
    """Less than a tenth of a second beyond the interpreter, and none of the libraries that take longer."""
    code = (
        "import time, sys; start = time.process_time(); import rlrun; used = time.process_time() - start; "
        "heavy = {'torch', 'ray', 'hydra', 'transformers', 'numpy'} & set(sys.modules); "
        "import json; print(json.dumps([used, sorted(heavy), dir(rlrun.load_config) != []]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    used_s, heavy, _ = json.loads(done.stdout)
    assert heavy == []
    assert used_s < 0.1


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


def test_unknown_names_are_refused() -> None:
    with pytest.raises(AttributeError, match="no attribute 'lod_config'"):
        rlrun.lod_config  # noqa: B018
