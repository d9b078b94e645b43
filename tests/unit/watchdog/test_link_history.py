"""Links that break for seconds and are up again are counted."""

from __future__ import annotations

import threading

from rlrun.watchdog.network import LinkHistory

LINK = "the link between train and sim"


def history(ups: list[bool], period_s: float = 1.0) -> LinkHistory:
    """A history after one try per second."""
    clock, pending = iter(period_s * second for second in range(1000)), iter(ups)
    links = LinkHistory({LINK: lambda: next(pending), "a well link": lambda: True}, lambda: next(clock))
    for _ in ups:
        links.update()
    return links


def test_flaps_are_counted():
    ups = ([True] * 3 + [False] * 3) * 4
    assert history(ups).sentences() == [f"{LINK} broke 4 times in 60 s (12 of 24 tries failed)"]


def test_a_link_that_is_down_from_the_first_try_broke_once():
    assert history([False, False]).sentences() == [f"{LINK} broke once in 60 s (2 of 2 tries failed)"]


def test_what_is_longer_ago_than_a_minute_is_forgotten():
    assert history([False] * 5 + [True] * 61).sentences() == []
    assert history([True] * 5).sentences() == []


def test_it_tries_by_itself_until_it_is_closed():
    tried = threading.Event()
    links = LinkHistory({LINK: lambda: bool(tried.set())})
    links.open()
    assert tried.wait(10)
    links.close()
    links.close()
    assert not links._thread.is_alive() and links.sentences()
