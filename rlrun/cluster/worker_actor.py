"""The Ray actor around one plain worker: the only place where a worker meets Ray."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Any

import ray

from rlrun.config.schema import RunConfig
from rlrun.controller.local_workers import make_worker
from rlrun.edges.batcher import Pipeline
from rlrun.edges.connection import ServerAddress
from rlrun.edges.endpoints import PolicyClient, PolicyServer
from rlrun.observability.run_files import open_worker_log
from rlrun.placement.network import choose_interface
from rlrun.placement.node_environment import node_environment
from rlrun.placement.plan import Slot
from rlrun.system.numa import bind_near
from rlrun.system.process_io import refuse_breakpoints
from rlrun.system.status import Span, WorkerStatus
from rlrun.watchdog.heartbeat import Heartbeat

_LONG_S = 3600.0


class WorkerActor:
    """Runs the requests to one worker in order. Other threads report its status and serve a rollout worker's clients.

    The concurrency group `work` has one thread: renderers and process groups must stay on the thread that made them.
    """

    def __init__(self, slot: Slot, config: RunConfig, run_dir: str, peer: str | None):
        """peer: address of another node, for the choice of the network interface; None: this node is alone."""
        self.name = slot.name
        open_worker_log(Path(run_dir), self.name, config.logging.verbosity)
        logging.getLogger(__name__).info("started")
        refuse_breakpoints(self.name)
        address = ray.util.get_node_ip_address()
        self._interface = choose_interface(slot.node, peer or address, peer is None, slot.interface)
        environment = node_environment(slot, self._interface, config, Path(run_dir))
        dump = environment.get("TORCH_FR_DUMP_TEMP_FILE")
        if dump is not None:
            Path(dump).parent.mkdir(exist_ok=True)  # torch does not make it
        if slot.role == "actor" and slot.accelerators:  # before it has threads and memory of its own
            bind_near(slot.accelerators[0], config.actor.num_threads)
        self._worker = make_worker(slot.role, slot.rank, config, environment, slot.interpreter)
        # The driver sees all workers and finds a late one sooner; this deadline is needed when the driver has ended.
        deadline_s = 2 * config.cluster.step_deadline_s
        lost_after_s = config.node.lost_after_s
        telemetry = self._worker.telemetry
        node = ray.get_runtime_context().get_node_id()
        if config.watchdog.enabled:
            self._heartbeat = Heartbeat(telemetry, Path(run_dir), config.watchdog.heartbeat_s)
        self._worker_lock = threading.Lock()  # held while a request or a forward pass runs
        self._server: PolicyServer | None = None
        if slot.role == "env":
            self._client = PolicyClient(slot.rank, telemetry, node, lost_after_s, deadline_s)
        if slot.role == "rollout":
            num_groups = config.rollout.pipeline_stages
            policy = self._worker
            pipeline: Pipeline = Pipeline(
                policy.act, lambda: policy.policy_version, telemetry, num_groups, self._worker_lock, deadline_s
            )
            host = self._interface.addresses[0]
            self._server = PolicyServer(pipeline, host, node, lost_after_s, telemetry)

    @ray.method(concurrency_group="work")
    def run(self, method: str, *arguments: Any) -> Any:
        """Call a method of the worker, never during a forward pass, since it may change the policy."""
        with self._worker_lock:
            value = getattr(self._worker, method)(*arguments)
        if self._server is not None:
            self._server.notify()  # observations may be waiting for new weights
        return value

    @ray.method(concurrency_group="life")
    def live(self) -> None:
        """Never return. Its reference fails when this process ends, even without an open request."""
        while not threading.Event().wait(_LONG_S):
            pass

    @ray.method(concurrency_group="work")
    def run_episodes(self, method: str, arguments: tuple, server: ServerAddress, rollout: str, collection: int) -> Any:
        """Run a generator method of an env worker. The policy server of worker `rollout` answers its observations."""
        values = self._client.run(getattr(self._worker, method)(*arguments), server, rollout, collection)
        return values if len(values) > 1 else values[0]

    @ray.method(concurrency_group="status")
    def policy_server(self) -> ServerAddress:
        """Return the address of the policy server; for rollout workers only."""
        return self._policy_server.address

    @ray.method(concurrency_group="status")
    def open_collection(self, collection: int, members: set[int]) -> None:
        """Open a collection of these env workers; for rollout workers only."""
        self._policy_server.open(collection, members)

    @ray.method(concurrency_group="status")
    def leave_collection(self, collection: int, member: int) -> None:
        """Remove an env worker that has ended from a collection; for rollout workers only."""
        self._policy_server.leave(collection, member)

    @property
    def _policy_server(self) -> PolicyServer:
        if self._server is None:
            raise RuntimeError(f"{self.name} has no policy server")
        return self._server

    @ray.method(concurrency_group="status")
    def address(self) -> str:
        """Return the IP address at which the collectives of other nodes reach this node."""
        return self._interface.addresses[0]

    @ray.method(concurrency_group="status")
    def status(self) -> WorkerStatus:
        """Return the status of the worker."""
        return self._worker.telemetry.status()

    @ray.method(concurrency_group="status")
    def spans(self) -> list[Span]:
        """Return the spans closed since the last call."""
        return self._worker.telemetry.drain_spans()
