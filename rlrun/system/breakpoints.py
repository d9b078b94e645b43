"""`breakpoint()` in a process without a terminal: it is refused, with what to do instead of waiting for ever."""

from __future__ import annotations

import sys
from typing import Any, NoReturn

from rlrun.system.errors import RunError


def refuse_breakpoints(where: str) -> None:
    """Let `breakpoint()` raise RunError in this process from now on. where: the process. Example: "env/0"."""

    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise RunError(
            f"breakpoint() was called in {where}, which has no terminal.",
            cause="Workers on Ray, and simulators and engines in a process of their own, have no standard input.",
            remedy="Run everything in one process: add cluster.kind=local env.num_workers=1 rollout.num_workers=1 "
            "actor.num_workers=1 env.own_process=false. `py-spy dump --pid PID` shows a process without stopping it.",
        )

    sys.breakpointhook = refuse
