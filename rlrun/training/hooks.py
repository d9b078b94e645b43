"""The calls of a run's callbacks, and the numbers that they log."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from rlrun.observability.step_line import named_numbers
from rlrun.system.errors import ExitStatus, RunError
from rlrun.training.callbacks import Callbacks, StepMetrics
from rlrun.training.session import Session


class Hooks:
    """Calls the callbacks, and passes to the sinks and the console what they log."""

    def __init__(self, callbacks: Callbacks, session: Session, step: Callable[[], int]):
        """step: returns the number of training steps done."""
        self._callbacks = callbacks
        callbacks.span = session.driver.span
        self._session = session
        self._step = step
        self._known: set[str] = set()  # names of metrics so far
        self._has_begun = False  # on_start was called, and on_end was not

    def begin(self) -> None:
        """Call `on_start`."""
        self._has_begun = True
        self.call("on_start", self._session.config, self._session.run_dir)

    def call(self, hook: str, *arguments: object) -> None:
        """Call a hook between two steps. What it logs belongs to the step that was finished last."""
        try:
            self._callbacks.call(hook, *arguments)
        finally:
            if logged := self._callbacks.drain_logged():
                self._session.sinks.log(self._step(), logged)  # readers join the lines of one step
                self._session.console.note(f"after step {self._step()}: {named_numbers(logged)}")

    def log_step(self, metrics: Mapping[str, float]) -> None:
        """Call `on_step`, and log the step with the numbers that it adds, also if a callback raises."""
        self._known |= set(metrics)
        try:
            self._callbacks.call("on_step", self._step(), StepMetrics(metrics, self._known))
        finally:
            logged = self._callbacks.drain_logged()
            self._session.sinks.log(self._step(), {**metrics, **logged})
            self._session.console.step(self._step(), metrics, logged)

    def end(self, status: ExitStatus) -> None:
        """Call `on_end` unless it was called, or the run did not start."""
        if self._has_begun:
            self._has_begun = False
            self.call("on_end", status)

    @contextmanager
    def ended_by_failure(self) -> Iterator[None]:
        """Call `on_end` if the block raises; what a callback raises then is a warning, and hides nothing."""
        try:
            yield
        except BaseException as failure:
            try:
                self.end(failure.exit_status if isinstance(failure, RunError) else ExitStatus.unexpected)
            except Exception as another:
                self._session.console.warning(f"{type(another).__name__}: {another}")
            raise
