"""The callbacks of a run: made from the key `callbacks`, called together, and named when one of them raises."""

from __future__ import annotations

import inspect
import math
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from rlrun.config.schema import RunConfig
from rlrun.config.sections import load_object, put_on_path
from rlrun.edges.episode_numbers import PREFIXES
from rlrun.edges.reports import WorkerLoss
from rlrun.observability.metrics import is_of_training
from rlrun.observability.records import EvaluationRecord
from rlrun.system import import_path
from rlrun.system.errors import ExitStatus, RunError
from rlrun.watchdog.wait_graph import CALLBACK

USE = "use"


class Callback:
    """Called by the driver between two parts of a run; override what you need. A run waits for each call.

    An exception ends the run with a checkpoint. Example in YAML: `callbacks: [{use: "my_module:EarlyStopping",
    patience: 3}]`.
    """

    stop_reason: str | None = None  # why the run is to end; None: it goes on
    _logged: dict[str, float] | None = None  # since the last call of a hook; None: no run has taken the callback yet

    def log(self, name: str, value: float) -> None:
        """Log a number of the present training step to metrics.jsonl, the console and all trackers, as a metric.

        Raises ValueError for the name of a metric of rlrun, and TypeError for a value that is no number.
        """
        if is_of_training(name) or name.startswith(PREFIXES):
            raise ValueError(f"{name!r} is a metric of rlrun: log it by another name")
        try:
            number = float(value)  # also of 0-d arrays and tensors
        except (TypeError, ValueError) as error:
            raise TypeError(f"{name!r} is {value!r}, which is not one number") from error
        if self._logged is None:  # no __init__ of this class, which subclasses need not call
            self._logged = {}
        self._logged[str(name)] = number

    def drain_logged(self) -> dict[str, float]:
        """Return what was logged since the last call."""
        logged = self._logged or {}
        self._logged = {}
        return logged

    def stop(self, reason: str) -> None:
        """End the run after the present step, as if num_steps were reached: with evaluation, checkpoint and report."""
        self.stop_reason = reason

    def on_start(self, config: RunConfig, folder: Path) -> None:
        """Take the configuration and the folder of the run, which has started or resumed, before its next step."""

    def on_end(self, status: ExitStatus) -> None:
        """Take the status with which the run ends, after its last evaluation and checkpoint, or with a failure."""

    def on_step(self, step: int, metrics: StepMetrics) -> None:
        """Take the metrics of a finished training step, as in metrics.jsonl. step: training steps done."""

    def on_evaluation(self, result: EvaluationRecord) -> None:
        """Take the result of an evaluation."""

    def on_checkpoint(self, step: int, folder: Path) -> None:
        """Take the folder of a complete checkpoint. It may be removed later (checkpoint.keep_last)."""

    def on_loss(self, step: int, loss: WorkerLoss) -> None:
        """Take the loss of a worker, which has been replaced; called after the training step in which it was lost."""


class StepMetrics(dict[str, float]):
    """The metrics of a training step. One that has no value in it, as a success rate without an episode, is NaN.

    Example: metrics["success_rate"] > 0.9; "success_rate" in metrics
    """

    def __init__(self, metrics: Mapping[str, float], known: set[str]):
        """known: names that earlier steps had."""
        super().__init__(metrics)
        self._known = known

    def __missing__(self, name: str) -> float:
        if is_of_training(name) or name in self._known or name.startswith(PREFIXES):
            return math.nan
        raise KeyError(name)


class Callbacks:
    """Calls each callback in the order of the configuration.

    span: marks the time of a call as a phase of the driver. Example: "callback early_stopping:EarlyStopping.on_step"
    """

    span: Callable[[str], AbstractContextManager[Any]] = nullcontext

    def __init__(self, callbacks: dict[str, Callback] | None = None):
        """callbacks: by name, as "module:Class"."""
        self._callbacks = callbacks or {}

    def drain_logged(self) -> dict[str, float]:
        """Return what the callbacks logged since the last call; of two with one name the later one."""
        logged: dict[str, float] = {}
        for callback in self._callbacks.values():
            logged |= callback.drain_logged()
        return logged

    @property
    def stop_reason(self) -> str | None:
        """Return the reason to end the run, with the name of the callback; None: it goes on."""
        reasons = (
            f"{name}: {callback.stop_reason}"
            for name, callback in self._callbacks.items()
            if callback.stop_reason is not None
        )
        return next(reasons, None)

    def call(self, hook: str, *arguments: Any) -> None:
        """Call `hook` of every callback. Raises RunError, with the name and the traceback, if one of them raises."""
        for name, callback in self._callbacks.items():
            try:
                with self.span(f"{CALLBACK}{name}.{hook}"):
                    getattr(callback, hook)(*arguments)
            except Exception as error:  # somebody else's code may raise anything
                raise RunError(
                    f"The callback {name} failed in {hook}: {type(error).__name__}: {error}",
                    key="callbacks",
                    value=name,
                    cause=traceback.format_exc().rstrip(),
                    remedy="Repair it, or leave it out of callbacks; then resume the run.",
                    exit_status=ExitStatus.unexpected,
                ) from error


def make_callbacks(config: RunConfig, objects: Sequence[Callback] = ()) -> Callbacks:
    """Return the callbacks that `config.callbacks` names, then `objects`. Raises RunError for one that is none."""
    import_path.put_working_folder_last(is_wanted=bool(config.callbacks))  # modules of module:ATTRIBUTE may be there
    put_on_path(config.python_path)
    made: dict[str, Callback] = {}
    for number, entry in enumerate(config.callbacks):
        given = dict(entry) if isinstance(entry, dict) else {USE: entry}
        name = str(given.pop(USE, ""))
        made[name if name not in made else f"{name} ({number})"] = _made(name, given, entry)
    for number, callback in enumerate(objects, len(made)):
        if not isinstance(callback, Callback):
            raise _refused(callback, f"It is {type(callback).__name__}, which is no rlrun.Callback")
        name = type(callback).__qualname__
        made[name if name not in made else f"{name} ({number})"] = callback
    return Callbacks(made)


def _made(name: str, arguments: dict[str, Any], entry: object) -> Callback:
    factory: Callable[..., Any] | None = None
    try:
        factory = load_object(name)
        assert callable(factory), f"{name} is no class"
        callback = factory(**arguments)
    except Exception as error:  # somebody else's code may raise anything
        takes = f". It takes {inspect.signature(factory)}" if isinstance(error, TypeError) and callable(factory) else ""
        raise _refused(entry, f"{type(error).__name__}: {error}{takes}") from error
    if not isinstance(callback, Callback):
        raise _refused(entry, f"It makes {type(callback).__name__}, which is no rlrun.Callback")
    return callback


def _refused(entry: object, cause: str) -> RunError:
    return RunError(
        f"There is no callback {entry!r}.",
        key="callbacks",
        value=entry,
        cause=f"{cause}.",
        remedy="Name module:Class of a subclass of rlrun.Callback, or {use: module:Class, argument: value}.",
    )
