"""The Ray actor around one plain worker: the only place where a worker meets Ray."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Any

import ray

from rlrun.channel.batcher import Pipeline
from rlrun.channel.client import PolicyClient
from rlrun.channel.connection import ServerAddress
from rlrun.channel.keys import CurveKeys, Token
from rlrun.channel.server import PolicyServer
from rlrun.config.schema import ChannelSecurity, RunConfig
from rlrun.controller.worker_factory import make_worker
from rlrun.data.messages import Span, WorkerStatus
from rlrun.observability.logs import open_worker_log
from rlrun.placement.network import choose_interface
from rlrun.placement.node_environment import node_environment
from rlrun.placement.plan import Slot
from rlrun.watchdog.heartbeat import Heartbeat

_LONG_S = 3600.0


class WorkerActor:
    """Runs requests one after another; its status, and a rollout worker's env workers, are answered beside them.

    Threads: `work` has one, so that renderers and process groups stay on the thread that made them.
    """

    def __init__(self, slot: Slot, config: RunConfig, run_dir: str, peer: str | None):
        """peer: address of the node to whose side the collectives look; None: this node is alone."""
        self.name = slot.name
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
        self._worker_lock = threading.Lock()  # held while a request runs, or the policy answers
        self._server: PolicyServer | None = None
        if slot.role == "env":
            self._client = PolicyClient(slot.rank, telemetry, node, lost_after_s, deadline_s)
        if slot.role == "rollout":
            num_groups = config.rollout.pipeline_stages
            policy = self._worker
            pipeline: Pipeline = Pipeline(
                policy.act, lambda: policy.policy_version, telemetry, num_groups, self._worker_lock, deadline_s
            )
            keys = CurveKeys() if config.cluster.channel_security is ChannelSecurity.curve else Token()
            host = self._interface.addresses[0]
            self._server = PolicyServer(pipeline, host, node, keys, lost_after_s, telemetry)

    @ray.method(concurrency_group="work")
    def run(self, method: str, *arguments: Any) -> Any:
        """Call a method of the worker. One that changes the policy does so between two forward passes."""
        with self._worker_lock:
            value = getattr(self._worker, method)(*arguments)
        if self._server is not None:
            self._server.notify()  # observations may have waited for these weights
        return value

    @ray.method(concurrency_group="life")
    def live(self) -> None:
        """Never answers: its reference fails when this process ends, whatever else is asked of it."""
        while not threading.Event().wait(_LONG_S):
            pass

    @ray.method(concurrency_group="work")
    def converse(self, method: str, arguments: tuple, server: ServerAddress, rollout: str, collection: int) -> Any:
        """Run a generator method of an env worker; the policy server of worker `rollout` answers its observations."""
        values = self._client.run(getattr(self._worker, method)(*arguments), server, rollout, collection)
        return values if len(values) > 1 else values[0]

    @ray.method(concurrency_group="status")
    def policy_server(self) -> ServerAddress:
        """Rollout worker: where its policy server listens."""
        return self._policy_server.address

    @ray.method(concurrency_group="status")
    def open_collection(self, collection: int, members: set[int]) -> None:
        """Rollout worker: a collection of these env workers begins."""
        self._policy_server.open(collection, members)

    @ray.method(concurrency_group="status")
    def leave_collection(self, collection: int, member: int) -> None:
        """Rollout worker: an env worker has ended in the middle of a collection."""
        self._policy_server.leave(collection, member)

    @property
    def _policy_server(self) -> PolicyServer:
        if self._server is None:
            raise RuntimeError(f"{self.name} has no policy server")
        return self._server

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
