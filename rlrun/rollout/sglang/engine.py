"""What the backend asks of an engine, wherever it runs: rows in, choices out; weights; signs of life."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from rlrun.data.messages import TensorSlice

IDLE_S = 30.0  # until an engine that has answered everything is idle; it takes milliseconds


class EngineFault(RuntimeError):
    """The engine broke (crash, silence, refusal): its worker must be made anew."""


@dataclass(frozen=True, eq=False)
class Rows:
    """backend -> engine: the rows of one forward pass. B rows, N images each, P proprioception.

    Example: two rows with prompts of 9 tokens, one camera of 64 pixels and 61 values:
    Rows([[1, 4, …], [1, 4, …]], uint8 (2, 1, 64, 64, 3), float32 (2, 61), uint64 (2,), 1.0).
    """

    input_ids: list[list[int]]  # with placeholders for everything that is no text; no padding
    images: np.ndarray  # uint8 [B, N, H, W, 3]
    proprio: np.ndarray  # float32 [B, P], SI units; ignored by a policy that takes none
    keys: np.ndarray  # uint64 [B]; the same key and logits give the same tokens
    temperature: float  # 0: the most likely tokens


@dataclass(frozen=True, eq=False)
class TensorBlock:
    """backend -> engine: tensors of a policy version, side by side in one buffer."""

    slices: tuple[TensorSlice, ...]
    payload: np.ndarray  # uint8


class Engine(ABC):
    """One serving engine, with one policy version at a time."""

    @abstractmethod
    def act(self, rows: Rows) -> np.ndarray:
        """float32 [B, 2K+1]: K tokens, their log-probabilities, the value. Raises EngineFault."""

    @abstractmethod
    def update(self, blocks: Iterable[TensorBlock], policy_version: int) -> None:
        """Replace weights between requests; whatever was cached of the old ones is dropped. Raises EngineFault."""

    @abstractmethod
    def probe(self) -> None:
        """Have a request without images answered. Raises EngineFault."""

    @abstractmethod
    def release(self) -> None:
        """Leave the device's memory to others; only `resume` and `close` may follow. Raises EngineFault."""

    @abstractmethod
    def resume(self) -> None:
        """Take the memory back, with the weights of before. Raises EngineFault."""

    @abstractmethod
    def close(self) -> None:
        """End its processes and free the device memory."""
