"""What the session's watcher says by itself."""

from __future__ import annotations

from types import SimpleNamespace

from rlrun.session import Session


def test_a_disk_that_takes_no_lines_is_told_once_each_time() -> None:
    said: list[str] = []
    lateness = SimpleNamespace(seconds=0.0)
    session = SimpleNamespace(
        config=SimpleNamespace(watchdog=SimpleNamespace(enabled=True)),
        console=SimpleNamespace(warning=said.append),
        run_dir="/runs/a",
        _heartbeat=SimpleNamespace(lateness=lateness),
        _is_disk_told=False,
    )
    for seconds in (0.0, 9.0, 12.0, 13.0, 0.0, 11.0):
        lateness.seconds = seconds
        Session._look_at_disk(session)
    assert said == [f"the disk of /runs/a has taken no line for {seconds} s: does it hang?" for seconds in (12, 11)]
