"""What was recorded of a run, found fit to be replayed with this configuration, or refused before anything starts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rlrun.config import provenance
from rlrun.config.schema import ReplayHalf, RunConfig
from rlrun.config.simulator_spec import simulator_spec
from rlrun.data.recording import START, RecordingError, check_message, located
from rlrun.system.errors import RunError
from rlrun.system.exit_status import ExitStatus

# What gives a half its shapes or its course; without the same of it there is nothing to compare.
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
# What else decides on the results: a difference here is told, and may be what one wants to try.
_TOLD = {
    ReplayHalf.actor: ("actor", "algorithm", "seed", "rollout.precision", "rollout.temperature"),
    ReplayHalf.env: ("env", "algorithm", "rollout.temperature"),
}


class RecordedRun:
    """The recording that `replay.path` names.

    folder: where it lies. start: checkpoint of the actor before the first step of the replay. steps: those to do
    again, every file of which is whole. Raises RunError where the recording is missing, cut short, or of a run of
    other shapes.
    """

    def __init__(self, config: RunConfig):
        self._config, self._half = config, config.replay.half
        self._recording = located(Path(str(config.replay.path)).absolute())
        self.folder = self._recording.folder
        self._check_output()
        try:
            self._manifest = self._recording.manifest()
            self._check_shapes()
            self.start = Path()
            self.steps = list(self._learnable() if self._half is ReplayHalf.actor else self._answerable())
            if not self.steps:
                raise RecordingError(self.folder, "it holds no step that this half could do again")
        except RecordingError as error:
            raise self._unfit(error) from error

    def remarks(self) -> list[str]:
        """For people: what differs from the recorded run, though nothing forbids it."""
        was, now = self._trees()
        found = [
            f"{key} was {_spelled(was.get(key))} in the recorded run, is {_spelled(now[key])}: results may differ"
            for key in now
            if was.get(key) != now[key] and any(f"{key}.".startswith(f"{name}.") for name in _TOLD[self._half])
        ]
        before, here = self._manifest["packages"], provenance.origin()["packages"]
        return found + [
            f"recorded with {name} {before.get(name)}, replayed with {here.get(name)}: results may differ"
            for name in self._packages()
            if before.get(name) != here.get(name)
        ]

    def _packages(self) -> tuple[str, ...]:
        """On whose versions the results of this half depend."""
        own = ("torch",) if self._half is ReplayHalf.actor else simulator_spec(self._config.env).packages
        return (*own, "numpy")

    def _needed(self, now: dict[str, Any]) -> list[str]:
        """The keys that must be those of the recorded run: for simulation, all settings of its simulator."""
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
                row="replay-output",
            )

    def _check_shapes(self) -> None:
        was, now = self._trees()
        wrong = [key for key in self._needed(now) if was.get(key) != now[key]]
        if wrong:
            raise RunError(
                f"The recording is of another run: {wrong[0]} was {_spelled(was.get(wrong[0]))}.",
                key=wrong[0],
                value=_spelled(now[wrong[0]]),
                cause="What is replayed must have the shapes and the seed of the recorded run.",
                remedy=f"Give the recorded run's: {' '.join(f'{key}={_spelled(was.get(key))}' for key in wrong)}",
                row="replay-shapes",
            )

    def _answerable(self) -> Iterator[int]:
        """Steps of which every env worker's actions are there. The last one may end before it was over."""
        recording, steps = self._recording, self._recording.steps()
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
        """Steps of which every trajectory is there, from the first one that the actor can start with. The last one may
        lack some: the run ended while it was collected."""
        recording, found = self._recording, self._recording.start()
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
        """Who sends trajectories to whom: (env worker, actor rank), where one holds envs of the other."""
        env, num_ranks = self._config.env, self._config.actor.num_workers
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
            row="replay-config-differs",
        )


def _flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Example: {"env": {"num_envs": 4}} -> {"env.num_envs": 4}."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


def _spelled(value: Any) -> str:
    """As on the command line. Example: ["a", "b"] -> "[a,b]"."""
    return f"[{','.join(map(str, value))}]" if isinstance(value, list) else str(value)
