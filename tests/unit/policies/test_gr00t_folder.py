"""What folders of GR00T say beside the weights: statistics by group, cameras, embodiment, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from rlrun.config.loader import load
from rlrun.policies.flow.lerobot_config import Statistics
from rlrun.policies.flow.policy import FlowPolicy
from rlrun.policies.gr00t.config import SIGN_OF_GRIPPER, Gr00tConfig, Gr00tSizes, in_order
from rlrun.policies.gr00t.folder import read_folder
from rlrun.policies.gr00t.policy import Gr00tPolicy, Gr00tProcessor
from rlrun.policies.gr00t.processors import MinMax
from rlrun.policies.gr00t.prompt import prompt
from rlrun.policies.gr00t.spec import cameras_in_prompt
from rlrun.policies.opening import open_policy
from rlrun.policies.tokenizer import assumed_tokenizer, read_tokenizer
from rlrun.policies.weight_files import WeightFiles
from rlrun.system.errors import RunError
from tests.numerics import assert_norm_close
from tests.unit.policies.flow.test_policies import frames, new_policy


@pytest.fixture(scope="module")
def policy() -> FlowPolicy:
    return new_policy("gr00t")


@pytest.fixture
def folder(tmp_path: Path, policy: FlowPolicy) -> Path:
    policy.save(tmp_path)
    return tmp_path


def opened(folder: Path) -> Gr00tPolicy:
    found = open_policy(folder, torch.float32, "cpu")
    assert isinstance(found, Gr00tPolicy)
    return found


def changed(file: Path, change: Callable[[dict[str, Any]], None]) -> None:
    described = json.loads(file.read_text())
    change(described)
    file.write_text(json.dumps(described))


def pack(folder: Path, **settings: Any) -> None:
    changed(folder / "policy_preprocessor.json", lambda found: found["steps"][2]["config"].update(settings))


def decoded_by_groups(folder: Path, **settings: Any) -> None:
    """Write the step after the policy as LeRobot has it for NVIDIA's checkpoints: statistics by group."""
    (file,) = folder.glob("policy_preprocessor_step_2_*.safetensors")
    stats = load_file(file)
    low, high = stats["action.min"].tolist(), stats["action.max"].tolist()
    parts = {"x": slice(0, 1), "rest": slice(1, 3)}
    groups = {name: {"q01": low[at], "q99": high[at], "min": [-9.0], "max": [9.0]} for name, at in parts.items()}
    config = {
        "raw_stats": {"action": groups},
        "modality_config": {"action": {"modality_keys": ["x", "rest"], "action_configs": []}},
        "use_percentiles": True,
    } | settings
    step = {"registry_name": "groot_n1_7_action_decode_v1", "config": config}
    changed(folder / "policy_postprocessor.json", lambda found: found.update(steps=[step]))


def test_statistics_by_group_are_those_that_training_scaled_by(folder: Path, policy: FlowPolicy) -> None:
    decoded_by_groups(folder)
    tokens = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)
    assert_norm_close(opened(folder).decode_actions(tokens), policy.decode_actions(tokens), 1e-6)
    decoded_by_groups(folder, use_percentiles=False)
    with pytest.raises(RunError, match=r"action\.(min|max) is not that of"):
        opened(folder)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: decoded_by_groups(folder, use_relative_action=True), "relative actions"),
        (lambda folder: pack(folder, video_horizon=2), "several frames"),
        (lambda folder: pack(folder, state_horizon=2), "several states"),
        (lambda folder: pack(folder, embodiment_mapping={"new_embodiment": 4}), "embodiment 4 of 1"),
        (
            lambda folder: changed(folder / "config.json", lambda found: found.update(use_relative_actions=True)),
            "relat",
        ),
        (
            lambda folder: changed(folder / "config.json", lambda found: found.update(max_action_dim=40)),
            "max_action_dim",
        ),
        (lambda folder: changed(folder / "base/config.json", lambda found: found.update(use_vlln=False)), "use_vlln"),
        (lambda folder: (folder / "base/config.json").unlink(), "sizes rlrun does not know"),
        (lambda folder: (folder / "backbone/tokenizer.json").unlink(), r"no tokenizer\.json"),
        (lambda folder: changed(folder / "backbone/config.json", lambda x: x.update(image_token_id=1)), "for pictures"),
    ],
)
def test_a_folder_that_does_not_fit_is_refused(folder: Path, damage: Callable[[Path], object], message: str) -> None:
    damage(folder)
    with pytest.raises(RunError, match=message):
        opened(folder)


