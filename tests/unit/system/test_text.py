"""Lists for messages: the first entries, and how many there are besides."""

from __future__ import annotations

from rlrun.system.text import first_of


def test_first_of() -> None:
    assert first_of(["a", "b"], 2) == "a, b" and first_of([], 2) == ""
    assert first_of(["a", "b", "c"], 1) == "a and 2 more"
    assert first_of(["a", "b", "c"], 2, noun="keys") == "a, b and 1 more keys"
    assert first_of(["a", "b", "c"], 2, "; ") == "a; b; and 1 more"
