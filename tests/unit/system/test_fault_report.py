"""Whoever raised an unexpected exception is named: rlrun, an installed package, or a module of the user."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from rlrun.edges.seeds import __file__ as inside_rlrun
from rlrun.system.errors import RUN_FOLDER_NOTE, ExitStatus, fault_report


def caught(call) -> BaseException:
    with pytest.raises(BaseException) as raised:  # whichever it is
        call()
    return raised.value


def module(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str):
    (folder / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(folder))
    return __import__(name)


def test_a_module_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = module(tmp_path, monkeypatch, "my_world_of_errors", "import json\ndef step(): return json.loads('{')\n")
    report = fault_report(caught(mine.step))
    assert report.message.startswith("An error that rlrun does not expect: JSONDecodeError: ")
    assert "the module my_world_of_errors raised it" in report.cause and "line 2, in step" in report.cause
    assert report.exit_status is ExitStatus.unexpected


def test_an_installed_package_with_its_version() -> None:
    import numpy

    report = fault_report(caught(lambda: numpy.load("/nowhere/at/all.npy")))
    assert f"numpy {numpy.__version__} raised it" in report.cause and "not rlrun" in report.cause


def test_rlrun_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    code = compile("def f():\n    raise KeyError('tasks')\n", inside_rlrun, "exec")
    names: dict = {}
    exec(code, names)
    report = fault_report(caught(names["f"]))
    assert "rlrun itself raised it" in report.cause and "seeds.py, line 2, in f" in report.cause
    assert report.remedy.startswith("Please report it")


def test_a_worker_sends_its_traceback_as_text() -> None:
    error = RuntimeError(
        'ray::f()\n  File "/x/site.py", line 3, in g\n  File "/y/world.py", line 7, in step\nValueError'
    )
    assert "/y/world.py, line 7, in step" in fault_report(error).cause


def test_the_log_and_what_to_send(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").touch()
    (tmp_path / "logs").mkdir()
    error = caught(lambda: json.loads("{"))
    error.add_note(f"{RUN_FOLDER_NOTE}{tmp_path}")
    report = fault_report(error)
    assert f"{tmp_path}/logs/driver-0.log" in report.cause
    assert f"tar -czf rlrun_report.tar.gz -C {tmp_path} config.yaml logs" in report.remedy


def test_a_system_exit_of_foreign_code_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = module(tmp_path, monkeypatch, "my_licence", "def make(): raise SystemExit('no licence')\n")
    report = fault_report(caught(mine.make))
    assert "SystemExit: no licence" in report.message and "my_licence" in report.cause
    assert sys.exc_info()[0] is None
