"""An interpreter that has SGLang: the one that RLRUN_SGLANG_PYTHON names, or that of `make sglang`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / ".cache" / "sglang"


def sglang_python() -> str:
    """Its path; skips the test where there is none: it has 3 GB."""
    given = os.environ.get("RLRUN_SGLANG_PYTHON")
    if given:
        return given
    if not (FOLDER / "installed").exists():
        pytest.skip("SGLang has an interpreter of its own: `make sglang` makes it and runs these tests")
    return str(FOLDER / "bin" / "python")
