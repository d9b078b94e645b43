"""The callbacks of a run: made from the key `callbacks`, called together, and named when one of them raises."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rlrun.config.schema import RunConfig
from rlrun.config.sections import load_object, put_on_path
from rlrun.edges.reports import WorkerLoss
from rlrun.observability.records import EvaluationRecord
from rlrun.system import import_path
from rlrun.system.errors import ExitStatus, RunError

USE = "use"


class Callback:
    """Called by the driver between two parts of a run; override what you need. A run waits for each call.

    An exception ends the run with a checkpoint. Example in YAML: `callbacks: [{use: "my_module:EarlyStopping",
    patience: 3}]`.
    """

    stop_reason: str | None = None  # why the run is to end; None: it goes on

    def stop(self, reason: str) -> None:
        """End the run after the present step, as if num_steps were reached: with evaluation, checkpoint and report."""
        self.stop_reason = reason

    def on_step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Take the metrics of a finished training step, as in metrics.jsonl. step: training steps done."""

    def on_evaluation(self, result: EvaluationRecord) -> None:
        """Take the result of an evaluation."""

    def on_checkpoint(self, step: int, folder: Path) -> None:
        """Take the folder of a complete checkpoint. It may be removed later (checkpoint.keep_last)."""

    def on_loss(self, step: int, loss: WorkerLoss) -> None:
        """Take the loss of a worker, which has been replaced; called after the training step in which it was lost."""


class Callbacks:
    """Calls each callback in the order of the configuration."""

    def __init__(self, callbacks: dict[str, Callback] | None = None):
        """callbacks: by name, as "module:Class"."""
        self._callbacks = callbacks or {}

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
