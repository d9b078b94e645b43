"""The small networks: scales, running statistics, folders, and what a wrong folder says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from rlrun.config.schema import PolicyConfig, RunConfig
from rlrun.edges.spaces import Spaces
from rlrun.policies.actor_critic.policy import CLIP, ActorCriticPolicy, RunningStatistics
from rlrun.policies.actor_critic.spec import ActionKind, CnnSettings, MlpSettings
from rlrun.policies.opening import open_policy, open_to_shard
from rlrun.policies.weight_files import fill
from rlrun.system.errors import RunError
from tests.numerics import assert_norm_close, rounding

ARM = Spaces(2, None, (-2.0, 0.0), (2.0, 1.0), num_proprio=5, num_images=0)
KEYS = Spaces(1, 4, (0.0,), (3.0,), num_proprio=5, num_images=0)
CAMERA = Spaces(2, None, (-1.0, float("-inf")), (1.0, float("inf")), num_proprio=5, num_images=1)
SIDE, C, B = 16, 3, 4


def config(kind: str = "mlp", **changes: object) -> PolicyConfig:
    shared = {"num_action_chunks": C, "value_hidden_sizes": [8]}
    shared |= {name: changes.pop(name) for name in ("num_action_chunks", "use_proprio") if name in changes}
    own = {"hidden_sizes": [8]} | changes
    section = CnnSettings(**own, conv_channels=[4, 8]) if kind == "cnn" else MlpSettings(**own)
    return PolicyConfig(kind=kind, sections={kind: section}, **shared)


def made(spaces: Spaces, kind: str = "mlp", **changes: object) -> ActorCriticPolicy:
    return ActorCriticPolicy.new(config(kind, **changes), SIDE, spaces, seed=1)


def frames(spaces: Spaces, seed: int = 0) -> tuple[np.ndarray, tuple[str, ...], np.ndarray]:
    draw = np.random.default_rng(seed)
    images = draw.integers(0, 256, (B, spaces.num_images, SIDE, SIDE, 3), dtype=np.uint8)
    return images, ("",) * B, draw.standard_normal((B, spaces.num_proprio)).astype(np.float32)


@pytest.mark.parametrize(("spaces", "kind"), [(ARM, "mlp"), (KEYS, "mlp"), (CAMERA, "cnn")])
def test_a_saved_policy_computes_the_same(tmp_path: Path, spaces: Spaces, kind: str) -> None:
    policy = made(spaces, kind, normalize_observations=True)
    policy.observe(frames(spaces, 1)[2], lambda x: x)
    assert policy.module.statistics is None or float(policy.module.statistics.count) == B
    policy.save(tmp_path)
    read: list[None] = []
    again = open_policy(
        tmp_path, torch.float32, "cpu", RunConfig(policy=config(kind)), progress=lambda: read.append(None)
    )
    assert len(read) == len(again.module.state_dict()), "each tensor is a sign of progress"
    keys = np.arange(B, dtype=np.uint64)
    (ours, values), (theirs, same_values) = (p(*frames(spaces), temperature=1.0) for p in (policy, again))
    tokens = ours.sample(keys).detach()
    assert torch.equal(tokens, theirs.sample(keys)) and torch.equal(values, same_values)
    assert tokens.shape == (B, C * spaces.num_actions) and values.shape == (B,)
    actions = again.decode_actions(tokens.numpy())
    assert actions.shape == (B, C, spaces.num_actions) and actions.dtype == np.float32


def test_the_network_range_is_the_simulators() -> None:
    ends = np.array([[-1.0, -1.0] * C, [1.0, 1.0] * C])
    assert made(ARM).decode_actions(ends)[:, 0].tolist() == [[-2.0, 0.0], [2.0, 1.0]]
    assert made(CAMERA, "cnn").decode_actions(ends)[:, 0].tolist() == [[-1.0, -1.0], [1.0, 1.0]]
    assert made(KEYS).decode_actions(np.array([[0, 3, 1]], np.uint8))[0, :, 0].tolist() == [0.0, 3.0, 1.0]


def test_what_a_network_does_not_take_changes_nothing() -> None:
    images, texts, proprio = frames(CAMERA)
    blind, dull = made(CAMERA), made(CAMERA, "cnn", use_proprio=False)
    assert (blind.config.num_images, dull.num_proprio) == (0, 0)
    assert torch.equal(blind(images, texts, proprio, 1.0)[1], blind(255 - images, texts, proprio, 1.0)[1])
    assert torch.equal(dull(images, texts, proprio, 1.0)[1], dull(images, texts, -proprio, 1.0)[1])
    assert not torch.equal(dull(images, texts, proprio, 1.0)[1], dull(255 - images, texts, proprio, 1.0)[1])


def test_running_statistics_are_those_of_everything() -> None:
    draw = np.random.default_rng(0)
    rows = draw.normal([1000.0, -3.0], [0.5, 20.0], (300, 2)).astype(np.float32)
    statistics = RunningStatistics(2)
    for part in (rows[:100], rows[100:100], rows[100:]):
        statistics.add(torch.from_numpy(part), lambda x: x)
    for column in range(2):
        of_all = rows[:, column].astype(np.float64)
        assert_norm_close(statistics.mean[column], of_all.mean(), rounding(1))
        assert_norm_close(statistics.variance[column], of_all.var(), 1e-4)
    assert float(statistics.count) == 300
    scaled = statistics.normalize(torch.from_numpy(rows))
    assert scaled.mean(0).tolist() == pytest.approx([0, 0], abs=1e-3)
    assert float(statistics.normalize(torch.tensor([[9000.0, 0.0]]))[0, 0]) == CLIP


def test_ranks_agree_on_the_statistics() -> None:
    """What one rank with all rows computes, two with a part each compute through their sums."""
    rows = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    alone, together = RunningStatistics(3), RunningStatistics(3)
    alone.add(rows, lambda x: x)
    mean, parts = rows.double().mean(0), (rows[:10].double(), rows[10:].double())
    sums = [torch.cat([torch.tensor([float(len(part))]).double(), part.sum(0)]) for part in parts]
    squares = [(part - mean).square().sum(0) for part in parts]
    others = iter([sums[1], squares[1]])
    together.add(rows[:10], lambda x: x + next(others))
    for name, buffer in alone.named_buffers():
        assert_norm_close(dict(together.named_buffers())[name], buffer, rounding(1), name=name)


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"kind": "openvla_oft"}, "policy.kind"),
        ({"kind": "cnn"}, "policy.kind"),
        ({"num_action_chunks": 9}, "policy.num_action_chunks"),
    ],
)
def test_a_policy_of_another_run_is_refused(tmp_path: Path, changes: dict, key: str) -> None:
    made(ARM).save(tmp_path)
    num_action_chunks = changes.get("num_action_chunks", C)
    run = RunConfig(policy=PolicyConfig(kind=changes.get("kind", "mlp"), num_action_chunks=num_action_chunks))
    with pytest.raises(RunError) as caught:
        open_policy(tmp_path, torch.float32, "cpu", run)
    assert caught.value.key == key and key in caught.value.remedy


@pytest.mark.parametrize("damage", ["model.safetensors", "truncated"])
def test_a_damaged_folder_is_refused(tmp_path: Path, damage: str) -> None:
    made(ARM).save(tmp_path)
    weights = tmp_path / "model.safetensors"
    if damage == "truncated":
        weights.write_bytes(weights.read_bytes()[:40])
    else:
        weights.unlink()
    with pytest.raises(RunError, match=r"cannot be read|lacks model.safetensors"):
        open_policy(tmp_path, torch.float32, "cpu")


def test_a_rank_opens_it_without_memory(tmp_path: Path) -> None:
    """Statistics of observations are buffers, and are filled too."""
    saved = made(ARM, normalize_observations=True)
    saved.module.statistics.mean.fill_(3.0)
    saved.save(tmp_path)
    opened, weights = open_to_shard(tmp_path, RunConfig(policy=config("mlp")))
    assert all(parameter.is_meta for parameter in opened.module.parameters())
    fill(opened.module, weights, "cpu")
    for name, tensor in saved.module.state_dict().items():
        assert torch.equal(opened.module.state_dict()[name], tensor)


def test_a_policy_whose_actions_are_not_squashed_is_no_policy_for_sac(tmp_path: Path) -> None:
    """SAC's log-densities would be those of other actions than the policy executes."""
    run = RunConfig(policy=config(distribution=ActionKind.squashed))
    for kind in ActionKind:
        made(ARM, distribution=kind).save(tmp_path / kind.value)
    assert open_to_shard(str(tmp_path / "squashed"), run)[0].config.is_squashed
    with pytest.raises(RunError, match="does not fit the run") as caught:
        open_to_shard(str(tmp_path / "normal"), run)
    assert caught.value.key == "policy.mlp.distribution" and "distribution=normal" in str(caught.value.remedy)
