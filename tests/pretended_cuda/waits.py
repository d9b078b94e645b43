"""Counts what the host and the device wait for and copy: per micro-batch, per act, per weight update, by line.

python -m tests.pretended_cuda tests.pretended_cuda.waits --write     # writes waits.txt, which a test compares
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from rlrun.actor.learner import Learner
from rlrun.actor.updates import update
from tests.pretended_cuda import small
from tests.pretended_cuda.events import EVENTS, Event, Kind

TABLE = Path(__file__).with_name("waits.txt")
REMEDY = "python -m tests.pretended_cuda tests.pretended_cuda.waits --write"
HEADER = f"""\
# Waits for the device, and copies between host and device: of one micro-batch of 8 rows, one act() of 2 rows and one
# weight update, a copy per tensor. Written by `{REMEDY}`.
"""


def counted(call: Callable[[], object]) -> Counter[Event]:
    """Return the events of a call."""
    EVENTS.counts.clear()
    call()
    return Counter(EVENTS.counts)


def phases() -> dict[str, Counter[Event]]:
    """Return events by phase. Every phase has run once before, so that caches are filled."""
    run, few, many = small.config(), small.learner(small.config(16)), small.learner(small.config(8))
    acting, seen = small.backend(run), [small.observation(*small.SENTENCES)]
    for source in (few, many):
        update(source, small.experience())
    small.send(many, acting)
    acting.act(seen)
    return {
        "micro-batch": _per_micro_batch(few, many),
        "act": counted(lambda: acting.act(seen)),
        "weight update": counted(lambda: small.send(many, acting)),
    }


def _per_micro_batch(few: Learner, many: Learner) -> Counter[Event]:
    """Two updates of the same rows in two and in four micro-batches differ by two micro-batches."""
    of_two, of_four = (counted(lambda source=source: update(source, small.experience())) for source in (few, many))
    difference = {event: count - of_two[event] for event, count in of_four.items() if count > of_two[event]}
    assert all(count % 2 == 0 for count in difference.values()), difference
    return Counter({event: count // 2 for event, count in difference.items()})


def waiting(events: Counter[Event]) -> int:
    """Return for how many of the events the host waits."""
    return sum(count for event, count in events.items() if event.kind is not Kind.send)


def waits_of_a_micro_batch() -> int:
    """Return how often the host waits in one more micro-batch."""
    return waiting(phases()["micro-batch"])


def lines(found: dict[str, Counter[Event]]) -> dict[str, str]:
    """Return the rows of the table, each with its place in the sources, where its line is now."""
    rows = {}
    for phase, events in found.items():
        for event, count in sorted(events.items(), key=lambda item: str(item[0])):
            site = event.site
            row = f"{phase:<14} {count:3d} {event.kind.value:<9}{event.operator:<22} {site.path} {site.function}"
            rows[f"{row}: {site.text}"] = f"{site.path}:{EVENTS.lines[site]}"
    return rows


def differences(found: dict[str, str]) -> list[str]:
    """Compare rows with the table. Returns a sentence for each that is new and each that is gone."""
    wanted = [line for line in TABLE.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    new = [f"{place}: new: {row}" for row, place in found.items() if row not in wanted]
    return new + [f"gone: {row}" for row in wanted if row not in found]


def measured() -> list[str]:
    """Return how this version differs from the table."""
    return differences(lines(phases()))


def main() -> None:
    rows = lines(phases())
    if sys.argv[1:] == ["--write"]:
        TABLE.write_text(HEADER + "\n".join(rows) + "\n", encoding="utf-8")
    print("\n".join(rows))


if __name__ == "__main__":
    main()
