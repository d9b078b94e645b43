"""The timeline is a valid Chrome trace, also of a killed or resumed run, and its times add up."""

import json
from pathlib import Path

import pytest

from rlrun.observability import timeline
from rlrun.observability.timeline import (
    LEFT_OUT,
    BusyShares,
    TimelineWriter,
    busy_shares,
    own_seconds,
    read_events,
    seconds_by_phase,
)
from rlrun.system.status import Span

T = 1_700_000_000.0


def test_a_closed_timeline_is_a_trace(tmp_path: Path) -> None:
    writer = TimelineWriter(tmp_path / "timeline.json")
    writer.add("env/0", [Span("simulate", T, T + 0.25, "chunk 3")])
    writer.add("driver/0", [Span("collect", T, T + 1, step=57)])
    writer.close()
    events = json.loads((tmp_path / "timeline.json").read_text())
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    order = {names[e["pid"]]: e["args"]["sort_index"] for e in events if e["name"] == "process_sort_index"}
    assert order["driver/0"] < order["env/0"]
    assert [event["cat"] for event in events if event["name"] == "collect 57"] == ["collect"]
    (span,) = [event for event in events if event["name"] == "simulate"]
    assert names[span["pid"]] == "env/0"
    assert (span["ph"], span["ts"], span["dur"], span["args"]) == ("X", T * 1e6, 250_000, {"detail": "chunk 3"})


def test_a_killed_run_leaves_what_it_wrote(tmp_path: Path) -> None:
    path = tmp_path / "timeline.json"
    writer = TimelineWriter(path)
    writer.add("env/0", [Span("simulate", T, T + 1), Span("reset", T + 1, T + 2)])
    text = path.read_text()  # flushed, not closed
    assert len(json.loads(text + "]")) == 4  # an array that only lacks its end, as Perfetto accepts
    path.write_text(text[:-9])  # cut in the last event
    assert seconds_by_phase(path)["env/0"] == {"simulate": 1.0, "idle": 0.0}
    writer.close()


@pytest.mark.parametrize("was_closed", [True, False])
def test_a_resumed_run_goes_on_in_the_same_rows(tmp_path: Path, was_closed: bool) -> None:
    path = tmp_path / "timeline.json"
    for life in range(2):
        writer = TimelineWriter(path)
        writer.add("env/0", [Span("simulate", T + life, T + life + 0.5)])
        if was_closed or life == 1:
            writer.close()
    events = json.loads(path.read_text())
    assert events == read_events(path)
    assert [event["name"] for event in events].count("process_name") == 1
    assert seconds_by_phase(path) == {"env/0": {"simulate": pytest.approx(1.0), "idle": pytest.approx(0.0)}}


def test_phases_of_a_worker_add_up(tmp_path: Path) -> None:
    writer = TimelineWriter(tmp_path / "timeline.json")
    writer.add("actor/0", [Span("all-gather", T + 2, T + 3), Span("update", T, T + 4), Span("sync", T + 4, T + 5)])
    writer.add("rollout/0", [Span("act", T + 5, T + 10)])
    writer.close()
    seconds = seconds_by_phase(tmp_path / "timeline.json")
    assert list(seconds) == ["rollout/0", "actor/0"]
    assert seconds["actor/0"] == pytest.approx({"update": 3, "all-gather": 1, "sync": 1, "idle": 5})
    assert seconds["rollout/0"] == pytest.approx({"act": 5, "idle": 5})


def test_own_seconds_of_nested_spans() -> None:
    spans = [(0.0, 10.0, "a"), (1.0, 4.0, "b"), (2.0, 3.0, "c"), (5.0, 6.0, "b"), (10.0, 12.0, "b")]
    assert own_seconds(spans) == {"a": 6.0, "b": 5.0, "c": 1.0}


def test_busy_shares_cut_to_the_step_and_leave_waits_out() -> None:
    spans = {
        "env/0": [Span("simulate", T - 5, T + 5), Span("wait for actions", T + 5, T + 10)],
        "env/1": [Span("simulate", T, T + 6), Span("reset", T + 6, T + 10)],
        "actor/0": [],
        "driver/0": [Span("collect", T, T + 10)],
    }
    assert busy_shares(spans, T, T + 10) == pytest.approx({"busy_env": 0.75, "busy_resets": 0.2, "busy_actor": 0.0})


def test_short_steps_are_asked_about_together_once_a_second() -> None:
    closed, asked = [Span("simulate", T, T + 0.125)], []

    def spans() -> dict[str, list[Span]]:
        asked.append(len(closed))
        given, closed[:] = list(closed), []
        return {"env/0": given}

    busy = BusyShares(spans)
    assert busy.of_step(T, T + 0.5)["busy_env"] == 0.25
    closed.append(Span("simulate", T + 0.5, T + 0.75))
    assert busy.of_step(T + 0.5, T + 1)["busy_env"] == 0.25  # of the last that was asked about
    closed.append(Span("simulate", T + 1, T + 1.25))
    assert busy.of_step(T + 1, T + 1.5)["busy_env"] == 0.5  # of both
    closed.append(Span("simulate", T + 2, T + 5))
    assert busy.of_step(T + 2, T + 6)["busy_env"] == 0.75  # a longer one is asked about by itself
    assert busy.of_step(T - 3600, T - 3599) == {
        "busy_env": 0.0,
        "busy_resets": 0.0,
    }  # nor does a clock that was set back keep them unasked
    assert asked == [1, 2, 1, 0]


