"""The recipes of RLinf and SimpleVLA-RL: gradients of minibatches against plain copies of both losses, in float64.

The copies are written from their sources: RLinf's masked_mean_ratio with an episode's executed control steps, and
SimpleVLA-RL's micro-batches of one episode. Shape legend: T chunk steps, B rows, C control steps, A action dimensions.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from rlrun.actor.learning_batch import BatchPlan, LearningBatch, learning_batch
from rlrun.algorithms.advantages import on_one_rank
from rlrun.algorithms.algorithm import Algorithm, Outputs, Reduction, Targets
from rlrun.algorithms.losses import aggregate_logprobs
from rlrun.config.loader import load
from rlrun.config.registry import ALGORITHMS
from rlrun.config.schema import Aggregation, AlgorithmConfig, MinibatchOf
from rlrun.edges.trajectories import Trajectory
from rlrun.policies.distributions import Bins
from tests.numerics import assert_norm_close

INVENTORY = Path(__file__).parents[3] / "configs" / "inventory_example.yaml"
HORIZON, EPOCHS, GROUP = 6, 2, 8
T, B = HORIZON * EPOCHS, 6 * GROUP
C, A, P, BINS = 4, 3, 5, 7
K = C * A
LOW, HIGH = 0.2, 0.28
NUM_MINIBATCHES, NUM_MICRO_BATCHES = 3, 4
ROUNDING = 1e-6  # advantages and sizes of episodes are float32

Places = set[tuple[int, int]]  # (chunk step, row)


@dataclass(frozen=True)
class Episode:
    """One episode: its row, its chunk steps, and the executed control steps of each."""

    row: int
    times: list[int]
    executed: list[int]
    score: float

    @property
    def group(self) -> tuple[int, int]:
        return self.times[0] // HORIZON, self.row // GROUP


def recipe(run: str, **changes: object) -> AlgorithmConfig:
    config = load([f"run={run}", f"placement.inventory={INVENTORY}"])
    return dataclasses.replace(config.algorithm, horizon=HORIZON, rollout_epochs=EPOCHS, **changes)


def world() -> tuple[Trajectory, list[Episode]]:
    """Return a trajectory and its episodes: successes are shorter, a group is left out, a row is void, rows rest."""
    draw = np.random.default_rng(0)
    shape = (T, B)
    valid, terminated, truncated = np.zeros((3, *shape), bool)
    step_valid, rewards = np.zeros((*shape, C), bool), np.zeros((*shape, C), np.float32)
    episodes = []
    for epoch, row in np.ndindex(EPOCHS, B):
        if (epoch, row // GROUP) == (0, 1) or (epoch, row) == (1, 3):
            continue
        is_success = row % GROUP == 0 or (row % GROUP > 1 and draw.random() < 0.5)
        length = int(draw.integers(1, HORIZON)) if is_success else HORIZON
        times = [epoch * HORIZON + t for t in range(length)]
        executed = [C] * (length - 1) + [int(draw.integers(1, C + 1)) if is_success else C]
        for t, count in zip(times, executed, strict=True):
            valid[t, row], step_valid[t, row, :count] = True, True
        (terminated if is_success else truncated)[times[-1], row] = True
        rewards[times[-1], row, executed[-1] - 1] = is_success
        episodes.append(Episode(row, times, executed, float(is_success)))
    tokens = draw.integers(0, BINS, (*shape, K)).astype(np.uint8)
    proprio = draw.standard_normal((*shape, P)).astype(np.float32)
    with torch.no_grad():
        acted = logprobs(weights(0), torch.from_numpy(proprio), torch.from_numpy(tokens)).float().numpy()
    nothing = np.full(shape, np.nan, np.float32)
    trajectory = Trajectory(
        images=np.zeros((*shape, 0, 1, 1, 3), np.uint8),
        proprio=proprio,
        instructions=("push",),
        instruction_index=np.zeros(shape, np.int16),
        tokens=tokens,
        logprobs=np.where(valid[..., None], acted, np.nan),
        values=nothing,
        next_values=nothing,
        rewards=rewards,
        step_valid=step_valid,
        terminated=terminated,
        truncated=truncated,
        valid=valid,
        group=(np.arange(B) // GROUP).astype(np.int32),
        policy_version=np.zeros(shape, np.int32),
    )
    return trajectory, episodes


def weights(seed: int) -> Tensor:
    """Return those of the policy that acted (0), or of one that has moved away from it."""
    draw = torch.Generator().manual_seed(0)
    first = torch.randn(P, K * BINS, generator=draw, dtype=torch.float64)
    return first + 0.1 * seed * torch.randn(P, K * BINS, generator=draw, dtype=torch.float64)


def distribution(policy: Tensor, proprio: Tensor) -> Bins:
    return Bins((proprio.double() @ policy).unflatten(-1, (K, BINS)), 1.0)


def logprobs(policy: Tensor, proprio: Tensor, tokens: Tensor) -> Tensor:
    logits = (proprio.double() @ policy).unflatten(-1, (K, BINS))
    return logits.log_softmax(-1).gather(-1, tokens.long().unsqueeze(-1)).squeeze(-1)


# --- plain copies ------------------------------------------------------------------------------


def advantage(episode: Episode, episodes: list[Episode]) -> float:
    scores = torch.tensor([other.score for other in episodes if other.group == episode.group]).double()
    return float((episode.score - scores.mean()) / (scores.std() + 1e-6))


def token_losses(policy: Tensor, seen: Trajectory, t: int, row: int, count: int, gain: float) -> Tensor:
    """Return the clipped losses of the first `count` control steps of a chunk step, [count * A]."""
    inputs = (torch.from_numpy(array[t, row]) for array in (seen.proprio, seen.tokens))
    change = logprobs(policy, *inputs) - torch.from_numpy(seen.logprobs[t, row]).double()
    ratio = change[: count * A].exp()
    return torch.maximum(-gain * ratio, -gain * ratio.clamp(1 - LOW, 1 + HIGH))


def of_rlinf(policy: Tensor, seen: Trajectory, episodes: list[Episode], places: Places) -> Tensor:
    """The mean over all entries of a minibatch of loss / (control steps of the episode / time limit)."""
    total = torch.zeros((), dtype=torch.float64)
    for episode in episodes:
        share = sum(episode.executed) / (HORIZON * C)
        gain = advantage(episode, episodes)
        for t, count in zip(episode.times, episode.executed, strict=True):
            if (t, episode.row) in places:
                total = total + (token_losses(policy, seen, t, episode.row, count, gain) / share).sum()
    return total / (T * B * K / NUM_MINIBATCHES)


def of_simplevla_rl(policy: Tensor, seen: Trajectory, episodes: list[Episode], places: Places) -> Tensor:
    """Episode by episode: the mean over its tokens, over the number of episodes in the minibatch."""
    taken = [episode for episode in episodes if (episode.times[0], episode.row) in places]
    total = torch.zeros((), dtype=torch.float64)
    for episode in taken:
        assert {(t, episode.row) for t in episode.times} <= places, "a minibatch has a part of an episode"
        gain = advantage(episode, episodes)
        parts = zip(episode.times, episode.executed, strict=True)
        losses = torch.cat([token_losses(policy, seen, t, episode.row, count, gain) for t, count in parts])
        total = total + losses.mean() / len(taken)
    return total


# --- rlrun -------------------------------------------------------------------------------------


def share_of(seen: Trajectory, rank: int, num_ranks: int) -> Trajectory:
    rows = slice(rank * B // num_ranks, (rank + 1) * B // num_ranks)
    arrays = {field.name: getattr(seen, field.name) for field in dataclasses.fields(seen)}
    kept = {name: x[rows] if name == "group" else x[:, rows] for name, x in arrays.items() if isinstance(x, np.ndarray)}
    return dataclasses.replace(seen, **kept)


def minibatches(batch: LearningBatch, config: AlgorithmConfig, rank: int) -> list[list[np.ndarray]]:
    episode = batch.usable_episode if config.minibatch_of is MinibatchOf.episodes else None
    plan = BatchPlan(NUM_MINIBATCHES, NUM_MICRO_BATCHES, 0)
    return plan.epoch(batch.usable, np.random.default_rng(rank), episode)


def in_double(targets: Targets) -> Targets:
    numbers = {name: getattr(targets, name) for name in Targets.__dataclass_fields__}
    return Targets(**{name: x.double() if x.is_floating_point() else x for name, x in numbers.items()})


def part_of_loss(algorithm: Algorithm, policy: Tensor, batch: LearningBatch, rows: np.ndarray, total: Tensor) -> Tensor:
    """Return a micro-batch's part of the loss of a minibatch, whose counts are `total`, as the learner weighs it."""
    targets = in_double(batch.rows(rows, len(rows), torch.device("cpu")).targets)
    made = distribution(policy, torch.from_numpy(batch.proprio[rows]))
    found = made.logprobs(targets.tokens)
    units = aggregate_logprobs(found, targets.token_mask, algorithm.config.ratio_level.value, C)[0]
    losses = algorithm.loss(Outputs(made, found, units, None), targets)
    shares = dict(zip(Reduction, torch.from_numpy(batch.counts[rows].sum(0)) / total, strict=True))
    return torch.stack([term.mean * term.coefficient * shares[term.over] for term in losses.terms]).sum()


