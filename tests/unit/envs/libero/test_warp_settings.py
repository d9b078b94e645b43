"""What MuJoCo Warp cannot do is refused before it is imported; what a plan and the doctor say of it."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import threading
from fcntl import LOCK_EX, flock
from pathlib import Path

import pytest

from rlrun.config.loader import load
from rlrun.doctor.libero_checks import WarpFacts, measure_world
from rlrun.doctor.node_request import SimulatorRequest
from rlrun.envs.libero import warp_start
from rlrun.envs.libero.libero_env import make_libero
from rlrun.envs.libero.spec import SPEC
from rlrun.system.errors import RunError
from tests.unit.envs.libero import small_suite
from tests.unit.envs.libero.warp import config, needs_warp

WARP = ["env.libero.physics=warp", "env.libero.pictures=fast"]


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (["env.libero.physics=warp"], ["env.libero.pictures", "reflections", "pictures=fast"]),
        ([*WARP, "env.libero.backend=robosuite"], ["env.libero.physics", "backend=native"]),
    ],
)
def test_what_warp_cannot_do_is_refused(keys: list[str], words: list[str]) -> None:
    with pytest.raises(RunError) as caught:
        load(["env=libero", "policy.kind=cnn", *keys])
    assert all(word in str(caught.value) for word in words)


def test_a_missing_package_is_refused_with_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scenes = small_suite.write(tmp_path)
    monkeypatch.setattr(warp_start, "find_spec", lambda name: None)
    with pytest.raises(RunError, match=r"(?s)no package mujoco_warp.*pip install 'rlrun\[warp\]'"):
        make_libero(config(scenes, *WARP), 1)


@needs_warp
@small_suite.needs_opengl
def test_tasks_of_different_scenes_are_refused(tmp_path: Path) -> None:
    scenes = small_suite.write(tmp_path)
    file = scenes / small_suite.NAME / "1" / "task.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"multiccd": True}))
    with pytest.raises(RunError, match=r"(?s)2 different scenes.*env\.libero\.task_ids=\[0\]"):
        make_libero(config(scenes, *WARP), 1)


def test_a_plan_counts_rows_and_pixels() -> None:
    env = load(["env=libero", "policy.kind=cnn", *WARP, "env.num_envs=512", "env.num_workers=1"]).env
    small, large = env, dataclasses.replace(env, image_size=2 * env.image_size)
    each = SPEC.resources.memory(small).further_env_bytes
    assert SPEC.resources.memory(small).of(512) - SPEC.resources.memory(small).of(511) == each
    assert SPEC.resources.memory(large).further_env_bytes - each == 3 * 2 * env.image_size**2 * 7
    time = SPEC.resources.time(env)
    assert time is not None and time.env_step_s == 0  # rows step together
    more = SPEC.resources.time(dataclasses.replace(env, num_envs=4096))
    assert more is not None and more.step_s > 2 * time.step_s


def test_one_process_compiles_and_the_others_wait(tmp_path: Path) -> None:
    waits = threading.Event()
    with open(tmp_path / "compiling", "w") as other:
        flock(other, LOCK_EX)

        def compile_too() -> None:
            with warp_start.alone(tmp_path, waits.set):
                order.append("second")

        order: list[str] = []
        thread = threading.Thread(target=compile_too)
        thread.start()
        assert waits.wait(10)  # it shows progress, so that no watchdog ends it
        order.append("first")
    thread.join(10)
    assert order == ["first", "second"]


def test_the_folder_of_kernels_is_shared_and_may_be_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WARP_CACHE_PATH", raising=False)
    monkeypatch.chdir(tmp_path)
    assert warp_start.prepare_cache() == tmp_path / ".cache/rlrun/warp"
    monkeypatch.setenv("WARP_CACHE_PATH", str(tmp_path / "own"))
    assert warp_start.prepare_cache() == tmp_path / "own" and (tmp_path / "own").is_dir()


@needs_warp
def test_the_doctor_finds_warp(tmp_path: Path) -> None:
    env = load(["env=libero", "policy.kind=cnn", *WARP]).env
    facts = measure_world(SimulatorRequest("", sys.executable, {"WARP_CACHE_PATH": str(tmp_path)}, env))
    assert isinstance(facts, WarpFacts) and facts.error == "" and facts.mujoco_warp and facts.warp
    assert facts.cache == str(tmp_path) and facts.num_compiled == 0


def test_a_stopped_process_that_holds_the_lock_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warp_start, "POLL_S", 0.01)
    monkeypatch.setattr(warp_start, "STOPPED_S", 0.05)
    text = f"import fcntl, os; file = open({str(tmp_path / 'compiling')!r}, 'w'); fcntl.flock(file, fcntl.LOCK_EX)\n"
    text += "file.write(str(os.getpid())); file.flush(); os.kill(os.getpid(), 19)"
    with subprocess.Popen([sys.executable, "-c", text]) as holder:
        os.waitid(os.P_PID, holder.pid, os.WSTOPPED)
        with (
            pytest.raises(RunError, match=rf"(?s)process {holder.pid} \(state T\).*WARP_CACHE_PATH=FOLDER"),
            warp_start.alone(tmp_path, lambda: None),
        ):
            pass
        holder.kill()


def test_a_folder_of_kernels_that_cannot_be_made_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("WARP_CACHE_PATH", str(tmp_path / "file" / "warp"))
    with pytest.raises(RunError, match=r"(?s)cannot be used.*WARP_CACHE_PATH=FOLDER"):
        warp_start.prepare_cache()
