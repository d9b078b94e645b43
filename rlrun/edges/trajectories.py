"""The edge from env to actor workers: trajectories, what builds them, and their check at the receiver.

Shape legend: T chunk steps, B rows (envs), C control steps per chunk, A controlled action dimensions, K = C*A action
tokens, N cameras, P proprioception, H x W pixels, F rows that ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from rlrun.config.schema import RunConfig
from rlrun.edges.actions import ActionChunk
from rlrun.edges.frames import ChunkResult, Frames
from rlrun.edges.observations import Observation
from rlrun.edges.seals import answer_seals, frame_sums, row_sums
from rlrun.edges.seeds import actor_ranks_of, epoch_keys, rollout_of, sampled_rows
from rlrun.edges.wrong_message import wrong_message

_DECODED = 1e-4  # of the largest number of a chunk, by which processors may decode tokens differently


@dataclass(frozen=True, eq=False)
class SealedAnswers:
    """What an actor worker needs to verify the rollout workers' seals of a trajectory."""

    sampling_keys: np.ndarray  # uint64 [T, B]
    seals: np.ndarray  # uint64 [T, B], see `edges.seals`
    action_sums: np.ndarray  # uint32 [T, B], `row_sums` of the executed actions
    actions: np.ndarray  # float32 [T, C, A], the executed actions of the rows `sampled_rows`


@dataclass(frozen=True, eq=False)
class Trajectory:
    """env -> actor: T chunk steps of the B envs that one actor rank owns.

    Example: horizon 16, 16 envs, 2 ranks: each rank receives T=16, B=8.
    """

    images: np.ndarray  # uint8 [T, B, N, H, W, 3]
    proprio: np.ndarray  # float32 [T, B, P]
    instructions: tuple[str, ...]  # distinct sentences
    instruction_index: np.ndarray  # int16 [T, B], into `instructions`
    tokens: np.ndarray  # uint8 or float32 [T, B, K]
    logprobs: np.ndarray  # float32 [T, B, K]
    values: np.ndarray  # float32 [T, B]
    next_values: np.ndarray  # float32 [T, B]: value of the true next observation (the final one where truncated)
    rewards: np.ndarray  # float32 [T, B, C]
    step_valid: np.ndarray  # bool [T, B, C]
    terminated: np.ndarray  # bool [T, B]
    truncated: np.ndarray  # bool [T, B]
    valid: np.ndarray  # bool [T, B]; False: infra fault or no episode running; out of every loss and count
    group: np.ndarray  # int32 [B]; rows of one group share their reset seed
    policy_version: np.ndarray  # int32 [T, B]
    next_proprio: np.ndarray | None = None  # float32 [T, B, P], of the true next observation; None: not asked for
    answers: SealedAnswers | None = None  # None: nothing to verify, as after the check

    @property
    def num_chunk_steps(self) -> int:
        return int(self.valid.sum())


