"""The size of a flow policy: vision tower, language model, action expert; without torch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from rlrun.config.schema import RunConfig
from rlrun.config.simulator_spec import PlannedSpaces
from rlrun.policies.flow.settings import (
    NOISE_SIZES,
    CriticInput,
    FlowSettings,
    Sampling,
    Trains,
    steering,
    trained_parts,
)
from rlrun.policies.size import PolicySize, Stack
from rlrun.policies.smolvla.config import VisionSizes
from rlrun.policies.weight_headers import readable


def flow_size(
    config: RunConfig,
    own: FlowSettings,
    spaces: PlannedSpaces,
    num_parameters: int,
    stacks: Sequence[Stack],
    projections: Sequence[tuple[int, int]],
    image_size: int,
    summary_width: int,
    chunk_size: int,
    dead_parameters: int = 0,
) -> PolicySize:
    """Return the size of a policy.

    stacks: vision tower, language model, expert. projections: (inputs, outputs) of the linear layers that train with
    the expert; the first takes the action dimensions. image_size: pixels per side of the vision tower. summary_width:
    of what the critic reads. chunk_size: control steps of the network's own chunk.
    """
    *vlm, expert = stacks
    is_new = config.policy.path is None
    trains = trained_parts(own, is_new)
    reads_expert = own.critic_input is CriticInput.expert and bool(config.policy.value_hidden_sizes)
    judged_width = expert.width if reads_expert else summary_width
    sizes, num_flow_steps = [judged_width, *config.policy.value_hidden_sizes], own.num_flow_steps
    heads = sum((a + 1) * b for a, b in pairwise(sizes)) + sizes[-1] if config.policy.value_hidden_sizes else 0
    if own.sampling is Sampling.flow_noise:
        heads += sum((a + 1) * b for a, b in pairwise([expert.width, *NOISE_SIZES, projections[0][0]]))
    passes = reads_expert + (num_flow_steps if own.sampling is Sampling.flow_noise else 1)  # to learn
    ran = replace(
        expert,
        num_tokens=passes * expert.num_tokens,
        num_sequences=passes,
        passes_to_act=(reads_expert + num_flow_steps) / passes,
        is_trained=is_new or own.sampling is not Sampling.dsrl,
    )
    chosen_noise = steering(own)
    if chosen_noise is not None:
        chosen = [summary_width, *chosen_noise.hidden_sizes, 2 * spaces.num_actions]
        heads += sum((a + 1) * b for a, b in pairwise(chosen))
    trained = heads if is_new else 0
    if trains is not Trains.heads:
        trained += expert.num_layers * expert.block_parameters + sum((a + 1) * b for a, b in projections)
    executed = config.policy.num_action_chunks * spaces.num_actions
    trains_all = is_new or trains is Trains.everything
    return PolicySize(
        num_parameters,
        (*(replace(stack, is_trained=trains_all) for stack in vlm), ran),
        num_pixels=spaces.num_images * 3 * image_size**2,
        num_action_tokens=executed,
        new_parameters=0 if is_new else heads,
        dead_parameters=dead_parameters,
        frozen_parameters=0 if trains_all else max(0, num_parameters - dead_parameters - trained),
        num_bins=0,
        own_choice_bytes=4
        * _choice_numbers(own, chunk_size * projections[0][0], executed, summary_width + spaces.num_actions),
        trains_heads_only=not is_new and trains is Trains.heads,
    )


def _choice_numbers(own: FlowSettings, chunk: int, executed: int, chosen: int) -> int:
    """Return the numbers of a packed choice, as `tokens` and `dsrl` pack it.

    chunk, executed: numbers of the network's own chunk, and of its executed part. chosen: of a prefix's summary and the
    noise that was chosen by it.
    """
    if own.sampling is Sampling.dsrl:
        return chosen + executed
    if own.sampling is Sampling.flow_noise:
        return own.num_flow_steps * chunk + executed
    return 1 + chunk + 3 * executed


def vision_stack(sizes: VisionSizes, num_images: int, part: str) -> Stack:
    """Return the tower; every picture is a sequence of its own. part: its name for actor.lora.targets."""
    patches = (sizes.image_size // sizes.patch_size) ** 2
    return Stack(
        sizes.hidden_size,
        sizes.intermediate_size,
        sizes.num_hidden_layers,
        num_images * patches,
        part,
        num_sequences=max(1, num_images),
    )


def described(config: RunConfig, name: str) -> dict[str, Any]:
    """Return a JSON file of `policy.path`; {}: there is none, as when only a plan is made."""
    if config.policy.path is None:
        return {}
    file = Path(config.policy.path) / name
    found: dict[str, Any] = readable(file, lambda: json.loads(file.read_text())) if file.is_file() else {}
    return found
