"""The Ray actor around one plain worker: the only place where a worker meets Ray."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Any

import ray

from rlrun.channel.inquirer import Inquirer
from rlrun.channel.lane import Door, LaneAddress
from rlrun.channel.reception import Reception
from rlrun.channel.stages import Stages
from rlrun.config.row_parts import parts_of
from rlrun.config.schema import RunConfig
from rlrun.controller.worker_factory import make_worker
from rlrun.data.messages import Span, WorkerStatus
from rlrun.observability.logs import open_worker_log
from rlrun.placement.network import choose_interface
from rlrun.placement.node_environment import node_environment
from rlrun.placement.plan import Slot
from rlrun.watchdog.heartbeat import Heartbeat

_LONG_S = 3600.0
_MESSAGE_S = 60.0  # for the rest of a message whose beginning is here, and for an answer to be read


class WorkerActor:
    """Runs requests one after another; its status, and a rollout worker's env workers, are answered beside them.

    Threads: `work` has one, so that renderers and process groups stay on the thread that made them.
    """

    def __init__(self, slot: Slot, config: RunConfig, run_dir: str, peer: str | None):
        """peer: address of the node to whose side the collectives look; None: this node is alone."""
        self.name, self._role = slot.name, slot.role
        open_worker_log(Path(run_dir), self.name, config.logging.verbosity)
        logging.getLogger(__name__).info("started")
        own = ray.util.get_node_ip_address()
        self._interface = choose_interface(slot.node, peer or own, peer is None, slot.interface)
        environment = node_environment(slot, self._interface, config)
        self._worker = make_worker(slot.role, slot.rank, config, environment, slot.interpreter)
        # The driver sees all sides, and decides earlier who is late; this one holds when the driver is gone.
        deadline_s, lost_after_s = 2 * config.cluster.step_deadline_s, config.node.lost_after_s
        telemetry, node = self._worker.telemetry, ray.get_runtime_context().get_node_id()
        if config.watchdog.enabled:
            self._heartbeat = Heartbeat(telemetry, Path(run_dir), config.watchdog.heartbeat_s)
        self._turn = threading.Lock()
        if slot.role == "env":
            self._inquirer = Inquirer(slot.rank, telemetry, node, lost_after_s, deadline_s)
        if slot.role == "rollout":
            num_stages, num_parts = config.rollout.pipeline_stages, len(parts_of(config))
            stages = Stages(self._worker.act, telemetry, num_stages, num_parts, self._turn, deadline_s)
            door = Door(self._interface.addresses[0], node, lost_after_s, _MESSAGE_S)
            self._reception = Reception(stages, door, telemetry, lambda: self._worker.policy_version)

    @ray.method(concurrency_group="work")
    def run(self, method: str, *arguments: Any) -> Any:
        """Call a method of the worker. One that changes the policy does so between two answers."""
        with self._turn:
            value = getattr(self._worker, method)(*arguments)
        if self._role == "rollout":
            self._reception.weights_changed()
        return value

    @ray.method(concurrency_group="life")
    def live(self) -> None:
        """Never answers: its reference fails when this process ends, whatever else is asked of it."""
        while not threading.Event().wait(_LONG_S):
            pass

    @ray.method(concurrency_group="work")
    def converse(self, method: str, arguments: tuple, lane: LaneAddress, rollout: str, conversation: int) -> Any:
        """Run a generator method of an env worker; the worker `rollout`, at `lane`, answers its observations."""
        talks, joined = self._worker.conversation(method, *arguments)
        parts = joined(self._inquirer.converse(talks, lane, rollout, conversation))
        return parts if len(parts) > 1 else parts[0]

    @ray.method(concurrency_group="status")
    def lane(self) -> LaneAddress:
        """Rollout worker: where its env workers reach it."""
        return self._reception.address

    @ray.method(concurrency_group="status")
    def open_rendezvous(self, conversation: int, members: set[int]) -> None:
        """Rollout worker: a conversation with these env workers begins."""
        self._reception.open(conversation, members)

    @ray.method(concurrency_group="status")
    def leave(self, conversation: int, member: int) -> None:
        """Rollout worker: an env worker has ended in the middle of a conversation."""
        self._reception.leave(conversation, member)

    @ray.method(concurrency_group="status")
    def address(self) -> str:
        """IP address under which the collectives of the others reach this node."""
        return self._interface.addresses[0]

    @ray.method(concurrency_group="status")
    def status(self) -> WorkerStatus:
        """What the worker does now."""
        return self._worker.telemetry.status()

    @ray.method(concurrency_group="status")
    def spans(self) -> list[Span]:
        """Closed spans since the last call."""
        return self._worker.telemetry.drain_spans()
