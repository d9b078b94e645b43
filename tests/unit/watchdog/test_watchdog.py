"""A worker is late by its own lack of progress, not by the age of a wait."""

from __future__ import annotations

import dataclasses
import os
import socket
from dataclasses import replace
from types import SimpleNamespace

import pytest

from rlrun.config.loader import load
from rlrun.system.errors import ExitStatus, RunError
from rlrun.system.status import OpenWait, WorkerStatus
from rlrun.system.telemetry import Telemetry
from rlrun.watchdog import watchdog as watchdog_module
from rlrun.watchdog.network import LinkHistory
from rlrun.watchdog.wait_graph import Board, Incoming
from rlrun.watchdog.watchdog import Watchdog


def status(worker, phase="simulate", silence_s=0.0, on=(), **rest):
    waits = (OpenWait("x", tuple(on), silence_s, 600.0),) if on else ()
    silences = {"simulate": (1, 1.0), "act": (1, 1.0), "update": (1, 1.0)}
    return WorkerStatus(worker, "lab", 4711, phase, 0.0, waits=waits, silence_s=silence_s, silences=silences, **rest)


@pytest.fixture(autouse=True)
def waits_for_no_core(monkeypatch):
    """The clock of these tests is not that of this process, whose waits for a core therefore do not count."""
    monkeypatch.setattr(watchdog_module, "queue_seconds", lambda pids, with_children=True: {})


@pytest.fixture
def check(tmp_path):
    """check(pending, *statuses) raises if a worker is late; every phase may be silent for 20 s."""
    config = load([f"cache_dir={tmp_path}/cache", f"output_dir={tmp_path}"])

    def check(pending, *statuses):
        watchdog = Watchdog(config, tmp_path, Telemetry("driver/0"))
        watchdog.watch("trajectories", lambda: watchdog.board.put(statuses))(pending)

    return check


def test_silence_over_the_budget(check, tmp_path):
    check(["env/0"], status("env/0", silence_s=19.0))
    with pytest.raises(RunError) as caught:
        check(["env/0"], status("env/0", silence_s=21.0))
    assert (caught.value.exit_status, caught.value.worker) == (ExitStatus.stalled, "env/0")
    (archive,) = (tmp_path / "alarms").iterdir()
    assert str(archive) in caught.value.cause and caught.value.row == "no-progress"


def test_a_worker_that_waits_for_a_busy_one_is_not_late(check):
    waiting = status("env/0", "wait for actions", 500.0, ["rollout/0"])
    check(["env/0"], waiting, status("rollout/0", "idle", 500.0, ["env/1"]), status("env/1", silence_s=3.0))
    with pytest.raises(RunError, match=r"env\[1\]@lab"):
        check(["env/0"], waiting, status("rollout/0", "idle", 500.0, ["env/1"]), status("env/1", silence_s=30.0))


def test_no_rank_in_a_collective_is_late_while_one_makes_progress(check):
    check(["actor/0", "actor/1"], status("actor/0", "update", 100.0), status("actor/1", "update", 1.0))
    with pytest.raises(RunError):
        check(["actor/0", "actor/1"], status("actor/0", "update", 100.0), status("actor/1", "update", 90.0))


def test_a_first_time_may_take_long(check):
    check(["env/0"], status("env/0", "load", 299.0, is_first=True))
    with pytest.raises(RunError):
        check(["env/0"], status("env/0", "load", 301.0, is_first=True))


def test_the_bound_is_reported(tmp_path):
    notes = []
    watchdog = Watchdog(load([f"cache_dir={tmp_path}"]), tmp_path, Telemetry("driver/0"), notes.append)
    watchdog.report_budgets()
    watchdog.budgets.learn("env/0", {"simulate": (1, 8.2)})
    watchdog.report_budgets()
    bound = "watchdog: alarms after at most 600 s in which a worker could run and made no progress "
    known = "(env.simulate: usual 8.2 s, alarm 41 s; more on a loaded node)"
    driver = ", and after 20 s, more on a loaded node, in which the driver could run and did not answer"
    assert notes == [f"{bound}(no timings learned yet){driver}", f"{bound}{known}{driver}"]


