"""The one error type that people see: key, value, cause, remedy, and an exit status."""

from __future__ import annotations

from rlrun.config.exit_status import ExitStatus


class RunError(Exception):
    """A fault that rlrun understands; entry points print it as a short block, without a traceback.

    message: what is wrong, one sentence. key, value: the configuration key it hangs on, where there is one.
    cause: why it is a fault. remedy: what to do about it. worker: who is at fault, as "env/1", where a process is.
    Survives pickling, so workers may raise it.

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
    ):
        super().__init__(message, key, value, cause, remedy, exit_status, worker)
        self.message = message
        self.key = key
        self.value = value
        self.cause = cause
        self.remedy = remedy
        self.exit_status = exit_status
        self.worker = worker

    def __str__(self) -> str:
        value = self.value if self.value is None or isinstance(self.value, str) else repr(self.value)
        rows = [("key", self.key), ("value", value), ("cause", self.cause), ("remedy", self.remedy)]
        lines = [self.message]
        for label, text in rows:
            if text is not None:
                lines.append(f"  {label + ':':<8}{_hang(text)}")
        return "\n".join(lines)


class RunErrors(RunError):
    """Several faults found in one pass, told together; the exit status is the first one's."""

    def __init__(self, errors: list[RunError]):
        super().__init__(f"{len(errors)} faults in the configuration.", exit_status=errors[0].exit_status)
        self.args = (errors,)
        self.errors = errors

    def __str__(self) -> str:
        return "\n\n".join(str(error) for error in self.errors)


def _hang(text: str) -> str:
    return text.replace("\n", "\n" + " " * 10)
