"""Ray without the table libraries that it imports into every process, for values that no worker of rlrun sends.

Before a process sends or takes its first value, Ray registers how to serialise those of pyarrow and pydantic, where
they are installed: 35 MB in each process. Whoever needs pyarrow itself imports it later, as ever.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import ray
from ray.util import deregister_serializer

_TABLES = ("pyarrow", "pydantic")


def is_worker() -> bool:
    """Whether Ray started this process."""
    return ray.is_initialized() and ray.get_runtime_context().worker.mode == ray.WORKER_MODE


def leave_out_tables(names: Sequence[str] = _TABLES) -> None:
    """Let Ray set up its serialisation as if they were not installed; once in a process that is connected to Ray.

    What has been imported already is left alone.
    """
    spared = [name for name in names if name not in sys.modules]
    sys.modules |= dict.fromkeys(spared)  # None is Python's mark of a module that is not there
    try:
        deregister_serializer(object)  # without any effect but this: the serialisation is set up
    finally:
        for name in spared:
            del sys.modules[name]
