"""Tests of rlrun.system.import_path: files of the working folder never replace packages."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import rlrun
from rlrun.config.program import SweepRequest, SweepRun
from rlrun.system.import_path import question
from rlrun.training.sweep import Sweep, _Child

ROOT = str(Path(rlrun.__path__[0]).parent)
POISONED = ("yaml", "numpy", "json", "hydra", "omegaconf", "torch", "ray", "logging", "msgpack")
COMMAND = (
    "import sys; sys.argv[0] = '/bin/rlrun'; sys.path = [entry for entry in sys.path if entry]\n"
    "from rlrun.command import main; main()"
)
PROGRAMS = {
    "command": ["-c", COMMAND, "eval"],
    "module": ["-m", "rlrun.eval"],
    "doctor": ["-m", "rlrun.doctor"],
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder whose modules write a marker when they are imported."""
    found = tmp_path / "policy"
    found.mkdir()
    for name in POISONED:
        (found / f"{name}.py").write_text(f"open({str(tmp_path / 'marker')!r}, 'a').write({name!r})\n")
    return found


def ran(words: list[str], folder: Path, path: str = ROOT, **more: str) -> str:
    environment = {"PYTHONPATH": path, "PATH": "/usr/bin:/bin", "HOME": str(folder.parent)} | more
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    return done.stdout + done.stderr


PATHS = (ROOT, f".:{ROOT}", f"{ROOT}:", f":{ROOT}")


@pytest.mark.parametrize(
    ("program", "path"),
    [
        ("command", PATHS[0]),
        *(pytest.param("command", path, marks=pytest.mark.long) for path in PATHS[1:]),
        *((program, PATHS[1]) for program in ("module", "doctor")),
    ],
)
def test_no_module_of_the_working_folder_replaces_a_package(folder: Path, program: str, path: str) -> None:
    words = ["--cfg", "job"] if program == "doctor" else ["checkpoint=."]
    said = ran([*PROGRAMS[program], *words], folder, path)
    assert "config.json" in said if program != "doctor" else "env:" in said
    assert not (folder.parent / "marker").exists()


@pytest.mark.parametrize("module", ["rlrun.watchdog.guard", "rlrun.watchdog.sentinel", "rlrun.doctor.collective"])
def test_nor_do_the_children(folder: Path, module: str) -> None:
    ran(["-P", "-m", module], folder)
    ran(["-m", module], folder)
    assert not (folder.parent / "marker").exists()


def test_nor_do_the_programs_of_a_slurm_job(folder: Path, tmp_path: Path) -> None:
    (start,) = re.findall(r"^start='(.*)'$", (Path(ROOT) / "scripts/slurm/launch.sh").read_text(), re.M)
    for name in ("rlrun", "runpy", "__future__"):
        (folder / f"{name}.py").write_text(f"open({str(tmp_path / 'marker')!r}, 'a').write({name!r})\n")
    (folder / "own_module.py").write_text("")
    said = ran(["-c", start, "train", "--cfg", "job", "callbacks=[own_module:called]"], folder)
    assert "own_module:called" in said and "Traceback" not in said
    assert not (tmp_path / "marker").exists()


def test_nor_do_the_runs_of_a_sweep(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With `-m` Python itself looks there for rlrun and a few others, before rlrun can put the working folder last."""
    for name in ("rlrun", "runpy", "__future__"):
        (folder / f"{name}.py").write_text(f"open({str(tmp_path / 'marker')!r}, 'a').write({name!r})\n")
    (folder / "own_module.py").write_text("")
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [*sys.path, str(folder.resolve())])  # as the command does
    run = SweepRun("one", "one", ("--cfg", "job", "callbacks=[own_module:called]"))
    command = _Child(Sweep(SweepRequest("rlrun.train", "sweep", str(tmp_path / "out"), (run,))), run)._command
    said = ran(command[1:], folder)
    assert "own_module:called" in said and "one" in said and "Traceback" not in said
    assert not (tmp_path / "marker").exists()


def test_a_worker_of_ray_moves_the_folder_that_ray_puts_first(folder: Path) -> None:
    text = f"import sys; sys.argv[0] = '/x/default_worker.py'; sys.path[0] = {str(folder)!r}; import rlrun, yaml, numpy"
    ran(["-c", text], folder)
    assert not (folder.parent / "marker").exists()


def test_a_module_of_the_working_folder_is_found_unless_the_folder_is_opened(folder: Path) -> None:
    (folder / "own_module.py").write_text("")
    text = (
        "import sys; sys.argv[0] = '-m'\nimport rlrun\nfrom importlib.util import find_spec\n"
        "from rlrun.system.import_path import close_folder\n"
        "print(find_spec('own_module') is not None)\nclose_folder({opened!r})\n"
        "print(find_spec('own_module') is not None)"
    )
    assert ran(["-c", text.format(opened="..")], folder).split() == ["True", "False"]
    assert ran(["-c", text.format(opened=".")], folder).split() == ["True", "False"]
    assert ran(["-c", text.format(opened="below")], folder).split() == ["True", "True"]
    closed = ran(
        ["-c", "import sys; sys.argv[0] = '-m'; import rlrun; import own_module"],
        folder,
        RLRUN_CLOSED_FOLDER=str(folder),
    )
    assert "ModuleNotFoundError" in closed


def test_a_question_to_an_interpreter_imports_nothing_from_the_working_folder(folder: Path) -> None:
    _, option, text, *arguments = question(sys.executable, "import json, numpy, sys\nprint(sys.argv[1])", "said")
    assert ran([option, text, *arguments], folder).split() == ["said"]
    assert not (folder.parent / "marker").exists()
