"""Whether W&B goes online is W&B's own decision: WANDB_MODE first, then any key that it finds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("wandb")

KEY = "0123456789" * 4
ASK = "import json\nfrom rlrun.observability.wandb_run import modes\nprint(json.dumps(modes()))"


def modes(home: Path, **variables: str) -> list[str]:
    """In a process of its own, since W&B reads its settings once."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
    own |= {"HOME": str(home), "PYTHONPATH": str(Path(__file__).resolve().parents[3])}
    done = subprocess.run(
        [sys.executable, "-c", ASK],
        env=own | variables,
        cwd=home,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"WANDB_MODE": "disabled", "WANDB_API_KEY": KEY}, []),
        ({"WANDB_MODE": "offline", "WANDB_API_KEY": KEY}, ["offline"]),
        ({"WANDB_API_KEY": KEY}, ["online", "offline"]),
        ({"WANDB_API_KEY": "xx"}, ["offline"]),
        ({}, ["offline"]),
    ],
)
def test_the_mode_goes_before_the_key(tmp_path: Path, variables: dict[str, str], expected: list[str]) -> None:
    assert modes(tmp_path, **variables) == expected


def test_the_key_of_wandb_login_counts(tmp_path: Path) -> None:
    netrc = tmp_path / ".netrc"
    netrc.write_text(f"machine api.wandb.ai\n  login user\n  password {KEY}\n")
    netrc.chmod(0o600)
    assert modes(tmp_path) == ["online", "offline"]