def test_a_worker_that_does_not_start_is_named_in_time(tmp_path, monkeypatch):
    """Also the second time, when its replacement does not start."""
    monkeypatch.setattr(watchdog_module, "local_load_factor", lambda: 1.0)
    notes, clock = [], SimpleNamespace(now=0.0)
    config = load([f"cache_dir={tmp_path}/cache", f"output_dir={tmp_path}"])
    watchdog = Watchdog(config, tmp_path, Telemetry("driver/0"), notes.append)
    watchdog.clock = SimpleNamespace(seconds=lambda: clock.now, since_pause_s=1e9)
    for _ in range(2):
        clock.now = 0.0
        look = watchdog.watch("start of env/1", lambda: watchdog.board.put([]))
        for _ in range(10):
            clock.now += 4.0
            look(["env/1"])
    assert notes == ["env[1] has not started for 20 s; alarm 300 s"] * 2
    with pytest.raises(RunError, match=r"env\[1\] has not answered since it was to be started") as caught:
        for _ in range(100):
            clock.now += 4.0
            look(["env/1"])
    assert caught.value.worker == "env/1" and caught.value.exit_status is ExitStatus.stalled


@pytest.mark.parametrize("load", [6.0, 17.0, 50.0])
def test_a_loaded_host_gets_more_time_without_a_cap(check, load):
    check(["env/0"], status("env/0", silence_s=10.0 * load - 1.0, load=load))
    with pytest.raises(RunError):
        check(["env/0"], status("env/0", silence_s=10.0 * load + 1.0, load=load))
    with pytest.raises(RunError):
        check(["env/0"], status("env/0", silence_s=21.0, load=1.9))


def starved(tmp_path, monkeypatch, queued_share):
    """Let env/0 be silent for 100 s at a budget of 20 s, for a share of which it waits for a core."""
    notes, clock = [], SimpleNamespace(now=0.0)
    watchdog = Watchdog(load([f"cache_dir={tmp_path}/cache"]), tmp_path, Telemetry("driver/0"), notes.append)
    watchdog.clock = SimpleNamespace(seconds=lambda: clock.now, since_pause_s=1e9)
    watchdog._evidence = SimpleNamespace(
        state=lambda process: "R",
        queue_seconds=lambda process: {"4711/4711": queued_share * clock.now, "4711/4712": 0.0},
        collect=lambda stall: (_ for _ in ()).throw(TimeoutError),
    )
    look = watchdog.watch("trajectories", lambda: watchdog.board.put([status("env/0", silence_s=clock.now, load=1.0)]))
    watchdog.board._seconds = lambda: clock.now
    for second in range(1, 101):
        clock.now = float(second)
        look(["env/0"])
    return notes


def test_a_worker_that_waits_for_a_core_is_not_late_and_the_busy_node_is_told_once(tmp_path, monkeypatch):
    notes = starved(tmp_path, monkeypatch, 0.9)
    assert len(notes) == 1 and notes[0].startswith("node lab is too busy (load 1.0 per core): env/0 waited for a core")


def test_a_worker_that_waits_for_no_core_is_late(tmp_path, monkeypatch):
    with pytest.raises(TimeoutError):
        starved(tmp_path, monkeypatch, 0.1)


def test_a_status_of_a_process_that_was_ended_is_not_its_successors(tmp_path):
    board = Board()
    board.put([status("rollout/0")])
    board.forget("rollout/0")
    board.put([status("rollout/0")])  # of a poll that began before the end
    assert not board.statuses()
    board.put([replace(status("rollout/0"), pid=4712)])
    assert board.statuses()["rollout/0"].pid == 4712


def test_what_a_worker_has_to_tell_is_told_once_a_node(tmp_path):
    notes = []
    watchdog = Watchdog(load([f"cache_dir={tmp_path}"]), tmp_path, Telemetry("driver/0"), notes.append)
    slow = "memory could not be pinned: raise ulimit -l"
    workers = [status(worker, "update", 1.0) for worker in ("actor/0", "rollout/0")]
    watchdog.board.put([dataclasses.replace(worker, notices=(slow,)) for worker in workers])
    look = watchdog.watch("update", lambda: None)
    look(["actor/0"])
    look(["actor/0"])
    assert notes == [f"warning: actor/0@lab: {slow}"]


def test_the_warning_names_the_ranks_that_are_done(tmp_path):
    notes = []
    watchdog = Watchdog(load([f"cache_dir={tmp_path}"]), tmp_path, Telemetry("driver/0"), notes.append)
    watchdog.board.put([status("actor/0", "update", 12.0), status("actor/1", "idle", 12.0)])
    watchdog.watch("update", lambda: None)(["actor/0"])
    assert notes == ["actor/0@lab: no progress for 12 s in update, which actor[1] has left; usual 1 s, alarm 20 s"]


