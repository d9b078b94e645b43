"""Replays one half of a recorded run without the other; a fault is in the half that differs from the recording."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rlrun.config import provenance
from rlrun.config.schema import ReplayHalf, RunConfig
from rlrun.data.recording import FOLDER, FORMAT, MANIFEST, START, Recording, write_json
from rlrun.system.errors import ExitStatus
from rlrun.training.machines import Machines
from rlrun.training.recorded_run import RecordedRun
from rlrun.training.session import Session, open_session

if TYPE_CHECKING:
    from rlrun.workers.replayed_step import ReplayedStep

_SHOWN = 10  # lines of differences per worker and step


def begin_recording(session: Session, progress: dict[str, Any]) -> None:
    """Store, once before the first recorded step, the description of the run and the actor's state for a replay."""
    settings, step = session.config.record, progress["step"]
    last = settings.first_step + settings.num_steps - 1
    recording = Recording(session.run_dir / FOLDER)
    start = recording.start()
    if start is not None and start[0] < step:
        return
    origin = provenance.origin()
    manifest = {"format": FORMAT, "config": provenance.as_tree(session.config), "packages": origin["packages"]}
    manifest |= {"cameras": session.controller.shown}
    write_json(recording.folder / MANIFEST, manifest)
    with session.phase("save"):
        session.controller.save(str(recording.folder / START), progress, False)
    session.console.note(f"recording steps {step} to {last} (counted from 0) in {recording.folder}")


def replay(config: RunConfig, open_machines: Callable[[RunConfig], Machines]) -> ExitStatus:
    """Replay the recorded steps with only the actor or only the simulators, and show the differences."""

    half = config.replay.half
    recorded = RecordedRun(config)
    with open_session(config, open_machines(config), [half.name]) as session:
        for remark in recorded.remarks():
            session.console.note(remark)
        again = Replay(session, recorded)
        again.start()
        for step in recorded.steps:
            again.step(step)
        return again.finish()


class Replay:
    """Replays the steps of one half in order."""

    def __init__(self, session: Session, recorded: RecordedRun):
        self.session = session
        self.recorded = recorded
        self.half = session.config.replay.half
        self.num_differences = 0

    def start(self) -> None:
        """Start the simulators, or restore the actor as it was before the first recorded step."""
        controller = self.session.controller
        if self.half is ReplayHalf.env:
            with self.session.phase("start simulators"):
                controller.load_simulators()
                if self.recorded.cameras is not None:
                    controller.show(self.recorded.cameras)
            return
        with self.session.phase("load models"):
            controller.form_mesh()
            controller.require_whole(str(self.recorded.start))
            controller.load_actor(str(self.recorded.start / "policy"))
            controller.restore(str(self.recorded.start))

    def step(self, step: int) -> None:
        """Replay one recorded step."""
        config = self.session.config
        total = config.algorithm.horizon * config.algorithm.rollout_epochs * config.env.num_envs
        phase = ("update", "actor/learned_chunk_steps", total * config.algorithm.update_epochs)
        if self.half is ReplayHalf.env:
            phase = ("collect", "env/chunk_steps", total)
        controller = self.session.controller
        again = controller.replay_envs if self.half is ReplayHalf.env else controller.replay_actor
        with self.session.phase(*phase):
            replayed = again(str(self.recorded.folder), step)
        self.num_differences += sum(part.num_differences for part in replayed)
        for part in replayed:
            self._tell(step, part)

    def _tell(self, step: int, part: ReplayedStep) -> None:
        if part.num_differences == 0 and part.num_compared == 0:
            if part.worker in ("actor/0", "env/0"):
                self.session.console.note(f"step {step}: {part.worker} came through; no result of it was recorded")
            return
        end = "" if part.is_whole else "; the recording ends within the step"
        found = _counted(part.num_differences) if part.num_differences else "as recorded"
        self.session.console.note(f"step {step}: {part.worker}: {part.num_compared} messages, {found}{end}")
        for line in part.lines[:_SHOWN]:
            self.session.console.warning(f"step {step}: {part.worker}: {line}")

    def finish(self) -> ExitStatus:
        """Show the result. Returns the exit status."""
        steps = self.recorded.steps
        subject = f"replay of the {self.half.name}: steps {steps[0]} to {steps[-1]}"
        if self.num_differences == 0:
            self.session.console.result(f"{subject} as recorded")
            return ExitStatus.ok
        self.session.console.result(f"{subject}: {_counted(self.num_differences)}; what came first counts")
        return ExitStatus.differs


def _counted(number: int) -> str:
    return f"{number} difference{'' if number == 1 else 's'}"
