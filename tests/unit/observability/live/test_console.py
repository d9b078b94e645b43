"""The console shows what its verbosity asks for, and restores the terminal."""

import logging
import os
import pty
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console as Terminal
from rich.console import ConsoleDimensions

from rlrun.config.schema import RunConfig, Verbosity
from rlrun.observability.console import Console
from rlrun.observability.dashboard import Dashboard, GpuReading
from rlrun.system.status import WorkerStatus

STEP = {"success_rate": 0.5, "approx_kl": 0.01, "step_s": 2.0, "anything_else": 7.0}
HIDE_CURSOR, SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"


def text(dashboard: Dashboard, width: int = 140, height: int = 40) -> str:
    terminal = Terminal(width=width, height=height)
    with terminal.capture() as capture:
        terminal.print(dashboard.picture(ConsoleDimensions(width, height)))
    return capture.get()


def test_the_picture_shows_workers_progress_and_gpus(
    config: RunConfig, tmp_path: Path, status: Callable[..., WorkerStatus]
) -> None:
    dashboard = Dashboard(config, tmp_path)
    dashboard.set_workers([status("actor/0", "wait for trajectories"), status("env/10"), status("env/2")])
    time.sleep(0.05)
    later = [status("actor/0", "wait for trajectories"), status("env/10", env_steps=200), status("env/2")]
    dashboard.set_workers(later, {"env/2": "usual 8.2 s, alarm 41 s"})
    dashboard.set_progress("collecting", 3, 16)
    dashboard.set_gpus("train-0", [GpuReading(0, "A100", 87.0, 40 * 1024**3, 80 * 1024**3, 312.0)])
    dashboard.set_step(4, STEP)
    dashboard.set_progress("collecting", 5, 16)
    shown = text(dashboard)
    lines = shown.splitlines()
    for expected in ("step 4/20", "collecting", "5/16", "train-0 gpu 0  A100  use  87 %  40.0 GiB of 80.0 GiB  312 W"):
        assert expected in shown
    rows = [line.split()[0] for line in lines if "/" in line.split()[0] and "lab" in line]
    assert rows == ["env/2", "env/10", "actor/0"]
    (moving,) = [line for line in lines if "env/10" in line]
    assert "env_steps 200 (" in moving
    assert "182 MiB" in moving
    (expected,) = [line for line in lines if "env/2" in line]
    assert "usual 8.2 s, alarm 41 s" in expected and "usual" not in text(dashboard, width=100)


def test_the_picture_fits_and_keeps_the_stuck_workers(
    config: RunConfig, tmp_path: Path, status: Callable[..., WorkerStatus]
) -> None:
    dashboard = Dashboard(config, tmp_path)
    dashboard.set_workers([status(f"env/{i}", age_s=500.0 if i == 37 else 0.1) for i in range(64)])
    shown = text(dashboard, width=70, height=16)
    assert len(shown.splitlines()) <= 16
    assert max(map(len, shown.splitlines())) <= 70
    assert "env/37" in shown
    assert "more workers" in shown


def test_time_left_follows_the_pace_and_the_limit(config: RunConfig, tmp_path: Path) -> None:
    dashboard = Dashboard(config, tmp_path)
    assert "known after the first step" in text(dashboard)
    dashboard.set_step(10, {"step_s": 60.0})
    assert "left 10:00" in text(dashboard) or "left 9:59" in text(dashboard)


def test_the_time_limit_counts_training_steps_of_all_attempts(config: RunConfig, tmp_path: Path) -> None:
    config.max_minutes = 60.0
    dashboard = Dashboard(config, tmp_path)
    assert "known after the first step" in text(dashboard), "the run may be a resumed one"
    dashboard.set_step(10, {"step_s": 60.0, "elapsed_s": 58 * 60.0})
    assert "left 2:00" in text(dashboard) or "left 1:59" in text(dashboard)


def test_bars_of_finished_phases_are_removed(config: RunConfig, tmp_path: Path) -> None:
    dashboard = Dashboard(config, tmp_path)
    dashboard.set_progress("sft", 300, 300)
    dashboard.set_progress("evaluating", 64, 64)
    dashboard.set_progress("collecting", 16, 16)
    assert "sft" not in text(dashboard)
    assert "evaluating" in text(dashboard)
    dashboard.set_step(1, STEP)
    dashboard.set_progress("collecting", 1, 16)
    dashboard.set_step(2, STEP)
    assert "evaluating" not in text(dashboard)
    assert "-/16" in text(dashboard)


