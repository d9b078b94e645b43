"""The engine's interface for the backend: rows in, tokens out; weight updates; probes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from rlrun.edges.weights import TensorSlice

IDLE_S = 30.0  # limit until an engine is idle after its last answer; it takes milliseconds


class EngineFault(RuntimeError):
    """The engine crashed, timed out or refused a request: its worker must be restarted."""


@dataclass(frozen=True, eq=False)
class Rows:
    """backend -> engine: the rows of one forward pass. B rows, N images each, P proprioception.

    Example: two rows with prompts of 9 tokens, one camera of 64 pixels and 61 values:
    Rows([[1, 4, …], [1, 4, …]], uint8 (2, 1, 64, 64, 3), float32 (2, 61), uint64 (2,), 1.0).
    """

    input_ids: list[list[int]]  # with placeholders for images, proprioception and actions; no padding
    images: np.ndarray  # uint8 [B, N, H, W, 3]
    proprio: np.ndarray  # float32 [B, P], SI units; ignored by a policy without proprioception
    keys: np.ndarray  # uint64 [B]; the same key and logits give the same tokens
    temperature: float  # 0: the most likely tokens


@dataclass(frozen=True, eq=False)
class TensorBlock:
    """backend -> engine: tensors of a policy version in one buffer."""

    slices: tuple[TensorSlice, ...]
    payload: np.ndarray  # uint8


class Engine(ABC):
    """One serving engine, with one policy version at a time."""

    @abstractmethod
    def act(self, rows: Rows) -> np.ndarray:
        """Return float32 [B, 2K+1]: K tokens, their log-probabilities, the value. Raises EngineFault."""

    @abstractmethod
    def update(self, blocks: Iterable[TensorBlock], policy_version: int) -> None:
        """Replace weights between requests and drop caches of the old ones. Raises EngineFault."""

    @abstractmethod
    def probe(self) -> None:
        """Send a request without images and wait for its answer. Raises EngineFault."""

    @abstractmethod
    def release(self) -> None:
        """Free the device memory; only `resume` and `close` may follow. Raises EngineFault."""

    @abstractmethod
    def resume(self) -> None:
        """Allocate the device memory again, with the weights from before `release`. Raises EngineFault."""

    @abstractmethod
    def close(self) -> None:
        """End the engine's processes and free the device memory."""


@dataclass(frozen=True, eq=False)
class Row:
    """Example: Row(uint8 (1, 64, 64, 3), float32 (61,), key=7, temperature=1.0)."""

    images: np.ndarray  # uint8 [N, H, W, 3]
    proprio: np.ndarray  # float32 [P]
    key: int  # below 2**64
    temperature: float
