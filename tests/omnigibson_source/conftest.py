"""The checkouts that OMNIGIBSON_SOURCE names, and the adapter's results on them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.omnigibson_source.drive import TOLD

ROOT = Path(__file__).parents[2]
CHECKOUTS = [Path(path).absolute() for path in os.environ.get("OMNIGIBSON_SOURCE", "").split(":") if path]
WHY = "OMNIGIBSON_SOURCE names no checkout of BEHAVIOR-1K (docs/omnigibson.md)"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "checkout" in metafunc.fixturenames:
        found: list[Any] = CHECKOUTS or [pytest.param(None, marks=pytest.mark.skip(reason=WHY))]
        metafunc.parametrize("checkout", found, ids=lambda path: path.name if path else "none", scope="session")


def has_vector_environment(checkout: Path) -> bool:
    """Return whether this is 3.7, the generation whose classes the harness can drive."""
    return (checkout / "OmniGibson" / "omnigibson" / "robots" / "r1pro.py").is_file()


def told(checkout: Path, folder: Path, *cases: str) -> dict[str, Any]:
    """Run cases of the harness in one process; return case -> what it tells."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.omnigibson_source.drive", str(checkout), *cases],
        cwd=ROOT,
        env=os.environ | {"OMNIGIBSON_APPDATA_PATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    lines = [json.loads(line.removeprefix(TOLD)) for line in done.stdout.splitlines() if line.startswith(TOLD)]
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return dict(lines)


@pytest.fixture(scope="session")
def results(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Any]:
    """Return the result of a case; all run once, in one process."""
    if not has_vector_environment(checkout):
        pytest.skip("the harness fakes the physics of 3.7 only")
    folder = tmp_path_factory.mktemp("source")
    pose = {"position": [4.0, 5.0, 0.0], "orientation": [0.0, 0.0, 0.0, 1.0]}
    radio = {"root_link": {"pos": [1.0, 2.0, 0.5], "ori": [0.0, 0.0, 0.0, 1.0]}}
    file = folder / "house_double_floor_lower_task_turning_on_radio_0_7_template-tro_state.json"
    file.write_text(json.dumps({"radio_receiver.n.01_1": radio, "robot_poses": {"R1Pro": [pose]}}))
    instance = f"instance:{folder}"
    found = told(checkout, folder, "robot", "chunk", "ragged", "goal", "limit", instance, "grasp_window")
    return lambda case: found[instance if case == "instance" else case]
