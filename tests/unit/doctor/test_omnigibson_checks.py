"""Facts of a simulator's interpreter, dataset and licence on a machine without Isaac Sim and GPU."""

from __future__ import annotations

import sys
from pathlib import Path

from rlrun.config.schema import EnvConfig
from rlrun.doctor.node_request import SimulatorRequest
from rlrun.doctor.omnigibson_checks import measure_simulator
from rlrun.envs.omnigibson.spec import OmniGibsonConfig

SCENE = "house_double_floor_lower"


def request(python: str, environment: dict[str, str]) -> SimulatorRequest:
    env = EnvConfig(simulator="omnigibson", sections={"omnigibson": OmniGibsonConfig(scene=SCENE)})
    return SimulatorRequest("", python, environment, env)


def dataset(folder: Path) -> Path:
    (folder / "behavior-1k-assets" / "scenes" / SCENE).mkdir(parents=True)
    (folder / "omnigibson.key").write_text("key")
    return folder


def test_versions_of_an_interpreter(tmp_path: Path) -> None:
    icd = tmp_path / "nvidia_icd.json"
    icd.write_text("{}")
    environment = {
        "OMNIGIBSON_DATA_PATH": str(dataset(tmp_path / "data")),
        "OMNI_KIT_ACCEPT_EULA": "YES",
        "VK_ICD_FILENAMES": f"/nowhere.json:{icd}",
    }
    facts = measure_simulator(request(sys.executable, environment))
    assert facts.error is None and facts.python_version.startswith("3.")
    assert {"numpy", "msgpack", "bddl"} <= set(facts.packages) and "omnigibson" not in facts.packages
    assert facts.has_scene and facts.has_key and facts.eula == "YES"
    assert facts.vulkan_icds == (str(icd),)


def test_missing_interpreter_and_data(tmp_path: Path) -> None:
    environment = {"OMNIGIBSON_DATA_PATH": str(tmp_path)}
    facts = measure_simulator(request("/nowhere/python", environment))
    assert "No such file" in str(facts.error) and not facts.packages
    assert not facts.has_scene and not facts.has_key


def test_an_interpreter_that_fails_is_quoted(tmp_path: Path) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho 'libpython3.10.so: cannot open shared object' >&2\nexit 127\n")
    broken.chmod(0o755)
    facts = measure_simulator(request(str(broken), {}))
    assert facts.error == "libpython3.10.so: cannot open shared object"
