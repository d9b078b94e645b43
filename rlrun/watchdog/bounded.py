"""Work that may hang in the kernel, such as a look at a dead file system: done in a thread, waited for so long only."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


def bounded(name: str, work: Callable[[], Any], instead: Any, late: list[str], seconds: float) -> Any:
    """What `work` returns, or `instead` where it fails or takes too long; the name then goes to `late`."""
    results: list = []

    def run() -> None:
        try:
            results.append(work())
        except Exception as error:  # it is done as far as it goes
            results.append(instead)
            late.append(f"{name} ({error})")

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    thread.join(timeout=seconds)
    if not results:
        late.append(name)
        return instead
    return results[0]
