"""A simulator's process that does not start, crashes, hangs, talks nonsense, or outlives its worker."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rlrun.config.schema import EnvConfig
from rlrun.config.sections import from_dict, to_dict
from rlrun.envs.embedded.spec import EmbeddedConfig
from rlrun.envs.make import is_apart, make_env
from rlrun.envs.r1pro_keys import ProprioLayout
from rlrun.envs.remote_env import RemoteEnv
from rlrun.envs.restarting_env import RestartingEnv
from rlrun.envs.vector_env import SimulatorFault
from rlrun.pipe.output import KnownLine, Output
from rlrun.system.errors import RunError

CONFIG = EnvConfig(own_process=True, image_size=16, load_deadline_s=60, call_deadline_s=60)
ROWS = np.arange(2)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def await_end(pid: int) -> None:
    end = time.monotonic() + 10
    while is_alive(pid) and time.monotonic() < end:
        time.sleep(0.02)
    assert not is_alive(pid)


@pytest.fixture
def interpreter(tmp_path: Path) -> Callable[[str], str]:
    """Writes a program in place of an interpreter; `connection` is its end of the pipe."""

    def write(body: str) -> str:
        path = tmp_path / "python"
        head = f"#!{sys.executable}\nimport os, socket, subprocess, sys, time\n"
        path.write_text(f"{head}connection = socket.socket(fileno=int(sys.argv[2]))\n{body}\n")
        path.chmod(0o755)
        return str(path)

    return write


def start(python: str, **setting: float) -> RemoteEnv:
    return RemoteEnv(EnvConfig(own_process=True, **setting), 2, python)


@pytest.fixture
def env() -> Iterator[RemoteEnv]:
    env = make_env(CONFIG, 2)
    assert isinstance(env, RemoteEnv)
    yield env
    env.close()


def middle(env: RemoteEnv | RestartingEnv) -> np.ndarray:
    low, high = env.spaces.limits
    return np.repeat(((low + high) / 2)[None, None], 2, axis=0).astype(np.float32)


def test_an_interpreter_that_is_not_there() -> None:
    with pytest.raises(RunError) as caught:
        start("/nowhere/bin/python")
    assert "/nowhere/bin/python" in str(caught.value) and caught.value.remedy


def test_a_simulator_that_ends_while_it_starts(interpreter: Callable[[str], str]) -> None:
    with pytest.raises(SimulatorFault, match=r"status 3; its last line: no licence"):
        start(interpreter("print('no licence', flush=True); sys.exit(3)"))


def test_a_simulator_that_talks_nonsense(interpreter: Callable[[str], str]) -> None:
    with pytest.raises(SimulatorFault, match="a message cannot begin"):
        start(interpreter("connection.sendall(b'Hello, this is Kit, starting'); time.sleep(60)"))


def test_another_version_of_the_wire(interpreter: Callable[[str], str]) -> None:
    with pytest.raises(SimulatorFault, match="version 9"):
        start(interpreter("connection.sendall(b'RLRW\\x09' + bytes(30)); time.sleep(60)"))


def test_a_silent_simulator_is_killed_with_its_children(interpreter: Callable[[str], str], tmp_path: Path) -> None:
    body = "child = subprocess.Popen(['sleep', '600']); open(sys.argv[0] + '.pid', 'w').write(str(child.pid))"
    began = time.monotonic()
    with pytest.raises(SimulatorFault, match="env.load_deadline_s"):
        start(interpreter(f"{body}; time.sleep(600)"), load_deadline_s=10.0)
    assert time.monotonic() - began < 300
    await_end(int((tmp_path / "python.pid").read_text()))


def test_output_is_a_sign_of_progress_while_loading(interpreter: Callable[[str], str]) -> None:
    """Ten seconds of loading under a deadline of eight; then it ends, and that is what is told."""
    moves: list[float] = []
    body = "for i in range(10):\n    print('loading', i, flush=True); time.sleep(1)\nsys.exit(4)"
    with pytest.raises(SimulatorFault, match="status 4"):
        RemoteEnv(EnvConfig(load_deadline_s=8.0), 2, interpreter(body), progress=lambda: moves.append(time.monotonic()))
    assert len(moves) >= 2


def test_the_bound_of_rewards_comes_through(env: RemoteEnv) -> None:
    assert env.largest_reward == make_env(replace(CONFIG, own_process=False), 2).largest_reward is not None


def test_a_crash_in_a_chunk(env: RemoteEnv) -> None:
    env.reset(ROWS, ROWS)
    os.kill(env.about["pid"], signal.SIGSEGV)
    with pytest.raises(SimulatorFault, match="SIGSEGV"):
        env.step_chunk(middle(env))
    with pytest.raises(RuntimeError, match="closed"):
        env.reset(ROWS, ROWS)


def test_a_hang_in_a_chunk(caplog: pytest.LogCaptureFixture) -> None:
    env = make_env(EnvConfig(own_process=True, image_size=16, call_deadline_s=1.0), 2)
    env.reset(ROWS, ROWS)
    os.kill(env.about["pid"], signal.SIGSTOP)
    with pytest.raises(SimulatorFault, match="env.call_deadline_s"):
        env.step_chunk(middle(env))
    await_end(env.about["pid"])


def test_a_restarting_env_makes_it_anew() -> None:
    made: list[RemoteEnv] = []

    def make() -> RemoteEnv:
        made.append(make_env(CONFIG, 2))
        return made[-1]

    env = RestartingEnv(make, limit=1)
    first = env.reset(ROWS, ROWS)
    os.kill(made[0].about["pid"], signal.SIGKILL)
    result = env.step_chunk(middle(env))
    assert result.infra_fault.all() and len(made) == 2 and "SIGKILL" in env.faults[0]
    assert np.array_equal(env.reset(ROWS, ROWS).images, first.images)
    env.close()
    await_end(made[1].about["pid"])


def test_a_first_start_gets_a_second_chance(interpreter: Callable[[str], str]) -> None:
    python, tries = interpreter("print('no licence', flush=True); sys.exit(3)"), []

    def make() -> RemoteEnv:
        tries.append(1)
        return start(python) if len(tries) < 2 else make_env(CONFIG, 2)

    env = RestartingEnv(make, limit=3)
    assert len(tries) == 2 and "no licence" in env.faults[0]
    env.close()
    with pytest.raises(RunError, match="does not start") as caught:
        RestartingEnv(lambda: start(python), limit=3)
    assert "no licence" in caught.value.cause


def test_what_the_simulator_raises_comes_through() -> None:
    with pytest.raises(ValueError, match="env.embedded.activity"):
        make_env(EnvConfig(own_process=True, sections={"embedded": EmbeddedConfig(activity="flying")}), 1)


def test_an_interpreter_without_the_simulator(tmp_path: Path) -> None:
    (tmp_path / "mujoco.py").write_text("raise ModuleNotFoundError('no mujoco here')")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    with pytest.raises(RunError) as caught:
        make_env(CONFIG, 1, python=str(python))
    assert "no mujoco here" in caught.value.cause and str(python) in caught.value.remedy


def test_the_simulator_goes_with_its_worker(tmp_path: Path) -> None:
    """Even where the worker is killed and can say nothing."""
    code = (
        "import time\nfrom rlrun.config.schema import EnvConfig\nfrom rlrun.envs.make import make_env\n"
        "env = make_env(EnvConfig(own_process=True, image_size=16), 1)\n"
        "print(env.about['pid'], flush=True)\ntime.sleep(600)"
    )
    root = Path(__file__).resolve().parents[4]
    worker = subprocess.Popen([sys.executable, "-c", code], cwd=root, stdout=subprocess.PIPE, text=True)
    assert worker.stdout is not None
    pid = int(worker.stdout.readline())
    assert is_alive(pid)
    worker.kill()
    worker.wait(10)
    await_end(pid)
    worker.stdout.close()


def test_known_lines_get_a_level_and_a_meaning(caplog: pytest.LogCaptureFixture) -> None:
    output = Output([KnownLine("glfw", "no display is needed"), KnownLine("no GPU", "the GPU is gone", "look for it")])
    with caplog.at_level(logging.INFO, "rlrun.simulator"):
        for line in ("loading 3 of 9", "[Error] glfw failed", "no GPU found", "no GPU found"):
            output.log_line(line)
    assert output.causes == ["cause: the GPU is gone. Fix: look for it."]
    assert "glfw" not in caplog.text and "loading 3 of 9" in caplog.text
    assert caplog.text.count("Fix: look for it.") == 1


def test_a_configuration_survives_the_way() -> None:
    robot = EmbeddedConfig(proprio=ProprioLayout.full_256, cameras=["zed_link"])
    config = EnvConfig(sections={"embedded": robot}, own_process=None)
    assert from_dict(EnvConfig, to_dict(config), {"embedded": EmbeddedConfig}) == config
    with pytest.raises(KeyError, match="wheels"):
        from_dict(EnvConfig, {"wheels": 4})


@pytest.mark.parametrize(
    ("setting", "python", "expected"),
    [
        ({}, None, False),
        ({}, sys.executable, False),
        ({}, "/opt/simulator/bin/python", True),
        ({"own_process": True}, None, True),
        ({"own_process": False}, "/opt/simulator/bin/python", False),
        ({"simulator": "omnigibson"}, None, True),
    ],
)
def test_who_gets_a_process_of_its_own(setting: dict, python: str | None, expected: bool) -> None:
    assert is_apart(EnvConfig(**setting), python) is expected
