"""Real-time chunking: weights and guided steps are those of a plain account in float64; new chunks go on with old ones.

tests/golden/test_lerobot_export.py compares whole policies with LeRobot's own code, where it is installed.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from rlrun.config.schema import PrefixSchedule, RealTimeChunkingConfig
from rlrun.policies.flow.policy import FlowPolicy
from rlrun.policies.flow.real_time import Guidance, prefix_weights
from rlrun.policies.flow.time import NOISE_AT_ONE, NOISE_AT_ZERO, FlowTime
from tests.numerics import assert_norm_close, norm_error
from tests.unit.policies.flow.test_policies import ROWS, A, frames, keys, new_policy

S, D = 8, 4
SCHEDULES = list(PrefixSchedule)


def plain_weight(schedule: PrefixSchedule, delay: int, horizon: int, step: int) -> float:
    if step < min(delay, horizon):
        return 1.0
    if step >= horizon:
        return 0.0
    left = (horizon - step) / (horizon - min(delay, horizon) + 1)
    exponential = left * (math.exp(left) - 1) / (math.e - 1)
    return {"zeros": 0.0, "ones": 1.0, "linear": left, "exp": exponential}[schedule.value]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_weights(schedule: PrefixSchedule) -> None:
    for delay, horizon in [(0, 3), (2, 6), (3, 3), (0, 8), (2, 0), (4, 2)]:
        wanted = [plain_weight(schedule, delay, horizon, step) for step in range(S)]
        assert_norm_close(prefix_weights(schedule, delay, horizon, S), np.array(wanted), 1e-6, scale=1.0)
    assert len(prefix_weights(schedule, 2, 20, S)) == S


def plain_flow(
    x: np.ndarray, matrix: np.ndarray, coming: np.ndarray, weights: np.ndarray, num_steps: int
) -> np.ndarray:
    """The account of LeRobot: time runs from 1, noise, to 0; float64."""
    for step in range(num_steps):
        time = 1.0 - step / num_steps
        velocity = np.tanh(x @ matrix) * (1.0 + time)
        error = (coming - (x - time * velocity)) * weights
        strength = 10.0 if time == 1.0 else min(10.0, time / (1 - time) * (time**2 + (1 - time) ** 2) / time**2)
        x = x - (velocity - strength * error) / num_steps
    return x


@pytest.mark.parametrize("flow_time", [NOISE_AT_ONE, NOISE_AT_ZERO], ids=["noise at 1", "noise at 0"])
@pytest.mark.parametrize("num_steps", [2, 4, 10])
def test_guided_steps_are_those_of_the_plain_account(flow_time: FlowTime, num_steps: int) -> None:
    draw = np.random.default_rng(num_steps)
    x, coming = draw.standard_normal((2, ROWS, S, D))
    matrix = draw.standard_normal((D, D))
    weights = prefix_weights(PrefixSchedule.exp, 2, 6, S).double().numpy()[:, None] * np.ones((ROWS, 1, 1))
    weights[0] = 0.0  # its episode begins

    def velocity_fn(x: Tensor, time: Tensor, num_rows: int) -> tuple[Tensor, None]:
        share = flow_time.share(time)[:, None, None]
        return -flow_time.sign * torch.tanh(x @ torch.from_numpy(matrix).float()) * (1.0 + share), None

    given = (torch.from_numpy(array).float() for array in (coming, weights))
    guided = Guidance(*given, 10.0, flow_time).guided(velocity_fn)
    ours = torch.from_numpy(x).float()
    for step in range(num_steps):
        time = torch.full((ROWS,), flow_time.after(step, num_steps))
        ours = flow_time.to_action(ours, guided(ours, time, ROWS)[0], 1.0 / num_steps)
    assert_norm_close(ours, plain_flow(x, matrix, coming, weights, num_steps), 1e-5)


@pytest.fixture(scope="module", params=["flow_sde", "flow_noise", "dsrl", "nft"])
def policy(request: pytest.FixtureRequest) -> FlowPolicy:
    longer = ["policy.num_action_chunks=8", "policy.smolvla.num_flow_steps=4"]
    if request.param == "nft":
        return new_policy("smolvla_nft", *longer)
    return new_policy("smolvla", f"policy.smolvla.sampling={request.param}", *longer)


def planned(policy: FlowPolicy, coming: np.ndarray, goes_on: np.ndarray, temperature: float = 0.0) -> np.ndarray:
    with torch.inference_mode():
        return policy.plan(*frames(), temperature, keys(), coming, goes_on, 2, RealTimeChunkingConfig())


def test_rows_that_go_on_repeat_what_is_coming_and_the_others_are_free(policy: FlowPolicy) -> None:
    coming = np.random.default_rng(3).standard_normal((ROWS, 4, A)).astype(np.float32)
    goes_on = np.array([False, True, True, False])
    with torch.inference_mode():
        distribution, _ = policy(*frames(), 1.0)
        free = policy.decode_actions(distribution.most_likely().cpu().numpy())
    plan = planned(policy, coming, goes_on)
    assert plan.shape == free.shape == (ROWS, S, A)
    assert_norm_close(plan[~goes_on], free[~goes_on], 1e-5)
    near, far = (norm_error(chunks[goes_on, :2], coming[goes_on, :2]) for chunks in (plan, free))
    assert near < 0.5 * far
    assert norm_error(planned(policy, -coming, goes_on)[goes_on], plan[goes_on]) > 0.1
    drawn = planned(policy, coming, goes_on, temperature=1.0)
    assert norm_error(drawn[goes_on, :2], coming[goes_on, :2]) < 0.7 * far
    assert np.array_equal(drawn, planned(policy, coming, goes_on, temperature=1.0))


def test_without_any_coming_action_every_row_is_free(policy: FlowPolicy) -> None:
    nothing = planned(policy, np.zeros((ROWS, 0, A), np.float32), np.zeros(ROWS, bool))
    ignored = planned(policy, np.ones((ROWS, 4, A), np.float32), np.zeros(ROWS, bool))
    assert_norm_close(ignored, nothing, 1e-6)


@pytest.mark.parametrize("name", ["pi05", "gr00t"])
def test_other_flow_policies_go_on_too(name: str) -> None:
    section = "policy.gr00t" if name == "gr00t" else "policy.pi"
    policy = new_policy(name, "policy.num_action_chunks=8", f"{section}.num_flow_steps=4")
    coming = np.tile(np.linspace(-1.5, 0.5, A, dtype=np.float32), (ROWS, 4, 1))  # in the ranges at which GR00T cuts
    free, guided = (planned(policy, coming, np.full(ROWS, goes_on)) for goes_on in (False, True))
    assert norm_error(guided[:, :2], coming[:, :2]) < 0.5 * norm_error(free[:, :2], coming[:, :2])