def test_the_warning_for_an_unknown_phase_comes_early(tmp_path):
    notes = []
    watchdog = Watchdog(load([f"cache_dir={tmp_path}"]), tmp_path, Telemetry("driver/0"), notes.append)
    check = watchdog.watch("load", lambda: None)
    for worker, phase, silence_s in (("env/0", "load", 19.0), ("env/0", "load", 21.0), ("env/0", "load", 40.0)):
        watchdog.board.put([status(worker, phase, silence_s, is_first=True)])
        check([worker])
    assert notes == ["env/0@lab: no progress for 21 s in load; usual not known yet, alarm 300 s"]


def test_a_node_without_answers_is_reported_at_once(tmp_path, monkeypatch):
    notes, clock = [], [100.0]
    monkeypatch.setattr("rlrun.watchdog.probes.time", SimpleNamespace(monotonic=lambda: clock[0]))
    watchdog = Watchdog(load([f"cache_dir={tmp_path}"]), tmp_path, Telemetry("driver/0"), notes.append)
    watchdog.board.put([status("env/0"), status("env/1"), replace(status("actor/0"), host=socket.gethostname())])
    for now in (107.0, 109.0, 115.0):
        clock[0] = now
        watchdog._warn_of_hosts(watchdog.board.processes())
    assert notes == ["node lab has not answered for 9 s, nor has env[0-1]: its link or power?"]
    watchdog.board.put([status("env/0")])
    watchdog._warn_of_hosts(watchdog.board.processes())
    clock[0] = 140.0
    watchdog._warn_of_hosts(watchdog.board.processes())
    assert len(notes) == 2


def test_the_warning_comes_once_half_way_to_the_alarm(tmp_path):
    notes = []
    watchdog = Watchdog(load([f"cache_dir={tmp_path}"]), tmp_path, Telemetry("driver/0"), notes.append)
    check = watchdog.watch("trajectories", lambda: None)
    for silence_s in (1.0, 11.0, 13.0, 0.0, 12.0):
        watchdog.board.put([status("env/0", silence_s=silence_s)])
        check(["env/0"])
    assert notes == [
        "env/0@lab: no progress for 11 s in simulate; usual 1 s, alarm 20 s",
        "env/0@lab: no progress for 12 s in simulate; usual 1 s, alarm 20 s",
    ]


def test_a_dead_background_thread(check):
    with pytest.raises(RunError, match="env/0 lost a background thread, thread x: ValueError: gone") as caught:
        check(["env/1"], status("env/0", failure="thread x:\nTraceback …\nValueError: gone"), status("env/1"))
    assert caught.value.worker == "env/0"


def test_switched_off(tmp_path):
    config = load(["watchdog.enabled=false", f"cache_dir={tmp_path}"])
    assert Watchdog(config, tmp_path, Telemetry("driver/0")).watch("x", lambda: None) is None


def test_the_board_knows_which_workers_stopped_answering():
    now = [100.0]
    board = Board(lambda: now[0])
    board.put([status("env/0", silence_s=2.0), status("env/1")])
    now[0] += 1.0
    board.put([status("env/0", silence_s=3.0)])
    assert board.processes()["env/1"].is_answering  # one miss may be chance
    now[0] += 5.0
    board.put([status("env/0", silence_s=8.0)])
    env0, env1 = (board.processes()[worker] for worker in ("env/0", "env/1"))
    assert env0.is_answering and not env1.is_answering and env1.status_age_s == 6.0 and env0.silence_s == 8.0
    board.put([status("env/1")])
    assert board.processes()["env/1"].is_answering
    board.forget("env/1")
    assert set(board.processes()) == {"env/0"}


def test_expectations_give_the_usual_time_and_the_alarm(tmp_path):
    """A worker that waits shows those of the worker that blocks it; an idle worker shows nothing."""
    config = load([f"cache_dir={tmp_path}/cache", f"output_dir={tmp_path}"])
    watchdog = Watchdog(config, tmp_path, Telemetry("driver/0"))
    working = status("env/0", silence_s=1.0)
    statuses = [working, status("rollout/0", "wait for env", 0.0, ["env/0"]), status("actor/0", "idle")]
    watchdog.board.put([*statuses, status("env/1", "load", 1.0, is_first=True)])
    assert watchdog.expectations()["env/0"] == "usual 1 s, alarm 20 s"
    watchdog.budgets.learn("env/1", {"simulate": (2, 8.2)})
    with watchdog.driver.span("collect"):
        watchdog.budgets.learn_driver("collect", 30.0)
        expected = watchdog.expectations()
    assert expected["env/0"] == "usual 8.2 s, alarm 41 s"
    assert expected["rollout/0"] == "env/0: usual 8.2 s, alarm 41 s"
    assert expected["actor/0"] == "" and expected["env/1"] == "alarm 300 s"
    assert expected["driver/0"] == "usual 30 s"


