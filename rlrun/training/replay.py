"""Records steps of a run, and learns from recorded steps again, without simulators, to tell what differs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlrun.algorithms.spec import num_epochs
from rlrun.config import provenance
from rlrun.config.former_keys import moved
from rlrun.config.provenance import changes, format_value, selected
from rlrun.config.schema import RunConfig
from rlrun.controller.workers import WorkerGroup
from rlrun.data.message_files import MessageFileError, check_message, write_json
from rlrun.data.recording import FORMAT, MANIFEST, RECORDING_FOLDER, START, Recording, find_recording
from rlrun.edges.seeds import actor_ranks_of
from rlrun.system.errors import ExitStatus, RunError
from rlrun.training.lifecycle import Run
from rlrun.training.session import Session, open_session

if TYPE_CHECKING:
    from rlrun.cluster.launch import Machines
    from rlrun.workers.recorded_actor import ReplayedActorWorker


# Keys that decide on the shapes of what is learned from; only with equal values can results be compared.
_NEEDED = (
    *("env.num_envs", "env.num_workers", "env.image_size"),
    *("policy.num_action_chunks", "actor.num_workers"),
    *("algorithm.name", "algorithm.horizon", "algorithm.rollout_epochs"),
)
_NEEDED_OF_KINDS = ("controlled", "cameras", "proprio")  # in the section of a simulator that has them
# Other keys that decide on the results: a difference is reported, and may be the purpose of the replay.
_COMPARED = ("actor", "algorithm", "seed", "rollout.precision", "rollout.temperature")
_SHOWN = 10  # lines of differences of a kind and step


class RecordedTraining(Run):
    """A training run with `record.num_steps`."""

    def begin_step(self) -> None:
        """Store, once before the first recorded step, the description of the run and the actor's state for a replay."""
        super().begin_step()
        session = self.session
        settings = session.config.record
        step = self.progress.step
        steps = range(settings.first_step, settings.first_step + settings.num_steps)
        if step not in steps:
            return
        recording = Recording(session.run_dir / RECORDING_FOLDER)
        start = recording.start()
        if start is not None and start[0] < step:
            return
        packages = provenance.origin()["packages"]
        manifest = {"format": FORMAT, "config": provenance.as_tree(session.config), "packages": packages}
        write_json(recording.folder / MANIFEST, manifest)
        with session.phase("save"):
            session.controller.save(str(recording.folder / START), asdict(self.progress), False)
        session.console.note(f"recording steps {step} to {steps[-1]} (counted from 0) in {recording.folder}")


@dataclass(frozen=True)
class RecordedRun:
    """A recording whose files are all valid, and which fits the configuration of its replay."""

    folder: Path
    start: Path  # checkpoint of the actor before the first step
    steps: list[int]
    remarks: list[str]  # on permitted differences from the recorded run


def open_recorded(config: RunConfig) -> RecordedRun:
    """Open `replay.path`. Raises RunError if the recording is missing, incomplete, or of a run with other shapes."""
    recording = find_recording(Path(str(config.replay.path)).absolute())
    if config.output_dir is not None and Path(config.output_dir).absolute() == recording.folder.parent:
        raise RunError(
            "A replay would write into the run that it replays.",
            key="output_dir",
            value=config.output_dir,
            remedy="Name another folder, or leave it out: runs/<name>/<time> is made.",
        )
    try:
        manifest = recording.manifest()
        was = moved(manifest["config"])
        now = provenance.as_tree(config)
        _require_shapes(was, now)
        found = recording.start()
        if found is None:
            raise MessageFileError(recording.folder / START, "it holds no checkpoint from which the actor could start")
        first, start = found
        steps = list(_learnable(recording, first, config))
        if not steps:
            raise MessageFileError(recording.folder, "it holds no step from which the actor could learn again")
    except MessageFileError as error:
        raise RunError(
            f"The recording cannot be replayed: {error.path}.",
            key="replay.path",
            value=config.replay.path,
            cause=f"{error.cause[0].upper()}{error.cause[1:]}.",
            remedy="Name the folder of a run that was started with record.num_steps=N; where workers wrote to disks of "
            "their own, bring their recording/ folders together first.",
            exit_status=ExitStatus.bad_input,
        ) from error
    return RecordedRun(recording.folder, start, steps, _remarks(was, now, manifest["packages"]))


