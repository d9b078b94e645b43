"""The size of a flow policy: vision tower, language model, action expert; without torch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
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
    VisionSizes,
    steering,
    trained_parts,
)
from rlrun.policies.folders import readable
from rlrun.policies.size import PolicySize, Stack
from rlrun.system.local_files import read_json


@dataclass(frozen=True)
class NetworkSize:
    """The sizes of a flow network, without its heads."""

    vision: VisionSizes
    stacks: tuple[Stack, Stack, Stack]  # vision tower, language model, expert
    # (inputs, outputs) of the linear layers that train with the expert; the first takes the action dimensions
    projections: tuple[tuple[int, int], ...]
    summary_width: int  # of a prefix's summary
    chunk_size: int  # control steps of its own chunk
    dead_parameters: int = 0  # parameters that no forward pass reads

    @property
    def action_dims(self) -> int:
        """Dimensions of an action, with padding."""
        return self.projections[0][0]

    @property
    def expert_parameters(self) -> int:
        """Parameters of the expert and of its projections."""
        expert = self.stacks[-1]
        return expert.num_layers * expert.block_parameters + _dense(self.projections)


def flow_size(
    config: RunConfig, own: FlowSettings, spaces: PlannedSpaces, num_parameters: int, network: NetworkSize
) -> PolicySize:
    """Return the size of a policy. num_parameters: of the network."""
    *vlm, expert = network.stacks
    is_new = config.policy.path is None
    trains = trained_parts(own, is_new)
    trains_all = is_new or trains is Trains.everything
    heads = _head_parameters(config, own, spaces, network)
    trained = heads if is_new else 0
    if trains is not Trains.heads:
        trained += network.expert_parameters
    dead = network.dead_parameters
    executed = config.policy.num_action_chunks * spaces.num_actions
    chunk, chosen = network.chunk_size * network.action_dims, network.summary_width + spaces.num_actions
    return PolicySize(
        num_parameters,
        (
            *(replace(stack, is_trained=trains_all) for stack in vlm),
            _as_it_runs(expert, own, _reads_expert(config, own), is_new),
        ),
        num_pixels=spaces.num_images * 3 * network.vision.image_size**2,
        num_action_tokens=executed,
        new_parameters=0 if is_new else heads,
        dead_parameters=dead,
        frozen_parameters=0 if trains_all else max(0, num_parameters - dead - trained),
        num_bins=0,
        own_choice_bytes=4 * _choice_numbers(own, chunk, executed, chosen),
        trains_heads_only=not is_new and trains is Trains.heads,
    )


def _reads_expert(config: RunConfig, own: FlowSettings) -> bool:
    """Return whether there is a critic that takes a pass of the expert."""
    return own.critic_input is CriticInput.expert and bool(config.policy.value_hidden_sizes)


def _head_parameters(config: RunConfig, own: FlowSettings, spaces: PlannedSpaces, network: NetworkSize) -> int:
    """Return the parameters of critic, learned noise and noise actor, as far as the policy has them."""
    expert_width, hidden_sizes, found = network.stacks[-1].width, config.policy.value_hidden_sizes, 0
    if hidden_sizes:
        read = expert_width if _reads_expert(config, own) else network.summary_width
        found += _dense(pairwise([read, *hidden_sizes])) + hidden_sizes[-1]
    if own.sampling is Sampling.flow_noise:
        found += _dense(pairwise([expert_width, *NOISE_SIZES, network.action_dims]))
    chosen_noise = steering(own)
    if chosen_noise is not None:
        found += _dense(pairwise([network.summary_width, *chosen_noise.hidden_sizes, 2 * spaces.num_actions]))
    return found


def _dense(layers: Iterable[tuple[int, int]]) -> int:
    """Return the parameters of linear layers of (inputs, outputs), with biases."""
    return sum((inputs + 1) * outputs for inputs, outputs in layers)


def _as_it_runs(expert: Stack, own: FlowSettings, reads_expert: bool, is_new: bool) -> Stack:
    """Return the expert with its passes: those of all flow steps to act, those of a choice to learn."""
    steps = own.num_flow_steps
    passes = reads_expert + (steps if own.sampling is Sampling.flow_noise else 1)  # to learn
    return replace(
        expert,
        num_tokens=passes * expert.num_tokens,
        num_sequences=passes,
        passes_to_act=(reads_expert + steps) / passes,
        is_trained=is_new or own.sampling is not Sampling.dsrl,
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
    found: dict[str, Any] = readable(file, lambda: read_json(file)) if file.is_file() else {}
    return found
