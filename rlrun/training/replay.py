"""Replays one half of a recorded run without the other; a fault is in the half that differs from the recording."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlrun.algorithms.spec import passes_over
from rlrun.config import provenance
from rlrun.config.provenance import spelled
from rlrun.config.schema import ReplayHalf, RunConfig
from rlrun.config.simulator_spec import simulator_spec
from rlrun.controller.workers import WorkerGroup
from rlrun.data.recording import (
    FORMAT,
    MANIFEST,
    RECORDING_FOLDER,
    START,
    Recording,
    RecordingError,
    check_message,
    find_recording,
    write_json,
)
from rlrun.system.errors import ExitStatus, RunError
from rlrun.training.lifecycle import Run
from rlrun.training.session import Session, open_session

if TYPE_CHECKING:
    from rlrun.cluster.launch import Machines
    from rlrun.workers.recorded_actor import ReplayedActorWorker
    from rlrun.workers.recorded_env import ReplayedEnvWorker
    from rlrun.workers.recorder import ReplayedStep


# Keys that decide on the shapes or the course of a half; only with equal values can results be compared.
_SHAPES = (
    *("env.num_envs", "env.num_workers", "env.controlled", "env.cameras", "env.image_size", "env.proprio"),
    *("policy.num_action_chunks", "actor.num_workers"),
    *("algorithm.name", "algorithm.horizon", "algorithm.rollout_epochs"),
    "algorithm.carry_episodes",
)
_NEEDED = {
    ReplayHalf.actor: _SHAPES,
    ReplayHalf.env: (*_SHAPES, "env.simulator", "env.activity", "seed"),
}
# Other keys that decide on the results: a difference is reported, and may be the purpose of the replay.
_COMPARED = {
    ReplayHalf.actor: ("actor", "algorithm", "seed", "rollout.precision", "rollout.temperature"),
    ReplayHalf.env: ("env", "algorithm", "rollout.temperature"),
}
_SHOWN = 10  # lines of differences per worker and step


class RecordedRun:
    """The recording in the folder `replay.path`.

    folder: its path. start: checkpoint of the actor before the first step of the replay. steps: the steps to replay,
    whose files are all valid. Raises RunError if the recording is missing, incomplete, or of a run with other shapes.
    """

    def __init__(self, config: RunConfig):
        self._config = config
        self._half = config.replay.half
        self._recording = find_recording(Path(str(config.replay.path)).absolute())
        self.folder = self._recording.folder
        self._check_output()
        try:
            self._manifest = self._recording.manifest()
            shown = self._manifest.get("cameras")  # older recordings lack it: they show all cameras
            self.cameras = None if shown is None else tuple(shown)  # of the simulator, in the policy's order; None: all
            self._check_shapes()
            self.start = Path()
            self.steps = list(self._learnable() if self._half is ReplayHalf.actor else self._answerable())
            if not self.steps:
                raise RecordingError(self.folder, "it holds no step that this half could do again")
        except RecordingError as error:
            raise self._unfit(error) from error

    def remarks(self) -> list[str]:
        """Return sentences on permitted differences from the recorded run."""
        was, now = self._trees()
        found = [
            f"{key} was {spelled(was.get(key))} in the recorded run, is {spelled(now[key])}: results may differ"
            for key in now
            if was.get(key) != now[key] and any(f"{key}.".startswith(f"{name}.") for name in _COMPARED[self._half])
        ]
        before = self._manifest["packages"]
        here = provenance.origin()["packages"]
        return found + [
            f"recorded with {name} {before.get(name)}, replayed with {here.get(name)}: results may differ"
            for name in self._packages()
            if before.get(name) != here.get(name)
        ]

    def _packages(self) -> tuple[str, ...]:
        """Return the packages whose versions affect the results of this half."""
        own = ("torch",) if self._half is ReplayHalf.actor else simulator_spec(self._config.env).process.packages
        return (*own, "numpy")

    def _needed(self, now: dict[str, Any]) -> list[str]:
        """Return the keys that must equal the recorded run's; for simulation, also all settings of its simulator."""
        own = f"env.{simulator_spec(self._config.env).name}."
        is_simulated = self._half is ReplayHalf.env
        return [*_NEEDED[self._half], *(key for key in now if is_simulated and key.startswith(own))]

    def _trees(self) -> tuple[dict[str, Any], dict[str, Any]]:
        return _flat(self._manifest["config"]), _flat(provenance.as_tree(self._config))

    def _check_output(self) -> None:
        own = self._config.output_dir
        if own is not None and Path(own).absolute() == self.folder.parent:
            raise RunError(
                "A replay would write into the run that it replays.",
                key="output_dir",
                value=own,
                remedy="Name another folder, or leave it out: runs/<name>/<time> is made.",
            )

    def _check_shapes(self) -> None:
        was, now = self._trees()
        wrong = [key for key in self._needed(now) if was.get(key) != now[key]]
        if wrong:
            raise RunError(
                f"The recording is of another run: {wrong[0]} was {spelled(was.get(wrong[0]))}.",
                key=wrong[0],
                value=spelled(now[wrong[0]]),
                cause="What is replayed must have the shapes and the seed of the recorded run.",
                remedy=f"Give the recorded run's: {' '.join(f'{key}={spelled(was.get(key))}' for key in wrong)}",
            )

    def _answerable(self) -> Iterator[int]:
        """Yield the steps for which every env worker's actions were recorded. The last one may be incomplete."""
        recording = self._recording
        steps = self._recording.steps()
        workers = [f"env/{rank}" for rank in range(self._config.env.num_workers)]
        for step in steps:
            for worker in workers:
                end = recording.end(step, worker)
                if step != steps[-1] and not end.exists():
                    raise RecordingError(end, "it is missing: the step was cut short, though later ones are there")
                for edge in ("observation", "actions"):
                    for number in range(recording.count(step, worker, edge)):
                        check_message(recording.message(step, worker, edge, number))
            if all(recording.count(step, worker, "actions") for worker in workers):
                yield step

    def _learnable(self) -> Iterator[int]:
        """Yield the steps with all trajectories, from the first one that the actor can start with.

        The last recorded step may lack some, if the run ended while it was collected.
        """
        recording = self._recording
        found = self._recording.start()
        if found is None:
            raise RecordingError(recording.folder / START, "it holds no checkpoint from which the actor could start")
        first, self.start = found
        steps = [step for step in recording.steps() if step >= first]
        for expected, step in enumerate(steps, start=first):
            paths = [recording.message(expected, worker, "trajectory", rank) for worker, rank in self._senders()]
            if step == steps[-1] and not all(path.exists() for path in paths):
                return
            for path in paths:
                check_message(path)
            yield step

    def _senders(self) -> Iterator[tuple[str, int]]:
        """Yield (env worker, actor rank) for each pair in which the env worker has envs of the actor rank."""
        env = self._config.env
        num_ranks = self._config.actor.num_workers
        owners = [(i * env.num_workers // env.num_envs, i * num_ranks // env.num_envs) for i in range(env.num_envs)]
        for worker, rank in dict.fromkeys(owners):
            yield f"env/{worker}", rank

    def _unfit(self, error: RecordingError) -> RunError:
        return RunError(
            f"The recording cannot be replayed: {error.path}.",
            key="replay.path",
            value=self._config.replay.path,
            cause=f"{error.cause[0].upper()}{error.cause[1:]}.",
            remedy="Name the folder of a run that was started with record.num_steps=N; where workers wrote to disks of "
            "their own, bring their recording/ folders together first.",
            exit_status=ExitStatus.bad_input,
        )


def _flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a tree as one level of dotted keys. Example: {"env": {"num_envs": 4}} -> {"env.num_envs": 4}."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


class RecordedTraining(Run):
    """A training run with `record.num_steps`."""

    def begin_step(self) -> None:
        super().begin_step()
        settings = self.config.record
        if self.progress.step in range(settings.first_step, settings.first_step + settings.num_steps):
            begin_recording(self.session, asdict(self.progress))


def begin_recording(session: Session, progress: dict[str, Any]) -> None:
    """Store, once before the first recorded step, the description of the run and the actor's state for a replay."""
    settings = session.config.record
    step = progress["step"]
    last = settings.first_step + settings.num_steps - 1
    recording = Recording(session.run_dir / RECORDING_FOLDER)
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
            controller.verify_checkpoint(str(self.recorded.start))
            controller.load_actor(str(self.recorded.start / "policy"))
            controller.restore(str(self.recorded.start))

    def step(self, step: int) -> None:
        """Replay one recorded step."""
        config = self.session.config
        total = config.samples_per_step
        phase = ("update", "actor/learned_chunk_steps", total * passes_over(config.algorithm))
        if self.half is ReplayHalf.env:
            phase = ("collect", "env/chunk_steps", total)
        with self.session.phase(*phase):
            replayed = self._replayed(step)
        self.num_differences += sum(part.num_differences for part in replayed)
        for part in replayed:
            self._tell(step, part)

    def _replayed(self, step: int) -> list[ReplayedStep]:
        """Let the workers repeat a step. No worker is replaced, since a replay is meant to reproduce failures."""
        workers = self.session.controller.workers
        folder = str(self.recorded.folder)
        subject = f"replay of step {step}"
        deadline_s = self.session.config.cluster.step_deadline_s
        if self.half is ReplayHalf.env:
            envs: WorkerGroup[ReplayedEnvWorker] = WorkerGroup(workers, "env")
            return envs.call(lambda env: env.replay(folder, step), subject, deadline_s)
        actors: WorkerGroup[ReplayedActorWorker] = WorkerGroup(workers, "actor")
        return actors.call(lambda actor: actor.replay(folder, step), subject, deadline_s)

    def _tell(self, step: int, part: ReplayedStep) -> None:
        if part.num_differences == 0 and part.num_compared == 0:
            if part.worker in ("actor/0", "env/0"):
                self.session.console.note(f"step {step}: {part.worker} came through; no result of it was recorded")
            return
        end = "" if part.is_complete else "; the recording ends within the step"
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
        self.session.console.result(f"{subject}: {_counted(self.num_differences)}; the first difference is the cause")
        return ExitStatus.differs


def _counted(number: int) -> str:
    return f"{number} difference{'' if number == 1 else 's'}"
