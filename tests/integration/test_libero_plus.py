"""LIBERO-Plus itself: rlrun's variants begin as those of its package, with the same pictures."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.libero_plus import plus
from tests.integration.libero import libero_plus_python, libero_scenes, libero_variants

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(2400)]


def test_variants_are_those_of_the_package(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """`python -m benchmarks.libero plus`: one variant of each kind that needs no scene of its own, and all views."""
    python = libero_plus_python()
    scenes = tmp_path / "scenes"
    scenes.mkdir()
    for part in libero_scenes("libero_goal", 7).iterdir():
        (scenes / part.name).symlink_to(part)
    libero_variants(scenes, "libero_goal")
    assert plus(python, ["libero_goal:7"], 1, str(scenes)) == 0
    printed = capfd.readouterr().out
    assert "views equal: 2255 of 2255; poses of the arm: 500 of 500" in printed
    rows = [line.split("|")[1:-1] for line in printed.splitlines() if line.startswith("| `") and "e-" in line]
    assert {row[0].strip() for row in rows} == {"`camera`", "`robot`", "`noise`", "`language`"}