def test_the_warning_about_an_idle_worker_names_the_producers(tmp_path):
    notes = []
    watchdog = Watchdog(load([f"cache_dir={tmp_path}"]), tmp_path, Telemetry("driver/0"), notes.append)
    watchdog.budgets.learn_driver("idle", 1.0)
    watchdog.board.expect("actor/0", ("env/0", "env/1"))
    watchdog.board.put([status("actor/0", "idle", 12.0)])
    watchdog._late_leaves(["actor/0"], watchdog.board.processes(), 12.0, False)
    assert notes == ["actor/0@lab: asked 12 s ago, has not begun; its input is produced by env[0-1]; alarm 20 s"]


def test_the_warning_about_an_idle_worker_names_a_link_that_broke(tmp_path):
    notes = []
    watchdog = Watchdog(load([f"cache_dir={tmp_path}"]), tmp_path, Telemetry("driver/0"), notes.append)
    watchdog.network.links = LinkHistory({"the link between train and sim": lambda: False})
    watchdog.network.links.update()
    watchdog.budgets.learn_driver("idle", 1.0)
    watchdog.board.put([status("actor/0", "idle", 12.0)])
    watchdog._late_leaves(["actor/0"], watchdog.board.processes(), 12.0, False)
    assert len(notes) == 1 and notes[0].startswith("the link between train and sim broke once in 60 s")
    assert "what actor/0@lab waits for may be lost" in notes[0]


def test_data_on_its_way_is_reported_at_its_budget_and_awaited_to_the_ceiling(tmp_path):
    notes = []
    watchdog = Watchdog(load([f"cache_dir={tmp_path}"]), tmp_path, Telemetry("driver/0"), notes.append)
    watchdog.budgets.learn_driver("idle", 1.0)
    watchdog.board.expect("actor/0", ("env/0",))

    def check(silence_s):
        watchdog.board.put([status("actor/0", "idle", silence_s), replace(status("env/0", "idle"), host="sim")])
        watchdog._check("update", ["actor/0"], silence_s)

    check(25.0)
    check(500.0)
    (note,) = [note for note in notes if "on its way" in note]
    assert "it comes from env[0]@sim to lab; waiting up to 600 s for it" in note
    with pytest.raises(RunError, match="data on its way between nodes"):
        check(601.0)
    check(1.0)  # it arrived; the next time it is reported again
    check(25.0)
    assert len([note for note in notes if "on its way" in note]) == 2


def test_a_worker_whose_input_is_on_its_way_is_not_blamed_for_its_silence(tmp_path):
    """Ray delivers requests in their order, so that it does not answer; the other rank waits for it."""
    notes, now, missing = [], [100.0], {"actor/1": Incoming(("env/0", "env/1"), 1_300_000)}
    watchdog = Watchdog(load([f"cache_dir={tmp_path}"]), tmp_path, Telemetry("driver/0"), notes.append)
    watchdog.clock.seconds = watchdog.board._seconds = lambda: now[0]
    watchdog.budgets.learn_driver("idle", 1.0)
    envs = [replace(status(f"env/{rank}", "idle"), host="sim") for rank in range(2)]
    watchdog.board.put([*envs, status("actor/0", "idle"), status("actor/1", "idle")])

    def poll():
        watchdog.board.put([*envs, status("actor/0", "update", now[0] - 100)])

    check = watchdog.watch("update", poll, lambda: missing)
    for _ in range(45):
        now[0] += 1.0
        check(["actor/0", "actor/1"])
    assert notes[0] == (
        "actor/1@lab: its input of 1.3 MB from env/0@sim, env/1@sim is on its way for 10 s; waiting up to 600 s"
    )
    assert not any("so far, usual" in note for note in notes)  # the first sentence said it
    assert any("it comes from env[0-1]@sim to lab; waiting up to 600 s for it" in note for note in notes)
    assert not any("has not answered" in note or "no progress" in note for note in notes)
    missing.clear()
    check(["actor/1"])
    for _ in range(10):
        now[0] += 1.0
        check(["actor/1"])  # its silence begins when its input is there
    now[0] += 600.0
    with pytest.raises(RunError, match=r"actor\[1\].* does not answer"):  # and then it is its own fault
        check(["actor/1"])
    assert "actor/1@lab: its input of 1.3 MB from env/0@sim, env/1@sim came within 44 s: 0.24 Mbit/s" in notes


