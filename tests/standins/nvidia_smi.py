"""A program named nvidia-smi that answers as a script says."""

from __future__ import annotations

from pathlib import Path

import pytest


def stand_in(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Put a shell script in place of nvidia-smi."""
    command = folder / "nvidia-smi"
    command.write_text(f"#!/bin/sh\n{script}\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
