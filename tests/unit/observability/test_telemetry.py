"""What a worker reports about itself."""

import os
import time

import pytest

from rlrun.system.telemetry import Telemetry


def test_the_innermost_open_span_is_the_phase() -> None:
    telemetry = Telemetry("actor/1")
    assert telemetry.status().phase == "idle"
    with telemetry.span("update"):
        with telemetry.span("all-gather", "layer 3"):
            assert telemetry.status().phase == "all-gather"
        time.sleep(0.01)
        status = telemetry.status()
        assert status.phase == "update"
        assert status.phase_age_s >= 0.01
    assert telemetry.status().phase == "idle"
    inner, outer = telemetry.drain_spans()
    assert (inner.name, inner.detail, outer.name) == ("all-gather", "layer 3", "update")
    assert outer.start_s <= inner.start_s <= inner.end_s <= outer.end_s
    assert telemetry.drain_spans() == []


def test_a_span_closes_when_its_work_raises() -> None:
    telemetry = Telemetry("env/0")
    with pytest.raises(ZeroDivisionError), telemetry.span("simulate"):
        raise ZeroDivisionError
    assert telemetry.status().phase == "idle"
    assert [span.name for span in telemetry.drain_spans()] == ["simulate"]


def test_status_counts_and_measures(monkeypatch: pytest.MonkeyPatch) -> None:
    telemetry = Telemetry("env/0")
    telemetry.count("env_steps", 64)
    telemetry.count("env_steps")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    status = telemetry.status()
    assert (status.counters, status.pid, status.accelerator) == ({"env_steps": 65}, os.getpid(), "gpu 2,3")
    assert 5e6 < status.host_memory_bytes < 1e12
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert telemetry.status().accelerator == "cpu"


def test_a_clock_that_is_set_changes_no_span(monkeypatch: pytest.MonkeyPatch) -> None:
    telemetry = Telemetry("env/0")
    with telemetry.span("collect"):
        monkeypatch.setattr(time, "time", lambda: 0.0)
    (span,) = telemetry.drain_spans()
    assert 0 <= span.end_s - span.start_s < 60
    monkeypatch.undo()
    assert abs(span.end_s - time.time()) < 60
