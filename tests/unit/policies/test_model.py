"""The forward pass: who sees whom, padding, images, the action slice, gradients."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode
from transformers import LlamaForCausalLM

from rlrun.policies.openvla_oft.model import OpenVLAOFT, PolicyOutput
from rlrun.policies.openvla_oft.processor import PolicyInputs, Processor
from tests.numerics import assert_all_norm_close, assert_as_exact, assert_norm_close, computed_in_double
from tests.unit.policies.small import INSTRUCTIONS, A, small_policy, some_frames

K = 2 * A
ROUNDING = 1e-5  # of a float32 forward pass of the small policy, relative: some ten layers of sums of 48 terms


def inputs_of(processor: Processor, num_rows: int = 2, num_images: int = 1) -> PolicyInputs:
    frames = some_frames(num_rows, num_images)
    return processor(frames.images, frames.instructions, frames.proprio)


def run(model: OpenVLAOFT, inputs: PolicyInputs) -> PolicyOutput:
    return model(inputs.input_ids, inputs.attention_mask, inputs.pixel_values, inputs.proprio)


def exactly(model: OpenVLAOFT, inputs: PolicyInputs) -> PolicyOutput:
    """In float64."""
    given = (inputs.input_ids, inputs.attention_mask, inputs.pixel_values, inputs.proprio)
    return computed_in_double(model, lambda module, *tensors: module(*tensors), *given)


def parts(output: PolicyOutput, rows: slice = slice(None)) -> dict[str, Tensor]:
    return {"action logits": output.action_logits[rows], "value": output.value[rows]}


def test_output() -> None:
    model, processor = small_policy()
    output = run(model, inputs_of(processor, 3))
    assert output.action_logits.shape == (3, K, 256)
    assert output.value.shape == (3,)
    assert output.action_logits.dtype == output.value.dtype == torch.float32
    assert not torch.allclose(output.action_logits[0], output.action_logits[2], atol=1e-3)


@pytest.mark.parametrize("is_padded", [False, True])
def test_every_token_sees_every_token(is_padded: bool) -> None:
    """The logits of the first token depend on the last placeholder, which a causal mask would hide."""
    model, processor = small_policy()
    frames = some_frames(2)
    inputs = processor(frames.images, [INSTRUCTIONS[0], INSTRUCTIONS[0 if not is_padded else 1]], frames.proprio)
    assert (inputs.attention_mask is not None) is is_padded
    run(model, inputs).action_logits[0, 0].square().sum().backward()
    assert (model.action_queries.weight.grad.abs().sum(-1) > 0).all()


@torch.no_grad()
def test_padding_changes_nothing() -> None:
    """A row answers alike alone and packed with longer ones, in any order; what stands at its padding is not read."""
    model, processor = small_policy()
    frames = some_frames(5)
    told = [INSTRUCTIONS[index] for index in (1, 0, 1, 0, 0)]
    packed = run(model, processor(frames.images, told, frames.proprio))
    for row in range(5):
        own = slice(row, row + 1)
        inputs = processor(frames.images[own], told[own], frames.proprio[own])
        assert inputs.attention_mask is None
        exact = exactly(model, inputs)
        assert_as_exact(parts(packed, own), parts(run(model, inputs)), parts(exact), floor=ROUNDING)
    model.language_model.model.embed_tokens.weight[processor.config.pad_token_id] = 7.0
    again = run(model, processor(frames.images, told, frames.proprio))
    assert torch.equal(again.action_logits, packed.action_logits)


def test_padding_costs_nothing() -> None:
    """Floating-point operations of a packed batch are those of its rows, each alone."""
    model, processor = small_policy()
    frames = some_frames(3)
    told = [INSTRUCTIONS[index] for index in (0, 1, 0)]

    def flops(rows: slice) -> int:
        inputs = processor(frames.images[rows], told[rows], frames.proprio[rows])
        with FlopCounterMode(display=False) as counter:
            run(model, inputs)
        return counter.get_total_flops()

    assert flops(slice(0, 3)) == sum(flops(slice(row, row + 1)) for row in range(3))


def test_rows_do_not_mix() -> None:
    model, processor = small_policy()
    frames = some_frames(4)
    whole = run(model, inputs_of(processor, 4))
    one = processor(frames.images[2:3], frames.instructions[2:3], frames.proprio[2:3])
    assert_as_exact(parts(whole, slice(2, 3)), parts(run(model, one)), parts(exactly(model, one)), floor=ROUNDING)


@pytest.mark.parametrize("num_images", [1, 2, 3])
def test_every_image_counts(num_images: int) -> None:
    model, processor = small_policy(num_images)
    inputs = inputs_of(processor, 2, num_images)
    before = run(model, inputs).action_logits
    for image in range(num_images):
        pixels = inputs.pixel_values.clone()
        pixels[:, 6 * image : 6 * image + 6] += 1
        assert not torch.allclose(run(model, replace(inputs, pixel_values=pixels)).action_logits, before, atol=1e-4)


def test_each_tower_sees_its_own_channels() -> None:
    model, processor = small_policy()
    pixels = inputs_of(processor).pixel_values
    changed = pixels.clone()
    changed[:, 3:] += 1
    width = model.vision_backbone.featurizer.shape.hidden_size
    before, after = model.vision_backbone(pixels), model.vision_backbone(changed)
    assert torch.equal(before[..., :width], after[..., :width])
    assert not torch.allclose(before[..., width:], after[..., width:])


def test_proprioception_and_stop_token() -> None:
    model, processor = small_policy()
    inputs = inputs_of(processor)
    before = run(model, inputs).action_logits
    moved = run(model, replace(inputs, proprio=-inputs.proprio)).action_logits
    assert not torch.allclose(before, moved, atol=1e-4)
    with pytest.raises(ValueError, match="use_proprio"):
        run(model, replace(inputs, proprio=None))
    stopping, processor = small_policy(has_stop_token=True, use_proprio=False)
    assert stopping.proprio_projector is None
    assert run(stopping, inputs_of(processor)).action_logits.shape == before.shape


def slow_logits(model: OpenVLAOFT, inputs: PolicyInputs) -> Tensor:
    """The whole vocabulary at the action positions, by eager attention with a mask written out pair by pair."""
    config, batch = model.config, len(inputs.input_ids)
    llama = LlamaForCausalLM._from_config(deepcopy(config.text_config), attn_implementation="eager").eval()
    llama.load_state_dict(model.language_model.state_dict())
    text = llama.model.embed_tokens(inputs.input_ids)
    patches = model.projector(model.vision_backbone(inputs.pixel_values)).reshape(batch, -1, text.shape[-1])
    state = model.proprio_projector(inputs.proprio)
    queries = model.action_queries.weight.expand(batch, -1, -1)
    embeds = torch.cat([text[:, :1], patches, state, text[:, 1:], queries], dim=1)
    start = 1 + patches.shape[1] + 1
    length = embeds.shape[1]
    bias = torch.zeros(batch, 1, length, length)
    positions = torch.zeros(batch, length, dtype=torch.long)
    for row in range(batch):
        next_position = 0
        for column in range(length):
            prompt_index = column - start + 1
            is_padding = 1 <= prompt_index < inputs.input_ids.shape[1] and not inputs.attention_mask[row, prompt_index]
            if is_padding:
                bias[row, :, :, column] = torch.finfo(torch.float32).min
            next_position += not is_padding
            positions[row, column] = max(0, next_position - 1)
    logits = llama(inputs_embeds=embeds, attention_mask=bias, position_ids=positions, use_cache=False).logits
    return logits[:, -K - 1 : -1]


@torch.no_grad()
def test_slice_before_softmax_equals_restricted_softmax() -> None:
    model, processor = small_policy(max_prompt_length=20)
    inputs = inputs_of(processor)
    slow = slow_logits(model, inputs)
    end = model.config.action_tokens_end
    outside = torch.ones(slow.shape[-1], dtype=torch.bool)
    outside[end - 256 : end] = False
    restricted = slow.masked_fill(outside, -torch.inf).softmax(-1)[..., end - 256 : end]
    ours = run(model, inputs).action_logits.softmax(-1)
    assert_norm_close(ours, restricted, ROUNDING)


def test_gradients_reach_all_but_the_dead_weights() -> None:
    model, processor = small_policy()
    output = run(model, inputs_of(processor))
    (output.action_logits.logsumexp(-1).sum() + output.value.sum()).backward()
    without = {name for name, parameter in model.named_parameters() if parameter.grad is None}
    assert without == model.frozen_names() != set()


def test_activation_checkpointing_changes_no_gradient() -> None:
    gradients = []
    for is_checkpointed in (False, True):
        model, processor = small_policy()
        model.train()
        if is_checkpointed:
            model.gradient_checkpointing_enable({"use_reentrant": False})
            assert all(block.gradient_checkpointing for stack in model.stacks() for block in stack)
        run(model, inputs_of(processor)).action_logits.logsumexp(-1).sum().backward()
        gradients.append({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
    assert gradients[0].keys() == gradients[1].keys()
    assert_all_norm_close(gradients[1], gradients[0], ROUNDING)  # the same sums again


def test_rotary_frequencies_survive_a_cast() -> None:
    model, _ = small_policy()
    exact = model.language_model.model.rotary_emb.inv_freq.clone()
    model.to(torch.bfloat16)
    assert torch.equal(model.language_model.model.rotary_emb.inv_freq, exact)
    assert model.dtype == torch.bfloat16


def test_same_seed_same_weights() -> None:
    first, again, other = (small_policy(seed=seed)[0].state_dict() for seed in (3, 3, 4))
    assert all(torch.equal(tensor, again[name]) for name, tensor in first.items())
    assert not all(torch.equal(tensor, other[name]) for name, tensor in first.items())


def test_default_sizes_stay_small() -> None:
    from rlrun.config.schema import EnvConfig, PolicyConfig
    from rlrun.policies.openvla_oft.policy import new_policy
    from rlrun.policies.spec import DemonstratedTask
    from tests.unit.policies.small import statistics

    model, _ = new_policy(
        PolicyConfig(), EnvConfig(), DemonstratedTask(8, 61, statistics(8, 61), INSTRUCTIONS, ("zed_link",)), 0
    )
    assert sum(parameter.numel() for parameter in model.parameters()) < 3_000_000
