"""The benchmarks that start whole programs, with runs of seconds: they still find all that they compare."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration
NUMBER = r"(\d+\.\d+)"
# Without demonstrations, transformers and Ray.
ANY_POLICY = ("run=debug", "policy.kind=cnn", "cluster.kind=local", "actor.num_workers=1")


def printed(module: str, *words: str) -> str:
    done = subprocess.run([sys.executable, "-m", module, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.long
def test_loop_tells_floor_over_wall() -> None:
    text = printed("benchmarks.loop", "rounds=1", "steps=3", *ANY_POLICY)
    ratios = dict(re.findall(rf"floor/wall, (\w+) +{NUMBER}", text))
    assert set(ratios) == {"train", "train_async", "collecting"}
    assert all(float(ratio) > 0 for ratio in ratios.values()), text


@pytest.mark.long
def test_asynchronous_compares_both_programs_and_reads_what_is_there(tmp_path: Path) -> None:
    words = (str(tmp_path), "seeds=1", *ANY_POLICY, "num_steps=3")
    text = printed("benchmarks.asynchronous", *words)
    ages = {name: float(age) for name, age in re.findall(rf"0 \| rlrun\.(\w+) \| 3 \| \S+ \| {NUMBER} ", text)}
    assert ages.keys() == {"train", "train_async"} and ages["train"] == 0 < ages["train_async"] <= 1, text
    written = (tmp_path / "0" / "train" / "metrics.jsonl").stat().st_mtime_ns
    assert printed("benchmarks.asynchronous", *words) == text
    assert (tmp_path / "0" / "train" / "metrics.jsonl").stat().st_mtime_ns == written


@pytest.mark.long
def test_step_path_lists_what_a_step_enters() -> None:
    tiny = ("env.num_envs=4", "algorithm.horizon=4", "algorithm.global_batch_size=16", "actor.micro_batch_size=16")
    text = printed("benchmarks.step_path", *tiny, "env.max_control_steps=20")
    rows = {name: int(ran) for name, ran in re.findall(r"^(\S+\.py) +\d+ +(\d+)$", text, re.M)}
    for name in (
        "actor/learner.py",
        "algorithms/advantages.py",
        "workers/collector.py",
        "policies/actor_critic/model.py",
    ):
        assert rows[name] > 10, text
    assert "policies/openvla_oft/model.py" not in rows and "plan.py" not in rows
    assert re.search(r"^files besides .*: \d\d ", text, re.M) and re.search(r"^their lines: \d,\d{3}, ", text, re.M)
