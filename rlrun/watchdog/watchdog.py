"""Supervision of the driver's waits: workers over their learned budgets, warnings, alarms with evidence."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Mapping
from pathlib import Path

from rlrun.config.schema import RunConfig
from rlrun.system.errors import ExitStatus, RunError
from rlrun.system.machine_load import load_factor, local_load_factor
from rlrun.system.run_queue import QueueTime, queue_seconds
from rlrun.system.status import WorkerStatus
from rlrun.system.telemetry import Telemetry
from rlrun.watchdog.budgets import MIN_REPORT_S, Budgets, Slowness, warning_after_s
from rlrun.watchdog.diagnosis import Stall, diagnose, finished_peers, format_workers, problem
from rlrun.watchdog.evidence import Evidence
from rlrun.watchdog.network import Network
from rlrun.watchdog.probes import PAUSE_S, DriverClock, is_responsive, run_with_timeout
from rlrun.watchdog.wait_graph import CALLBACK, IDLE, Board, Incoming, Leaf, Process, Transfers, format_incoming, leaves

logger = logging.getLogger(__name__)

_ROUND_S = 1.0  # maximal age of the board when a decision is made
_BUSY_SHARE = 0.5  # of a silence, for which the worker waited for a core
_OWN_WORK_S = 45.0  # least budget for the driver's own work between two waits
_HOST_UNRESPONSIVE_S = 8.0
_DISK_S = 5.0  # for a small file to be written to the run folder
_ALERT_S = 10.0  # for the metrics sinks, whose disk or server may be the problem


class Watchdog:
    """Supervises the waits of one driver.

    Example::

        watchdog = Watchdog(config, run_dir, Telemetry("driver/0"), console.note)
        check = watchdog.watch("trajectories of step 3", processes.statuses)
        check(["env/0", "env/1"])     # raises RunError, status 8, when one of them blocks the run
    """

    def __init__(
        self,
        config: RunConfig,
        run_dir: Path,
        driver: Telemetry,
        note: Callable[[str], None] = lambda text: None,
        alert: Callable[[str, str], None] = lambda title, text: None,
    ):
        """note: receives lines for the console. alert: receives title and text of every alarm."""
        self.driver = driver
        self.note = note
        self._alert = alert
        self.clock = DriverClock(self.note)
        self.board = Board(self.clock.seconds)
        self.budgets = Budgets(config)
        self._is_enabled = config.watchdog.enabled
        self._run_dir = Path(run_dir)
        self._evidence = Evidence(self._run_dir, self.board)
        self._transfers = Transfers()
        self._queue_time = QueueTime()
        self._busy_hosts: set[str] = set()  # hosts that were reported as too busy
        self._starved: set[str] = set()  # workers that wait for a core now
        self.network = Network(self.note)
        self._is_open = True
        self._warned: set[str] = set()
        self._noticed: set[tuple[str, str]] = set()  # (host, notice) of those that were told
        self._on_its_way: set[str] = set()  # workers that wait for a link or a disk, as reported
        self._num_warnings = 0  # warnings and alarms

    def open(self) -> None:
        """Start detecting pauses of the driver itself, until `close`."""
        if self._is_enabled:
            self.clock.open()

    def report_budgets(self) -> None:
        """Report the usual times, and the bound on every silence, in one line."""
        if not self._is_enabled:
            return
        known = self.budgets.summary()
        known = f"{known}; more on a loaded node" if known else "no timings learned yet"
        worker = f"at most {self.budgets.bound_s():.0f} s in which a worker could run and made no progress"
        driver = (
            f"{self.budgets.floor_s:.0f} s, more on a loaded node, in which the driver could run and did not answer"
        )
        self.note(f"watchdog: alarms after {worker} ({known}), and after {driver}")

    def expectations(self) -> dict[str, str]:
        """Learn from the board, and return the usual and the longest allowed silence of each worker's phase.

        For a worker that waits, they are those of the leaf that blocks it.
        Example: {"env/1": "usual 8.2 s, alarm 41 s", "rollout/0": "env/1: usual 8.2 s, alarm 41 s"}
        """
        if not self._is_enabled:
            return {}
        self._learn(self.board.statuses())
        processes = self.board.processes()
        expected = {worker: self._expected(worker, processes) for worker in processes}
        usual_s = self.budgets.usual("driver", self.driver.phase, False)
        return expected | ({self.driver.worker: f"usual {usual_s:.2g} s"} if usual_s is not None else {})

    def driver_limit_s(self) -> float:
        """Return the limit of the driver's main thread without progress; a wait marks progress once a second."""
        if self.driver.is_waiting:
            return local_load_factor() * self.budgets.floor_s
        usual_s = self.budgets.usual("driver", self.driver.phase, False)
        if usual_s is None and self.driver.is_first:
            return self.budgets.start_s
        if self.driver.phase.startswith(CALLBACK):  # it may be quick in one step and slow in the next
            return self.budgets.step_s
        return max(local_load_factor() * _OWN_WORK_S, min(usual_s or 0.0, self.budgets.step_s))

    @property
    def num_disturbances(self) -> int:
        """Number of events so far that make a phase of the driver take longer than usual."""
        return self._num_warnings + self.network.num_noticed + self.board.num_forgotten + self.clock.num_pauses

    def learn_phase(self, phase: str, seconds: float, num_disturbances: int) -> None:
        """Learn the duration of a phase of the driver.

        num_disturbances: their number when the phase began. A phase with a disturbance is not learned.
        """
        if num_disturbances == self.num_disturbances:
            self._report_changes(self.budgets.learn_driver(phase, seconds))

    def _expected(self, worker: str, processes: Mapping[str, Process]) -> str:
        """Describe the usual and the longest allowed silence of the leaf that blocks `worker`."""
        leaf = leaves([worker], processes)[0].worker
        process = processes.get(leaf)
        if process is None or process.phase == IDLE or not process.is_answering:
            return ""
        usual_s = self.budgets.usual(process.role, process.phase, process.is_first)
        words = [f"usual {usual_s:.2g} s"] if usual_s is not None else []
        words.append(f"alarm {self._silence_and_budget(process, 0.0)[1]:.0f} s")
        return ("" if leaf == worker else f"{leaf}: ") + ", ".join(words)

    def watch(
        self,
        subject: str,
        poll: Callable[[], object],
        incoming: Callable[[], Mapping[str, Incoming]] = dict,
    ) -> Callable[[list[str]], None] | None:
        """Start watching a wait. Returns the check to call during the wait, or None if the watchdog is off.

        subject: text on the results that the driver waits for. poll: polls all workers and stores their statuses on the
        board. incoming: returns, without waiting, the arguments of requests that have not reached their nodes.
        The check takes the workers that have not answered yet, and raises RunError for a stall.
        """
        if not self._is_enabled:
            return None
        self._raise_failures(self.board.statuses())
        self.board.expect_data({})
        started = checked = self.clock.seconds()
        watched_s = 0.0  # duration of the wait without long gaps between two checks
        slowness = Slowness(subject, self.budgets.usual("driver", self.driver.phase, False))

        def check(pending: list[str]) -> None:
            nonlocal checked, watched_s
            if self.board.age_s > _ROUND_S:
                poll()
            now = self.clock.seconds()
            watched_s = watched_s + min(now - checked, PAUSE_S)
            checked = now
            self.board.expect_data(incoming())
            self._check(subject, pending, watched_s)
            processes = self.board.processes()
            late = leaves(pending, processes)
            is_known = (
                any(leaf.worker in self._warned | self._starved for leaf in late) or self.network.has_faulty_paths
            )
            sentence = slowness.check(late, processes, now - started, is_known)
            if sentence is not None:
                self.note(sentence)

        return check

    def _check(self, subject: str, pending: list[str], waited_s: float) -> None:
        statuses = self.board.statuses()
        self._raise_failures(statuses)
        self._tell_notices(statuses)
        self._learn(statuses)
        processes = self.board.processes()
        for sentence in self._transfers.check(processes, self.clock.seconds()):
            self.note(sentence)
        is_excused = self.network.check(waited_s, self.budgets.step_s)
        if not is_excused:
            self._warn_of_hosts(processes)
        late = self._late_leaves(pending, processes, waited_s, is_excused)
        if late:
            self._alarm(Stall(subject, pending, late, processes))

    def _learn(self, statuses: Mapping[str, WorkerStatus]) -> None:
        for worker, status in statuses.items():
            self._report_changes(self.budgets.learn(worker, status.silences, load_factor(status.load)))

    def _report_changes(self, changes: list[str]) -> None:
        for sentence in changes:
            self.note(sentence)

    def _late_leaves(
        self, pending: list[str], processes: Mapping[str, Process], waited_s: float, is_excused: bool
    ) -> list[Leaf]:
        """Return the leaves over their budget. No rank in a collective is late while another one makes progress.

        is_excused: the network loses or delays packets, and only cluster.step_deadline_s applies.
        """
        over = []
        moving = False
        unstarted: dict[str, float] = {}
        for leaf in leaves(pending, processes):
            process = processes.get(leaf.worker)
            silence_s, budget_s = self._silence_and_budget(process, waited_s)
            if silence_s <= budget_s:
                self._on_its_way.discard(leaf.worker)
            is_patient = is_excused or leaf.worker in self._on_its_way
            if silence_s > (self.budgets.step_s if is_patient else budget_s):
                over.append(leaf)
            elif process is None:
                unstarted[leaf.worker] = budget_s
            elif not is_excused:
                moving |= process.is_collective
                left = finished_peers(process, pending, processes) if process.is_collective else []
                self._warn(process, silence_s, budget_s, left, processes)
        self._warn_of_starts(unstarted, waited_s)
        return [leaf for leaf in over if not moving or not _is_collective(leaf, processes)]

    def _silence_and_budget(self, process: Process | None, waited_s: float) -> tuple[float, float]:
        """Return the silence of a process, without pauses of the driver, and its budget."""
        now_s = self.clock.seconds()
        if process is None:  # of a private Ray, its process will be a descendant of this one
            queued_s = self._queue_time.within("starts", waited_s, now_s, lambda: queue_seconds([os.getpid()]))
            return waited_s - queued_s, self.budgets.start_s
        silence_s, budget_s = self._measured_silence_and_budget(process, waited_s)
        silence_s = min(silence_s, self.clock.since_pause_s)
        queued_s = self._queue_time.within(process.worker, silence_s, now_s, lambda: self._queue_seconds(process))
        self._note_starved(process, silence_s, queued_s)
        return silence_s - queued_s, budget_s

    def _queue_seconds(self, process: Process) -> dict[str, float]:
        """Return the times on run queues of those that a worker's next sign of progress depends on."""
        seconds = self._evidence.queue_seconds(process)
        is_by_message = not process.is_answering or process.phase == IDLE
        return seconds | queue_seconds([os.getpid()], with_children=False) if is_by_message else seconds

    def _note_starved(self, process: Process, silence_s: float, queued_s: float) -> None:
        """Report a node that is too busy, once: its workers wait for a core, and are not stalled."""
        if silence_s < MIN_REPORT_S / 2 or queued_s < _BUSY_SHARE * silence_s:
            self._starved.discard(process.worker)
            return
        self._starved.add(process.worker)
        if process.host not in self._busy_hosts:
            self._busy_hosts.add(process.host)
            self._num_warnings += 1
            cores = f" of {os.cpu_count()} cores" if process.host == socket.gethostname() else ""
            self.note(
                f"node {process.host} is too busy (load {process.load:.1f} per core{cores}): {process.worker} waited "
                f"for a core for {queued_s:.0f} of the last {silence_s:.0f} s; workers get more time there"
            )

    def _measured_silence_and_budget(self, process: Process, waited_s: float) -> tuple[float, float]:
        budgets = self.budgets
        factor = load_factor(process.load)
        if not process.is_answering:
            if self._evidence.state(process) in ("T", "t", "Z", "gone"):
                return process.status_age_s, budgets.floor_s
            return process.status_age_s, budgets.unresponsive_s(process.role, process.phase, process.is_first, factor)
        if process.phase == IDLE:
            return min(process.silence_s, waited_s), budgets.delivery_s(self.driver.phase, factor)
        return process.silence_s, budgets.seconds(process.role, process.phase, process.is_first, factor)

    def _warn(
        self,
        process: Process,
        silence_s: float,
        budget_s: float,
        left: list[str],
        processes: Mapping[str, Process],
    ) -> None:
        """Warn about a slow worker, half-way to the alarm or earlier, once per silence. left: finished peers."""
        usual_s = self._usual(process)
        at_s = warning_after_s(usual_s if process.is_answering else None, budget_s)
        if silence_s < at_s:
            self._warned.discard(process.worker)
        elif process.worker not in self._warned | self._starved:
            self._warned.add(process.worker)
            self._num_warnings += 1
            name = f"{process.worker}@{process.host}"
            alarm = f"alarm {budget_s:.0f} s"
            if process.incoming is not None:
                what = f"its input of {format_incoming(process.incoming, processes)} is on its way"
                self.network.tell(f"{name}: {what} for {silence_s:.0f} s; waiting up to {self.budgets.step_s:.0f} s")
            elif not process.is_answering:
                self.note(f"{name}: has not answered for {silence_s:.0f} s; {alarm}")
            elif process.phase == IDLE and (broken := self.network.links.sentences()):
                lost = f"what {name} waits for may be lost, for {silence_s:.0f} s; {alarm}"
                self.network.tell(f"{'; '.join(broken)}: {lost}")
            elif process.phase == IDLE:
                producers = (
                    f"; its input is produced by {format_workers(process.producers)}" if process.producers else ""
                )
                self.note(f"{name}: asked {silence_s:.0f} s ago, has not begun{producers}; {alarm}")
            else:
                usual = "not known yet" if usual_s is None else f"{usual_s:.2g} s"
                gone = f", which {format_workers(left)} has left" if left else ""
                self.note(f"{name}: no progress for {silence_s:.0f} s in {process.phase}{gone}; usual {usual}, {alarm}")

    def _warn_of_starts(self, unstarted: Mapping[str, float], waited_s: float) -> None:
        """Warn once about processes that have not answered since they were started. unstarted: worker -> budget."""
        if waited_s < local_load_factor() * MIN_REPORT_S:
            self._warned -= unstarted.keys()  # of an earlier process of that name
            return
        late = [worker for worker in unstarted if worker not in self._warned]
        if late:
            self._warned |= set(late)
            self._num_warnings += 1
            limit_s = max(unstarted.values())
            self.note(f"{format_workers(late)} has not started for {waited_s:.0f} s; alarm {limit_s:.0f} s")

    def _warn_of_hosts(self, processes: Mapping[str, Process]) -> None:
        """Warn about another node on which no worker answers: no worker is at fault then."""
        hosts: dict[str, list[Process]] = {}
        for process in processes.values():
            if process.incoming is None:  # else it does not answer because it waits for its input
                hosts.setdefault(process.host, []).append(process)
        for host, there in hosts.items():
            silent_s = min(process.status_age_s for process in there)
            if silent_s < _HOST_UNRESPONSIVE_S or host == socket.gethostname():
                self._warned.discard(host)
            elif host not in self._warned:
                self._warned |= {host, *(process.worker for process in there)}
                workers = format_workers([process.worker for process in there])
                self.network.tell(
                    f"node {host} has not answered for {silent_s:.0f} s, nor has {workers}: its link or power?"
                )

    def _usual(self, process: Process) -> float | None:
        """Return the usual silence of the phase that a process is in; None if it is unknown."""
        if process.phase == IDLE:
            return self.budgets.usual("driver", self.driver.phase, False)
        return self.budgets.usual(process.role, process.phase, process.is_first)

    def _raise_failures(self, statuses: Mapping[str, WorkerStatus]) -> None:
        failures = {worker: status.failure for worker, status in statuses.items() if status.failure}
        if self.driver.failure:
            failures["driver/0"] = self.driver.failure
        for worker, failure in failures.items():
            row = problem("thread-died")
            lines = failure.strip().splitlines()
            raise RunError(
                f"{worker} {row.predicate}, {lines[0].rstrip(':')}: {lines[-1]}",
                cause=failure.strip(),
                remedy=row.fix,
                exit_status=ExitStatus.unexpected,
                worker=None if worker == self.driver.worker else worker,
                row=row.name,
            )

    def _tell_notices(self, statuses: Mapping[str, WorkerStatus]) -> None:
        """Tell each notice once per node: workers of a node have the same to tell."""
        for worker, status in statuses.items():
            for text in status.notices:
                if (status.host, text) not in self._noticed:
                    self._noticed.add((status.host, text))
                    self.note(f"warning: {worker}@{status.host}: {text}")

    def _alarm(self, stall: Stall) -> None:
        """Collect evidence, diagnose, and raise RunError.

        Data on its way and a worker that waits for a hanging disk are reported and get more time instead.
        """
        diagnosis = diagnose(stall)
        self._num_warnings += 1
        if self._waits_for_disk(stall.processes.get(diagnosis.culprit)):
            self._on_its_way.add(diagnosis.culprit)
            limit_s = self.budgets.step_s
            disk = f"the disk of {self._run_dir} {problem('disk-hangs').predicate}"
            self.note(f"{diagnosis.sentence}; {disk}: waiting up to {limit_s:.0f} s for it")
            return
        logger.warning("alarm: %s", diagnosis.sentence)
        collected = self._evidence.collect(stall)
        diagnosis = diagnose(collected.stall)
        if diagnosis.problem.name == "on-its-way" and diagnosis.culprit not in self._on_its_way:
            self._on_its_way.add(diagnosis.culprit)
            self.network.tell(f"{diagnosis.sentence}; waiting up to {self.budgets.step_s:.0f} s for it")
            return
        archive, remark = self._evidence.pack(collected, diagnosis)
        self.note(f"alarm, evidence in {archive}{remark}")
        title = f"{diagnosis.culprit} {diagnosis.problem.predicate}"
        text = f"{diagnosis.sentence}\n-> {diagnosis.action}\n{archive}"
        run_with_timeout("alert", lambda: self._alert(title, text), None, [], _ALERT_S)
        raise RunError(
            diagnosis.sentence,
            cause="\n".join([diagnosis.problem.cause, *collected.summary(diagnosis.culprit), f"evidence: {archive}"]),
            remedy=diagnosis.action,
            exit_status=ExitStatus.stalled,
            worker=diagnosis.culprit,
            row=diagnosis.problem.name,
        )

    def keep_evidence(self, failure: RunError) -> None:
        """Write an archive about a failure that ends the run: logs, statuses and the state of this node."""
        archive, remark = self._evidence.pack_failure(failure)
        self.note(f"evidence in {archive}{remark}")

    def _waits_for_disk(self, process: Process | None) -> bool:
        """Return whether a process hangs on the disk of the run folder; its replacement would hang as well."""
        if process is None or process.worker in self._on_its_way or self._evidence.state(process) != "D":
            return False
        return not is_responsive(self._run_dir, _DISK_S)

    def close(self) -> None:
        """Save the learned budgets. Safe to call twice."""
        if self._is_open:
            self._is_open = False
            self.clock.close()
            self.budgets.save()


def _is_collective(leaf: Leaf, processes: Mapping[str, Process]) -> bool:
    process = processes.get(leaf.worker)
    return process is not None and process.is_answering and process.is_collective
