"""What of the export needs no LIBERO: thresholds, copied files, and that it runs without rlrun."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from rlrun.envs.libero import export


@pytest.mark.parametrize(
    ("test", "expected"),
    [
        (lambda q: q >= 0.5, [0.5, None]),
        (lambda q: q > 0.5, [np.nextafter(0.5, 1), None]),
        (lambda q: q < -0.14, [None, np.nextafter(-0.14, -1)]),
        (lambda q: q <= 0.0, [None, 0.0]),
    ],
)
def test_a_threshold_is_found_to_the_last_bit(test, expected: list[float | None]) -> None:
    assert export._interval(test) == expected


def test_without_a_threshold_there_is_no_interval() -> None:
    with pytest.raises(ValueError, match="no threshold"):
        export._interval(lambda q: True)


def test_files_of_a_scene_are_copied_by_their_content(tmp_path: Path) -> None:
    for name in ("one.png", "two.png"):
        (tmp_path / name).write_bytes(b"same")
    xml = "<mujoco><compiler meshdir='elsewhere'/><asset>" + "".join(
        f"<texture name='{name}' file='{tmp_path / name}'/>" for name in ("one.png", "two.png")
    )
    found = export._with_own_files(xml + "</asset></mujoco>", tmp_path / "assets").decode()
    (copied,) = (tmp_path / "assets").iterdir()
    assert copied.read_bytes() == b"same" and found.count(copied.name) == 2
    assert 'meshdir="../../assets"' in found and str(tmp_path) not in found


def test_it_runs_where_rlrun_is_not_installed(tmp_path: Path) -> None:
    command = [sys.executable, "-I", export.__file__, "--out", str(tmp_path), "libero_goal"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "No module named 'libero'" in done.stderr


def test_a_fixture_keeps_its_drawn_turn() -> None:
    """As the cabinet of libero_spatial, which LIBERO turns by an angle that it draws."""
    for axis, place in (("x", 1), ("y", 2), ("z", 3)):
        quaternion = np.zeros(4)
        quaternion[[0, place]] = np.cos(1.35), np.sin(1.35)
        assert export._turn_about(axis, quaternion, (2.66, 2.72)) == pytest.approx(2.7)
    assert export._turn_about("z", np.array([1.0, 0.0, 0.0, 0.0]), 0.3) == 0.3
