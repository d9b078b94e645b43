"""Frames to inputs: prompts, padding, pixels, proprioception."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from rlrun.policies.openvla_oft.config import OpenVLAOFTConfig
from rlrun.policies.openvla_oft.processor import ImageStatistics, Processor
from rlrun.policies.tokenizer import prompt, word_tokenizer
from rlrun.system.errors import RunError
from tests.numerics import assert_norm_close, rounding
from tests.unit.policies.small import INSTRUCTIONS, SIZE, P, small_policy, some_frames


def test_prompt_text() -> None:
    assert prompt("Turn on the Radio") == "In: What action should the robot take to turn on the radio?\nOut: "


def test_padding_stands_after_bos_and_the_space_at_the_end() -> None:
    _, processor = small_policy()
    frames = some_frames(2)
    inputs = processor(frames.images, frames.instructions, frames.proprio)
    config = processor.config
    assert inputs.input_ids.shape == (2, config.max_prompt_length)
    assert (inputs.input_ids[:, 0] == config.bos_token_id).all()
    assert (inputs.input_ids[:, -1] == config.space_token_id).all()
    short, long = inputs.attention_mask
    assert long.all()
    num_pads = int((~short).sum())
    assert num_pads == len(INSTRUCTIONS[1].split()) - len(INSTRUCTIONS[0].split())
    assert short.tolist() == [True] + [False] * num_pads + [True] * (len(short) - 1 - num_pads)
    assert (inputs.input_ids[0, ~short] == config.pad_token_id).all()


def test_no_mask_without_padding() -> None:
    _, processor = small_policy()
    frames = some_frames(2)
    assert processor(frames.images, [INSTRUCTIONS[1]] * 2, frames.proprio).attention_mask is None


def test_long_prompts_are_refused_with_a_remedy() -> None:
    _, processor = small_policy(max_prompt_length=9)
    frames = some_frames(1)
    with pytest.raises(RunError, match=r"(?s)policy\.openvla_oft\.max_prompt_length.*Set it to 15 or more"):
        processor(frames.images, [INSTRUCTIONS[1]], frames.proprio)


def test_a_tokenizer_that_ends_with_the_space_gets_no_second_one() -> None:
    """Llama's tokenizer may keep the prompt's last blank; OpenVLA adds its token only where it is missing."""
    _, processor = small_policy()
    tokenizer = word_tokenizer(INSTRUCTIONS)
    plain = processor.prompt_ids(INSTRUCTIONS[0])
    tokenizer.post_processor = type(tokenizer.post_processor)(
        single="<s> $A <sp>", special_tokens=[("<s>", 1), ("<sp>", processor.config.space_token_id)]
    )
    keeping = Processor(processor.config, tokenizer, ImageStatistics())
    np.testing.assert_array_equal(keeping.prompt_ids(INSTRUCTIONS[0]), plain)


def test_padding_and_truncation_that_a_tokenizer_was_saved_with_do_not_count(tmp_path: Path) -> None:
    _, processor = small_policy()
    plain = processor.prompt_ids(INSTRUCTIONS[0])
    processor.tokenizer.enable_padding(direction="left", pad_id=processor.config.pad_token_id, length=40)
    processor.tokenizer.enable_truncation(5)
    processor.save(tmp_path)
    opened = Processor.load(tmp_path, processor.config)
    np.testing.assert_array_equal(opened.prompt_ids(INSTRUCTIONS[0]), plain)


def test_prompts_without_bos_are_refused() -> None:
    _, processor = small_policy()
    tokenizer = word_tokenizer(INSTRUCTIONS)
    tokenizer.post_processor = type(tokenizer.post_processor)(single="$A", special_tokens=[])
    with pytest.raises(RunError, match="do not start with BOS"):
        Processor(processor.config, tokenizer, ImageStatistics()).prompt_ids(INSTRUCTIONS[0])


def test_pixels_are_normalised_per_tower() -> None:
    _, processor = small_policy(num_images=2)
    frames = some_frames(3, num_images=2)
    pixels = processor(frames.images, frames.instructions, frames.proprio).pixel_values
    assert pixels.shape == (3, 12, SIZE, SIZE)
    statistics = ImageStatistics()
    for image in range(2):
        for tower in range(2):
            for channel in range(3):
                raw = frames.images[:, image, :, :, channel] / 255.0
                expected = (raw - statistics.means[tower][channel]) / statistics.stds[tower][channel]
                ours = pixels[:, 6 * image + 3 * tower + channel]
                assert_norm_close(ours, expected, rounding(1))


def test_numpy_tensors_and_read_only_arrays_give_the_same() -> None:
    _, processor = small_policy()
    frames = some_frames(2)
    frames.images.flags.writeable = frames.proprio.flags.writeable = False
    a = processor(frames.images, frames.instructions, frames.proprio)
    images, proprio = torch.tensor(frames.images), torch.tensor(frames.proprio)
    b = processor(images, frames.instructions, proprio)
    assert torch.equal(a.pixel_values, b.pixel_values)
    assert torch.equal(a.proprio, b.proprio)
    half = processor(images, frames.instructions, proprio, dtype=torch.bfloat16)
    assert half.pixel_values.dtype == half.proprio.dtype == torch.bfloat16
    assert torch.equal(half.pixel_values, a.pixel_values.bfloat16())


def test_other_sizes_are_resized() -> None:
    _, processor = small_policy()
    frames = some_frames(1, size=3 * SIZE)
    flat = np.full_like(frames.images, 128)
    pixels = processor(flat, frames.instructions[:1], frames.proprio).pixel_values
    native = processor(flat[:, :, :SIZE, :SIZE], frames.instructions[:1], frames.proprio).pixel_values
    assert_norm_close(pixels, native, rounding(1))


def test_center_crop_takes_nine_tenths_of_the_area() -> None:
    """A horizontal ramp, cropped and enlarged, is the ramp with its slope times sqrt(0.9), around the middle."""
    _, plain = small_policy()
    cropping = Processor(replace_config(plain.config, center_crop=True), plain.tokenizer, ImageStatistics())
    ramp = np.broadcast_to(np.arange(SIZE, dtype=np.uint8)[:, None] * 8, (1, 1, SIZE, SIZE, 3))
    proprio = np.zeros((1, P), np.float32)
    whole, cropped = (p(ramp, INSTRUCTIONS[:1], proprio).pixel_values[0, 3, 5] for p in (plain, cropping))
    middle = whole.mean()
    assert_norm_close(cropped - middle, (whole - middle) * 0.9**0.5, 1e-4)  # pixels are found by float32 coordinates


def replace_config(config: OpenVLAOFTConfig, **changes: object) -> OpenVLAOFTConfig:
    return OpenVLAOFTConfig.from_dict(config.to_dict() | changes)


def test_proprioception_is_scaled_and_clipped() -> None:
    _, processor = small_policy()
    frames = some_frames(2)
    proprio = np.array([[-1, 0, 1, 5, -5], [0.5, 0.1, 0.2, 0.3, 0.4]], np.float32)
    ours = processor(frames.images, frames.instructions, proprio).proprio
    assert_norm_close(ours, np.clip(proprio, -1, 1), rounding(1))


def test_wrong_frames_are_named() -> None:
    _, processor = small_policy()
    frames = some_frames(2, num_images=2)
    with pytest.raises(ValueError, match=r"2 images per row; the policy takes 1"):
        processor(frames.images, frames.instructions, frames.proprio)
    frames = some_frames(2)
    with pytest.raises(ValueError, match=r"got \(2, 4\), the policy takes \[2, 5\]"):
        processor(frames.images, frames.instructions, frames.proprio[:, :4])
    with pytest.raises(ValueError, match="got none"):
        processor(frames.images, frames.instructions)


def test_actions_in_simulator_units() -> None:
    _, processor = small_policy()
    tokens = np.random.default_rng(0).integers(1, 256, (4, processor.config.num_action_tokens))
    actions = processor.decode_actions(tokens)
    assert actions.shape == (4, 2, 3)
    np.testing.assert_array_equal(processor.encode_actions(actions), tokens)
