"""A wheel, installed outside of any checkout, writes a project that trains for a user without a home.

Its environment has the packages of this one, and no other rlrun: the path that a `.pth` file names brings neither the
editable rlrun nor metadata before those of the wheel.
"""

from __future__ import annotations

import getpass
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import venv
from collections.abc import Iterator
from importlib.metadata import PathDistribution
from pathlib import Path

import pytest

from scripts.publish import copy_sources, missing

NOBODY = 65534
PIP = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check"]


@pytest.fixture(scope="module")
def outside() -> Iterator[Path]:
    """A folder that everybody can read, with the wheel and, in `venv`, its environment."""
    with tempfile.TemporaryDirectory(prefix="rlrun-wheel-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        copy_sources(folder / "sources", "https://code.example/rlrun")
        build = [*PIP, "wheel", "--no-deps", "--no-build-isolation", "-w", folder, folder / "sources"]
        subprocess.run(build, check=True, timeout=200)
        shutil.rmtree(folder / "sources")
        venv.create(folder / "venv", symlinks=True)
        (site,) = (folder / "venv").glob("lib/python*/site-packages")
        (wheel,) = folder.glob("*.whl")
        subprocess.run([*PIP, "--python", folder / "venv", "install", "--no-deps", wheel], check=True, timeout=200)
        (site / "packages.pth").write_text(f"{sysconfig.get_path('purelib')}\n{sysconfig.get_path('platlib')}\n")
        yield folder


class Stranger:
    """A user who owns one folder and has no home: `nobody`, where this process is root's and may be another user."""

    def __init__(self, outside: Path, folder: Path):
        self.outside, self.folder = outside, folder
        self.other = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if self._may_be_nobody() else {}
        if self.other:
            os.chown(folder, NOBODY, NOBODY)

    def _may_be_nobody(self) -> bool:
        places = [Path(sysconfig.get_path("purelib")), Path(sys.base_prefix), self.folder]
        return os.geteuid() == 0 and all(part.stat().st_mode & 0o005 for place in places for part in place.parents)

    def rlrun(self, *words: str, folder: str = ".") -> str:
        """Run the command `rlrun` there. Returns its output; it must succeed."""
        kept = {name: os.environ[name] for name in ("LANG", "MUJOCO_GL", "OMP_NUM_THREADS") if name in os.environ}
        environment = {"PATH": f"{self.outside}/venv/bin:/usr/bin:/bin", "HOME": "/nonexistent", **kept}
        done = subprocess.run(
            [self.outside / "venv/bin/rlrun", *words],
            cwd=self.folder / folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=280,
            check=False,
            **self.other,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout


@pytest.fixture(scope="module")
def stranger(outside: Path) -> Iterator[Stranger]:
    with tempfile.TemporaryDirectory(prefix="rlrun-stranger-") as name:
        yield Stranger(outside, Path(name))


def test_the_wheel_holds_everything_and_shows_absolute_links(outside: Path) -> None:
    (wheel,) = outside.glob("*.whl")
    assert list(missing(wheel)) == []
    (site,) = (outside / "venv").glob("lib/python*/site-packages")
    (metadata,) = site.glob("rlrun-*.dist-info")
    text = PathDistribution(metadata).metadata.get_payload()
    assert "](docs/" not in text and "](https://code.example/rlrun/raw/v" in text


@pytest.mark.long
def test_a_project_trains_on_ray_and_its_checks_pass(stranger: Stranger) -> None:
    assert f"  {stranger.outside}/venv/" in stranger.rlrun("train", "--info")  # no other rlrun
    assert "own_world.py" in stranger.rlrun("init", "project")
    short = ["num_steps=2", "evaluation.num_episodes=2", "output_dir=run"]
    stranger.rlrun("train", "--config-dir", "configs", "run=own", *short, folder="project")
    run = stranger.folder / "project/run"
    assert len((run / "metrics.jsonl").read_text().splitlines()) == 2
    assert (run / "policy/config.json").is_file() and (run / "report.html").is_file()
    assert run.owner() == ("nobody" if stranger.other else getpass.getuser())
    world = ["check-simulator", "gymnasium", "env.gymnasium.id=own_world:OwnReach-v0"]
    assert "the contract holds" in stranger.rlrun(*world, folder="project")
    assert "keeps its contract" in stranger.rlrun("check-policy", "own_policy:SPEC", folder="project")
