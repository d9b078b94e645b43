"""The console command lists every command with a line, and hands its arguments on."""

from __future__ import annotations

import sys
from importlib.util import find_spec

import pytest

from rlrun.command import commands, main, summary

NAMES = {"train", "train-async", "eval", "sft", "demos", "serve", "plan", "doctor", "node", "report"}


def test_every_command_has_a_line(capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    text = capsys.readouterr().out
    assert ended.value.code == 0
    assert set(commands()) >= NAMES | {"check-policy", "check-simulator", "check-algorithm"}
    assert all(name in text and summary(file) in text for name, file in commands().items())
    assert all(summary(file) for file in commands().values())


def test_every_command_is_a_module_of_its_name() -> None:
    """As docs/reference/commands.md says: `python -m rlrun.check_policy` is `rlrun check-policy`."""
    assert [name for name in commands() if find_spec(f"rlrun.{name.replace('-', '_')}") is None] == []


@pytest.mark.parametrize(
    ("arguments", "status"),
    [(["trian"], 2), (["check-policy", "cnnn"], 2), (["plan", "env.num_envs=0"], 2), (["plan", "--cfg", "job"], 0)],
)
def test_its_status_is_the_command_s(arguments: list[str], status: int) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == status


def test_it_finds_modules_of_the_working_directory(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    """Behind all packages, so that a file there replaces none."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", ["/nowhere", *sys.path])
    with pytest.raises(SystemExit):
        main(["plan", "--cfg", "job"])
    assert sys.path[-1] == str(tmp_path)