def test_other_steps_are_refused(folder: Path) -> None:
    step = {"registry_name": "relative_actions_processor", "config": {"enabled": True}}
    changed(folder / "policy_preprocessor.json", lambda found: found["steps"].insert(2, step))
    with pytest.raises(RunError, match="which rlrun does not do"):
        opened(folder)


def test_statistics_of_another_robot_are_refused(folder: Path) -> None:
    for file in folder.glob("*.safetensors"):
        if file.name.startswith("policy_"):
            save_file({name: np.append(x, np.float32(1)) for name, x in load_file(file).items()}, file)
    with pytest.raises(RunError, match=r"observation\.state\.min is float32 \[6\]"):
        opened(folder)


PICTURE = {"type": "VISUAL", "shape": [3, 8, 8]}
FEATURES = {f"observation.images.{name}": PICTURE for name in ("image2", "image")} | {
    "observation.state": {"type": "STATE", "shape": [5]}
}


@pytest.mark.parametrize(
    ("keys", "cameras"),
    [
        (None, ["image", "image2"]),
        (["image", "wrist_image"], ["image", "image2"]),
        (["wrist_image", "image"], ["image2", "image"]),
        (["image"], ["image"]),
        (["top"], ["image", "image2"]),
    ],
)
def test_cameras_have_the_order_of_the_prompt(keys: list[str] | None, cameras: list[str]) -> None:
    found = Gr00tConfig(input_features=in_order(FEATURES, keys)).cameras
    assert [name.removeprefix("observation.images.") for name in found] == cameras


def test_cameras_are_told_without_opening_the_policy(folder: Path, policy: FlowPolicy) -> None:
    assert list(cameras_in_prompt(folder)) == policy.processor.config.cameras
    changed(folder / "config.json", lambda found: found["input_features"].update(FEATURES))
    pack(folder, video_modality_keys=["image2", "image"])
    assert list(cameras_in_prompt(folder)) == ["observation.images.image2", "observation.images.image"]
    changed(folder / "policy_preprocessor.json", lambda found: found["steps"].pop(2))
    assert cameras_in_prompt(folder) == ()


def test_the_gripper_is_turned_where_the_folder_says_so(folder: Path, policy: FlowPolicy) -> None:
    tokens = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)
    plain = policy.decode_actions(tokens)
    changed(folder / "config.json", lambda found: found.update(action_decode_transform="libero"))
    turned = opened(folder).decode_actions(tokens)
    assert np.array_equal(turned[..., :-1], plain[..., :-1])
    assert np.array_equal(turned[..., -1], np.where(plain[..., -1] > 0.5, -1.0, 1.0))
    assert Gr00tConfig.from_lerobot({"embodiment_tag": "libero_sim"}, Gr00tSizes()).action_decode_transform == "libero"
    kept = Gr00tConfig.from_lerobot({"embodiment_tag": "libero_sim", "action_decode_transform": None}, Gr00tSizes())
    assert kept.action_decode_transform is None


def test_what_lies_beyond_the_statistics_is_cut() -> None:
    scale = MinMax(np.array([-1.0, 2.0], np.float32), np.array([3.0, 2.0], np.float32))
    x = np.array([[1.0, 2.0], [7.0, 2.5]], np.float32)
    assert scale.normalize(x).tolist() == [[0.0, 0.0], [1.0, 0.0]]
    assert MinMax(scale.low, scale.high, clips=False).normalize(x).tolist() == [[0.0, 0.0], [3.0, 0.0]]
    assert scale.denormalize(np.array([[0.5, 0.3], [-4.0, 1.0]], np.float32)).tolist() == [[2.0, 2.0], [-1.0, 2.0]]
    wide = scale.widened(0.01)
    assert wide.low.tolist() == pytest.approx([-1.0, 1.98]) and wide.high.tolist() == pytest.approx([3.0, 2.02])


