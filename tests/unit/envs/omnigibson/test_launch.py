"""What a simulator's process is given before Kit starts: folder, turn, threads, variables."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rlrun.config.simulator_process import Setting
from rlrun.envs.omnigibson.kit_files import application_root, log_of, take_folder, turn_to_start
from rlrun.envs.omnigibson.spec import environment
from rlrun.envs.vector_env import SimulatorFault
from tests.unit.envs.omnigibson.bench import GENERATIONS, ROOT, Bench


@pytest.fixture(params=GENERATIONS)
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Bench:
    return Bench(tmp_path, request.param)


def test_kit_gets_this_simulators_threads_and_none_of_our_arguments(bench: Bench) -> None:
    told = bench.told(
        "import os\nsys.argv[1:] = ['3', '4', 'rlrun.envs.remote_server']\nmake(num_envs=1)\n"
        "tell([sys.argv[1:], 'OMNIGIBSON_NO_OMNI_LOGS' in os.environ, os.environ['OMNIGIBSON_HEADLESS']])",
        PXR_WORK_THREAD_LIMIT="3",
        OMNIGIBSON_NO_OMNI_LOGS="1",
    )
    assert sorted(told[0]) == [
        "--/persistent/physics/numThreads=3",
        "--/plugins/carb.tasking.plugin/threadCount=3",
        "--/plugins/omni.tbb.globalcontrol/maxThreadCount=3",
    ]
    assert told[1:] == [False, "1"]


def test_tiled_rendering_on_another_gpu_is_refused(bench: Bench) -> None:
    told = bench.told(
        "from rlrun.system.errors import RunError\n"
        "try: make(tiled_rendering=True)\n"
        "except RunError as error: tell(str(error))",
        OMNIGIBSON_GPU_ID="2",
    )
    assert "accelerator 0 only" in told


def test_the_plan_gives_threads() -> None:
    settings = {one.name: one.value for one in environment((1, 2), num_cores=6) if isinstance(one, Setting)}
    assert settings == {"OMNIGIBSON_GPU_ID": "1", "OMNIGIBSON_HEADLESS": "1", "PXR_WORK_THREAD_LIMIT": "6"}


_TAKE = (
    "import sys\nfrom pathlib import Path\nfrom rlrun.envs.omnigibson.kit_files import take_folder\n"
    "print(take_folder(Path(sys.argv[1])).name, flush=True)\nsys.stdin.read()"
)


def test_each_simulator_has_a_folder_and_a_later_one_takes_it_again(tmp_path: Path) -> None:
    def start() -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", _TAKE, str(tmp_path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )

    def name_of(process: subprocess.Popen[str]) -> str:
        assert process.stdout is not None
        return process.stdout.readline().strip()

    first, second = start(), start()
    assert {name_of(first), name_of(second)} == {"simulator_0", "simulator_1"}
    for process in (first, second):
        process.kill()
        process.communicate()
    third = start()
    assert name_of(third) == "simulator_0"
    third.kill()
    third.communicate()


def test_simulators_of_a_node_start_one_after_another(tmp_path: Path) -> None:
    """A waiting start reports progress, so that its deadline does not pass."""
    waited = []
    first = turn_to_start(tmp_path, lambda: None)
    first.__enter__()

    def progress() -> None:
        waited.append(1)
        if len(waited) == 2:
            first.__exit__(None, None, None)

    with turn_to_start(tmp_path, progress):
        assert len(waited) == 2


def test_kits_log_is_found_by_process_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMNIGIBSON_APPDATA_PATH", str(tmp_path))
    folder = take_folder(application_root())
    old, new = (
        folder / "local" / "logs" / "Kit" / "a" / "kit_1.log",
        folder / "local" / "logs" / "Kit" / "b" / "kit_2.log",
    )
    for file, text in ((old, "[Error] of an earlier process"), (new, "of this one\nsecond line")):
        file.parent.mkdir(parents=True)
        file.write_text(text)
    os.utime(old, (1, 1))
    assert log_of(os.getpgrp()) == ["of this one", "second line"]
    assert log_of(-1) == []


def test_the_cause_of_a_failed_start_is_read_from_kits_own_log(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kit prints nothing of it: OmniGibson silences its log while the application starts."""
    monkeypatch.setenv("OMNIGIBSON_APPDATA_PATH", f"{bench.folder}/appdata")
    bench.control(crash="launch", kit_log="[Error] [carb.graphics-vulkan.plugin] VkResult: ERROR_OUT_OF_DEVICE_MEMORY")
    with pytest.raises(SimulatorFault, match=r"SIGSEGV(.|\n)*GPU's memory is full"):
        bench.make()
