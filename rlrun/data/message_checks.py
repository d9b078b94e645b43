"""Checks of messages between workers at the receiver; an invalid message is a fault of the worker that sent it.

The first invalid message counts as the loss of its sender: the sender is replaced, and its peers continue. If its
replacement sends an invalid message in the same training step, the run ends (`controller.recovery.Recovery`).

Shape legend: T chunk steps, B rows (envs), C control steps per chunk, A action dimensions, K log-probabilities.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from rlrun.data.messages import (
    ActionChunk,
    EpisodeReport,
    Frames,
    LeftOutEpisode,
    Observation,
    Spaces,
    Trajectory,
)
from rlrun.data.starts import EpisodeStart
from rlrun.system.errors import ExitStatus, RunError

WRONG_MESSAGE = "wrong-message"  # kind of these errors
WRONG_AGAIN = "wrong-message-again"  # kind of the error that ends the run

_MAX_ACTION_DISTANCE = 1000.0  # half ranges from the middle of an action's limits; exploration reaches some
_MAX_LOGPROB = 1e-3  # of a discrete action; rounding may give slightly more than 0
_MIN_LOGPROB = -100.0  # of a discrete action; a less likely one is never sampled
_MAX_LOG_DENSITY = 1e5  # absolute log-density of a continuous action
_MAX_VALUE_FACTOR = 100.0  # largest value of a critic, in largest returns
_DISPLAY_NAMES = {"logprobs": "log-probabilities", "final_values": "values of final observations"}


class AnswerCheck:
    """Check of the answers of one rollout worker to one env worker.

    Example::

        check = AnswerCheck("rollout/0", env.spaces, num_chunks=8, largest_return=150.0)
        check(observation, chunk)      # raises RunError
    """

    def __init__(self, sender: str, spaces: Spaces, num_chunks: int, largest_return: float):
        """num_chunks: C. largest_return: the largest absolute sum of rewards of an episode; inf: unknown."""
        self._sender = sender
        self._chunk_shape = (num_chunks, spaces.num_actions)
        self._is_discrete = spaces.num_choices is not None
        self._low, self._high = (np.array(limits, np.float64) for limits in (spaces.action_low, spaces.action_high))
        half = (self._high - self._low) / 2
        is_bounded = np.isfinite(half) & (half > 0)
        self._half = np.where(is_bounded, half, np.inf)
        self._middle = np.where(is_bounded, np.where(is_bounded, self._low, 0.0) + np.where(is_bounded, half, 0.0), 0.0)
        self._largest_value = _MAX_VALUE_FACTOR * max(1.0, largest_return)  # also without any reward

    def __call__(self, observation: Observation, chunk: ActionChunk) -> None:
        """Raise RunError, naming the sender, if `chunk` is no valid answer to `observation`."""
        self._check_shapes(observation, chunk)
        self._check_finite(chunk)
        self._check_sizes(chunk)
        if chunk.policy_version < observation.policy_version:
            asked = f"version {observation.policy_version} or a newer one was asked for"
            raise self._wrong(chunk, "is older than the one asked for", asked)
        if chunk.echo is None or not np.array_equal(chunk.echo, chunk.expected_echo(observation.sampling_keys)):
            cause = "rows of an answer carry the keys of the question and a checksum, and these differ"
            raise self._wrong(chunk, "answers another question, or its answer changed on the way", cause)

    def _check_shapes(self, observation: Observation, chunk: ActionChunk) -> None:
        rows = len(observation.frames)
        finals = observation.final_frames
        expected = {"actions": (rows, *self._chunk_shape), "values": (rows,)}
        for name, shape in expected.items():
            if (found := getattr(chunk, name)).shape != shape:
                raise self._wrong(chunk, f"answers {name} of shape {found.shape}", f"{shape} was asked for")
        num_choices = chunk.logprobs.shape[1] if chunk.logprobs.ndim == 2 else 0
        if len(chunk.logprobs) != rows or len(chunk.tokens) != rows or num_choices % self._chunk_shape[0]:
            shapes = f"tokens {chunk.tokens.shape}, log-probabilities {chunk.logprobs.shape}"
            raise self._wrong(chunk, f"answers {shapes}", f"{rows} rows of {self._chunk_shape[0]} steps were asked for")
        num_finals = None if chunk.final_values is None else chunk.final_values.shape
        if num_finals != (None if finals is None else (len(finals),)):
            cause = f"{0 if finals is None else len(finals)} final observations were sent"
            raise self._wrong(chunk, f"answers final values of shape {num_finals}", cause)

    def _check_finite(self, chunk: ActionChunk) -> None:
        for name in ("actions", "tokens", "logprobs", "values", "final_values"):
            array = getattr(chunk, name)
            if array is not None and not np.isfinite(array).all():
                rows = np.flatnonzero(~np.isfinite(array).reshape(len(array), -1).all(1))
                what = "NaN" if np.isnan(array).any() else "infinity"
                cause = f"{_DISPLAY_NAMES.get(name, name)} of rows {rows.tolist()} of {len(array)}"
                raise self._wrong(chunk, f"answers {what}", cause, ExitStatus.diverged)

    def _check_sizes(self, chunk: ActionChunk) -> None:
        """Raise RunError for numbers that are finite but implausible."""
        far = np.abs(chunk.actions - self._middle) / self._half
        if far.size and far.max() > _MAX_ACTION_DISTANCE:
            row, step, dimension = np.unravel_index(far.argmax(), far.shape)
            limits = f"{self._low[dimension]:g} to {self._high[dimension]:g}"
            cause = f"dimension {dimension} of row {row} at control step {step}; its limits are {limits}"
            raise self._wrong(chunk, f"answers an action of {chunk.actions[row, step, dimension]:.3g}", cause)
        is_discrete = chunk.tokens.dtype.kind in "iub"
        low, high = (_MIN_LOGPROB, _MAX_LOGPROB) if is_discrete else (-_MAX_LOG_DENSITY, _MAX_LOG_DENSITY)
        beyond = np.where(chunk.logprobs < low, low - chunk.logprobs, chunk.logprobs - high)
        if beyond.size and beyond.max() > 0:
            cause = f"of a choice that was {'drawn from numbered ones' if is_discrete else 'drawn from a density'}"
            found = float(chunk.logprobs.flat[beyond.argmax()])
            raise self._wrong(chunk, f"answers a log-probability of {found:.3g}", cause)
        for values in (chunk.values, chunk.final_values):
            if values is not None and values.size and np.abs(values).max() > self._largest_value:
                worst = float(values[np.abs(values).argmax()])
                cause = f"returns of this world are at most {self._largest_value / _MAX_VALUE_FACTOR:g}"
                raise self._wrong(chunk, f"answers a value of {worst:.3g}", cause, ExitStatus.diverged)

    def _wrong(
        self, chunk: ActionChunk, what: str, cause: str, exit_status: ExitStatus = ExitStatus.worker_lost
    ) -> RunError:
        return wrong_message(self._sender, f"the policy of version {chunk.policy_version} {what}", cause, exit_status)


def check_observation(observation: Observation, num_proprio: int) -> None:
    """Raise RunError, naming the env worker, for an invalid observation. num_proprio: P; 0: any."""
    sender = f"env/{observation.env_worker}"
    frames = observation.frames
    for part in (frames, observation.final_frames):
        if part is not None:
            _check_frames(sender, part, num_proprio)
    if observation.final_frames is not None and observation.final_frames.images.shape[1:] != frames.images.shape[1:]:
        shapes = f"{observation.final_frames.images.shape[1:]} and {frames.images.shape[1:]}"
        raise wrong_message(sender, "final frames have other pictures than the frames to act on", shapes)
    keys = observation.sampling_keys
    if keys.dtype != np.uint64 or keys.shape != (len(frames),):
        cause = f"uint64 ({len(frames)},) is needed"
        raise wrong_message(sender, f"it sent sampling keys that are {keys.dtype} {keys.shape}", cause)
    if not 0 <= observation.temperature < float("inf"):
        raise wrong_message(sender, f"it sent a temperature of {observation.temperature}", "0 or more is needed")


def _check_frames(sender: str, frames: Frames, num_proprio: int) -> None:
    images = frames.images
    proprio = frames.proprio
    rows = len(frames)
    if images.dtype != np.uint8 or images.ndim != 5 or len(images) != rows or images.shape[-1] != 3:
        cause = f"uint8 ({rows}, N, H, W, 3) is needed"
        raise wrong_message(sender, f"it sent pictures that are {images.dtype} {images.shape}", cause)
    if proprio.ndim != 2 or len(proprio) != rows or (num_proprio and proprio.shape[1] != num_proprio):
        cause = f"({rows}, {num_proprio or 'P'}) is needed"
        raise wrong_message(sender, f"it sent proprioception of shape {proprio.shape}", cause)
    if not np.isfinite(proprio).all():
        rows_at_fault = np.flatnonzero(~np.isfinite(proprio).all(1)).tolist()
        raise wrong_message(sender, "it sent proprioception that is NaN or infinite", f"rows {rows_at_fault} of {rows}")


def check_trajectories(parts: Sequence[Trajectory], senders: Sequence[str], num_steps: int, version: int) -> None:
    """Raise RunError, naming the env worker, for an invalid trajectory.

    parts: the shards of one actor rank. senders: the worker of each. num_steps: T. version: of the current policy.
    """
    for part, sender in zip(parts, senders, strict=True):
        for what, cause in _trajectory_faults(part, num_steps, version):
            raise wrong_message(sender, f"it sent a trajectory with {what}", cause)


def _trajectory_faults(part: Trajectory, num_steps: int, version: int) -> Iterable[tuple[str, str]]:
    """Yield each fault of a trajectory, and its cause."""
    shape = part.valid.shape
    if len(shape) != 2 or shape[0] != num_steps:
        yield f"flags of shape {shape}", f"({num_steps}, B) is needed"
        return
    for name in Trajectory.__dataclass_fields__:
        array = getattr(part, name)
        if name not in ("instructions", "group") and array is not None and array.shape[:2] != shape:
            yield f"{name} of shape {array.shape}", f"{shape} is needed"
            return
    for name in ("rewards", "logprobs", "values", "next_values", "proprio", "next_proprio", "tokens"):
        array = getattr(part, name)
        if array is None:
            continue
        is_wrong = ~np.isfinite(array).reshape(*shape, -1).all(-1) & part.valid
        if is_wrong.any():
            step, row = np.argwhere(is_wrong)[0].tolist()
            yield f"{name} that are NaN or infinite", f"first at chunk step {step} of row {row}"
    if (part.terminated & part.truncated & part.valid).any():
        yield "chunk steps that are both terminated and truncated", "an episode ends in one way"
    if not ((part.instruction_index >= 0) & (part.instruction_index < len(part.instructions)))[part.valid].all():
        yield "sentences that it does not contain", f"it has {len(part.instructions)}"
    if (part.policy_version[part.valid] > version).any():
        newest = int(part.policy_version[part.valid].max())
        yield f"actions of policy version {newest}", f"the newest that was ever sent is {version}"


def check_episodes(
    sender: str,
    reports: Iterable[EpisodeReport],
    envs: range,
    seeds: Sequence[int] | None,
    left_out: Sequence[LeftOutEpisode] = (),
) -> None:
    """Raise RunError, naming the env worker, for invalid reports of episodes.

    envs: global indices of its rows. seeds: of the requested episodes; None: the worker chose them. left_out: those of
    them that have no report.
    """
    seen = [episode.seed for episode in left_out]
    for report in reports:
        seen.append(report.seed)
        numbers = (report.episode_return, report.q_score)
        if not np.isfinite(numbers).all():
            raise wrong_message(
                sender, "it reported an episode whose return or q-score is NaN or infinite", f"{report}"
            )
        if report.env not in envs or report.num_control_steps < 0 or (report.terminated and report.truncated):
            raise wrong_message(
                sender, "it reported an episode that cannot be its own", f"{report}; its rows are {envs}"
            )
    if seeds is not None and sorted(seen) != sorted(seeds):
        cause = f"asked: {sorted(seeds)[:8]} …, reported: {sorted(seen)[:8]} …"
        raise wrong_message(sender, f"it reported {len(seen)} other episodes than the {len(seeds)} asked for", cause)


def check_starts(sender: str, starts: Sequence[EpisodeStart], seeds: Sequence[int]) -> None:
    """Raise RunError, naming the env worker, unless its episodes began from the seeds that it was asked for."""
    begun = {start.seed for start in starts}
    if begun != set(seeds):
        wrong = sorted(begun ^ set(seeds))
        cause = f"{len(wrong)} seeds differ, as {wrong[0]}"
        raise wrong_message(sender, "it began other episodes than those asked for", cause)


def check_equal_spaces(spaces: Mapping[int, Spaces], known: Spaces | None = None) -> None:
    """Raise RunError naming the first env worker whose simulator has other spaces than its peers.

    spaces: by rank. known: spaces of the peers of replaced workers; None: the most frequent ones of `spaces`.
    """
    texts = {rank: repr(one) for rank, one in spaces.items()}
    usual = max(texts.values(), key=list(texts.values()).count, default="") if known is None else repr(known)
    for rank, text in texts.items():
        if text != usual:
            cause = f"it has {text}; its peers have {usual}"
            raise RunError(
                f"The simulator of env/{rank} has other observations or actions than those of its peers.",
                key="env",
                cause=cause,
                remedy="Compare the versions, files and settings of the simulator on their nodes.",
                exit_status=ExitStatus.placement,
            )


def wrong_message(sender: str, what: str, cause: str, exit_status: ExitStatus = ExitStatus.worker_lost) -> RunError:
    """Return the error for an invalid message. sender: the worker at fault, as "env/1"."""
    remedy = (
        "resume from an earlier checkpoint with a lower actor.lr, or actor.param_precision=fp32"
        if exit_status is ExitStatus.diverged
        else "read the log of that worker in the run folder; if its node is well (memory, versions), report it"
    )
    return RunError(
        f"{sender}: {what}",
        cause=cause,
        remedy=remedy,
        exit_status=exit_status,
        worker=sender,
        kind=WRONG_MESSAGE,
    )
