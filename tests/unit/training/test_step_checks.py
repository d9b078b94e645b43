"""Warnings about finished steps: those that are due, and none in a run that is well."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from rlrun.config.schema import Precision, RolloutBackendKind, RunConfig
from rlrun.data.messages import EnvTally, EpisodeReport
from rlrun.system.errors import ExitStatus, RunError
from rlrun.training.step_checks import StepChecks, differs
from rlrun.workers.env_worker import Collected

WELL = {"num_optimizer_steps": 4.0, "is_kl_stopped": 0.0, "approx_kl": 0.01, "kl_k3": 0.01, "rollout_logprob_gap": 1e-6}
LIMIT = 120


def checks(**changes: object) -> StepChecks:
    config = RunConfig()
    config.env.max_control_steps = LIMIT
    for path, value in changes.items():
        section, _, key = path.partition("__")
        setattr(getattr(config, section), key, value)
    return StepChecks(config)


def episode(**fields: object) -> EpisodeReport:
    report = EpisodeReport(0, 1, False, 0.0, 0.5, 60, False, True, False)
    return dataclasses.replace(report, **fields)


def report(episodes: list[EpisodeReport] | None = None, **tally: object) -> Collected:
    counted = EnvTally(20, 5, 20, (0, 0), 0.0, ("go",))
    return Collected(episodes or [], 100, 0, dataclasses.replace(counted, **tally))


def said(judge: StepChecks, reports: list[Collected], steps: int = 1, **metrics: float) -> list[str]:
    return [text for _ in range(steps) for text in judge.check(WELL | metrics, reports)]


# --- the update -------------------------------------------------------------------------------------


def test_a_run_that_is_well() -> None:
    assert said(checks(), [report(), report()], steps=200) == []


@pytest.mark.parametrize(
    ("gap", "precision", "backend", "is_warned"),
    [
        (2e-3, Precision.fp32, RolloutBackendKind.hf, True),
        (5e-4, Precision.fp32, RolloutBackendKind.hf, False),
        (0.05, Precision.bf16, RolloutBackendKind.hf, False),
        (0.2, Precision.bf16, RolloutBackendKind.hf, True),
        (0.05, Precision.fp32, RolloutBackendKind.sglang, False),
    ],
)
def test_a_gap_beyond_rounding_names_the_rollout_worker(gap, precision, backend, is_warned) -> None:
    judge = checks(rollout__precision=precision, rollout__backend=backend)
    found = said(judge, [report()], rollout_logprob_gap=gap, rollout_logprob_gap_worker=3.0)
    assert len(found) == is_warned and all(text.startswith("rollout/3 and the actor differ by") for text in found)


def test_a_single_answer_that_differs() -> None:
    (text,) = said(checks(), [report()], rollout_logprob_gap_max=5.0, rollout_logprob_gap_worker=1.0)
    assert text.startswith("rollout/1") and "of a single chunk step" in text


def test_older_policies_may_differ() -> None:
    assert said(checks(), [report()], rollout_logprob_gap=0.5, rollout_logprob_gap_max=5.0, policy_age=1.0) == []


def test_a_run_that_learns_nothing_says_so_after_three_steps() -> None:
    judge = checks(algorithm__target_kl=0.1)
    assert said(judge, [report()], steps=2, num_optimizer_steps=0.0, approx_kl=-0.5) == []
    (text,) = said(judge, [report()], num_optimizer_steps=0.0, approx_kl=-0.5)
    assert "3 training steps in a row took no optimizer step" in text and "target_kl 0.1" in text


@pytest.mark.parametrize(("target", "kl", "is_warned"), [(0.1, 1.1, True), (0.1, 0.9, False), (None, 4.0, True)])
def test_a_policy_that_jumps(target, kl, is_warned) -> None:
    found = said(checks(algorithm__target_kl=target), [report()], kl_k3=kl)
    assert len(found) == is_warned and all("moved by a KL of" in text for text in found)


def test_the_same_warning_comes_once_in_a_while() -> None:
    assert len(said(checks(), [report()], steps=120, rollout_logprob_gap=0.5)) == 3


# --- the simulators ---------------------------------------------------------------------------------


def test_many_void_episodes_in_three_steps_end_the_run() -> None:
    judge = checks()
    bad = report([episode(infra_fault=True), *[episode()] * 7])
    bad = dataclasses.replace(bad, row_faults=("row 3, seed 4: reward is nan at control step 101",))
    said(judge, [report(), bad], steps=2)
    said(judge, [report([episode()] * 8)])  # a good step: the count begins anew
    said(judge, [report(), bad], steps=2)
    with pytest.raises(RunError, match="more than 10% in each of the last 3 training steps") as caught:
        said(judge, [report(), bad])
    assert caught.value.exit_status is ExitStatus.worker_lost
    assert "env/1: row 3, seed 4: reward is nan at control step 101" in str(caught.value)


def test_few_void_episodes_do_not() -> None:
    said(checks(), [report([episode(infra_fault=True), *[episode()] * 19])], steps=20)


def test_a_frozen_camera_is_named_by_its_peers() -> None:
    (text,) = said(checks(), [report(), report(num_frozen=(0, 20)), report()])
    assert text.startswith("camera 1 of env/1 shows the same picture in 100% of 20 chunk steps")


def test_a_frozen_camera_is_named_by_its_own_past() -> None:
    judge = checks()
    assert said(judge, [report()], steps=3) == []
    assert said(judge, [report(num_frozen=(20, 0))])[0].startswith("camera 0 of env/0")


def test_a_worker_all_of_whose_cameras_are_frozen_needs_no_comparison() -> None:
    assert len(said(checks(), [report(num_frozen=(20, 20))])) == 2


def test_a_camera_that_looks_at_a_wall_is_well() -> None:
    assert said(checks(), [report(num_frozen=(0, 20))] * 2, steps=20) == []
    assert said(checks(), [report(num_moves=4, num_frozen=(4, 4)), report()]) == []  # too few to say


def test_an_episode_that_is_longer_than_the_limit() -> None:
    assert said(checks(), [report([episode(num_control_steps=LIMIT)])]) == []
    (text,) = said(checks(), [report(), report([episode(num_control_steps=LIMIT + 1)])])
    assert text.startswith("an episode of env/1 took 121 control steps")


def drawn(generator: np.random.Generator, success: float, count: int = 2) -> list[EpisodeReport]:
    """Episodes of a world in which success pays 1 beside a random amount, and ends them."""
    found = []
    for _ in range(count):
        is_success = bool(generator.random() < success)
        length = int(generator.integers(10, LIMIT)) if is_success else LIMIT
        paid = float(generator.random()) + is_success
        found.append(episode(success=is_success, episode_return=paid, num_control_steps=length))
    return found


def at_once() -> list[EpisodeReport]:
    return [episode(success=True, episode_return=1.0, num_control_steps=4)] * 2


@pytest.mark.parametrize("success", [0.0, 0.3])
def test_success_at_every_first_chunk_is_unlike_the_peers(success: float) -> None:
    judge, generator = checks(), np.random.default_rng(0)
    found = [text for _ in range(20) for text in said(judge, [report(drawn(generator, success)), report(at_once())])]
    assert any("the length of env/1 was 4 in each of its last" in text for text in found)
    assert not any(text.startswith(("the return of env/0", "the length of env/0")) for text in found) or success == 0


def test_one_of_many_workers_is_named_alone() -> None:
    judge, generator = checks(), np.random.default_rng(0)
    found = []
    for _ in range(20):
        better = drawn(generator, 0.98, 4)
        others = [report(drawn(generator, 0.02, 4)) for _ in range(3)]
        found += said(judge, [*others[:2], report(better), *others[2:]])
    assert found and all("of env/2 is" in text and "those of its peers" in text for text in found)


def test_rewards_that_are_always_zero_are_unlike_the_peers() -> None:
    judge, generator = checks(), np.random.default_rng(0)
    nothing = [episode(episode_return=0.0)] * 2
    found = [text for _ in range(20) for text in said(judge, [report(nothing), report(drawn(generator, 0.2))])]
    assert any("the return of env/0 was 0 in each of its last" in text for text in found)


def test_rewards_that_became_zero_are_unlike_its_own_past() -> None:
    judge = checks()
    assert said(judge, [report(num_paid=2)], steps=30) == []
    (text,) = said(judge, [report(num_paid=0)], steps=25)
    assert text.startswith("env/0 paid no reward in its last 140 chunk steps, and in 9% of those before")


def test_rewards_that_are_always_zero_are_unlike_the_peers_before_any_episode_ends() -> None:
    found = said(checks(), [report(), report(num_paid=0), report()], steps=20)
    assert len(found) == 1 and found[0].startswith("env/1 paid no reward in its last 60 chunk steps, and in 25% of")


def test_a_world_that_pays_nothing_yet_is_well() -> None:
    assert said(checks(), [report(num_paid=0)] * 2, steps=200) == []
    assert said(checks(), [report(num_paid=0)], steps=200) == []


@pytest.mark.parametrize("group_size", [1, 4])
def test_a_policy_that_learns_and_workers_that_differ_by_chance_are_well(group_size: int) -> None:
    """200 steps of four workers, from 2 to 95 % success; within a group all episodes end alike."""
    judge = checks()
    judge._group_size = group_size
    for seed in range(5):
        generator = np.random.default_rng(seed)
        for step in range(200):
            success = 0.02 + 0.93 * step / 200
            reports = [report([one for one in drawn(generator, success) for _ in range(group_size)]) for _ in range(4)]
            assert said(judge, reports) == []


def test_workers_with_other_tasks_are_not_compared() -> None:
    judge, generator = checks(), np.random.default_rng(0)
    for _ in range(20):
        reports = [report(drawn(generator, 0.2)), report(at_once(), instructions=("another task",))]
        assert said(judge, reports) == []


@pytest.mark.parametrize("shift", [0.0, 0.5, 3.0])
def test_the_rank_test_against_its_definition(shift: float) -> None:
    generator = np.random.default_rng(1)
    own, others = np.round(generator.normal(shift, 1, 40), 1), np.round(generator.normal(0, 1, 60), 1)
    more = np.mean([(a > b) + 0.5 * (a == b) for a in own for b in others])
    assert differs(own, others) == (more > 0.9)
    assert differs(others, own) == differs(own, others)
    assert not differs(own[:5], others[:5])
