"""`rlrun init` writes a project whose commands rlrun takes, and touches no folder that holds something."""

from __future__ import annotations

import os
import re
import shlex
import sys
from pathlib import Path

import pytest

from rlrun.command import commands
from rlrun.config.loader import load
from rlrun.init import EXAMPLES, main, write
from rlrun.system.errors import ExitStatus
from tests.architecture.source import ROOT


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "my project"
    assert main([str(folder)]) == ExitStatus.ok
    return folder


def test_a_project_has_what_the_repository_has(project: Path) -> None:
    for folder, place in (("examples/project", ""), ("scripts/slurm", "scripts/slurm"), ("scripts/skypilot",) * 2):
        for file in (ROOT / folder).rglob("*"):
            copy = project / place / file.relative_to(ROOT / folder)
            if file.is_file() and "__pycache__" not in file.parts:
                assert copy.read_text().startswith(file.read_text()), copy
                assert os.access(copy, os.X_OK) or file.suffix != ".sh"
    assert f"PYTHON=${{PYTHON:-{shlex.quote(sys.executable)}}}" in (project / "scripts/slurm/site.sh").read_text()


def test_its_run_is_accepted(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setitem(sys.modules, "own_policy", None)  # is taken out again after the test
    del sys.modules["own_policy"]
    config = load(["run=own", "cluster.kind=local"], str(project / "configs"))
    assert (config.name, config.policy.kind) == ("own", "own_policy:SPEC")
    assert config.python_path == [str(project)]


def test_its_readme_is_three_lines_whose_commands_exist(project: Path) -> None:
    text = (project / "README.md").read_text()
    assert len(text.splitlines()) == 3
    named = re.findall(r"`(?:rlrun ([\w-]+)|sbatch (\S+)) ?([^`]*)`", text)
    assert len(named) == 4
    for command, script, _ in named:
        assert command in commands() or (project / script).exists()
    for file in re.findall(r"`([\w/]+\.\w+)`", text):
        assert (project / file).exists()


@pytest.mark.parametrize("what", sorted(path.name for path in EXAMPLES.iterdir()))
def test_each_example_can_be_had(tmp_path: Path, what: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "new"), what]) == ExitStatus.ok
    printed = capsys.readouterr().out
    assert (tmp_path / "new/README.md").read_text() in printed and str(tmp_path / "new/README.md") in printed


def test_a_folder_with_files_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "own_world.py").write_text("mine")
    assert main([str(tmp_path)]) == ExitStatus.bad_config
    assert "is no empty folder" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["own_world.py"]
    assert main([str(tmp_path / "own_world.py")]) == ExitStatus.bad_config


def test_an_empty_folder_is_taken(tmp_path: Path) -> None:
    assert tmp_path / "README.md" in write(tmp_path)


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert main([str(tmp_path / "file/new")]) == ExitStatus.storage
    assert "cannot be written" in capsys.readouterr().err
