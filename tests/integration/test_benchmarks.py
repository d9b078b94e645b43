"""The benchmarks that start whole programs, with runs of seconds: they still find all that they compare."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

pytestmark = pytest.mark.integration


def printed(module: str, *words: str) -> str:
    done = subprocess.run([sys.executable, "-m", module, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


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
    hops = {name: int(number) for name, number in re.findall(r"^hops of (\w+): (\d+)", text, re.M)}
    assert hops.keys() == {"update", "save", "act"} and all(number > 2 for number in hops.values()), text
    assert "on_policy_update" in text and "ActorCriticPolicy.__call__" in text
    assert re.search(r"^files besides .*: \d\d ", text, re.M)
    assert re.search(r"^their lines: \d,\d{3}, of which ran: [\d,]+ ", text, re.M)
