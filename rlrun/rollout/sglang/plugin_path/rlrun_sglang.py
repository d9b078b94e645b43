"""Makes `rlrun` importable in the processes that SGLang starts, and no other package of the trainer.

This folder is on their PYTHONPATH, so that SGLang finds the entry points beside this file.
"""

from __future__ import annotations

import os
import sys

_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))


def register() -> None:
    """Register the model and its media."""
    add_rlrun()
    from rlrun.rollout.sglang.plugin import register as register_all

    register_all()


def cpu_platform() -> str:
    """Return the qualified name of the platform's class; SGLANG_PLATFORM selects it."""
    add_rlrun()
    return "rlrun.rollout.sglang.cpu_platform.CpuPlatform"


def add_rlrun() -> None:
    """Make `import rlrun` work here."""
    if "rlrun" in sys.modules:
        return
    import importlib.util

    path = os.path.join(_PACKAGE, "pipe", "bootstrap.py")
    spec = importlib.util.spec_from_file_location("rlrun_bootstrap", path)
    assert spec is not None and spec.loader is not None
    bootstrap = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(bootstrap)
    bootstrap.add_package("rlrun", _PACKAGE)
