"""The debugger that `breakpoint()` opens in the driver: `q` ends the run as Ctrl-C does."""

from __future__ import annotations

import bdb
import os
import pdb
import sys
from types import FrameType
from typing import Any

from rlrun.system.process_io import give_terminal_back


class Debugger(pdb.Pdb):
    """Python's debugger. Quitting raises KeyboardInterrupt: BdbQuit would pass for a fault of whatever was running."""

    def trace_dispatch(self, frame: FrameType, event: str, arg: Any) -> Any:
        """Handle an event of the traced program."""
        try:
            return super().trace_dispatch(frame, event, arg)
        except bdb.BdbQuit:
            sys.settrace(None)
            raise KeyboardInterrupt from None


def open_debugger(frame: FrameType | None) -> None:
    """Stop in `frame`. The variable PYTHONBREAKPOINT names another debugger, as it does for Python."""
    give_terminal_back()  # simulators have none
    if os.environ.get("PYTHONBREAKPOINT"):
        sys.__breakpointhook__()
        return
    print("breakpoint: c continues without the live view, q ends the run", flush=True)
    Debugger(nosigint=True).set_trace(frame)
