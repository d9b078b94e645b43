"""The small imitating network: what it learns from, what a row depends on, folders, and what a wrong folder says."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rlrun.config.loader import load
from rlrun.config.registry import POLICIES
from rlrun.config.schema import RunConfig, SftConfig
from rlrun.policies.counting import count
from rlrun.policies.opening import open_policy, open_to_shard
from rlrun.policies.small.policy import SmallPolicy
from rlrun.policies.small.words import NUM_HASHES, rows_of
from rlrun.policies.spec import DemonstratedTask
from rlrun.system.errors import RunError
from tests.numerics import assert_norm_close, rounding
from tests.unit.policies.small import A, P, statistics

SIDE, C, ROWS = 16, 2, 8
KINDS = ["normal", "bins"]
CAMERAS = ("top", "wrist")
SENTENCES = ("put the red cube on the blue cube", "put the blue cube on the red cube")
SIZES = [
    *("policy.num_action_chunks=2", "env.image_size=16", "policy.value_hidden_sizes=[16]"),
    *("policy.small.conv_channels=[8,16]", "policy.small.text_hidden_size=32", "policy.small.hidden_sizes=[64]"),
]


def config(*overrides: str) -> RunConfig:
    return load(["policy=small", "policy.use_proprio=true", *SIZES, *overrides])


def new(*overrides: str, cameras: tuple[str, ...] = CAMERAS) -> SmallPolicy:
    return SmallPolicy.from_demonstrations(config(*overrides), DemonstratedTask(A, P, statistics(), SENTENCES, cameras))


def shown(num_images: int = 2, size: int = SIDE) -> tuple[np.ndarray, list[str], np.ndarray]:
    draw = np.random.default_rng(0)
    images = draw.integers(0, 256, (ROWS, num_images, size, size, 3), dtype=np.uint8)
    return images, [SENTENCES[row % 2] for row in range(ROWS)], draw.standard_normal((ROWS, P)).astype(np.float32)


def actions_of(sides: np.ndarray) -> np.ndarray:
    """Low actions where `sides` is 0, high ones where it is 1, a quarter from either bound; [B, C, A]."""
    action = statistics()["action"]
    low, high = (np.where(action["mask"], action[name], end) for name, end in (("q01", -1.0), ("q99", 1.0)))
    share = 0.25 + 0.5 * sides[:, None, None]
    return np.broadcast_to(low + share * (high - low), (len(sides), C, A)).astype(np.float32)


def imitated(policy: SmallPolicy, observed: tuple, actions: np.ndarray, num_steps: int = 50) -> float:
    """Take optimizer steps on one batch, and return the loss that is left."""
    valid = np.ones(actions.shape[:2], bool)
    optimizer = torch.optim.Adam(policy.module.parameters(), lr=3e-3)
    for _ in range(num_steps):
        optimizer.zero_grad()
        loss, _ = policy.imitation_loss(*observed, actions, valid, SftConfig())
        loss.backward()
        optimizer.step()
    return loss_of(policy, observed, actions)


@torch.no_grad()
def loss_of(policy: SmallPolicy, observed: tuple, actions: np.ndarray) -> float:
    return float(policy.imitation_loss(*observed, actions, np.ones(actions.shape[:2], bool), SftConfig())[0])


# Without what decides, both actions are equally likely: the best loss is half their distance, or log 2.
BLIND = {"normal": 0.5, "bins": np.log(2)}


@pytest.mark.parametrize("kind", KINDS)
def test_it_reads_sentences_and_their_order(kind: str) -> None:
    """The sentence alone decides, and both have the same words."""
    images, texts, proprio = shown()
    alike = np.repeat(images[:1], ROWS, axis=0)
    sides, same = np.array([SENTENCES.index(text) for text in texts]), np.repeat(proprio[:1], ROWS, axis=0)
    policy = new(f"policy.small.distribution={kind}")
    assert imitated(policy, (alike, texts, same), actions_of(sides)) < 0.2 * BLIND[kind]
    assert loss_of(policy, (alike, texts[::-1], same), actions_of(sides)) > BLIND[kind]
    deaf = new(f"policy.small.distribution={kind}")
    assert imitated(deaf, (alike, ["do it"] * ROWS, same), actions_of(sides)) > 0.95 * BLIND[kind]


@pytest.mark.parametrize("kind", KINDS)
def test_it_sees_where_things_are_in_every_camera(kind: str) -> None:
    """A bright square on the left or right of the last picture decides."""
    images, _, proprio = shown()
    images //= 4
    sides = np.arange(ROWS) % 2
    for row, side in enumerate(sides):
        column = 2 + 8 * side
        images[row, 1, 6:10, column : column + 4] = 255
    texts = [SENTENCES[0]] * ROWS
    policy = new(f"policy.small.distribution={kind}", "policy.use_proprio=false")
    assert imitated(policy, (images, texts, proprio), actions_of(sides)) < 0.2 * BLIND[kind]
    assert loss_of(policy, (images[::-1].copy(), texts, proprio), actions_of(sides)) > BLIND[kind]


def test_imitation_regresses_the_mean_and_leaves_the_deviation() -> None:
    observed, sides = shown(), np.arange(ROWS) % 2
    policy = new("policy.small.initial_log_std=-1.25")
    before = loss_of(policy, observed, actions_of(sides))
    with torch.no_grad():
        found, _ = policy(*observed, 1.0)
        wanted = np.repeat(sides[:, None] - 0.5, C * A, axis=1)
        assert_norm_close(before, np.abs(found.mean.numpy() - wanted).mean(), rounding(1))
    imitated(policy, observed, actions_of(sides), num_steps=3)
    assert policy.module.log_std.tolist() == [-1.25] * (C * A)


def test_only_valid_control_steps_count() -> None:
    for kind in KINDS:
        policy, observed, actions = new(f"policy.small.distribution={kind}"), shown(), actions_of(np.ones(ROWS))
        valid = np.ones((ROWS, C), bool)
        valid[:, -1] = False
        changed = actions.copy()
        changed[:, -1] = np.nan
        losses = [policy.imitation_loss(*observed, chosen, valid, SftConfig())[0] for chosen in (actions, changed)]
        assert losses[0].isfinite() and torch.equal(*losses)


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_does_not_depend_on_longer_sentences_beside_it(kind: str) -> None:
    images, texts, proprio = shown()
    texts[0], texts[1] = "", "go!"
    policy = new(f"policy.small.distribution={kind}")
    with torch.no_grad():
        together, values = policy(images, texts, proprio, 1.0)
        tokens = together.most_likely()
        for row in (0, 1):
            at = slice(row, row + 1)
            alone, value = policy(images[at], texts[at], proprio[at], 1.0)
            assert_norm_close(alone.logprobs(tokens[at]), together.logprobs(tokens)[at], 1e-5)
            assert_norm_close(value, values[at], 1e-5)


def test_words_are_told_apart_without_a_vocabulary() -> None:
    """Of the words of a thousand sentences nearly all have rows of their own."""
    words = [f"word{i}" for i in range(1000)]
    rows = {rows_of(word)[1] for word in words}
    assert len(rows) > 995 and all(len(row) == NUM_HASHES and min(row) > 0 for row in rows)
    assert rows_of("Turn ON, please") == rows_of("turn on , please") != rows_of("turn off, please")


def test_any_sentence_has_rows() -> None:
    for sentence in ("", "   ", "öffne die Tür", "打开收音机", "a\x00b", "\udcff \ud800", "word " * 10_000):
        assert len(rows_of(sentence)) > len(sentence.split())


def test_other_pictures_are_resized() -> None:
    images, texts, proprio = shown(size=3 * SIDE)
    flat = np.full_like(images, 90)
    policy = new()
    with torch.no_grad():
        large, small = (policy(one, texts, proprio, 1.0)[0].mean for one in (flat, flat[:, :, :SIDE, :SIDE]))
        assert_norm_close(large, small, 1e-5)
        assert policy(images[:, :, :, : 2 * SIDE], texts, proprio, 1.0)[0].mean.isfinite().all()


def test_actions_lie_between_the_demonstrated_bounds() -> None:
    action = statistics()["action"]
    low, high = (np.where(action["mask"], action[name], end) for name, end in (("q01", -1.0), ("q99", 1.0)))
    ends = np.array([[-1.0] * (C * A), [1.0] * (C * A)], np.float32)
    assert_norm_close(new().decode_actions(ends)[:, 0], [low, high], rounding(1))
    tokens = np.array([[255] * (C * A), [0] * (C * A)], np.uint8)
    decoded = new("policy.small.distribution=bins").decode_actions(tokens)[:, 0]
    assert (np.abs(decoded - [low, high]) < 0.01 * (high - low)).all() and decoded.dtype == np.float32


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("has_state", ["true", "false"])
def test_a_saved_policy_computes_the_same(tmp_path: Path, kind: str, has_state: str) -> None:
    settings = (f"policy.small.distribution={kind}", f"policy.use_proprio={has_state}")
    policy, keys = new(*settings), np.arange(ROWS, dtype=np.uint64)
    policy.save(tmp_path)
    run = config(*settings, "policy.small.hidden_sizes=[8]", f"policy.path={tmp_path}")  # the folder has its own sizes
    with torch.no_grad():
        found = [one(*shown(), 1.0) for one in (policy, open_policy(tmp_path, torch.float32, "cpu", run))]
    tokens = [distribution.sample(keys) for distribution, _ in found]
    assert torch.equal(*tokens) and torch.equal(found[0][1], found[1][1])
    assert POLICIES.get("small").cameras(tmp_path) == CAMERAS
    opened, _ = open_to_shard(tmp_path, run)
    assert all(parameter.is_meta for parameter in opened.module.parameters())


def told(place: Path, run: RunConfig | None) -> str:
    """Return what opening raises, which must be the same to act and to train."""
    run = config() if run is None else run
    messages = []
    for opening in (lambda: open_policy(place, torch.float32, "cpu", run), lambda: open_to_shard(place, run)):
        with pytest.raises(RunError) as refused:
            opening()
        messages.append(str(refused.value))
    assert messages[0] == messages[1]
    return messages[0]


@pytest.mark.parametrize(
    ("change", "entry"),
    [
        (lambda d: d["norm_stats"]["action"].pop("q99"), "action.q99 is missing"),
        (lambda d: d["norm_stats"]["action"].update(q01=[0.0]), "action.q01 has shape (1,)"),
        (lambda d: d["norm_stats"]["action"].update(q01=[0.0, float("nan"), 0.0]), "action.q01[1] is nan"),
        (lambda d: d["norm_stats"]["action"].update(q01=[9.0] * A), "action.q01[0] is more than action.q99"),
        (lambda d: d["norm_stats"].pop("proprio"), "proprio"),
        (lambda d: d.pop("conv_channels"), "conv_channels"),
        (lambda d: d.update(num_actions="3"), "num_actions"),
        (lambda d: d.update(distribution="flow"), "flow"),
        (lambda d: d.update(image_size=0), "image_size is 0"),
        (lambda d: d.update(camera_names=["top"]), "camera_names are 1, and num_images is 2"),
        (lambda d: d.update(hidden_sizes=[65]), "of other shapes"),
        (lambda d: d.update(text_hidden_size=10**9), "text_hidden_size"),
        (lambda d: d.update(model_type="llama"), "llama"),
    ],
)
def test_a_wrong_folder_says_what_is_wrong(tmp_path: Path, change: Callable[[dict[str, Any]], Any], entry: str) -> None:
    new().save(tmp_path)
    described = json.loads((tmp_path / "config.json").read_text())
    change(described)
    (tmp_path / "config.json").write_text(json.dumps(described))
    assert entry in told(tmp_path, None)


@pytest.mark.parametrize(
    ("setting", "remedy"),
    [
        ("policy.use_proprio=false", "Set policy.use_proprio=True"),
        ("policy.num_action_chunks=3", "Set policy.num_action_chunks=2"),
    ],
)
def test_a_policy_of_another_run_is_refused(tmp_path: Path, setting: str, remedy: str) -> None:
    new().save(tmp_path)
    assert remedy in told(tmp_path, config(setting))


def test_another_number_of_cameras_or_of_the_state_is_refused() -> None:
    images, texts, proprio = shown()
    with pytest.raises(ValueError, match="1 images per row; the policy takes 2"):
        new()(images[:, :1], texts, proprio, 1.0)
    with pytest.raises(ValueError, match=r"got \(8, 4\), the policy takes \[8, 5\]"):
        new()(images, texts, proprio[:, 1:], 1.0)


@pytest.mark.parametrize(
    ("setting", "key"),
    [
        ("policy.small.conv_channels=[]", "policy.small.conv_channels"),
        ("policy.small.conv_channels=[8,20]", "policy.small.conv_channels"),
        ("policy.small.hidden_sizes=[]", "policy.small.hidden_sizes"),
        ("actor.lora.rank=4", "actor.lora.rank"),
        ("sft.label_smoothing_bins=3", "sft.label_smoothing_bins"),
        ("policy.small.distribution=bins policy.small.initial_log_std=0", "policy.small.initial_log_std"),
    ],
)
def test_settings_that_cannot_be_are_refused(setting: str, key: str) -> None:
    with pytest.raises(RunError) as refused:
        config(*setting.split())
    assert refused.value.key == key


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_one_has_less_than_a_million_parameters(kind: str) -> None:
    assert 100_000 < count(load(["policy=small", f"policy.small.distribution={kind}"])).num_parameters < 1_000_000
