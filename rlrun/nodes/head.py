"""The head of the cluster as another node sees it: not there yet, there, ended."""

from __future__ import annotations

import time
from collections.abc import Callable

from rlrun.cluster import ray_token
from rlrun.cluster.membership import admits, knock
from rlrun.system.errors import RunError
from rlrun.system.exit_status import ExitStatus

_POLL_S = 0.2
_REFUSALS = 3  # in a row, one per question, until the head has ended


class Head:
    """`address` is "10.77.0.1:6379". To be asked a few times a second, once it has been there (`wait`).

    The head itself never doubts that it is there: its Ray is a child, which is watched as such (`is_here`).
    """

    def __init__(self, address: str, is_here: bool):
        self._address, self._is_here, self._refusals = address, is_here, 0

    @property
    def is_there(self) -> bool:
        """Asks once. True where nothing answers too: a cut link tells nothing about the head."""
        is_refused = not self._is_here and knock(self._address) is False
        self._refusals = self._refusals + 1 if is_refused else 0
        return not is_refused

    @property
    def has_ended(self) -> bool:
        """Whether the last answers were refusals, enough of them to be sure."""
        return self._refusals >= _REFUSALS

    def wait(self, deadline_s: float, is_stopped: Callable[[], bool]) -> None:
        """Until the head listens. Raises RunError at the deadline, saying whether it refused or did not answer, and
        where it does not know this node's token."""
        end = time.monotonic() + deadline_s
        while not self._is_here and not is_stopped() and (answer := knock(self._address)) is not True:
            if time.monotonic() > end:
                told = "refuses connections: Ray does not run there" if answer is False else "does not answer"
                raise RunError(
                    f"The head node is not there after {deadline_s:g} s.",
                    "cluster.address",
                    self._address,
                    cause=f"{self._address} {told}.",
                    remedy="Start the head, and see its output. Where it runs, open its port in the firewall.",
                    exit_status=ExitStatus.placement,
                )
            time.sleep(_POLL_S)
        if not self._is_here and admits(self._address) is False:
            raise ray_token.refused(self._address)
