"""`rlrun.train` on a machine whose torch is older than rlrun asks for: `python -m benchmarks.gpu.train KEY=VALUE …`.

The plan gives workers the allocator's settings as far as that torch takes them; a newer one gets all of them.
"""

from __future__ import annotations

import runpy
from importlib.metadata import version

from packaging.version import Version

from benchmarks.gpu.part import FIRST_PINNING
from rlrun.placement import planner
from rlrun.placement.node_environment import GROWING


def fit_allocator(torch_version: str) -> None:
    """Change the settings that plans of this process have."""
    if Version(torch_version).release < FIRST_PINNING:
        planner.ACTOR_ALLOCATOR, planner.PINNING = GROWING, ""


if __name__ == "__main__":
    fit_allocator(version("torch"))
    runpy.run_module("rlrun.train", run_name="__main__", alter_sys=True)
