"""The edge from rollout to env workers: action chunks, and their check at the receiver.

Shape legend: T chunk steps, B rows (envs), C control steps per chunk, A controlled action dimensions, K = C*A action
tokens, N cameras, P proprioception, H x W pixels, F rows that ended.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from rlrun.edges.observations import Observation
from rlrun.edges.seals import answer_seals, frame_sums, row_sums
from rlrun.edges.spaces import Spaces
from rlrun.edges.wrong_message import wrong_message
from rlrun.system.errors import ExitStatus, RunError

_MAX_ACTION_DISTANCE = 1000.0  # half ranges from the middle of an action's limits; exploration reaches some
_MAX_LOGPROB = 1e-3  # of a discrete action; rounding may give slightly more than 0
_MIN_LOGPROB = -100.0  # of a discrete action; a less likely one is never sampled
_MAX_LOG_DENSITY = 1e5  # absolute log-density of a continuous action
_MAX_VALUE_FACTOR = 100.0  # largest value of a critic, in largest returns
_DISPLAY_NAMES = {
    "further": "further actions",
    "logprobs": "log-probabilities",
    "final_values": "values of final observations",
}


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
    seals: np.ndarray | None = None  # uint64 [B], see `answer_seals`; None: it answers no observation
    # float32 [B, M, A], planned after `actions`: the next chunk goes on with them; None: without real-time chunking
    further: np.ndarray | None = None

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
        further: np.ndarray | None = None,
    ) -> ActionChunk:
        """Return the answer to an observation, sealed."""
        chunk = cls(actions, tokens, logprobs, values, final_values, policy_version, further=further)
        return replace(chunk, seals=chunk.expected_seals(observation))

    def expected_seals(self, observation: Observation) -> np.ndarray:
        """Return the seals of this answer to an observation, uint64 [B]."""
        seen = frame_sums(observation.frames)
        learned = (self.tokens, self.logprobs, self.values)
        acted = row_sums(self.actions) if self.further is None else row_sums(self.actions, self.further)
        return answer_seals(observation.sampling_keys, self.policy_version, seen, acted, learned)


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
        self._check_further(observation, chunk)
        self._check_finite(chunk)
        self._check_sizes(chunk)
        if chunk.policy_version < observation.policy_version:
            asked = f"version {observation.policy_version} or a newer one was asked for"
            raise self._wrong(chunk, "is older than the one asked for", asked)
        if chunk.seals is None or not np.array_equal(chunk.seals, chunk.expected_seals(observation)):
            cause = "each row of an answer is sealed with its question, and a seal differs"
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

    def _check_further(self, observation: Observation, chunk: ActionChunk) -> None:
        found = None if chunk.further is None else (len(chunk.further), *chunk.further.shape[2:])
        if found != (None if observation.coming is None else (len(observation.frames), self._chunk_shape[1])):
            cause = "only an observation with coming actions asks for further ones, some for each row"
            raise self._wrong(chunk, f"answers further actions of {found or 'no'} rows and dimensions", cause)

    def _check_finite(self, chunk: ActionChunk) -> None:
        for name in ("actions", "further", "tokens", "logprobs", "values", "final_values"):
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
