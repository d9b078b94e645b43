"""RunError, the error type that people see: message, key, value, cause, remedy, and an exit status."""

from __future__ import annotations

from rlrun.system.exit_status import ExitStatus
from rlrun.system.visible import hanging

TROUBLESHOOTING = "docs/troubleshooting.md"


class RunError(Exception):
    """An error that rlrun expects; commands print it as a short block, without a traceback.

    message: what is wrong, in one sentence. key, value: the configuration key at fault, if there is one. cause: why
    it is an error. remedy: what to do. worker: the worker at fault, as "env/1", if there is one. row: the id of the
    row in docs/troubleshooting.md that says more, for an alarm or a check of the doctor. kind: a name by which its
    callers tell a failure from others, if they have to. resume: the command that resumes the run which it ended. It can
    be pickled, so that workers may raise it.

    Example::

        raise RunError("Six envs cannot be shared by four workers.", key="env.num_envs", value=6,
                       remedy="Take a multiple of env.num_workers: 4 or 8.")
    """

    def __init__(
        self,
        message: str,
        key: str | None = None,
        value: object = None,
        cause: str | None = None,
        remedy: str | None = None,
        exit_status: ExitStatus = ExitStatus.bad_config,
        worker: str | None = None,
        row: str | None = None,
        kind: str | None = None,
    ):
        super().__init__(message, key, value, cause, remedy, exit_status, worker)
        self.message = message
        self.key = key
        self.value = value
        self.cause = cause
        self.remedy = remedy
        self.exit_status = exit_status
        self.worker = worker
        self.row = row
        self.kind = kind
        self.resume: str | None = None

    @property
    def link(self) -> str | None:
        """The link to the row; None without one: the error then says all that there is."""
        return f"{TROUBLESHOOTING}#{self.row}" if self.row else None

    def __str__(self) -> str:
        value = self.value if self.value is None or isinstance(self.value, str) else repr(self.value)
        rows = [("key", self.key), ("value", value), ("cause", self.cause), ("remedy", self.remedy)]
        rows += [("resume", self.resume), ("see", self.link)]
        lines = [hanging(self.message)]
        for label, text in rows:
            if text is not None:
                lines.append(f"  {label + ':':<8}{hanging(text, 10)}")
        return "\n".join(lines)


class RunErrors(RunError):
    """Several errors found in one pass, printed together, with the exit status of the first."""

    def __init__(self, errors: list[RunError]):
        super().__init__(f"{len(errors)} faults in the configuration.", exit_status=errors[0].exit_status)
        self.args = (errors,)
        self.errors = errors

    def __str__(self) -> str:
        return "\n\n".join(str(error) for error in self.errors)
