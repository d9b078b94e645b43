"""What every peer is given: the numbers of the common workload, and how a peer tells what it did.

Imported in the interpreters of the peers: the standard library only.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time

ENV_ID = "HalfCheetah-v5"
NUM_ENVS = 16
HORIZON = 64  # control steps of each env and iteration
BATCH = NUM_ENVS * HORIZON
EPOCHS = 4
MINIBATCH = 256
HIDDEN = (256, 256)
LEARNING_RATE = 3e-4
ADAM_EPS = 1e-5
GAMMA, GAE_LAMBDA = 0.99, 0.95
CLIP = 0.2
VALUE_COEF = 0.5
MAX_GRAD_NORM = 0.5
WARM_UP = 3  # iterations
SEED = int(os.environ.get("PEER_SEED", "1"))  # another in each round: returns of one seed tell little


def arguments() -> tuple[int, int, str]:
    """Of a peer's command line: iterations, threads of torch, and which arrangement."""
    return int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]


class Scribe:
    """Counts the iterations of a peer and the returns of its finished episodes.

    Example::

        scribe = Scribe(num_iterations)
        while scribe.goes_on:
            scribe.iteration([412.0])    # after each: returns of the episodes that ended in it
        scribe.tell()
    """

    def __init__(self, num_iterations: int):
        self._num_iterations = num_iterations
        self._ended: list[float] = [time.perf_counter()]
        self._returns: list[list[float]] = []

    @property
    def goes_on(self) -> bool:
        """Whether another iteration is wanted."""
        return len(self._returns) < self._num_iterations

    def iteration(self, returns: list[float]) -> None:
        """One more is done."""
        self._ended.append(time.perf_counter())
        self._returns.append([float(value) for value in returns])

    def tell(self) -> None:
        """A line for whoever started this process: median rate, and the mean return of the last third."""
        seconds = [end - start for start, end in zip(self._ended, self._ended[1:], strict=False)][WARM_UP:]
        late = [value for returns in self._returns[-(len(self._returns) // 3) :] for value in returns]
        told = {
            "steps_per_second": BATCH / statistics.median(seconds),
            "mean_return": statistics.mean(late) if late else None,
            "num_episodes": len(late),
        }
        print("\nPEER " + json.dumps(told), flush=True)
        sys.stdout.flush()