def test_the_prompt_shows_pictures_before_the_words() -> None:
    picture = "<|vision_start|>" + "<|image_pad|>" * 2 + "<|vision_end|>"
    assert prompt("Turn it ON, now!", 2, 2, True) == f"<|im_start|>user\n{picture * 2}turn it on now<|im_end|>\n"
    assert prompt("", 0, 2, False) == "<|im_start|>user\nPerform the task.<|im_end|>\n"


def test_every_token_of_a_picture_is_one(policy: FlowPolicy) -> None:
    images, sentences, proprio = frames()
    _, _, tokens, mask, _ = policy.processor(images, sentences, proprio, torch.device("cpu"))
    config = policy.processor.config
    assert isinstance(config, Gr00tConfig)
    per_row = (tokens == config.sizes.backbone.image_token_id).sum(1)
    assert per_row.tolist() == [config.tokens_per_image * len(config.cameras)] * len(images)
    assert not mask.all() and mask.any(1).all()  # sentences of two lengths


def test_published_sizes_are_known(folder: Path) -> None:
    """LeRobot's folders do not contain them; the weights here are of other sizes, and the tokenizer too."""
    changed(folder / "config.json", lambda found: found.update(base_model_path="nvidia/GR00T-N1.7-3B"))
    for place in ("base", "backbone"):
        (folder / place / "config.json").unlink()
    with pytest.raises(RunError, match="max_state_dim=24, but the network has 132"):
        read_folder(folder, WeightFiles(folder))


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("env.image_size=48", "env.image_size"),
        ("policy.gr00t.vision_num_heads=16", "policy.gr00t.vision_hidden_size"),
        ("policy.num_action_chunks=50", "policy.num_action_chunks"),
        ("policy.gr00t.noise_range=[0.1]", "policy.gr00t.noise_range"),
        ("rollout=sglang", "rollout.backend"),
    ],
)
def test_sizes_that_cannot_be_are_refused(override: str, key: str) -> None:
    with pytest.raises(RunError) as refused:
        load(["policy=gr00t", "env.image_size=32", "policy.num_action_chunks=2", override])
    assert key in str(refused.value)


def test_steps_of_a_chunk_that_were_not_trained_are_left_out(folder: Path) -> None:
    assert opened(folder).processor.config.chunk_size == 2
    pack(folder, valid_action_horizon=1)
    with pytest.raises(RunError, match=r"plans 1 actions at a time") as refused:
        open_policy(
            folder,
            torch.float32,
            "cpu",
            load(["policy=gr00t", "policy.num_action_chunks=2", "policy.use_proprio=true"]),
        )
    assert "policy.num_action_chunks=1" in str(refused.value.remedy)


def test_an_imitated_action_is_what_the_policy_would_decode() -> None:
    """The gripper of LIBERO's embodiment is 0 to 1 in the network, and 1 to -1 in the world."""
    low = np.array([-1, -1, -1, -1, -1, -1, 0], np.float32)
    statistics = Statistics(None, MinMax(low, np.ones(7, np.float32)))
    config = Gr00tConfig(action_decode_transform=SIGN_OF_GRIPPER, embodiment_tag="libero_sim")
    processor = Gr00tProcessor(config, assumed_tokenizer(), statistics, 0)
    actions = np.random.default_rng(0).uniform(-0.9, 0.9, (2, 3, 7)).astype(np.float32)
    actions[..., -1] = np.sign(actions[..., -1])
    assert_norm_close(processor.denormalize(processor.as_planned(actions)), actions, 1e-6)


def test_what_a_used_tokenizer_pads_and_cuts_is_no_word(tmp_path: Path) -> None:
    tokenizer = Tokenizer(WordLevel({"<pad>": 0, "<unk>": 1, "open": 2, "it": 3}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.enable_padding(length=8, pad_id=0, pad_token="<pad>")
    tokenizer.enable_truncation(8)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    read = read_tokenizer(tmp_path / "tokenizer.json", 10)
    processor = Gr00tProcessor(Gr00tConfig(), read, Statistics(None, None), 0)
    assert processor._encoded("open it") == [2, 3]
    assert processor._encoded("open it " * 10) == [2, 3] * 10
