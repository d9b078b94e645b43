"""One Ray actor per worker, on the node and accelerators of its slot."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import ray
from ray.exceptions import GetTimeoutError, RayError

from rlrun.cluster.probe import inventory_for, is_here, link_tries, node_state, path_fault, path_faults, peer_of
from rlrun.cluster.ray_nodes import RayNode
from rlrun.cluster.ray_session import RaySession
from rlrun.cluster.reservation import Reservation, next_plan
from rlrun.cluster.waits import SLOW_S, Inputs, late, slow, wait_for
from rlrun.cluster.worker_actor import WorkerActor
from rlrun.config.schema import RunConfig
from rlrun.controller.workers import Call, Future, Workers
from rlrun.edges.connection import ServerAddress
from rlrun.observability.run_files import PLAN
from rlrun.placement.plan import Plan, Slot
from rlrun.system.errors import ExitStatus, RunError
from rlrun.system.status import Span, WorkerStatus
from rlrun.system.telemetry import mark_alive
from rlrun.watchdog.network import LinkHistory
from rlrun.watchdog.probes import PathMonitor
from rlrun.watchdog.supervised import ProcessExits
from rlrun.watchdog.watchdog import Watchdog

logger = logging.getLogger(__name__)

T = TypeVar("T")

_STATUS_S = 1.0  # the console omits a worker whose status takes longer
_CLOSE_S = 5.0


class RayWorkers(Workers):
    """Workers as Ray actors on the nodes of `connection`. `close` ends them and closes the connection."""

    def __init__(
        self,
        config: RunConfig,
        plan: Plan,
        roles: Sequence[str],
        run_dir: Path,
        connection: RaySession,
        watchdog: Watchdog,
        is_stopped: Callable[[], bool],
    ):
        """Start the plan's workers. is_stopped: whether a stop was requested, which ends the wait for a lost node."""
        self.plan = plan
        self.sizes = {role: len(plan.of(role)) for role in roles}
        self._config = config
        self._connection = connection
        self._watchdog = watchdog
        watchdog.open()
        self._is_stopped = is_stopped
        self._asking_lock = threading.Lock()  # the console's thread and the driver's waits both ask for statuses
        self._unanswered: dict[tuple[str, str], ray.ObjectRef] = {}  # (worker, method) -> a call without an answer yet
        self._reservations: list[Reservation] = []
        self._run_dir = run_dir
        self._exits = ProcessExits(run_dir)
        self._inputs = Inputs()
        self._hosts: dict[tuple[str, int], Any] = {}
        self._lifelines: dict[tuple[str, int], ray.ObjectRef] = {}
        self._num_launched = 0
        self._collection = 0  # number of the newest collection
        self._members: set[int] = set()  # env workers that take part in it
        self._servers: dict[int, ServerAddress] = {}  # by rank of the rollout worker
        try:
            slots = [slot for role in roles for slot in plan.of(role)]
            self._nodes = _by_name(slots, connection.nodes())
            self._watch_links()
            self._reserve(slots, self._nodes)
            for slot in slots:
                self._launch(slot)
        except BaseException:
            self.close()
            raise

    def _watch_links(self) -> None:
        """Watch the links and paths to the nodes that the run has now."""
        nodes = list(self._nodes.values())
        paths = PathMonitor(path_faults(nodes)) if len(nodes) > 1 else None
        others = [node.name for node in nodes if not is_here(node)]
        self._watchdog.network.connect(others, LinkHistory(link_tries(nodes)), paths)

    def _launch(self, slot: Slot) -> None:
        self._num_launched += 1
        node = self._nodes[slot.node]
        reservation = next(held for held in self._reservations if held.covers(slot, node))
        options: dict[str, Any] = {
            "num_cpus": 0,  # the node's bundle reserves the cores
            "name": f"{slot.name}/{self._run_dir}#{self._num_launched}",
            "scheduling_strategy": reservation.scheduling(slot),
            "concurrency_groups": {"work": 1, "status": 1, "life": 1},
        }
        peer = peer_of(node, list(self._nodes.values()))
        host = ray.remote(**options)(WorkerActor).remote(slot, self._config, str(self._run_dir), peer)
        self._hosts[slot.role, slot.rank] = host
        if slot.role == "rollout":
            self._servers.pop(slot.rank, None)
        self._lifelines[slot.role, slot.rank] = host.live.remote()

    def _reserve(self, slots: Sequence[Slot], nodes: Mapping[str, RayNode]) -> None:
        """Reserve the resources that the slots need and the run has not reserved yet. Raises RunError."""
        missing = [s for s in slots if not any(held.covers(s, nodes[s.node]) for held in self._reservations)]
        if missing:
            deadline_s = self._config.cluster.placement_deadline_s
            purpose = str(self._run_dir)
            note = self._watchdog.note
            more = Reservation(missing, nodes, purpose, deadline_s, note, self._reservations)
            self._reservations.append(more)

    @property
    def can_replace(self) -> bool:
        return self._connection.is_alive

    def configure(self, config: RunConfig) -> None:
        self._config = config

    def replace(self, role: str, rank: int) -> list[tuple[str, int]]:
        self._connection.check()
        slot = self.plan.slot(role, rank)
        self._end(slot)
        if self._is_there(slot):
            self._watchdog.network.doubts(slot.name, path_fault(self._nodes[slot.node]))
            self._launch(slot)
            if self._starts(slot):
                return [(role, rank)]
        return self._move(is_actor_moved=role == "actor")

    def _end(self, slot: Slot) -> None:
        """End a worker, and release the other workers that wait for it."""
        with self._asking_lock:  # else a round of polling in progress would bring its status back
            self._watchdog.board.forget(slot.name)
            self._exits.forget(slot.name)
            self._unanswered = {key: ref for key, ref in self._unanswered.items() if key[0] != slot.name}
        ray.kill(self._hosts[slot.role, slot.rank])
        if slot.role == "env" and "rollout" in self.sizes:
            self._members.discard(slot.rank)
            self._hosts["rollout", self.rollout_of(slot.rank)].leave_collection.remote(self._collection, slot.rank)

    def _is_there(self, slot: Slot) -> bool:
        """Return whether the node of a slot is still the one for which it was planned."""
        return self._nodes[slot.node].node_id in {node.node_id for node in self._connection.nodes()}

    def _starts(self, slot: Slot) -> bool:
        """Wait, watched, until the new process answers. Return False if its node is lost before that.

        Returns True for a process that fails on a living node, and for the failure of another worker: the next wait
        reports that. Raises RunError for a process that has not started at the deadline.
        """
        name = slot.name
        answer = self._hosts[slot.role, slot.rank].address.remote()

        def require_node() -> None:
            if not self._is_there(slot):
                raise RunError(
                    f"{name}: its node left the cluster while it started",
                    remedy="Read the log of that node.",
                    exit_status=ExitStatus.worker_lost,
                    worker=name,
                )

        try:
            deadline_s = self._config.cluster.start_deadline_s
            self._wait({answer: f"{name}.start"}, f"start of {name} on {slot.node}", deadline_s, also=require_node)
            return True
        except RunError as failure:
            if failure.worker is None or (failure.worker == name and failure.exit_status is ExitStatus.stalled):
                raise
            logger.info("%s does not start: %s", name, failure)
            return failure.worker != name or self._survives(slot)

    def _survives(self, slot: Slot) -> bool:
        """Return whether the node of a slot is still there after the time in which Ray detects a lost node."""
        began = time.monotonic()
        limit_s = self._config.node.lost_after_s + _STATUS_S
        subject = f"word whether node {slot.node} is lost"
        is_told = False
        with self._watchdog.driver.waiting(subject, (slot.name,), limit_s):
            while (waited_s := time.monotonic() - began) < limit_s and self._is_there(slot):
                if waited_s > SLOW_S and not is_told:
                    is_told = True
                    self._watchdog.note(slow(subject, [slot.name], waited_s, limit_s))
                mark_alive()
                time.sleep(_STATUS_S)
        return self._is_there(slot)

    def _move(self, is_actor_moved: bool) -> list[tuple[str, int]]:
        """Plan without the lost nodes, and restart every worker whose place changes. Raises RunError."""
        old = self.plan
        before = self._nodes
        self.plan, self._nodes, lost = self._replanned()
        roles = [role for role in self.sizes if role != "actor" or is_actor_moved]
        moving = [
            slot
            for slot in self.plan.slots
            if slot.role in roles
            and _location_key(slot, self._nodes) != _location_key(old.slot(slot.role, slot.rank), before)
        ]
        (self._run_dir / PLAN).write_text(self.plan.to_json())
        where = ", ".join(f"{slot.name} on {slot.node}" for slot in moving)
        self._watchdog.note(f"node {', '.join(sorted(lost))} is lost; the plan changes: {where}")
        self._watch_links()
        for slot in moving:
            self._end(slot)
        for slot in moving:
            self._launch(slot)
        moved = [(slot.role, slot.rank) for slot in moving]
        if all(self._starts(slot) for slot in moving):
            return moved
        return list(dict.fromkeys(moved + self._move(is_actor_moved)))  # another node was lost meanwhile

    def _replanned(self) -> tuple[Plan, dict[str, RayNode], list[str]]:
        """Return a plan without the lost nodes, whose resources are reserved, its nodes, and the names of the lost."""
        config = self._config
        note = self._watchdog.note
        nodes = self._connection.nodes
        for link in self._watchdog.network.links.sentences(least=2):
            self._watchdog.network.tell(link)
        while True:
            living = {node.node_id for node in nodes()}
            lost = [name for name in {slot.node for slot in self.plan.slots} if self._nodes[name].node_id not in living]
            words = partial(_state_of_nodes, [self._nodes[name] for name in lost], nodes, config.node.lost_after_s)
            subject = f"nodes in place of {', '.join(lost)}"
            measure = partial(inventory_for, config)
            with self._watchdog.driver.waiting(subject, (), config.recovery.node_wait_s):
                plan_and_nodes = next_plan(config, self.plan, lost, nodes, measure, note, self._is_stopped, words)
            try:
                self._reserve([slot for slot in plan_and_nodes[0].slots if slot.role in self.sizes], plan_and_nodes[1])
                return *plan_and_nodes, lost
            except RunError as failure:
                if failure.exit_status is not ExitStatus.worker_lost:
                    raise
                note(f"{failure.message} Planning again")

    def submit(self, role: str, rank: int, call: Call) -> Future[Any]:
        values = [argument.reference if isinstance(argument, Future) else argument for argument in call.arguments]
        producers = tuple(argument.worker for argument in call.arguments if isinstance(argument, Future))
        reference = self._hosts[role, rank].run.remote(call.method, *values)
        future = Future[Any](f"{role}/{rank}", call.method, reference, producers)
        self._inputs.record(future, call.arguments)
        return future

    def run_episodes(
        self, calls: Mapping[int, Call], num_returns: Mapping[int, int]
    ) -> dict[int, tuple[Future[Any], ...]]:
        self._collection += 1
        self._members = set(calls)
        self._find_servers()
        for rollout in range(self.sizes["rollout"]):
            members = {rank for rank in self._members if self.rollout_of(rank) == rollout}
            self._hosts["rollout", rollout].open_collection.remote(self._collection, members)
        futures: dict[int, tuple[Future[Any], ...]] = {}
        for rank, call in calls.items():
            rollout = self.rollout_of(rank)
            host = self._hosts["env", rank].run_episodes.options(num_returns=num_returns[rank])
            refs = host.remote(
                call.method, call.arguments, self._servers[rollout], f"rollout/{rollout}", self._collection
            )
            refs = refs if num_returns[rank] > 1 else [refs]
            futures[rank] = tuple(Future(f"env/{rank}", call.method, ref) for ref in refs)
        return futures

    def _find_servers(self) -> None:
        """Ask every new rollout worker once for the address of its policy server."""
        unknown = [rank for rank in range(self.sizes["rollout"]) if rank not in self._servers]
        if not unknown:
            return
        asked = {
            self._hosts["rollout", rank].policy_server.remote(): f"rollout/{rank}.policy_server" for rank in unknown
        }
        addresses = self._wait(asked, "policy servers", self._config.cluster.step_deadline_s)
        self._servers |= zip(unknown, addresses, strict=True)

    def wait(self, futures: Sequence[Future[T]], subject: str, deadline_s: float) -> list[T]:
        return self._wait(self._labels(futures), subject, deadline_s, self._watched(), futures=futures)

    def outcomes(
        self, futures: Sequence[Future[T]], subject: str, deadline_s: float, on_failure: Callable[[RunError], None]
    ) -> list[T | RunError]:
        return self._wait(self._labels(futures), subject, deadline_s, self._watched(), on_failure, futures)

    def _labels(self, futures: Sequence[Future[Any]]) -> dict[ray.ObjectRef, str]:
        for future in futures:
            self._watchdog.board.expect(future.worker, future.producers)
        return {future.reference: f"{future.worker}.{future.method}" for future in futures}

    def _wait(
        self,
        labels: dict[ray.ObjectRef, str],
        subject: str,
        deadline_s: float,
        lifelines: dict[ray.ObjectRef, str] | None = None,
        on_failure: Callable[[RunError], None] | None = None,
        futures: Sequence[Future[Any]] = (),
        also: Callable[[], None] | None = None,
    ) -> list[Any]:
        """Wait, watched. also: called about once a second; ends the wait by raising RunError."""
        self._connection.check()
        look = self._watchdog.watch(subject, self._ask, lambda: self._inputs.missing(futures, self._node_id))

        end = time.monotonic() + deadline_s

        def check(pending: list[str]) -> None:
            nonlocal end
            if also is not None:
                also()
            if look is not None:
                look(pending)
            elif time.monotonic() >= end:
                end = time.monotonic() + deadline_s
                raise late(pending, subject, deadline_s)

        def with_cause(failure: RunError) -> None:
            if failure.exit_status is ExitStatus.worker_lost:
                self._connection.check(is_urgent=True)  # Ray ends its workers when one of its services has ended
            self._exits.explain(failure)
            failure = self._link_broke(failure) or failure
            if on_failure is None:
                raise failure
            on_failure(failure)

        watched = None if look is None and also is None else check
        return wait_for(labels, subject, deadline_s, self._watchdog.driver, watched, lifelines, with_cause)

    def _link_broke(self, failure: RunError) -> RunError | None:
        """Return the failure of a link in place of a lost connection to a worker that still runs; None: it is none."""
        worker = failure.worker or ""
        faults = self._watchdog.network.links.sentences()
        if failure.kind != "policy-server-lost" or not faults or not self._runs(worker):
            return None
        self._watchdog.network.links.wait_up(self._config.node.lost_after_s)  # else the next try would fail at once
        return RunError(
            f"{'; '.join(faults)}: the connection to {worker} was lost, which still runs",
            cause=failure.cause,
            remedy="Look at cables, switches and drivers (`ip -s link` counts errors). A higher node.lost_after_s lets "
            "connections outlive longer breaks.",
            exit_status=ExitStatus.worker_lost,
            worker=worker,
            kind="link-broke",
        )

    def _runs(self, worker: str) -> bool:
        """Return whether the process of a worker has not ended, as far as Ray knows."""
        role, _, rank = worker.partition("/")
        return not ray.wait([self._lifelines[role, int(rank)]], timeout=0)[0]

    def _node_id(self, worker: str) -> str:
        role, _, rank = worker.partition("/")
        return self._nodes[self.plan.slot(role, int(rank)).node].node_id

    def _watched(self) -> dict[ray.ObjectRef, str]:
        return {ref: f"{role}/{rank}" for (role, rank), ref in self._lifelines.items()}

    def address(self, role: str, rank: int) -> str:
        ref = self._hosts[role, rank].address.remote()
        return self._wait({ref: f"{role}/{rank}.address"}, "addresses", self._config.cluster.start_deadline_s)[0]

    def statuses(self) -> list[WorkerStatus]:
        with self._asking_lock:
            statuses = list(self._poll("status").values())
            self._watchdog.board.put(statuses)
            self._exits.watch(statuses)
        return statuses

    def _ask(self) -> None:
        """Check Ray's services, then update the board; the watchdog calls this before it judges."""
        self._connection.check()
        self.statuses()

    def spans(self) -> dict[str, list[Span]]:
        with self._asking_lock:
            return self._poll("spans")

    def _poll(self, method: str) -> dict[str, Any]:
        """Return the results of the workers that answer within a second. A call without an answer is not repeated.

        The caller holds the lock.
        """
        keys = {(f"{role}/{rank}", method): host for (role, rank), host in list(self._hosts.items())}
        unanswered = {key: self._unanswered.pop(key) for key in keys if key in self._unanswered}
        fresh = {key: getattr(host, method).remote() for key, host in keys.items() if key not in unanswered}
        if fresh:
            ray.wait(list(fresh.values()), num_returns=len(fresh), timeout=_STATUS_S)
        answers = {}
        for (worker, _), ref in (unanswered | fresh).items():
            try:
                answers[worker] = ray.get(ref, timeout=0)
            except GetTimeoutError:
                self._unanswered[worker, method] = ref
            except RayError as error:  # the next wait for this worker reports it
                logger.debug("%s did not answer the request for its %s: %s", worker, method, error)
        return answers

    def close(self) -> None:
        self._watchdog.close()
        self._watchdog.network.links.close()
        if self._connection.is_alive:
            self._end_workers()
            for reservation in () if self._connection.is_private else self._reservations:
                reservation.close()  # waits a minute for a head that has ended, as a private one may have meanwhile
        self._connection.close()
        self._exits.close()

    def _end_workers(self) -> None:
        closing = [host.run.remote("close") for host in self._hosts.values()]
        ray.wait(closing, num_returns=len(closing), timeout=_CLOSE_S)
        for host in self._hosts.values():
            ray.kill(host)
        self._hosts.clear()
        self._lifelines.clear()


