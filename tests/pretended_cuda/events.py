"""Waits for the device and copies between host and device, by the line of the project that causes them."""

from __future__ import annotations

import linecache
import sys
from collections import Counter
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).resolve().parents[2]
OWN = tuple(str(Path(__file__).with_name(name)) for name in ("events.py", "tensor.py", "runtime.py", "__main__.py"))
PROJECT = tuple(f"{ROOT / folder}/" for folder in ("rlrun", "benchmarks", "tests"))


class Kind(Enum):
    """What the host does with the device."""

    wait = "wait"  # the host waits until the device has computed a value
    download = "download"  # device to host; the host waits for it, unless it is asked not to
    upload = "upload"  # host to device; the host waits for what the device has to do before it
    send = "send"  # host to device from pinned memory, for which the host does not wait


@dataclass(frozen=True)
class Site:
    """A line of the project. Its text and function name it, since its number changes with every line above."""

    path: str
    function: str
    text: str

    @classmethod
    def here(cls) -> Site:
        """Return the innermost line of the project on this thread's stack; none in autograd's own threads."""
        frame = _project_frame(sys._getframe(1))
        if frame is None:
            return cls("", "backward", "")
        path = frame.f_code.co_filename
        text = linecache.getline(path, frame.f_lineno).strip()
        return cls(str(Path(path).relative_to(ROOT)), frame.f_code.co_qualname, text)


@dataclass(frozen=True)
class Event:
    """Example: Event(Kind.wait, "aten._local_scalar_dense", Site(…))."""

    kind: Kind
    operator: str
    site: Site


class Events:
    """Counts events."""

    def __init__(self) -> None:
        self.counts: Counter[Event] = Counter()
        self.lines: dict[Site, int] = {}  # the number of a site's line

    def add(self, kind: Kind, operator: str) -> None:
        """Count an event of the line that is running."""
        site = Site.here()
        frame = _project_frame(sys._getframe(1))
        self.lines[site] = frame.f_lineno if frame is not None else 0
        self.counts[Event(kind, operator, site)] += 1

    def table(self) -> str:
        """Return one line per event, most frequent first."""
        return "\n".join(
            f"{count:6d} {event.kind.value:<9}{event.operator:<32}"
            f"{event.site.path}:{self.lines[event.site]} {event.site.text}"
            for event, count in self.counts.most_common()
        )


def _project_frame(frame: FrameType | None) -> FrameType | None:
    while frame is not None:
        path = frame.f_code.co_filename
        if path.startswith(PROJECT) and path not in OWN:
            return frame
        frame = frame.f_back
    return None


EVENTS = Events()
