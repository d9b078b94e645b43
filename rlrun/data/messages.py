"""Messages between workers: one frozen dataclass per edge. Arrays are numpy; pixels are uint8, never normalised.

Shape legend: T chunk steps, B rows (envs), C control steps per chunk, A controlled action
dimensions, K = C*A action tokens, N cameras, P proprioception, H x W pixels, F rows that ended.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np


@dataclass(frozen=True, eq=False)
class Frames:
    """simulator -> env worker: images, proprioception and instructions, one row per env.

    Example: 8 envs, one 64 px camera: images (8, 1, 64, 64, 3), proprio (8, 61).
    """

    images: np.ndarray  # uint8 [B, N, H, W, 3], RGB
    proprio: np.ndarray  # float32 [B, P], SI units
    instructions: tuple[str, ...]  # B task sentences

    def __len__(self) -> int:
        return len(self.instructions)

    def rows(self, index: np.ndarray) -> Frames:
        """Return the rows that `index` (integers or a mask of B) selects."""
        chosen = np.arange(len(self))[index]
        texts = tuple(map(self.instructions.__getitem__, chosen.tolist()))
        return Frames(self.images[chosen], self.proprio[chosen], texts)

    @classmethod
    def concatenate(cls, parts: Sequence[Frames]) -> Frames:
        """Return all rows of `parts` (at least one part), in order."""
        if len(parts) == 1:
            return parts[0]
        return cls(
            np.concatenate([part.images for part in parts]),
            np.concatenate([part.proprio for part in parts]),
            tuple([text for part in parts for text in part.instructions]),
        )

    def select_cameras(self, cameras: Sequence[int]) -> Frames:
        """Return the frames with the images of these cameras only, in this order."""
        return Frames(self.images[:, list(cameras)], self.proprio, self.instructions)

    def replaced(self, index: np.ndarray, fresh: Frames) -> Frames:
        """Return a copy in which rows `index` (int [R]) are the R rows of `fresh`."""
        images = self.images.copy()
        proprio = self.proprio.copy()
        instructions = list(self.instructions)
        images[index] = fresh.images
        proprio[index] = fresh.proprio
        for row, instruction in zip(index, fresh.instructions, strict=True):
            instructions[row] = instruction
        return Frames(images, proprio, tuple(instructions))


@dataclass(frozen=True)
class Spaces:
    """env -> driver, actor: observation and action spaces of a simulator.

    Example: CartPole: Spaces(num_actions=1, num_choices=2, action_low=(0.0,), action_high=(1.0,), num_proprio=4,
    num_images=0)
    """

    num_actions: int  # A
    num_choices: int | None  # discrete: every action is one of 0..num_choices-1; None: continuous
    action_low: tuple[float, ...]  # A numbers in simulator units; -inf: unbounded
    action_high: tuple[float, ...]
    num_proprio: int  # P
    num_images: int  # N
    observed: str = ""  # how the simulator's observation is interpreted, if that was guessed
    cameras: tuple[str, ...] = ()  # N names, in the order of the images; (): they have none
    proprio_names: tuple[str, ...] = ()  # P names; (): they have none
    action_names: tuple[str, ...] = ()  # A names; (): they have none
    control_hz: float | None = None  # control steps per second; None: unknown
    is_hz_nominal: bool = False  # the rate is only declared; the simulation does not depend on it
    instructions: tuple[str, ...] = ()  # sentences of its episodes; (): unknown before they begin


@dataclass(frozen=True)
class PolicySpaces:
    """rollout -> driver: observation and action spaces of a loaded policy.

    Example: PolicySpaces(num_actions=8, num_proprio=61, cameras=("zed_link",))
    """

    num_actions: int  # A
    num_proprio: int  # P; 0: it takes none
    cameras: tuple[str, ...] = ()  # names of its pictures, in its order; (): its folder names none
    notes: tuple[str, ...] = ()  # what the user should know about the policy, a sentence each


@dataclass(frozen=True, eq=False)
class Observation:
    """env -> rollout: rows to act on, and rows that only need a value.

    Example: Observation(env_worker=0, frames=…8 rows…, sampling_keys=arange(8), temperature=1.0,
    final_frames=None): act on 8 envs, no episode ended in the last chunk.
    """

    env_worker: int  # rank of the sender
    frames: Frames  # B rows to act on
    sampling_keys: np.ndarray  # uint64 [B]; the same key and logits give the same tokens, whatever the batch
    temperature: float  # of sampling; 0: arg-max tokens, the keys are then ignored
    final_frames: Frames | None  # F rows that only need a value, such as the last ones of truncated episodes
    rows: np.ndarray | None = None  # int [B], rows of the sender; set by evaluation only
    is_first: np.ndarray | None = None  # bool [B], an episode begins; set by evaluation only
    policy_version: int = 0  # the oldest accepted one; the rollout worker waits until it has this or a newer one


@dataclass(frozen=True, eq=False)
class ActionChunk:
    """rollout -> env: C actions per row from one forward pass.

    Example: 8 rows, C=4, A=8: actions (8, 4, 8), tokens (8, 32), logprobs (8, 32), values (8,).
    """

    actions: np.ndarray  # float32 [B, C, A], simulator units (un-normalised)
    tokens: np.ndarray  # [B, K], the sampled actions: uint8 bins, or float32 numbers of a Gaussian policy
    logprobs: np.ndarray  # float32 [B, K], of the sampled tokens at the sampling temperature
    values: np.ndarray  # float32 [B]; 0 without a critic
    final_values: np.ndarray | None  # float32 [F], values of Observation.final_frames; None: none were sent
    policy_version: int  # of the weights that chose
    echo: np.ndarray | None = None  # uint64 [B], see `expected_echo`; None: it answers no observation

    @classmethod
    def answer(
        cls,
        observation: Observation,
        actions: np.ndarray,
        tokens: np.ndarray,
        logprobs: np.ndarray,
        values: np.ndarray,
        final_values: np.ndarray | None,
        policy_version: int,
    ) -> ActionChunk:
        """Return the answer to an observation, with its echo."""
        chunk = cls(actions, tokens, logprobs, values, final_values, policy_version)
        return replace(chunk, echo=chunk.expected_echo(observation.sampling_keys))

    def expected_echo(self, sampling_keys: np.ndarray) -> np.ndarray:
        """Return the echo of an answer to these keys (uint64 [B]): each with the checksum of its row.

        It shows the receiver that a row answers the observation it sent, and that the row arrived unchanged.
        """
        fields = (self.actions, self.tokens, self.logprobs, self.values)
        rows = [np.ascontiguousarray(array).reshape(len(array), -1).view(np.uint8) for array in fields]
        checksums = [zlib.crc32(row.tobytes()) for row in np.concatenate(rows, axis=1)]
        return np.asarray(sampling_keys, np.uint64) ^ np.array(checksums, np.uint64)


@dataclass(frozen=True, eq=False)
class ChunkResult:
    """simulator -> env worker: result of a chunk of C control steps.

    Steps after the end of an episode are not executed: step_valid is False and the reward 0 there.
    `frames` is the state at the end of the chunk; for a row that ended, the final observation.
    """

    frames: Frames  # B rows
    rewards: np.ndarray  # float32 [B, C]
    step_valid: np.ndarray  # bool [B, C]; a row that was not active is all False
    terminated: np.ndarray  # bool [B]; the task ended (success or failure condition)
    truncated: np.ndarray  # bool [B]; the time limit cut it off; never together with terminated
    success: np.ndarray  # bool [B]; goal satisfied at the end of the chunk
    q_score: np.ndarray  # float32 [B]; fraction of ground goal literals satisfied, 0..1
    infra_fault: np.ndarray  # bool [B]; the simulator broke: the episode is void, not a failure
    infos: tuple[dict, ...]  # B dicts of the OmniGibson contract (reward, done, episode_length)

    @property
    def ended(self) -> np.ndarray:
        """bool [B]: rows whose episode is over, for any reason."""
        return self.terminated | self.truncated | self.infra_fault

    def fault(self, row: int) -> str:
        """Return why the episode of `row` is void, as far as the simulator says it."""
        return str(self.infos[row].get("fault", "it broke"))

    @classmethod
    def broken(cls, frames: Frames, num_steps: int, active: np.ndarray, fault: str = "") -> ChunkResult:
        """Return a result whose active rows (bool [B]) are void; `frames` only gives the shapes. fault: "": unknown."""
        num_rows = len(frames)
        nothing = np.zeros(num_rows, bool)
        return cls(
            frames=frames,
            rewards=np.zeros((num_rows, num_steps), np.float32),
            step_valid=np.zeros((num_rows, num_steps), bool),
            terminated=nothing,
            truncated=nothing,
            success=nothing,
            q_score=np.zeros(num_rows, np.float32),
            infra_fault=active,
            infos=tuple({"fault": fault} if fault and is_active else {} for is_active in active.tolist()),
        )


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

    @property
    def num_chunk_steps(self) -> int:
        return int(self.valid.sum())


@dataclass(frozen=True, eq=False)
class EnvTally:
    """env -> driver: counts of one env worker's chunk steps in a training step, to compare with those of its peers.

    Example: EnvTally(num_chunk_steps=64, num_paid=5, num_moves=60, num_frozen=(0, 60), outside=0.02,
    instructions=("press …",)): the second camera showed the same picture for the whole step.
    """

    num_chunk_steps: int
    num_paid: int  # chunk steps with a reward other than 0
    num_moves: int  # chunk steps in which actions or proprioception changed and the episode went on
    num_frozen: tuple[int, ...]  # of these, by camera: its picture did not change
    outside: float  # share of the actions' numbers beyond their limits, before they were clipped
    instructions: tuple[str, ...]  # distinct sentences, sorted
    num_odd: int = 0  # chunk steps after which all pictures were of one colour, or one was noise
    num_moved_episodes: int = 0  # episodes that ended or were cut off, in which the robot moved in two chunks or more
    num_still: tuple[int, ...] = ()  # of these, by camera: no change after the first such chunk
    reach: float = 1.0  # so far: largest way of a number of the state in an episode, as a share of its range
    used: float = 1.0  # so far: largest share of the actions' limits that an action used


@dataclass(frozen=True)
class GroupTally:
    """env -> driver: groups of one env worker in a training step, with algorithm.filter_groups.

    Example: GroupTally(num_gen_batches=3, num_groups=4, num_dropped=5, num_missing=1): of four groups, five collections
    had no signal, and one group had none in its last collection.
    """

    num_gen_batches: int  # collections of the group that was collected most often
    num_groups: int  # of the batch, over all rollout epochs
    num_dropped: int  # collections of a group that had no signal
    num_missing: int  # groups that are left out of the batch, since none of their collections had signal


@dataclass(frozen=True)
class EpisodeReport:
    """env -> driver: one finished episode.

    Example: EpisodeReport(env=3, seed=17, success=True, q_score=1.0, episode_return=1.8,
    num_control_steps=44, terminated=True, truncated=False, infra_fault=False)
    """

    env: int  # global index of the env
    seed: int  # reset seed
    success: bool
    q_score: float
    episode_return: float
    num_control_steps: int
    terminated: bool
    truncated: bool
    infra_fault: bool
    instruction: str = ""


@dataclass(frozen=True)
class LeftOutEpisode:
    """env -> driver: an evaluation episode without a result, since it was void in each of `num_attempts` attempts.

    Example: LeftOutEpisode(seed=123, num_attempts=3, fault="the simulation diverged")
    """

    seed: int  # reset seed
    num_attempts: int
    fault: str  # of the last attempt

    def __str__(self) -> str:
        return f"seed {self.seed} broke {self.num_attempts} times: {self.fault}"


@dataclass(frozen=True)
class WorkerLoss:
    """driver -> records: a worker that was lost and replaced.

    Example: WorkerLoss("env/1", "env/1.collect: its process ended: killed by SIGKILL", num_envs=4)
    """

    worker: str  # "role/rank"
    what: str
    num_envs: int  # rows whose running episode was lost with it; void, not failures


@dataclass(frozen=True)
class TensorSlice:
    """Position of one tensor in a bucket.

    Example: TensorSlice("projector.fc1.weight", "bfloat16", (64, 32), 0, 4096)
    """

    name: str
    dtype: str  # torch dtype name without "torch."
    shape: tuple[int, ...]
    offset: int  # bytes from the start of the payload
    num_bytes: int


@dataclass(frozen=True, eq=False)
class WeightBucket:
    """actor -> rollout: part of a policy version, packed into one buffer.

    A version is complete when buckets 0 .. num_buckets-1 have arrived, and is not used before.
    """

    policy_version: int
    index: int
    num_buckets: int
    slices: tuple[TensorSlice, ...]
    payload: Any  # uint8 [num_bytes]: an array, or a torch tensor on an accelerator
    checksum: int | None = None  # see `weight_sync.buckets.checksum`; None: not asked for

    def on_host(self) -> np.ndarray:
        """Return the payload in host memory, copied if it is on an accelerator."""
        return self.payload if isinstance(self.payload, np.ndarray) else self.payload.cpu().numpy()


@dataclass(frozen=True, eq=False)
class SharedBucket:
    """actor -> rollout on the same node: a bucket whose payload is in shared memory.

    Example: SharedBucket(WeightBucket(7, 0, 2, …), "9f3a…", pid=4711, fd=31, offset=0, num_bytes=268435456)
    """

    bucket: WeightBucket  # with an empty payload
    token: str  # of the memory; another one is other memory, even if pid and fd are the same
    pid: int  # of the actor worker that holds it
    fd: int  # there
    offset: int  # bytes
    num_bytes: int


@dataclass(frozen=True)
class DeviceHandles:
    """rollout -> actor on the same accelerator: buffers of the rollout worker's device memory, to write weights into.

    Example: DeviceHandles("9f3a…", (b"…", b"…"))
    """

    token: str  # of the memory
    buffers: tuple[bytes, ...]  # by which another process opens them
    fault: str = ""  # why there are none


@dataclass(frozen=True, eq=False)
class DeviceBucket:
    """actor -> rollout on the same accelerator: a bucket whose payload is in one of each rollout worker's buffers.

    Example: DeviceBucket(WeightBucket(7, 0, 2, …), ("9f3a…",), num_bytes=536870912)
    """

    bucket: WeightBucket  # with an empty payload
    tokens: tuple[str, ...]  # of the memories
    num_bytes: int
    beside: WeightBucket | SharedBucket | None = None  # the same bucket for rollout workers on other accelerators


@dataclass(frozen=True)
class Span:
    """worker -> driver: one closed interval of work, for the timeline. Times are those of `steady_time`."""

    name: str
    start_s: float
    end_s: float
    detail: str = ""
    step: int | None = None  # training step that it belongs to, from 1; None: to none


@dataclass(frozen=True)
class OpenWait:
    """worker -> watchdog: a wait that has not ended.

    Example: OpenWait("actions", ("rollout/0",), 3.2, 600.0)
    """

    what: str
    on: tuple[str, ...]  # workers that have not done their part yet
    age_s: float
    budget_s: float  # after which the waiting process itself gives up


@dataclass(frozen=True)
class WorkerStatus:
    """worker -> driver: current state of a worker.

    Example: WorkerStatus("env/0", "lab-node", 4711, "simulate", 3.2, {"env_steps": 5120}, 182_000_000, 0.0)
    """

    worker: str  # "role/rank"
    host: str
    pid: int
    phase: str  # name of the innermost open span, or "idle"
    phase_age_s: float
    counters: dict[str, int] = field(default_factory=dict)
    host_memory_bytes: int = 0  # private memory, with its child processes
    device_memory_bytes: float = 0.0  # on its accelerator; 0 without one
    accelerator: str = "cpu"  # "cpu", or "gpu N" with N as nvidia-smi of that host counts
    host_free_bytes: int = 0  # of its node
    device_free_bytes: float | None = None  # of its accelerator; None where it uses none
    waits: tuple[OpenWait, ...] = ()
    silence_s: float = 0.0  # since a counter, a span or a wait last moved
    silences: dict[str, tuple[int, float]] = field(
        default_factory=dict
    )  # phase -> number and seconds of its last sample, see observability/telemetry
    is_first: bool = False  # this process is in its phase for the first time
    load: float = 0.0  # runnable processes on its host, per core, mean of a minute
    failure: str = ""  # of a background thread, with its traceback
    notices: tuple[str, ...] = ()  # for the person who started the run, which goes on
    sentinel: str = ""  # host:port/token of the sentinel of its node; "" where there is none
