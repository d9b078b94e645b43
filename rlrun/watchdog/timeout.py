"""Runs work that may hang in the kernel, such as reading a dead file system, in a thread with a timeout."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


def run_with_timeout(name: str, work: Callable[[], Any], default: Any, failed: list[str], timeout_s: float) -> Any:
    """Return the result of `work`, or `default` if it raises or takes too long; `name` is then added to `failed`."""
    results: list = []

    def run() -> None:
        try:
            results.append(work())
        except Exception as error:  # the caller goes on without this result
            results.append(default)
            failed.append(f"{name} ({error})")

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    thread.join(timeout=timeout_s)
    if not results:
        failed.append(name)
        return default
    return results[0]