def lived(writer: TimelineWriter, steps: range) -> None:
    """Add steps of two env workers and an actor, with spans nested in others, as one flush for each step."""
    for step in steps:
        began = T + 10 * step
        for rank in range(2):
            parts = [Span("wait for actions", began + i, began + i + 0.25, step=step) for i in range(6)]
            writer.add(f"env/{rank}", [*parts, Span("simulate", began, began + 6.5 + rank, step=step)])
        writer.add(
            "actor/0", [Span("offload", began + 8, began + 8.5), Span("update", began + 7, began + 9, step=step)]
        )


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline, "FIRST_SPANS", 20)
    monkeypatch.setattr(timeline, "NEWEST_SPANS", 30)


@pytest.mark.parametrize("kill", [None, 40, 41, 150], ids=str)
def test_a_long_run_keeps_its_first_and_newest_spans_and_all_sums(
    tmp_path: Path, request: pytest.FixtureRequest, kill: int | None
) -> None:
    whole, path = tmp_path / "whole.json", tmp_path / "timeline.json"
    writer = TimelineWriter(whole)
    lived(writer, range(1, 201))
    writer.close()
    request.getfixturevalue("short")
    writer = TimelineWriter(path)
    lived(writer, range(1, (kill or 200) + 1))
    if kill is not None:
        with path.open("a") as file:
            file.write(',\n{"name": "simul')  # a killed driver
        writer = TimelineWriter(path)
        lived(writer, range(kill + 1, 201))
    writer.close()
    events, everything = json.loads(path.read_text()), read_events(whole)
    spans = [event for event in events if event["ph"] == "X" and event["cat"] != LEFT_OUT]
    assert 50 <= len(spans) < 80, "of 3,200"
    assert spans[:20] == [event for event in everything if event["ph"] == "X"][:20]
    newest = {event["name"] for event in spans[20:]}
    assert {"simulate 200", "update 200", "simulate 199"} <= newest and "simulate 190" not in newest
    assert seconds_by_phase(path) == {
        worker: pytest.approx(phases) for worker, phases in seconds_by_phase(whole).items()
    }
    names = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert sorted(names) == ["actor/0", "env/0", "env/1", LEFT_OUT]
    assert not list(tmp_path.glob("*.new")), "nothing stays beside it"


@pytest.mark.usefixtures("short")
def test_a_timeline_below_the_bound_is_what_it_was(tmp_path: Path) -> None:
    path = tmp_path / "timeline.json"
    writer = TimelineWriter(path)
    lived(writer, range(1, 5))
    text = path.read_text()
    assert text.count('"ph": "X"') == 64 and LEFT_OUT not in text
    TimelineWriter(path)
    assert path.read_text() == text, "neither does a resume change it"


@pytest.mark.usefixtures("short")
def test_a_driver_that_is_killed_while_spans_are_left_out_loses_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "timeline.json"
    writer = TimelineWriter(path)
    lived(writer, range(1, 5))
    before = seconds_by_phase(path)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(timeline.os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        lived(writer, range(5, 7))
    assert seconds_by_phase(path)["env/0"]["simulate"] >= before["env/0"]["simulate"]


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("most", [1000, 20])
def test_gaps_between_what_was_left_out_are_no_time_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """Unless there are too many for the file: then only the long ones, as between two lives of the run."""
    monkeypatch.setattr(timeline, "MAX_COVERED", most)
    path = tmp_path / "timeline.json"
    writer = TimelineWriter(path)
    writer.add(
        "env/0", [Span("simulate", T + start, T + start + 1) for i in range(300) for start in [2 * i + i // 100 * 500]]
    )
    (seconds,) = seconds_by_phase(path).values()
    assert seconds["simulate"] == pytest.approx(300)
    assert seconds["idle"] == (0 if most == 1000 else pytest.approx(200, abs=100))
    assert len(read_events(path)) <= 4 + 20 + 60 + min(most, 300)


def test_a_long_span_is_left_out_later_than_what_is_nested_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeline, "FIRST_SPANS", 1)
    monkeypatch.setattr(timeline, "NEWEST_SPANS", 3)
    writer = TimelineWriter(tmp_path / "timeline.json")
    parts = [Span("wait for actions", T + start, T + start + 1) for start in (0, 2)]
    writer.add("env/0", [*parts, Span("simulate", T, T + 100)])
    for second in range(200):
        writer.add("actor/0", [Span("update", T + second, T + second + 1)])
    assert "simulate" not in {event.get("cat") for event in read_events(tmp_path / "timeline.json")}
    assert seconds_by_phase(tmp_path / "timeline.json") == {
        "env/0": pytest.approx({"simulate": 98, "wait for actions": 2, "idle": 100}),
        "actor/0": pytest.approx({"update": 200, "idle": 0}),
    }
