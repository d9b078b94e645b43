"""The state of the cluster's head as another node sees it: not started, running, ended."""

from __future__ import annotations

import time
from collections.abc import Callable

from rlrun.cluster import ray_address
from rlrun.cluster.membership import admits, is_listening
from rlrun.system.errors import ExitStatus, RunError

_POLL_S = 0.2
_REFUSALS = 3  # refused connections in a row after which the head has ended


class Head:
    """Probes the head of the cluster, a few times a second once it has started (`wait`).

    On the head itself it is always running: there Ray is a child process, which its parent supervises.
    """

    def __init__(self, address: str, is_here: bool):
        """address: as "10.77.0.1:6379". is_here: whether this node is the head."""
        self._address, self._is_here, self._refusals = address, is_here, 0

    @property
    def is_running(self) -> bool:
        """Probe the head once. Without any answer it counts as running, since the link may be cut."""
        is_refused = not self._is_here and is_listening(self._address) is False
        self._refusals = self._refusals + 1 if is_refused else 0
        return not is_refused

    @property
    def has_ended(self) -> bool:
        """Whether the head has refused the last connections, enough of them to be sure."""
        return self._refusals >= _REFUSALS

    def wait(self, deadline_s: float, is_stopped: Callable[[], bool]) -> None:
        """Wait until the head listens, or `is_stopped`.

        Raises RunError at the deadline, saying whether the head refused or did not answer, and if it rejects the token.
        """
        end = time.monotonic() + deadline_s
        while not self._is_here and not is_stopped() and (answer := is_listening(self._address)) is not True:
            if time.monotonic() > end:
                state = "refuses connections: Ray does not run there" if answer is False else "does not answer"
                raise RunError(
                    f"The head node has not started after {deadline_s:g} s.",
                    "cluster.address",
                    self._address,
                    cause=f"{self._address} {state}.",
                    remedy="Start the head, and read its output. If it runs, open its port in the firewall.",
                    exit_status=ExitStatus.placement,
                )
            time.sleep(_POLL_S)
        if not self._is_here and admits(self._address) is False:
            raise ray_address.refused(self._address)
