"""A card says what chose the actions beside the policy."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlrun.certification import certifying
from rlrun.config.loader import compose_only


class Result:
    """A certification without episodes."""

    episodes: tuple = ()
    num_void = 0


@pytest.mark.parametrize("is_on", [False, True])
def test_real_time_chunking_stands_on_the_card(is_on: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certifying, "counted", lambda episodes: {})
    monkeypatch.setattr(certifying, "_digest_of", lambda policy: "")
    config = compose_only(["policy=smolvla", f"evaluation.real_time_chunking.enable={str(is_on).lower()}"])
    found = certifying._content(config, Path("policy"), None, [], {}, Result(), [], [])["deviations"]  # type: ignore[arg-type]
    assert any("real-time chunking" in sentence for sentence in found) is is_on
