"""Which arguments of open requests have not reached the nodes of the workers that need them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

from ray.experimental import get_local_object_locations

from rlrun.controller.workers import Future
from rlrun.watchdog.wait_graph import Incoming


class Inputs:
    """The futures among the arguments of requests. They are held weakly, since a held reference is held memory.

    Example::

        inputs = Inputs()
        inputs.record(update, (step, shard))
        inputs.missing([update], node_id_of)   # {"actor/1": Incoming(("env/0",), 1_300_000)}
    """

    def __init__(self) -> None:
        self._of: weakref.WeakKeyDictionary[Future[Any], list[weakref.ref[Future[Any]]]] = weakref.WeakKeyDictionary()

    def record(self, request: Future[Any], arguments: Iterable[Any]) -> None:
        """Record the arguments of a request."""
        found = [weakref.ref(argument) for argument in arguments if isinstance(argument, Future)]
        if found:
            self._of[request] = found

    def missing(self, requests: Iterable[Future[Any]], node_id_of: Callable[[str], str]) -> dict[str, Incoming]:
        """Return by worker what exists on other nodes only, without asking them.

        node_id_of: the node of a worker. Values that Ray sends with the request itself are nowhere, and not missing.
        """
        missing = {}
        for request in requests:
            arguments = [argument for held in self._of.get(request, []) if (argument := held()) is not None]
            found = get_local_object_locations([argument.reference for argument in arguments]) if arguments else {}
            node_id, late, num_bytes = node_id_of(request.worker), [], 0
            for argument in arguments:
                place = found.get(argument.reference, {})
                if place.get("node_ids") and node_id not in place["node_ids"]:
                    late.append(argument.worker)
                    num_bytes += place.get("object_size") or 0
            if late:
                missing[request.worker] = Incoming(tuple(dict.fromkeys(late)), num_bytes)
        return missing
