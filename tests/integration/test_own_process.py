"""A whole run whose simulator runs in another virtual environment, without torch."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from rlrun.config.loader import load
from rlrun.train import train

pytestmark = [pytest.mark.integration, pytest.mark.long]

SMALL = ["run=single_process", "logging.tensorboard=false", "logging.video_episodes=0", "demos.noise=0.01"]
NEEDED = ("msgpack", "numpy", "mujoco", "bddl")  # needed by rlrun and the embedded world in that interpreter


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter with links to the packages of the embedded world, but without torch and Ray."""
    folder = tmp_path_factory.mktemp("simulator") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True, timeout=60)
    (packages,) = folder.glob("lib/python3.*/site-packages")
    for source in sorted(_tops(NEEDED)):
        (packages / source.name).symlink_to(source)
    return folder / "bin" / "python"


def _tops(names: tuple[str, ...]) -> set[Path]:
    """Yield top-level files and folders of distributions and their requirements."""
    waiting, seen, tops = list(names), set(), set()
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if name in seen:
            continue
        seen.add(name)
        try:
            found = metadata.distribution(name)
        except metadata.PackageNotFoundError:  # an extra, or for another platform
            continue
        requirements = [line for line in found.requires or () if "extra ==" not in line]
        waiting += [re.match(r"[\w.-]+", line).group() for line in requirements]
        parts = {file.parts[0] for file in found.files or () if file.parts[0] not in ("..", "__pycache__")}
        tops |= {Path(found.locate_file(part)) for part in parts}
    return {top for top in tops if top.exists()}


def run(folder: Path, cache: Path, *overrides: str) -> list[dict]:
    """Return the metrics of every step, without times and sizes."""
    assert train(load([*SMALL, f"output_dir={folder}", f"cache_dir={cache}", *overrides])) == 0
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if not _is_measured(name)} for line in lines]


def _is_measured(name: str) -> bool:
    return name.endswith(("_s", "per_second")) or name.startswith(("busy_", "memory_"))


def test_the_interpreter_has_no_torch(python: Path) -> None:
    done = subprocess.run(
        [python, "-c", "import mujoco, bddl, msgpack; import torch"], check=False, capture_output=True, timeout=60
    )
    assert b"No module named 'torch'" in done.stderr


def test_the_same_run_through_the_pipe(python: Path, tmp_path: Path) -> None:
    """All metrics of demonstrations, warm start, training and evaluation are bitwise equal."""
    here = run(tmp_path / "here", tmp_path / "cache-1")
    apart = run(tmp_path / "apart", tmp_path / "cache-2", f"placement.nodes={{here: {{python: '{python}'}}}}")
    assert len(here) == len(apart) == 2
    assert len(here[0]) > 10
    assert apart == here
