"""Variants of the suite "small" as rlrun.envs.libero.export writes those of LIBERO-Plus."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from rlrun.envs.libero import export
from tests.unit.envs.libero import small_suite

VIEWS = ["30_15_100_0_0", "0_0_150_0_0", "0_0_100_10_350", "350_0_100_0_0", "20_0_100_0_0", "0_0_120_0_0"]
NAMES = [
    *(f"a_view_{view}_initstate_0" for view in VIEWS),
    *(f"b_view_{view}_initstate_0" for view in VIEWS),
    "a_view_0_0_100_0_0_initstate_310",
    "a_view_0_0_100_0_0_initstate_0_noise_15",
    "a_language_3_view_0_0_100_0_0_initstate_0",
    "a_moved_level1_sample2",
    "a_light_4",
]
LEVELS = "111111" + "111112" + "13210"
MOVED = NAMES.index("a_moved_level1_sample2")
SENTENCE = "kindly open the drawer"


def write(folder: Path) -> Path:
    """Write the suite "small", with its variants, and return the folder of suites."""
    small_suite.write(folder)
    for task in ("0", "1"):  # LIBERO's scenes give their camera by a quaternion
        _with_quaternion(folder / small_suite.NAME / task)
    table = folder / f"{small_suite.NAME}_plus"
    shutil.copytree(folder / small_suite.NAME / "0", table / str(MOVED))
    _with_shifted_start(table / str(MOVED))
    of = [1 if name.startswith("b_") else 0 for name in NAMES]
    texts = {str(NAMES.index("a_language_3_view_0_0_100_0_0_initstate_0")): SENTENCE}
    about = {"format": export.FORMAT, "suite": table.name, "tasks": NAMES, "of": of, "levels": LEVELS, "texts": texts}
    (table / "suite.json").write_text(json.dumps(about))
    return folder


def _with_quaternion(folder: Path) -> None:
    scene = (folder / "scene.xml").read_bytes()
    changed = scene.replace(b'xyaxes="0 1 0 -.6 0 .8"', b'quat=".653 .271 .271 .653"')
    assert changed != scene
    (folder / "scene.xml").write_bytes(changed)
    _sign(folder)


def _with_shifted_start(folder: Path) -> None:
    import numpy as np

    starts = np.load(folder / "starts.npy")[:1]
    starts[0, 1:] += 0.001
    np.save(folder / "starts.npy", starts)
    np.save(folder / "sampled.npy", starts[:0])
    _sign(folder)


def _sign(folder: Path) -> None:
    described = json.loads((folder / "task.json").read_text())
    described["sha256"] = {name: export._digest((folder / name).read_bytes()) for name in export.STATES_AND_SCENE}
    (folder / "task.json").write_text(json.dumps(described))