def _require_shapes(was: dict[str, Any], now: dict[str, Any]) -> None:
    kinds = [name for name, value in now["env"].items() if isinstance(value, dict)]
    needed = [*_NEEDED, *(f"env.{kind}.{name}" for kind in kinds for name in _NEEDED_OF_KINDS)]
    wrong = [key for key in needed if selected(was, key) != selected(now, key)]
    if wrong:
        raise RunError(
            f"The recording is of another run: {wrong[0]} was {format_value(selected(was, wrong[0]))}.",
            key=wrong[0],
            value=format_value(selected(now, wrong[0])),
            cause="What is replayed must have the shapes of the recorded run.",
            remedy=f"Give the recorded run's: {' '.join(f'{key}={format_value(selected(was, key))}' for key in wrong)}",
        )


def _remarks(was: dict[str, Any], now: dict[str, Any], packages: dict[str, str]) -> list[str]:
    here = provenance.origin()["packages"]
    found = [text for key, text in changes(was, now, ()) if any(f"{key}.".startswith(f"{one}.") for one in _COMPARED)]
    versions = [(name, packages.get(name), here.get(name)) for name in ("torch", "numpy")]
    found += [f"{name} was {then}, is {this}" for name, then, this in versions if then != this]
    return [f"{text}: results may differ from the recorded run's" for text in found]


def _learnable(recording: Recording, first: int, config: RunConfig) -> Iterator[int]:
    """Yield the steps with all trajectories. The last recorded step may lack some, if the run ended within it."""
    num_workers = config.env.num_workers
    ranks = {env: actor_ranks_of(env, num_workers, config.actor.num_workers) for env in range(num_workers)}
    steps = [step for step in recording.steps() if step >= first]
    for expected, step in enumerate(steps, start=first):
        paths = [recording.message(expected, f"env/{env}", "trajectory", rank) for env in ranks for rank in ranks[env]]
        if step == steps[-1] and not all(path.exists() for path in paths):
            return
        for path in paths:
            check_message(path)
        yield step


def replay(config: RunConfig, open_machines: Callable[[RunConfig], Machines]) -> ExitStatus:
    """Learn from the recorded steps again, from the recorded state on, and show the differences."""
    recorded = open_recorded(config)
    num_differences = 0
    with open_session(config, open_machines(config), ["actor"]) as session:
        for remark in recorded.remarks:
            session.console.note(remark)
        controller = session.controller
        with session.phase("load models"):
            controller.form_mesh()
            controller.verify_checkpoint(str(recorded.start))
            controller.load_actor(str(recorded.start / "policy"))
            controller.restore(str(recorded.start))
        for step in recorded.steps:
            num_differences += _replay_step(session, recorded.folder, step)
        result = f"differences: {num_differences}; the first is the cause" if num_differences else "as recorded"
        session.console.result(f"replay of steps {recorded.steps[0]} to {recorded.steps[-1]}: {result}")
    return ExitStatus.differs if num_differences else ExitStatus.ok


def _replay_step(session: Session, folder: Path, step: int) -> int:
    """Replay a step, tell what differs, and return the number of differences. No lost worker is replaced."""
    config = session.config
    actors: WorkerGroup[ReplayedActorWorker] = WorkerGroup(session.controller.workers, "actor")
    total = config.samples_per_step * num_epochs(config.algorithm)
    subject = f"replay of step {step}"
    with session.phase("update", "actor/learned_chunk_steps", total):
        parts = actors.call(lambda actor: actor.replay(str(folder), step), subject, config.cluster.step_deadline_s)
    found = parts[0]
    if not found:
        session.console.note(f"step {step}: the actor came through; no result of it was recorded")
    for name, lines in found.items():
        session.console.note(f"step {step}: {name} {'differ' if lines else 'as recorded'}")
        for line in lines[:_SHOWN]:
            session.console.warning(f"step {step}: {line}")
    return sum(len(lines) for lines in found.values())
