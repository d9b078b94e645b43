"""Warnings about a finished update, from its metrics and the number of chunk steps that the env workers sent."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Iterator, Mapping

from rlrun.config.schema import Precision, RolloutBackendKind, RunConfig

GAP_BOUND = {Precision.fp32: 1e-3, Precision.bf16: 0.1}  # of rollout_logprob_gap, by what both compute in
NUM_STEPS_IN_A_ROW = 3
_GAP_OF_ONE = 1.0  # of a single chunk step
_FARTHER = 30.0  # times the gap of the nearest rollout worker, where both are within the bound
_LEAST_FAR = 1e-4  # gap below which workers are not compared
_DRAWS = 5.5  # standard deviations; 4e-8 by chance
_FAR = 10.0  # times target_kl
_KL = 3.0  # without a target
_NONFINITE = 0.1  # share of the optimizer steps
_FIRST_ERRORS = 5  # steps whose mean own_flow_error is the first value; as many newest ones are compared
_GROWN = 2.0  # times the first value
_ACTS_OTHERWISE = "that worker may act with other weights, or for other observations, than it says"
_LEARNS_OTHERWISE = "actor/0 may learn with other weights than it sent"


class UpdateChecks:
    """Remembers the last updates. Each check yields (kind, sentence).

    A number that is NaN is beyond every bound; one that is absent is within.
    """

    def __init__(self, config: RunConfig):
        self._config = config
        self._scale = 1 / min(1.0, config.rollout.temperature)  # of log-probabilities
        self._without_steps = 0  # training steps in a row
        self._with_nonfinite = 0
        self._first_errors: list[float] = []
        self._errors: deque[float] = deque(maxlen=_FIRST_ERRORS)

    def check(self, metrics: Mapping[str, float], num_collected: int) -> Iterator[tuple[str, str]]:
        """Yield the warnings of an update. num_collected: chunk steps that the env workers sent to learn from."""
        if metrics.get("policy_age", 0.0) == 0:  # else the policies do differ
            yield from self._of_gap(metrics)
            yield from self._of_draws(metrics)
        yield from self._of_rows(metrics, num_collected)
        yield from self._of_steps(metrics)
        yield from self._of_change(metrics)
        yield from self._of_kl(metrics)

    def _of_gap(self, metrics: Mapping[str, float]) -> Iterator[tuple[str, str]]:
        gap = metrics.get("rollout_logprob_gap", 0.0)
        largest = metrics.get("rollout_logprob_gap_max", 0.0)
        least = metrics.get("rollout_logprob_gap_least", gap)
        bound = self._scale * self._gap_bound
        worker = _rollout_worker(metrics.get("rollout_logprob_gap_worker", 0.0))
        is_alone = self._config.rollout.num_workers == 1 or least == gap  # equal: only one was measured
        differs = f"{worker} and the actor differ by {gap:.3g} in the log-probabilities of the same actions"
        if not gap <= bound:
            if is_alone:
                cause = (
                    f"{_ACTS_OTHERWISE}, or {_LEARNS_OTHERWISE}: a single rollout worker has no peer to compare with"
                )
            elif not least <= bound:
                cause = f"all rollout workers differ from it, by at least {least:.3g}, so {_LEARNS_OTHERWISE}"
            else:
                cause = _ACTS_OTHERWISE
            yield "gap", f"{differs}, where at most {bound:g} is rounding: {cause}"
        elif not largest <= self._scale * _GAP_OF_ONE:
            of_one = _rollout_worker(metrics.get("rollout_logprob_gap_max_worker", 0.0))
            yield (
                "gap of one",
                f"{of_one} and the actor differ by {largest:.3g} in the log-probabilities of a single chunk step: an "
                "answer may have been changed, or exchanged",
            )
        elif self._is_exact and not is_alone and gap > max(_FARTHER * least, self._scale * _LEAST_FAR):
            yield "gap of peers", f"{differs}, and its peers by {least:.3g}: {_ACTS_OTHERWISE}"

    def _of_draws(self, metrics: Mapping[str, float]) -> Iterator[tuple[str, str]]:
        deviation = metrics.get("rollout_draws", 0.0)
        if not abs(deviation) <= _DRAWS:
            worker = _rollout_worker(metrics.get("rollout_draws_worker", 0.0))
            yield (
                "draws",
                f"{worker} does not draw actions as its policy says: the mean of log-probability plus entropy is "
                f"{deviation:.1f} standard deviations from 0",
            )

    def _of_rows(self, metrics: Mapping[str, float], num_collected: int) -> Iterator[tuple[str, str]]:
        num_used = metrics.get("num_chunk_steps")
        if num_used is not None and num_collected and num_used != num_collected:
            yield (
                "rows",
                f"the actor ranks learned from {num_used:.0f} chunk steps, and the env workers sent {num_collected}: "
                "an actor rank loses rows, or counts some twice",
            )

    def _of_steps(self, metrics: Mapping[str, float]) -> Iterator[tuple[str, str]]:
        has_no_groups = metrics.get("num_groups", 0.0) > 0 and metrics["num_missing_groups"] == metrics["num_groups"]
        if has_no_groups:
            yield (
                "no groups",
                f"nothing was learned in this step: in each of {metrics['num_groups']:.0f} groups all episodes had the "
                f"same {self._config.algorithm.filter_groups.metric.value}, in {metrics['num_gen_batches']:.0f} "
                "collections (algorithm.filter_groups): take a first policy with which some episodes succeed",
            )
        is_on_policy = "is_kl_stopped" in metrics  # others may only collect at first
        is_idle = is_on_policy and metrics.get("num_optimizer_steps") == 0 and not has_no_groups
        self._without_steps = self._without_steps + 1 if is_idle else 0
        if self._without_steps >= NUM_STEPS_IN_A_ROW:
            kl = metrics.get("approx_kl", math.nan)
            yield (
                "no steps",
                f"nothing is learned: {self._without_steps} training steps in a row took no optimizer step (approx_kl "
                f"{kl:.3g}, target_kl {self._config.algorithm.target_kl}): raise algorithm.target_kl, or see why the "
                "policies of rollout and actor differ",
            )
        num_steps = metrics.get("num_optimizer_steps", 0.0)
        share = metrics.get("num_nonfinite", 0.0) / max(1.0, num_steps)
        self._with_nonfinite = self._with_nonfinite + 1 if share > _NONFINITE else 0
        if self._with_nonfinite >= NUM_STEPS_IN_A_ROW:
            yield (
                "nonfinite",
                f"{share:.0%} of the optimizer steps were skipped in each of the last {self._with_nonfinite} training "
                "steps or more, since a gradient was infinite or not a number: lower actor.lr, or set "
                "actor.param_precision=fp32",
            )

    def _of_change(self, metrics: Mapping[str, float]) -> Iterator[tuple[str, str]]:
        num_steps = metrics.get("num_optimizer_steps", 0.0) - metrics.get("num_nonfinite", 0.0)
        has_signal = metrics.get("advantage_abs", 1.0) > 0  # else the episodes of each group had equal returns
        if num_steps > 0 and has_signal and metrics.get("lr", 0.0) > 0 and not metrics.get("weight_change", 1.0) > 0:
            yield (
                "no change",
                f"{num_steps:.0f} optimizer steps changed no weight (weight_change {metrics['weight_change']:g}): the "
                f"optimizer does not step, or a learning rate of {metrics['lr']:.3g} is lost in the rounding of "
                f"actor.param_precision={self._config.actor.param_precision.value}",
            )

    def _of_kl(self, metrics: Mapping[str, float]) -> Iterator[tuple[str, str]]:
        target = self._config.algorithm.target_kl
        limit = self._scale * (_KL if target is None else _FAR * target)
        for moved in (metrics.get("kl_k3", 0.0), abs(metrics.get("approx_kl", 0.0))):
            if not moved <= limit:
                yield (
                    "kl",
                    f"the policy moved by a KL of {moved:.3g} in one update, more than {limit:g}: lower actor.lr",
                )
                return

    def of_own_error(self, metrics: Mapping[str, float]) -> Iterator[tuple[str, str]]:
        """Yield a warning if a policy has come to predict its own actions much worse than at first."""
        error = metrics.get("own_flow_error")
        if error is None or not math.isfinite(error):
            return
        if len(self._first_errors) < _FIRST_ERRORS:
            self._first_errors.append(error)
            return
        self._errors.append(error)
        first = statistics.mean(self._first_errors)
        now = statistics.median(self._errors)
        if len(self._errors) == _FIRST_ERRORS and now > _GROWN * first:
            yield (
                "own flow error",
                f"the flow-matching error of the policy on its own actions (own_flow_error) is {now:.3g}, and was "
                f"{first:.3g} in the first {_FIRST_ERRORS} steps: if the success rate falls too, the policy loses its "
                "own actions, and the error will go on growing; lower actor.lr or raise algorithm.kl_coef, and take "
                "the best checkpoint (checkpoint.best_on)",
            )

    @property
    def _is_exact(self) -> bool:
        config = self._config
        is_exact = config.rollout.backend is RolloutBackendKind.hf and config.rollout.precision is Precision.fp32
        return is_exact and config.actor.param_precision is Precision.fp32

    @property
    def _gap_bound(self) -> float:
        return GAP_BOUND[Precision.fp32 if self._is_exact else Precision.bf16]


def _rollout_worker(rank: float) -> str:
    return f"rollout/{int(rank)}" if math.isfinite(rank) else "a rollout worker"
