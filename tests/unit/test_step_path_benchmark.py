"""What the benchmark counts: files and functions that were called while it looked, and no others."""

from __future__ import annotations

import ast
import threading
from pathlib import Path

import pytest

from benchmarks import step_path
from benchmarks.step_path import CallRecorder, EnteredFile, entered_files, first_line

SOURCE = """import functools


@functools.cache
def once(x):
    return [y for y in x]


def never(x):
    return x


class Thing:
    def method(self):
        return (lambda: 3)()
"""


def test_lines_of_functions_that_ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_path, "PACKAGE", tmp_path)
    (tmp_path / "training").mkdir()
    path = tmp_path / "training/loop.py"
    path.write_text(SOURCE)
    names: dict = {}
    exec(compile(SOURCE, str(path), "exec"), names)
    recorder = CallRecorder(str(tmp_path))

    def update(call):
        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
        names["Thing"]().method()

    watched = recorder.between_first_ends(update)
    threading.setprofile(recorder.look)
    try:
        watched(lambda: names["never"](1))  # before the second step
        watched(lambda: names["once"]((1, 2)))
        watched(lambda: names["never"](1))  # behind it
    finally:
        threading.setprofile(None)
    assert entered_files(recorder.code) == [EnteredFile("training/loop.py", 15, 3 + 2)]


def test_who_calls_is_counted_though_it_began_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_path, "PACKAGE", tmp_path)
    path = tmp_path / "loop.py"
    path.write_text(
        "def train(update):\n    for _ in range(3):\n        log()\n        update()\n\n\ndef log():\n    pass\n"
    )
    names: dict = {}
    exec(compile(path.read_text(), str(path), "exec"), names)
    recorder = CallRecorder(str(tmp_path))
    names["train"](recorder.between_first_ends(lambda: None))
    assert entered_files(recorder.code) == [EnteredFile("loop.py", 8, 4 + 2)]


def test_a_function_begins_at_its_first_decorator() -> None:
    assert [first_line(node) for node in ast.parse(SOURCE).body[1:]] == [4, 9, 13]


def test_world_and_network_are_counted_apart() -> None:
    assert EnteredFile("envs/rows.py", 221, 64).is_apart and not EnteredFile("data/shards.py", 12, 7).is_apart


@pytest.mark.long
def test_the_rows_of_the_performance_page_are_what_is_counted() -> None:
    """The default of the benchmark trains for two steps. Threads that work by the clock enter some lines or do not."""
    entered = entered_files(step_path.recorded_run(list(step_path.DEFAULTS)).code)
    page = (Path(__file__).parents[2] / "docs" / "performance.md").read_text()
    table = [line for line in page.splitlines() if line.startswith("|")]
    rows = [line.split("|")[3].strip() for line in table if "enter" in line or "functions that run" in line]
    counted = [number for files in step_path.parts(entered).values() for number in (len(files), ran(files))]
    assert [int(row.replace(",", "")) for row in rows] == pytest.approx(counted, rel=0.02)


def ran(files: list[EnteredFile]) -> int:
    return sum(file.num_ran for file in files)