class TrajectoryBuilder:
    """Holds T x B arrays, allocated once. Rows without an action in a chunk step stay invalid."""

    def __init__(self, num_chunk_steps: int, num_envs: int, has_next_proprio: bool = False):
        self._shape = (num_chunk_steps, num_envs)
        self._has_next_proprio = has_next_proprio
        numbers: dict[str, type] = {"instruction_index": np.int16, "policy_version": np.int32, "valid": bool}
        numbers |= {"next_values": np.float32}
        self._arrays: dict[str, np.ndarray] = {name: np.zeros(self._shape, dtype) for name, dtype in numbers.items()}
        self._instructions: dict[str, int] = {}
        self._num_cleared_steps = 0  # control steps that were executed and cleared

    def _array(self, name: str, like: np.ndarray) -> np.ndarray:
        if name not in self._arrays:
            self._arrays[name] = np.zeros(self._shape + like.shape[1:], like.dtype)
        return self._arrays[name]

    def add(self, t: int, rows: np.ndarray, asked: Observation, chunk: ActionChunk, result: ChunkResult) -> None:
        """Store chunk step `t` of `rows` (int [R], ascending); asked and chunk have R rows, result has all B."""
        held: slice | np.ndarray = slice(None) if len(rows) == self._shape[1] else rows  # a slice is copied faster
        frames = asked.frames
        assert chunk.seals is not None  # `AnswerCheck` has compared them
        index = [self._instructions.setdefault(text, len(self._instructions)) for text in frames.instructions]
        for name, of_rows in (
            ("images", frames.images),
            ("proprio", frames.proprio),
            ("tokens", chunk.tokens),
            ("logprobs", chunk.logprobs),
            ("values", chunk.values),
            ("sampling_keys", asked.sampling_keys),
            ("seals", chunk.seals),
            ("action_sums", row_sums(chunk.actions)),
            ("actions", chunk.actions),
        ):
            self._array(name, of_rows)[t, held] = of_rows
        of_result = {name: getattr(result, name) for name in ("rewards", "step_valid", "terminated", "truncated")}
        of_result |= {"next_proprio": result.frames.proprio} if self._has_next_proprio else {}
        for name, of_all in of_result.items():
            self._array(name, of_all)[t, held] = of_all[held]
        self._arrays["instruction_index"][t, held] = index
        self._arrays["policy_version"][t, held] = chunk.policy_version
        self._arrays["valid"][t, held] = ~result.infra_fault[held]

    def set_next_values(self, t: int, rows: np.ndarray | slice, values: np.ndarray) -> None:
        """Store the values of the observations after chunk step `t` in `rows`."""
        self._arrays["next_values"][t, rows] = values

    def void(self, row: int, start: int, end: int) -> None:
        """Exclude chunk steps start..end-1 of a row from learning, after an infra fault."""
        self._arrays["valid"][start:end, row] = False

    def clear(self, rows: np.ndarray, start: int, end: int) -> None:
        """Forget chunk steps start..end-1 of `rows` (int [R]), which are collected again; their steps still count."""
        self._num_cleared_steps += int(self._arrays["step_valid"][start:end, rows].sum())
        for array in self._arrays.values():
            array[start:end, rows] = 0

    @property
    def num_control_steps(self) -> int:
        """Return the number of control steps executed so far."""
        return int(self._arrays["step_valid"].sum()) + self._num_cleared_steps

    @property
    def policy_version(self) -> int:
        """Return the oldest policy version that chose an executed action; the newest that was asked, if none was."""
        versions = self._arrays["policy_version"]
        executed = versions[self._arrays["step_valid"].any(-1)]
        return int(executed.min() if executed.size else versions.max())

    def shards(self, first_env: int, envs_per_rank: int, group_size: int) -> dict[int, Trajectory]:
        """Return shards by actor rank, for ranks with rows here; rank r owns `envs_per_rank` envs from r times that."""
        envs = first_env + np.arange(self._shape[1])
        owners = envs // envs_per_rank
        rows = {int(rank): np.flatnonzero(owners == rank) for rank in np.unique(owners)}
        return {rank: self._shard(held, envs[held], group_size) for rank, held in rows.items()}

    def _shard(self, rows: np.ndarray, envs: np.ndarray, group_size: int) -> Trajectory:
        held: slice | np.ndarray = slice(None) if len(rows) == self._shape[1] else rows  # a slice avoids a copy
        chosen = {name: np.ascontiguousarray(array[:, held]) for name, array in self._arrays.items()}
        answers = {name: chosen.pop(name) for name in ("sampling_keys", "seals", "action_sums")}
        sampled = sampled_rows(int(envs[0]), len(self._arrays["valid"]), len(rows))
        actions = chosen.pop("actions")[np.arange(len(sampled)), sampled]
        group = (envs // group_size).astype(np.int32)
        return Trajectory(
            instructions=tuple(self._instructions),
            group=group,
            answers=SealedAnswers(actions=actions, **answers),
            **chosen,
        )


def concatenate(parts: list[Trajectory]) -> Trajectory:
    """Join trajectories of equal T along the env axis (the checked shards of one actor rank), without their seals."""
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
        elif name == "answers" or getattr(parts[0], name) is None:
            joined[name] = None
        else:
            axis = 0 if name == "group" else 1
            joined[name] = np.concatenate([getattr(part, name) for part in parts], axis=axis)
    return Trajectory(**joined)


class TrajectoryCheck:
    """Check of the shards that one actor rank receives.

    Example::

        check = TrajectoryCheck(config, rank=0)
        check(shards, step=3, decode=policy.decode_actions)      # raises RunError naming the worker at fault
    """

    def __init__(self, config: RunConfig, rank: int):
        env = config.env
        num_ranks = config.actor.num_workers
        self._config = config
        per_worker = env.num_envs // env.num_workers
        per_rank = env.num_envs // num_ranks
        self._senders: list[tuple[int, np.ndarray]] = []  # env worker and global indices of its rows, of each shard
        for worker in range(env.num_workers):
            if rank in actor_ranks_of(worker, env.num_workers, num_ranks):
                first = max(worker * per_worker, rank * per_rank)
                end = min((worker + 1) * per_worker, (rank + 1) * per_rank)
                self._senders.append((worker, np.arange(first, end)))

    def __call__(
        self,
        parts: Sequence[Trajectory],
        step: int,
        decode: Callable[[np.ndarray], np.ndarray],
        num_valid: Sequence[int] | None = None,
    ) -> None:
        """Raise RunError, naming the env or rollout worker, for an invalid trajectory.

        step: the training step, which is the newest version that was sent. decode: returns the actions of tokens.
        num_valid: chunk steps of each part to learn from, as its sender told the driver; None: unknown.
        """
        told = [part.num_chunk_steps for part in parts] if num_valid is None else num_valid
        for part, count, (worker, _) in zip(parts, told, self._senders, strict=True):
            if part.num_chunk_steps != count:
                what = f"it sent a trajectory with {part.num_chunk_steps} chunk steps to learn from"
                raise wrong_message(f"env/{worker}", what, f"it told the driver {count}")
        for part, (worker, envs) in zip(parts, self._senders, strict=True):
            rollout = rollout_of(worker, self._config.env.num_workers, self._config.rollout.num_workers)
            for sender, faults in (
                (f"env/{worker}", self._shape_faults(part, envs)),
                (f"env/{worker}", self._seal_faults(part, envs, step)),
                (f"env/{worker}", self._content_faults(part)),
                (f"rollout/{rollout}", _answer_faults(part, int(envs[0]), step, decode)),
            ):
                for what, cause in faults:
                    raise wrong_message(sender, what, cause)

    def _shape_faults(self, part: Trajectory, envs: np.ndarray) -> Iterator[tuple[str, str]]:
        shape = (self._config.algorithm.rollout_epochs * self._config.algorithm.horizon, len(envs))
        for name in Trajectory.__dataclass_fields__:
            array = getattr(part, name)
            if name in ("instructions", "group", "answers") or array is None:
                continue
            if array.shape[:2] != shape:
                yield f"it sent a trajectory with {name} of shape {array.shape}", f"{shape} is needed"
        if part.answers is None or part.answers.seals.shape != shape:
            yield "it sent a trajectory without the seals of its answers", f"{shape} are needed"
        if not ((part.instruction_index >= 0) & (part.instruction_index < len(part.instructions)))[part.valid].all():
            yield "it sent a trajectory with sentences that it does not contain", f"it has {len(part.instructions)}"

    def _seal_faults(self, part: Trajectory, envs: np.ndarray, step: int) -> Iterator[tuple[str, str]]:
        """Yield a fault for rows that differ from what the rollout worker was asked, and what it answered."""
        answers = part.answers
        assert answers is not None  # else its shape is a fault
        used = np.nonzero(part.valid)
        if not used[0].size:
            return
        keys = self._expected_keys(envs, step)[:, used[0], used[1]]
        if not (keys == answers.sampling_keys[used]).any(0).all():
            yield "it sent a trajectory of other sampling keys than those of its step and rows", f"step {step}"
        texts = map(part.instructions.__getitem__, part.instruction_index[used].tolist())
        seen = frame_sums(Frames(part.images[used], part.proprio[used], tuple(texts)))
        learned = (part.tokens[used], part.logprobs[used], part.values[used])
        made = answer_seals(
            answers.sampling_keys[used], part.policy_version[used], seen, answers.action_sums[used], learned
        )
        if (wrong := np.flatnonzero(made != answers.seals[used])).size:
            where = f"first at chunk step {used[0][wrong[0]]} of row {used[1][wrong[0]]}"
            what = "other frames, tokens, log-probabilities or values than were asked and answered"
            yield (
                f"it sent a trajectory with {what}",
                f"{wrong.size} of {used[0].size} seals of its answers differ, {where}",
            )
        rows = (np.arange(len(answers.actions)), sampled_rows(int(envs[0]), *part.valid.shape))
        chosen = part.valid[rows]
        if not np.array_equal(row_sums(answers.actions)[chosen], answers.action_sums[rows][chosen]):
            yield "it sent a trajectory with other actions than those that it executed", "their checksums differ"

    def _expected_keys(self, envs: np.ndarray, step: int) -> np.ndarray:
        """Return uint64 [repetitions, T, B]: the sampling keys that each chunk step may have."""
        algorithm = self._config.algorithm
        groups = algorithm.filter_groups
        epochs = range(algorithm.rollout_epochs)
        asked = partial(epoch_keys, self._config.seed, step, envs=envs, horizon=algorithm.horizon)
        return np.stack(
            [
                np.concatenate([asked(epoch=epoch, repetition=number)[:-1] for epoch in epochs])
                for number in range(groups.max_num_gen_batches if groups.enable else 1)
            ]
        )

    def _content_faults(self, part: Trajectory) -> Iterator[tuple[str, str]]:
        """Yield the faults of what the env worker adds to answers."""
        for name in ("rewards", "next_values", "proprio", "next_proprio"):
            array = getattr(part, name)
            is_wrong = (
                False if array is None else ~np.isfinite(array).reshape(*part.valid.shape, -1).all(-1) & part.valid
            )
            if np.any(is_wrong):
                step, row = np.argwhere(is_wrong)[0].tolist()
                yield (
                    f"it sent a trajectory with {name} that are NaN or infinite",
                    f"first at chunk step {step} of row {row}",
                )
        largest = np.abs(np.where(part.valid[..., None], part.rewards, 0.0)).max(initial=0.0)
        limit = self._config.env.max_abs_reward
        if limit is not None and largest > limit:
            yield f"it sent a trajectory with a reward of {largest:.3g}", f"env.max_abs_reward is {limit:g}"
        if (part.terminated & part.truncated & part.valid).any():
            yield (
                "it sent a trajectory with chunk steps that are both terminated and truncated",
                "an episode ends in one way",
            )


def _answer_faults(
    part: Trajectory, first_env: int, step: int, decode: Callable[[np.ndarray], np.ndarray]
) -> Iterator[tuple[str, str]]:
    """Yield the faults of answers whose seals are right, so that they are the rollout worker's."""
    assert part.answers is not None
    if (part.policy_version[part.valid] > step).any():
        newest = int(part.policy_version[part.valid].max())
        yield f"it answered as policy version {newest}", f"the newest that was ever sent is {step}"
    rows = (np.arange(len(part.answers.actions)), sampled_rows(first_env, *part.valid.shape))
    chosen = part.valid[rows]
    if not chosen.any():
        return
    meant = decode(part.tokens[rows][chosen])
    acted = part.answers.actions[chosen]
    scale = np.abs(meant).reshape(len(meant), -1).max(1)
    far = np.abs(acted - meant).reshape(len(meant), -1).max(1) > _DECODED * np.maximum(scale, 1.0)
    if far.any():
        yield (
            "it answered other actions than those of its tokens",
            f"in {int(far.sum())} of {far.size} sampled rows, as decoded by the actor",
        )