def gradients(config: AlgorithmConfig, seen: Trajectory, num_ranks: int) -> list[tuple[Tensor, Places]]:
    """Return the gradient of each minibatch, summed over micro-batches and ranks, and what is in it."""
    algorithm = ALGORITHMS.get(config.name).make(config)
    assert isinstance(algorithm, Algorithm)
    batches = [learning_batch(share_of(seen, rank, num_ranks), algorithm, on_one_rank) for rank in range(num_ranks)]
    cut = [minibatches(batch, config, rank) for rank, batch in enumerate(batches)]
    own, found = B // num_ranks, []
    for of_ranks in zip(*cut, strict=True):
        parts = [(rank, rows) for rank, of_rank in enumerate(of_ranks) for rows in of_rank if len(rows)]
        total = torch.from_numpy(sum(batches[rank].counts[rows].sum(0) for rank, rows in parts))
        policy = weights(1).requires_grad_()
        for rank, rows in parts:
            part_of_loss(algorithm, policy, batches[rank], rows, total).backward()
        places = {(int(row) // own, int(row) % own + rank * own) for rank, rows in parts for row in rows}
        found.append((policy.grad, places))
    return found


def cosine(one: Tensor, other: Tensor) -> float:
    return float(torch.cosine_similarity(one.flatten(), other.flatten(), dim=0))


@pytest.mark.parametrize("num_ranks", [1, 2, 3])
@pytest.mark.parametrize(
    ("run", "theirs"),
    [("libero_rlinf", of_rlinf), ("libero_simplevla_rl", of_simplevla_rl)],
    ids=["rlinf", "simplevla"],
)
def test_a_recipes_gradient_is_that_of_a_plain_copy(run, theirs, num_ranks: int) -> None:
    seen, episodes = world()
    found = gradients(recipe(run), seen, num_ranks)
    assert len(found) == NUM_MINIBATCHES
    assert set().union(*(places for _, places in found)) == {(t, e.row) for e in episodes for t in e.times}
    for gradient, places in found:
        policy = weights(1).requires_grad_()
        theirs(policy, seen, episodes, places).backward()
        assert cosine(gradient, policy.grad) > 0.9999
        factor = 1.0 if theirs is of_simplevla_rl else policy.grad.norm() / gradient.norm()
        assert_norm_close(gradient * factor, policy.grad, ROUNDING)


def test_both_publications_have_one_gradient_and_other_weights_have_another() -> None:
    seen, episodes = world()
    everything = {(t, episode.row) for episode in episodes for t in episode.times}
    theirs = []
    for loss in (of_rlinf, of_simplevla_rl):
        policy = weights(1).requires_grad_()
        loss(policy, seen, episodes, everything).backward()
        theirs.append(policy.grad)
    assert cosine(*theirs) > 1 - 1e-12
    for other in (one for one in Aggregation if one is not Aggregation.episode_mean_token_mean):
        whole = sum(gradient for gradient, _ in gradients(recipe("libero_simplevla_rl", aggregation=other), seen, 1))
        assert cosine(whole, theirs[0]) < 0.999


@pytest.mark.parametrize("run", ["libero_rlinf", "libero_simplevla_rl"])
def test_advantages_and_masks_of_a_recipe_are_those_of_plain_loops(run: str) -> None:
    seen, episodes = world()
    config = recipe(run)
    algorithm = ALGORITHMS.get(config.name).make(config)
    assert isinstance(algorithm, Algorithm)
    batch = learning_batch(seen, algorithm, on_one_rank)
    expected, mask = np.zeros((T, B)), np.zeros((T, B, C, A), bool)
    sizes = np.zeros((T, B))
    for episode in episodes:
        expected[episode.times, episode.row] = advantage(episode, episodes)
        sizes[episode.times, episode.row] = sum(episode.executed) * A
        for t, count in zip(episode.times, episode.executed, strict=True):
            mask[t, episode.row, :count] = True
    assert_norm_close(batch.advantages.view(T, B), expected, ROUNDING)
    assert np.array_equal(batch.token_mask.view(T, B, C, A).numpy(), mask)
    assert np.array_equal(batch.unit_mask.numpy(), batch.token_mask.numpy())  # a ratio for each token
    assert np.array_equal(batch.episode_tokens.view(T, B).numpy()[mask.any((2, 3))], sizes[mask.any((2, 3))])
    assert_norm_close(batch.counts[:, 0].sum(), len(episodes), 1e-12)  # every episode weighs 1
