"""What MuJoCo Warp cannot do is refused before it is imported; what a plan and the doctor say of it."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
import threading
from fcntl import LOCK_EX, flock
from pathlib import Path
from typing import Any

import pytest
from rlrun_libero_warp import start
from rlrun_libero_warp.node_checks import WarpFacts, found, measure_warp, warp
from rlrun_libero_warp.spec import SPEC
from rlrun_libero_warp.start import make_with_warp
from warp_rows import config, needs_warp, on_warp

from rlrun.config.loader import load
from rlrun.doctor.check import ClusterState, Status
from rlrun.doctor.node_request import SimulatorRequest
from rlrun.system.errors import RunError
from tests.unit.doctor.healthy import A100, GB, with_node
from tests.unit.envs.libero import small_suite


def test_a_missing_package_is_refused_with_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scenes = small_suite.write(tmp_path)
    monkeypatch.setattr(start, "find_spec", lambda name: None)
    with pytest.raises(RunError, match=r"(?s)no package mujoco_warp.*pip install 'mujoco-warp"):
        make_with_warp(config(scenes), 1)


@needs_warp
@small_suite.needs_opengl
def test_tasks_of_different_scenes_are_refused(tmp_path: Path) -> None:
    scenes = small_suite.write(tmp_path)
    file = scenes / small_suite.NAME / "1" / "task.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"multiccd": True}))
    with pytest.raises(RunError, match=r"(?s)2 different scenes.*env\.libero_warp\.task_ids=\[0\]"):
        make_with_warp(config(scenes), 1)


def test_a_plan_counts_rows_and_pixels() -> None:
    env = load([*on_warp(), "env.num_envs=512", "env.num_workers=1"]).env
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
            with start.alone(tmp_path, waits.set):
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
    assert start.prepare_cache() == tmp_path / ".cache/rlrun/warp"
    monkeypatch.setenv("WARP_CACHE_PATH", str(tmp_path / "own"))
    assert start.prepare_cache() == tmp_path / "own" and (tmp_path / "own").is_dir()


@needs_warp
def test_the_doctor_finds_warp(tmp_path: Path) -> None:
    env = load(on_warp()).env
    facts = measure_warp(SimulatorRequest("", sys.executable, {"WARP_CACHE_PATH": str(tmp_path)}, env))
    assert isinstance(facts, WarpFacts) and facts.error == "" and facts.mujoco_warp and facts.warp
    assert facts.cache == str(tmp_path) and facts.num_compiled == 0


def test_a_stopped_process_that_holds_the_lock_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start, "POLL_S", 0.01)
    monkeypatch.setattr(start, "STOPPED_S", 0.05)
    text = f"import fcntl, os; file = open({str(tmp_path / 'compiling')!r}, 'w'); fcntl.flock(file, fcntl.LOCK_EX)\n"
    text += "file.write(str(os.getpid())); file.flush(); os.kill(os.getpid(), 19)"
    with subprocess.Popen([sys.executable, "-c", text]) as holder:
        os.waitid(os.P_PID, holder.pid, os.WSTOPPED)
        with (
            pytest.raises(RunError, match=rf"(?s)process {holder.pid} \(state T\).*WARP_CACHE_PATH=FOLDER"),
            start.alone(tmp_path, lambda: None),
        ):
            pass
        holder.kill()


def test_a_folder_of_kernels_that_cannot_be_made_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("WARP_CACHE_PATH", str(tmp_path / "file" / "warp"))
    with pytest.raises(RunError, match=r"(?s)cannot be used.*WARP_CACHE_PATH=FOLDER"):
        start.prepare_cache()


def test_keys_of_the_world_are_named_as_they_are() -> None:
    with pytest.raises(RunError) as caught:
        load(on_warp("train_starts='4:2'"))
    assert caught.value.key == "env.libero_warp.train_starts"


def test_what_differs_from_the_benchmark_is_told() -> None:
    env = load(on_warp("suite=libero_goal_swap", "train_starts='0:50'", "test_starts='0:50'", "settle_steps=20")).env
    assert SPEC.evaluation.splits(env).deviations == (
        "pictures have no reflections and shadows",
        "physics in single precision, by MuJoCo Warp",
        "episodes end after 220 control steps, in OpenVLA's evaluation after 300",
        "objects settle for 20 control steps, in OpenVLA's evaluation for 10",
    )
    assert set(SPEC.evaluation.perturbations(env)["lan"].sections) == {"libero_warp"}


def cluster(**changes: Any) -> ClusterState:
    """The healthy cluster whose second node steps LIBERO on MuJoCo Warp, with other facts of it."""
    facts = WarpFacts("4.0.0", "1.19.0", A100.model, 80 * GB, "/data/warp", 61)
    found = with_node("peer", lambda node: {"simulator": dataclasses.replace(facts, **changes)})
    return dataclasses.replace(found, config=load(on_warp()))


@pytest.mark.parametrize(
    ("changes", "status", "cause", "fix"),
    [
        ({"error": "MuJoCo Warp is not installed."}, Status.failed, "is not installed", "mujoco-warp"),
        ({"device": ""}, Status.warning, "have no GPU", "placement.roles"),
        ({"num_compiled": 0}, Status.warning, "/data/warp", "WARP_CACHE_PATH"),
    ],
)
def test_the_doctor_tells_a_fault(changes: dict[str, Any], status: Status, cause: str, fix: str) -> None:
    (told,) = warp(cluster(**changes))
    assert told.status is status and cause in told.cause and fix in told.fix


def test_the_doctor_reports_the_rows_that_fit_on_a_card() -> None:
    assert list(warp(cluster())) == []
    said = r"peer: MuJoCo Warp 4.0.0 on NVIDIA A100\S+, room for some \d{5,6} rows, 61 compiled .*"
    assert re.fullmatch(said, found(cluster()))