@pytest.mark.parametrize(
    ("state", "is_responsive", "is_reported_only"), [("D", False, True), ("D", True, False), ("S", False, False)]
)
def test_a_worker_that_waits_for_a_hanging_disk_is_not_restarted(
    tmp_path, monkeypatch, state, is_responsive, is_reported_only
):
    notes = []
    config = load([f"cache_dir={tmp_path}", f"output_dir={tmp_path}"])
    watchdog = Watchdog(config, tmp_path, Telemetry("driver/0"), notes.append)
    monkeypatch.setattr(watchdog._evidence, "state", lambda process: state)
    monkeypatch.setattr("rlrun.watchdog.watchdog.is_responsive", lambda folder, timeout_s: is_responsive)
    watchdog.board.put([status("actor/0", "update", 25.0)])
    check = watchdog.watch("checkpoint", lambda: None)
    if not is_reported_only:
        with pytest.raises(RunError, match="has not moved for 25 s"):
            check(["actor/0"])
        return
    check(["actor/0"])
    check(["actor/0"])
    (note,) = [note for note in notes if "waiting up to" in note]
    assert note.endswith(f"; the disk of {tmp_path} does not answer: waiting up to 600 s for it")
    watchdog.board.put([status("actor/0", "update", 601.0)])
    with pytest.raises(RunError, match="has not moved for 601 s"):
        check(["actor/0"])


def test_how_long_the_driver_itself_may_be_blocked(tmp_path, monkeypatch):
    """A wait marks progress every second; the driver's own work may take longer, and a new phase longest."""
    monkeypatch.setattr("os.getloadavg", lambda: (0.0, 0.0, 0.0))
    watchdog = Watchdog(
        load([f"cache_dir={tmp_path}/cache", f"output_dir={tmp_path}"]), tmp_path, Telemetry("driver/0")
    )
    driver = watchdog.driver
    assert watchdog.driver_limit_s() == 45.0
    with driver.span("start workers"):
        assert watchdog.driver_limit_s() == 300.0
    with driver.span("start workers"):
        assert watchdog.driver_limit_s() == 45.0, "none has learned how long it takes"
    for limit_s in (300.0, 600.0):
        with driver.span("callback my:Upload.on_step"):
            assert watchdog.driver_limit_s() == limit_s, "it may be quick in one step and slow in the next"
    watchdog.budgets.learn_driver("collect", 130.0)
    watchdog.budgets.learn_driver("save", 0.5)
    with driver.span("collect"):
        assert watchdog.driver_limit_s() == 130.0
        with driver.waiting("trajectories", ["env/0"], 600.0):
            assert watchdog.driver_limit_s() == 20.0
            monkeypatch.setattr("os.getloadavg", lambda: (6.0 * (os.cpu_count() or 1), 0.0, 0.0))
            assert watchdog.driver_limit_s() == 60.0
    with driver.span("save"):
        assert watchdog.driver_limit_s() == 135.0, "a busy processor is no blocked thread"
    watchdog.budgets.learn_driver("sft", 5000.0)
    with driver.span("sft"):
        assert watchdog.driver_limit_s() == 600.0


def test_a_link_that_flaps_is_reported_once_although_nobody_is_late(tmp_path):
    config = load([f"cache_dir={tmp_path}/cache", f"output_dir={tmp_path}"])
    notes, ups = [], iter([*[True, False] * 4, *[True] * 200])
    watchdog = Watchdog(config, tmp_path, Telemetry("driver/0"), notes.append)
    clock = iter(range(1000))
    watchdog.network.links = LinkHistory(
        {"the link between train and sim": lambda: next(ups)}, lambda: float(next(clock))
    )
    look = watchdog.watch("trajectories", lambda: watchdog.board.put([status("env/0")]))
    for _ in range(80):
        watchdog.network.links.update()
        look(["env/0"])
    told = "the link between train and sim broke 3 times in 60 s (3 of 6 tries failed); no worker is blamed"
    assert notes == [told]
