"""One log file per worker, with time, worker and level of each line, warnings and fatal stacks."""

import logging
import re
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlrun.config.schema import Verbosity
from rlrun.observability.run_files import close_worker_logs, open_worker_log


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    level = logging.getLogger().level
    yield
    close_worker_logs()
    logging.getLogger().setLevel(level)


def test_lines_name_time_worker_and_level(tmp_path: Path) -> None:
    path = open_worker_log(tmp_path, "env/0", Verbosity.normal)
    logging.getLogger("rlrun.envs").info("scene loaded")
    logging.getLogger("rlrun.envs").debug("not at this verbosity")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("contact buffer full", stacklevel=1)
    assert path == tmp_path / "logs" / "env-0.log"
    first, *rest = path.read_text().splitlines()
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} env/0 +INFO +rlrun\.envs: scene loaded", first)
    assert "WARNING" in rest[0]
    assert "contact buffer full" in rest[0]
    assert "not at this verbosity" not in path.read_text()


def test_debug_shows_our_lines_but_not_those_of_libraries(tmp_path: Path) -> None:
    path = open_worker_log(tmp_path, "env/0", Verbosity.debug)
    logging.getLogger("rlrun.envs").debug("substep 3")
    logging.getLogger("PIL").debug("chunk IHDR")
    assert "substep 3" in path.read_text()
    assert "IHDR" not in path.read_text()


def test_the_last_opened_file_takes_over_and_closing_detaches(tmp_path: Path) -> None:
    first = open_worker_log(tmp_path, "driver/0", Verbosity.normal)
    second = open_worker_log(tmp_path, "env/0", Verbosity.normal)
    logging.getLogger("rlrun").info("once")
    close_worker_logs()
    logging.getLogger("rlrun").warning("after the end")
    assert first.read_text() == ""
    assert second.read_text().count("\n") == 1


def test_a_fatal_signal_leaves_its_stack(tmp_path: Path) -> None:
    program = (
        "import os, signal, sys; from rlrun.observability.run_files import open_worker_log\n"
        "from rlrun.config.schema import Verbosity; open_worker_log(sys.argv[1], 'env/0', Verbosity.normal)\n"
        "def simulate(): os.kill(os.getpid(), signal.SIGSEGV)\n"
        "simulate()"
    )
    subprocess.run([sys.executable, "-c", program, tmp_path], check=False, timeout=60)
    text = (tmp_path / "logs" / "env-0.log").read_text()
    assert "Segmentation fault" in text
    assert "in simulate" in text


def test_a_full_disk_loses_only_the_lines(tmp_path: Path, capfd: pytest.CaptureFixture) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "env-0.log").symlink_to("/dev/full")
    open_worker_log(tmp_path, "env/0", Verbosity.normal)
    logging.getLogger("rlrun").info("lost")
    close_worker_logs()
    assert "Traceback" not in capfd.readouterr().err


def test_lines_are_without_control_codes_and_records_begin_at_the_margin(tmp_path: Path) -> None:
    path = open_worker_log(tmp_path, "env/0", Verbosity.normal)
    try:
        raise ValueError("\x1b[2J\nstep 9/9")
    except ValueError:
        logging.getLogger("rlrun.simulator").exception("bad \x9b31m\n2026-01-01 00:00:00.000 driver/0 INFO fake")
    lines = path.read_text().splitlines()
    assert "\\x9b31m" in lines[0] and "\\x1b[2J" in path.read_text()
    assert [line for line in lines if not line.startswith("  ")] == lines[:1]
