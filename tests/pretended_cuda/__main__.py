"""Run a module of Python, as `python -m` does, on a pretended CUDA device.

    python -m tests.pretended_cuda [--record FILE] MODULE [ARGUMENT…]

--record FILE: write waits and copies there, by line, most frequent first.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from tests.pretended_cuda import device


def main(arguments: list[str]) -> None:
    """Does what the module does, its exit status included."""
    record = None
    if arguments[:1] == ["--record"]:
        record, arguments = Path(arguments[1]), arguments[2:]
    if not arguments:
        sys.exit(__doc__)
    device.load()
    from tests.pretended_cuda import events, runtime

    runtime.install()
    sys.argv = arguments
    try:
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    finally:
        if record is not None:
            record.write_text(events.EVENTS.table() + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