@pytest.mark.parametrize(
    ("verbosity", "expected"),
    [
        (Verbosity.quiet, ["warning: hot", "done"]),
        (Verbosity.normal, ["hello", "step  1/20 · success  50 %", "warning: hot", "done"]),
        (Verbosity.debug, ["hello", "step  1/20 · success  50 %", "anything_else=7", "warning: hot", "done"]),
    ],
)
def test_plain_lines_by_verbosity(
    config: RunConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str], verbosity: Verbosity, expected: list[str]
) -> None:
    config.logging.verbosity = verbosity
    with Console(config, tmp_path, is_terminal=False) as console:
        console.note("hello")
        console.step(1, STEP)
        console.warning("hot")
        console.result("done")
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(expected)
    assert all(part in line for part, line in zip(expected, lines, strict=True))
    assert not any("\x1b" in line for line in lines)


def test_plain_progress_is_printed_rarely(
    config: RunConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    console = Console(config, tmp_path, is_terminal=False)
    console.note("start")
    for done in range(100):
        console.progress("collecting", done, 100)
    assert capsys.readouterr().out == "start\n"
    monkeypatch.setattr("rlrun.observability.console.PLAIN_PERIOD_S", 0.0)
    console.progress("collecting", 100, 100)
    assert "collecting 100/100" in capsys.readouterr().out


def test_logged_warnings_reach_the_console_once(
    config: RunConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Console(config, tmp_path, is_terminal=False) as console:
        logging.getLogger("rlrun.elsewhere").warning("simulator fault %d", 2)
        console.warning("said directly")
    logging.getLogger("rlrun.elsewhere").warning("after the end")
    assert capsys.readouterr().out.splitlines() == ["warning: simulator fault 2", "warning: said directly"]


LIVE = """
import sys, time
from pathlib import Path
from rlrun.config.schema import RunConfig
from rlrun.observability.console import Console
console = Console(RunConfig(), Path("run"))
console.start()
console.progress("collecting", 3, 16)
console.step(1, {"success_rate": 0.5})
time.sleep(0.6)
raise RuntimeError("boom")
"""


def test_an_exception_leaves_the_terminal_usable() -> None:
    ours, theirs = pty.openpty()
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "100", "LINES": "30"}
    process = subprocess.Popen([sys.executable, "-c", LIVE], stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    shown = b""
    while True:
        try:
            piece = os.read(ours, 65536)
        except OSError:  # the other end is closed
            break
        if not piece:
            break
        shown += piece
    os.close(ours)
    assert process.wait(timeout=60) == 1
    screen = shown.decode()
    assert "collecting" in screen
    assert "step   1/100" in screen
    assert "RuntimeError: boom" in screen
    assert screen.count(HIDE_CURSOR) >= 1
    assert screen.rindex(SHOW_CURSOR) > screen.rindex(HIDE_CURSOR)


def test_a_closed_reader_does_not_end_the_run(tmp_path: Path) -> None:
    program = LIVE.replace(
        'raise RuntimeError("boom")', "[console.note('x' * 9000) for _ in range(50)]; Path(sys.argv[1]).touch()"
    )
    shell = f'"{sys.executable}" -c "$PROGRAM" "{tmp_path}/end" | head -n 1'
    subprocess.run(
        ["bash", "-c", shell], env=os.environ | {"PROGRAM": program}, check=True, timeout=60, capture_output=True
    )
    assert (tmp_path / "end").exists()


HOSTILE = "\x1b]0;owned\x07\x1b[2J\nstep 9/9 \u202e"


@pytest.mark.parametrize("call", ["note", "warning", "result", "step", "logged", "progress"])
def test_text_from_outside_has_no_control_codes_there(
    config: RunConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str], call: str
) -> None:
    config.logging.verbosity = Verbosity.debug
    with Console(config, tmp_path, is_terminal=False) as console:
        if call == "step":
            console.step(1, {HOSTILE: 1.0})
        elif call == "progress":
            console.progress(HOSTILE, 1, 2)
        elif call == "logged":
            logging.getLogger("rlrun.simulator").warning("%s", HOSTILE)
        else:
            getattr(console, call)(HOSTILE)
    shown = capsys.readouterr().out
    assert "\\x1b]0;owned\\x07\\x1b[2J" in shown and "\\u202e" in shown
    assert "\x1b" not in shown and "\nstep 9/9" not in shown


def test_the_picture_shows_no_control_codes_of_workers(config: RunConfig, tmp_path: Path) -> None:
    dashboard = Dashboard(config, tmp_path)
    dashboard.set_workers([WorkerStatus("env/0", "lab\x1b[2J", 1, "phase\x9b", 20.0, {"steps\x07": 3}, 0)])
    terminal = Terminal(width=160, height=40, color_system=None)
    with terminal.capture() as capture:
        terminal.print(dashboard.picture(ConsoleDimensions(160, 40)))
    assert not set("\x1b\x9b\x07") & set(capture.get()) and "steps\\x07 3" in capture.get()
