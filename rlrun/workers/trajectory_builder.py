"""Collects T chunk steps of one env worker into arrays and cuts them into one shard per actor rank."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlrun.data.messages import ActionChunk, ChunkResult, Frames, Trajectory


class TrajectoryBuilder:
    """Holds T x B arrays, allocated once. Rows without an action in a chunk step stay invalid."""

    def __init__(self, num_chunk_steps: int, num_envs: int):
        self._shape = (num_chunk_steps, num_envs)
        numbers: dict[str, type] = {"instruction_index": np.int16, "policy_version": np.int32, "valid": bool}
        numbers |= {"values": np.float32, "next_values": np.float32}
        self._arrays: dict[str, np.ndarray] = {name: np.zeros(self._shape, dtype) for name, dtype in numbers.items()}
        self._instructions: dict[str, int] = {}

    def _array(self, name: str, like: np.ndarray) -> np.ndarray:
        if name not in self._arrays:
            self._arrays[name] = np.zeros(self._shape + like.shape[1:], like.dtype)
        return self._arrays[name]

    def add(self, t: int, rows: np.ndarray, frames: Frames, chunk: ActionChunk, result: ChunkResult) -> None:
        """Store chunk step `t` of `rows` (int [R], ascending); frames and chunk have R rows, result has all B."""
        held: slice | np.ndarray = slice(None) if len(rows) == self._shape[1] else rows  # a slice is copied faster
        index = [self._instructions.setdefault(text, len(self._instructions)) for text in frames.instructions]
        for name, of_rows in (
            ("images", frames.images),
            ("proprio", frames.proprio),
            ("tokens", chunk.tokens),
            ("logprobs", chunk.logprobs),
        ):
            self._array(name, of_rows)[t, held] = of_rows
        for name in ("rewards", "step_valid", "terminated", "truncated"):
            of_all = getattr(result, name)
            self._array(name, of_all)[t, held] = of_all[held]
        self._arrays["instruction_index"][t, held] = index
        self._arrays["policy_version"][t, held] = chunk.policy_version
        self._arrays["valid"][t, held] = ~result.infra_fault[held]

    def set_values(self, t: int, values: np.ndarray) -> None:
        """Store the values of all rows' observations before chunk step `t`: float32 [B]."""
        self._arrays["values"][t] = values

    def set_next_values(self, t: int, rows: np.ndarray | slice, values: np.ndarray) -> None:
        """Store the values of the observations after chunk step `t` in `rows`."""
        self._arrays["next_values"][t, rows] = values

    def void(self, row: int, start: int, end: int) -> None:
        """Exclude chunk steps start..end-1 of a row from learning, after an infra fault."""
        self._arrays["valid"][start:end, row] = False

    @property
    def num_control_steps(self) -> int:
        """Return the number of control steps executed so far."""
        return int(self._arrays["step_valid"].sum())

    @property
    def policy_version(self) -> int:
        """Return the oldest policy version that chose an executed action."""
        return int(self._arrays["policy_version"][self._arrays["step_valid"].any(-1)].min())

    def shards(self, first_env: int, envs_per_rank: int, group_size: int) -> dict[int, Trajectory]:
        """Return shards by actor rank, for ranks with rows here; rank r owns `envs_per_rank` envs from r times that."""
        envs = first_env + np.arange(self._shape[1])
        owners = envs // envs_per_rank
        rows = {int(rank): np.flatnonzero(owners == rank) for rank in np.unique(owners)}
        return {rank: self._shard(held, envs[held] // group_size) for rank, held in rows.items()}

    def _shard(self, rows: np.ndarray, group: np.ndarray) -> Trajectory:
        held: slice | np.ndarray = slice(None) if len(rows) == self._shape[1] else rows  # a slice avoids a copy
        chosen = {name: np.ascontiguousarray(array[:, held]) for name, array in self._arrays.items()}
        return Trajectory(instructions=tuple(self._instructions), group=group.astype(np.int32), **chosen)


def concatenate(parts: list[Trajectory]) -> Trajectory:
    """Join trajectories of equal T along the env axis (the shards of one actor rank)."""
    if len(parts) == 1:
        return parts[0]
    sentences = {text: i for i, text in enumerate(dict.fromkeys(t for part in parts for t in part.instructions))}
    joined: dict[str, Any] = {}
    for name in Trajectory.__dataclass_fields__:
        if name == "instructions":
            joined[name] = tuple(sentences)
        elif name == "instruction_index":
            maps = [np.array([sentences[text] for text in part.instructions], np.int16) for part in parts]
            joined[name] = np.concatenate([m[p.instruction_index] for m, p in zip(maps, parts, strict=True)], axis=1)
        else:
            axis = 0 if name == "group" else 1
            joined[name] = np.concatenate([getattr(part, name) for part in parts], axis=axis)
    return Trajectory(**joined)