def _state_of_nodes(lost: Sequence[RayNode], living: Callable[[], list[RayNode]], lost_after_s: float) -> str:
    """Return the state of the lost nodes; "" for those that are back."""
    names = {node.name for node in living()}
    return "; ".join(node_state(node, lost_after_s) for node in lost if node.name not in names)


def _location_key(slot: Slot, nodes: Mapping[str, RayNode]) -> tuple[str, tuple[int, ...]]:
    """Return the identity of a location: the node id, since a node that returns under its name is another node."""
    return nodes[slot.node].node_id, slot.accelerators


def _by_name(slots: Sequence[Slot], living: Sequence[RayNode]) -> dict[str, RayNode]:
    """Return the living nodes by name. Raises RunError naming nodes that a slot needs and the cluster lacks."""
    nodes = {node.name: node for node in living}
    missing = sorted({slot.node for slot in slots} - set(nodes))
    if missing:
        raise RunError(
            f"The plan needs nodes that Ray does not have: {', '.join(missing)}.",
            "cluster.address",
            cause=f"Ray has {', '.join(nodes) or 'no node'}.",
            remedy="Start Ray on them with scripts/start_worker.sh, or leave out placement.inventory to plan with "
            "what is there.",
            exit_status=ExitStatus.placement,
        )
    return nodes
