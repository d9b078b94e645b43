"""Looks after the driver's waits: who is late by the learned budgets, who is to blame, and what the evidence is."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Mapping
from pathlib import Path

from rlrun.config.schema import RunConfig
from rlrun.data.messages import WorkerStatus
from rlrun.observability.telemetry import Telemetry
from rlrun.system.errors import RunError
from rlrun.system.exit_status import ExitStatus
from rlrun.watchdog.attention import GAP_S, Attention
from rlrun.watchdog.board import Board
from rlrun.watchdog.bounded import bounded
from rlrun.watchdog.budgets import Budgets, forewarning_s
from rlrun.watchdog.diagnosis import Stall, diagnose, folded, left_behind
from rlrun.watchdog.disk_probe import answers
from rlrun.watchdog.evidence import Evidence
from rlrun.watchdog.path_watch import PathWatch
from rlrun.watchdog.slack import slack_here, slack_of
from rlrun.watchdog.slowness import Slowness
from rlrun.watchdog.troubles import trouble
from rlrun.watchdog.wait_graph import IDLE, Leaf, Process, leaves

logger = logging.getLogger(__name__)

_ROUND_S = 1.0  # the board is at most so old when it decides
MAX_SLACK = 3.0  # on a crowded host budgets grow so many times at most, and never above the ceiling
_OWN_WORK_S = 45.0  # of the driver between two waits: no less, whatever was usual
_HOST_MUTE_S = 8.0
_PATH_S = 3.0  # of a wait; then the paths to other nodes are tried
_DISK_S = 5.0  # for the disk of the run folder to take a small file
_ALERT_S = 10.0  # for the sinks, whose disk or server may be what is dead


class Watchdog:
    """One per driver.

    Example::

        watchdog = Watchdog(config, run_dir, Telemetry("driver/0"), console.note)
        look = watchdog.looking("trajectories of step 3", processes.statuses)
        look(["env/0", "env/1"])     # raises RunError, status 8, when one of them holds the run up
    """

    def __init__(
        self,
        config: RunConfig,
        run_dir: Path,
        driver: Telemetry,
        note: Callable[[str], None] = lambda text: None,
        alert: Callable[[str, str], None] = lambda title, text: None,
    ):
        """note: told of what people watching should see. alert: given title and text of every alarm."""
        self.driver = driver
        self.note = note
        self._alert = alert
        self.attention = Attention(self.note)
        self.board = Board(self.attention.seconds)
        self.budgets = Budgets(config)
        self._is_enabled = config.watchdog.enabled
        self._run_dir = Path(run_dir)
        self._evidence = Evidence(self._run_dir, self.board)
        self.paths: PathWatch | None = None  # to other nodes; None: there are none
        self._is_path_told = False
        self._is_open = True
        self._forewarned: set[str] = set()
        self._on_its_way: set[str] = set()  # workers that wait for a link or a disk, which people were told
        self._num_told = 0  # forewarnings and alarms

    def open(self) -> None:
        """From now on a pause of the driver itself is seen; `close` ends that."""
        if self._is_enabled:
            self.attention.open()

    def tell_budgets(self) -> None:
        """One line for people: what is usual, and the bound on every silence."""
        if not self._is_enabled:
            return
        known = self.budgets.told()
        known = f"{known}; up to {MAX_SLACK:g} times that on a crowded node" if known else "no phase is known yet"
        bound = f"at most {self.budgets.bound_s():.0f} s pass without a sign of progress, whatever the load"
        self.note(f"watchdog: {bound}; {known}")

    def expectations(self) -> dict[str, str]:
        """What the board knows is learned, and told by worker: how long what it does, or what it waits for, usually
        stays silent, and when that is an alarm.

        Example: {"env/1": "usual 8.2 s, alarm 41 s", "rollout/0": "env/1: usual 8.2 s, alarm 41 s"}
        """
        if not self._is_enabled:
            return {}
        self._learn(self.board.statuses())
        processes = self.board.processes()
        told = {worker: self._expected(worker, processes) for worker in processes}
        usual_s = self.budgets.usual("driver", self.driver.phase, False)
        return told | ({self.driver.worker: f"usual {usual_s:.2g} s"} if usual_s is not None else {})

    def driver_limit_s(self) -> float:
        """How long the driver itself may show no sign of life: a wait looks up about once a second, work does not."""
        if self.driver.is_waiting:
            return slack_here() * self.budgets.floor_s
        usual_s = self.budgets.usual("driver", self.driver.phase, False)
        if usual_s is None and self.driver.is_first:
            return self.budgets.start_s
        return max(_OWN_WORK_S, min(usual_s or 0.0, self.budgets.step_s))

    @property
    def num_disturbances(self) -> int:
        """What has happened so far that makes a phase of the driver take longer than usual."""
        return self._num_told + self.board.num_forgotten + self.attention.num_gaps

    def learn_phase(self, phase: str, seconds: float, num_disturbances: int) -> None:
        """A phase of the driver is over. num_disturbances: when it began; one with another is not learned from."""
        if num_disturbances == self.num_disturbances:
            self._tell_news(self.budgets.learn_driver(phase, seconds))

    def _expected(self, worker: str, processes: Mapping[str, Process]) -> str:
        """Of a worker that waits: for the one that holds it up in the end."""
        leaf = leaves([worker], processes)[0].worker
        process = processes.get(leaf)
        if process is None or process.phase == IDLE or not process.is_answering:
            return ""
        usual_s = self.budgets.usual(process.role, process.phase, process.is_first)
        words = [f"usual {usual_s:.2g} s"] if usual_s is not None else []
        words.append(f"alarm {self._judged(process, 0.0)[1]:.0f} s")
        return ("" if leaf == worker else f"{leaf}: ") + ", ".join(words)

    def looking(self, subject: str, ask: Callable[[], object]) -> Callable[[list[str]], None] | None:
        """What a wait calls while it lasts; None where the watchdog is switched off.

        ask: one round of asking all workers, which puts their answers on the board.
        """
        if not self._is_enabled:
            return None
        self._raise_failures(self.board.statuses())
        started = looked = self.attention.seconds()
        watched_s = 0.0  # of the wait, without what lay between looks that were far apart
        slowness = Slowness(subject, self.budgets.usual("driver", self.driver.phase, False))

        def look(pending: list[str]) -> None:
            nonlocal looked, watched_s
            if self.board.age_s > _ROUND_S:
                ask()
            now = self.attention.seconds()
            watched_s, looked = watched_s + min(now - looked, GAP_S), now
            self._look(subject, pending, watched_s)
            processes = self.board.processes()
            late = slowness.look(leaves(pending, processes), processes, now - started)
            if late is not None:
                self.note(late)

        return look

    def _look(self, subject: str, pending: list[str], waited_s: float) -> None:
        statuses = self.board.statuses()
        self._raise_failures(statuses)
        self._learn(statuses)
        processes = self.board.processes()
        is_excused = self._look_at_paths(waited_s)
        if not is_excused:
            self._forewarn_of_hosts(processes)
        late = self._late(pending, processes, waited_s, is_excused)
        if late:
            self._alarm(Stall(subject, pending, late, processes))

    def _look_at_paths(self, waited_s: float) -> bool:
        """Whether workers may be silent because the network loses what is sent; people are told of that, once."""
        if self.paths is None or waited_s < _PATH_S:
            return False
        faults = self.paths.look()
        if faults and not self._is_path_told:
            limit_s = self.budgets.step_s
            self._num_told += 1
            told = "; ".join(faults)
            self.note(f"the network loses large packets: {told}; nobody is blamed, waiting up to {limit_s:.0f} s")
        elif self._is_path_told and not faults:
            self.note("the network lets large packets pass again")
        self._is_path_told = bool(faults)
        return self.paths.excuses_silence

    def _learn(self, statuses: Mapping[str, WorkerStatus]) -> None:
        for worker, status in statuses.items():
            self._tell_news(self.budgets.learn(worker, status.silences, slack_of(status.load, MAX_SLACK)))

    def _tell_news(self, news: list[str]) -> None:
        for sentence in news:
            self.note(sentence)

    def _late(
        self, pending: list[str], processes: Mapping[str, Process], waited_s: float, is_excused: bool
    ) -> list[Leaf]:
        """Those over their budget. Of ranks in a collective none is late while one of them moves.

        is_excused: the network loses what is sent; only the bound on everything holds.
        """
        over, moving = [], False
        for leaf in leaves(pending, processes):
            process = processes.get(leaf.worker)
            silence_s, budget_s = self._judged(process, waited_s)
            if silence_s <= budget_s:
                self._on_its_way.discard(leaf.worker)
            is_patient = is_excused or leaf.worker in self._on_its_way
            if silence_s > (self.budgets.step_s if is_patient else budget_s):
                over.append(leaf)
            elif process is not None and not is_excused:
                moving |= process.is_collective
                left = left_behind(process, pending, processes) if process.is_collective else []
                self._forewarn(process, silence_s, budget_s, left)
        return [leaf for leaf in over if not moving or not _is_collective(leaf, processes)]

    def _judged(self, process: Process | None, waited_s: float) -> tuple[float, float]:
        """How long there was no sign of progress since the driver looks, and how long that may be."""
        if process is None:
            return waited_s, self.budgets.start_s
        silence_s, budget_s = self._judged_alone(process, waited_s)
        return min(silence_s, self.attention.awake_s), budget_s

    def _judged_alone(self, process: Process, waited_s: float) -> tuple[float, float]:
        budgets, slack = self.budgets, slack_of(process.load, MAX_SLACK)
        if not process.is_answering:
            if self._evidence.state(process) in ("T", "t", "Z", "gone"):
                return process.mute_s, budgets.floor_s
            return process.mute_s, budgets.mute_s(process.role, process.phase, process.is_first, slack)
        if process.phase == IDLE:
            return min(process.silence_s, waited_s), budgets.delivery_s(self.driver.phase, slack)
        return process.silence_s, budgets.seconds(process.role, process.phase, process.is_first, slack)

    def _forewarn(self, process: Process, silence_s: float, budget_s: float, left: list[str]) -> None:
        """People see that somebody is slow, half-way to the alarm or earlier, once per silence. left: peers done."""
        usual_s = self._usual(process)
        at_s = forewarning_s(usual_s if process.is_answering else None, budget_s)
        if silence_s < at_s:
            self._forewarned.discard(process.worker)
        elif process.worker not in self._forewarned:
            self._forewarned.add(process.worker)
            self._num_told += 1
            name, alarm = f"{process.worker}@{process.host}", f"alarm {budget_s:.0f} s"
            if not process.is_answering:
                self.note(f"{name}: has not answered for {silence_s:.0f} s; {alarm}")
            elif process.phase == IDLE:
                makers = f"; what it takes is made by {folded(process.makers)}" if process.makers else ""
                self.note(f"{name}: asked {silence_s:.0f} s ago, has not begun{makers}; {alarm}")
            else:
                usual = "not known yet" if usual_s is None else f"{usual_s:.2g} s"
                gone = f", which {folded(left)} has left" if left else ""
                self.note(f"{name}: no progress for {silence_s:.0f} s in {process.phase}{gone}; usual {usual}, {alarm}")

    def _forewarn_of_hosts(self, processes: Mapping[str, Process]) -> None:
        """Another node of which nobody answers: that is no worker's fault, and needs no patience."""
        hosts: dict[str, list[Process]] = {}
        for process in processes.values():
            hosts.setdefault(process.host, []).append(process)
        for host, there in hosts.items():
            mute_s = min(process.mute_s for process in there)
            if mute_s < _HOST_MUTE_S or host == socket.gethostname():
                self._forewarned.discard(host)
            elif host not in self._forewarned:
                self._forewarned |= {host, *(process.worker for process in there)}
                self._num_told += 1
                workers = folded([process.worker for process in there])
                self.note(f"node {host} has not answered for {mute_s:.0f} s, nor has {workers}: its link or power?")

    def _usual(self, process: Process) -> float | None:
        """How long it is usually silent in what it does now; None: never seen."""
        if process.phase == IDLE:
            return self.budgets.usual("driver", self.driver.phase, False)
        return self.budgets.usual(process.role, process.phase, process.is_first)

    def _raise_failures(self, statuses: Mapping[str, WorkerStatus]) -> None:
        told = {worker: status.failure for worker, status in statuses.items() if status.failure}
        if self.driver.failure:
            told["driver/0"] = self.driver.failure
        for worker, failure in told.items():
            kind, lines = trouble("thread-died"), failure.strip().splitlines()
            raise RunError(
                f"{worker} {kind.says}, {lines[0].rstrip(':')}: {lines[-1]}",
                cause=failure.strip(),
                remedy=kind.fix,
                exit_status=ExitStatus.unexpected,
                worker=None if worker == self.driver.worker else worker,
                row=kind.name,
            )

    def _alarm(self, stall: Stall) -> None:
        """Collect while everything is as it is, then judge. Raises RunError; what may still be coming is only told,
        and so is who waits for a disk that hangs."""
        found = diagnose(stall)
        self._num_told += 1
        if self._waits_for_disk(stall.processes.get(found.culprit)):
            self._on_its_way.add(found.culprit)
            kind, limit_s = trouble("disk-hangs"), self.budgets.step_s
            disk = f"the disk of {self._run_dir} {kind.says}"
            self.note(f"{found.sentence}; {disk}: waiting up to {limit_s:.0f} s for it")
            return
        logger.warning("alarm: %s", found.sentence)
        collected = self._evidence.collect(stall)
        found = diagnose(collected.stall)
        if found.trouble.name == "on-its-way" and found.culprit not in self._on_its_way:
            self._on_its_way.add(found.culprit)
            self.note(f"{found.sentence}; waiting up to {self.budgets.step_s:.0f} s for it")
            return
        archive, remark = self._evidence.pack(collected, found)
        self.note(f"alarm, evidence in {archive}{remark}")
        title, text = f"{found.culprit} {found.trouble.says}", f"{found.sentence}\n-> {found.action}\n{archive}"
        bounded("alert", lambda: self._alert(title, text), None, [], _ALERT_S)
        raise RunError(
            found.sentence,
            cause="\n".join([found.trouble.cause, *collected.summary(found.culprit), f"evidence: {archive}"]),
            remedy=found.action,
            exit_status=ExitStatus.stalled,
            worker=found.culprit,
            row=found.trouble.name,
        )

    def _waits_for_disk(self, process: Process | None) -> bool:
        """Whether a new process in its place would hang like it, on the disk of the run folder."""
        if process is None or process.worker in self._on_its_way or self._evidence.state(process) != "D":
            return False
        return not answers(self._run_dir, _DISK_S)

    def close(self) -> None:
        """Keep what was learned. Safe to call twice."""
        if self._is_open:
            self._is_open = False
            self.attention.close()
            self.budgets.save()


def _is_collective(leaf: Leaf, processes: Mapping[str, Process]) -> bool:
    process = processes.get(leaf.worker)
    return process is not None and process.is_answering and process.is_collective
