"""Sweeps: the runs of `-m key=a,b`, one after another on this machine, or as the tasks of a SLURM array."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from types import FrameType

from rlrun.config.program import SweepRequest, SweepRun
from rlrun.config.recorded import quoted
from rlrun.observability.report.comparison import write_comparison
from rlrun.observability.run_files import EVALUATIONS, REPORT, read_json_lines
from rlrun.system.errors import ExitStatus, RunError
from rlrun.system.import_path import question
from rlrun.training.run_folder import new_folder

_LOOK_S = 60.0  # interval between looks at a run, whose end is seen at once
_SUBMIT_S = 120.0  # for sbatch
_AS_PROGRAM = "import runpy\nrunpy.run_module({!r}, run_name='__main__', alter_sys=True)"  # `-m`, by a safe path
TASKS = "tasks"  # folder with a file of arguments for each task of an array


class Sweep:
    """Runs of one program. `folder` holds a run folder for each of them, and the report that compares them."""

    def __init__(self, request: SweepRequest):
        now = datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
        named = request.output_dir
        self.folder = Path(named).absolute() if named else new_folder(Path("runs") / request.name / now)
        self.program = request.program
        self.runs = request.runs
        self._options = request.options

    def run_dir(self, run: SweepRun) -> Path:
        """Return the run folder of a run."""
        return self.folder / run.label

    def arguments(self, run: SweepRun) -> list[str]:
        """Return the arguments of a run besides its folder."""
        return [*self._options, *run.arguments, f"name={quoted(run.name)}"]


def start_sweep(request: SweepRequest, script: str | None) -> int:
    """Run a sweep here, or submit it with the sbatch file `script`. Returns an exit status. Raises RunError."""
    sweep = Sweep(request)
    return run_here(sweep) if script is None else submit(sweep, script)


def run_here(sweep: Sweep) -> int:
    """Run one after another, each in a process of its own, and write the report that compares them.

    A run that fails does not end the sweep; a signal does. Returns the exit status of the first run that failed, or of
    the one that a signal ended.
    """
    failed = 0
    for number, run in enumerate(sweep.runs, 1):
        print(f"run {number} of {len(sweep.runs)}: {run.label}", flush=True)
        with _Child(sweep, run) as child:
            status = child.status()
        result = "done" if status == 0 else f"ended with status {status}"
        print(f"run {number} of {len(sweep.runs)}: {run.label}: {result}{_success(sweep.run_dir(run))}", flush=True)
        failed = failed or status
        if child.stopped_by is not None:
            print(f"{child.stopped_by}: the sweep ends; to go on, give output_dir={shlex.quote(str(sweep.folder))}")
            break
    begun = [sweep.run_dir(run) for run in sweep.runs if sweep.run_dir(run).is_dir()]
    if begun:
        print(f"report {write_comparison(begun, sweep.folder / REPORT)}", flush=True)
    return failed


class _Child:
    """A run in its own process, which gets this process's signals. stopped_by: the name of the first one."""

    SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)

    def __init__(self, sweep: Sweep, run: SweepRun):
        words = [*sweep.arguments(run), f"output_dir={quoted(str(sweep.run_dir(run)))}"]
        self._command = question(sys.executable, _AS_PROGRAM.format(sweep.program), *words)
        self.stopped_by: str | None = None

    def __enter__(self) -> _Child:
        self._previous = {number: signal.signal(number, self._pass_on) for number in self.SIGNALS}
        self._process = subprocess.Popen(self._command)
        return self

    def status(self) -> int:
        """Wait for the end of the run. Returns its exit status: 128 more than the signal if one killed it."""
        while (status := self._process.poll()) is None:  # a run ends by its own limits
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=_LOOK_S)
        return status if status >= 0 else 128 - status

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        self.stopped_by = self.stopped_by or signal.Signals(number).name
        is_from_keyboard = number == signal.SIGINT and sys.stdin is not None and sys.stdin.isatty()
        if not is_from_keyboard:  # the terminal sends it to the whole process group
            self._process.send_signal(number)

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)


def submit(sweep: Sweep, script: str) -> int:
    """Submit one SLURM array with a task for each run; `script` is an sbatch file of scripts/slurm. Raises RunError."""
    tasks = sweep.folder / TASKS
    tasks.mkdir(parents=True, exist_ok=True)
    for number, run in enumerate(sweep.runs):
        lines = [str(sweep.run_dir(run)), *sweep.arguments(run)]
        (tasks / f"{number}.txt").write_text("".join(f"{line}\n" for line in lines))
    command = ["sbatch", f"--array=0-{len(sweep.runs) - 1}", script, str(tasks)]
    environment = os.environ | {"RLRUN_PROGRAM": sweep.program}
    try:
        status = subprocess.run(command, check=False, env=environment, timeout=_SUBMIT_S).returncode
    except (FileNotFoundError, subprocess.TimeoutExpired) as error:
        raise RunError(
            "SLURM does not take the runs.",
            key="--sbatch",
            value=script,
            cause=str(error),
            remedy="Run the command where sbatch is, or leave out --sbatch: the runs then follow one another here.",
            exit_status=ExitStatus.placement,
        ) from error
    if status == 0:
        print(f"{len(sweep.runs)} runs in {sweep.folder}")
        print(f"afterwards: {shlex.quote(sys.executable)} -m rlrun.report {shlex.quote(str(sweep.folder))}")
    return status


def _success(run_dir: Path) -> str:
    evaluations = list(read_json_lines(run_dir / EVALUATIONS))
    return f", success {100 * evaluations[-1]['success_rate']:.0f} %" if evaluations else ""
