"""An interpreter that has SGLang: RLRUN_SGLANG_PYTHON, or that of `make sglang`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / ".cache" / "sglang"


def sglang_python() -> str:
    """Return its path; skips the test without one, since the environment has 3 GB."""
    given = os.environ.get("RLRUN_SGLANG_PYTHON")
    if given:
        return given
    if not (FOLDER / "installed").exists():
        pytest.skip("SGLang has an interpreter of its own: `make sglang` makes it and runs these tests")
    return str(FOLDER / "bin" / "python")
