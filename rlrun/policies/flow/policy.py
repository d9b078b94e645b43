"""FlowPolicy: the policy interface on a flow network, with sampling by a FlowMethod and imitation by flow matching.

Shape legend: B rows, N images per row, H x W pixels, S control steps and D dimensions of the network's own chunk,
C executed control steps, A real dimensions, K = C*A, W width of a prefix's summary, P proprioception.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor, nn

from rlrun.algorithms.algorithm import ActionDistribution
from rlrun.config.schema import RealTimeChunkingConfig, RunConfig, SftConfig
from rlrun.config.simulator_spec import PlannedSpaces
from rlrun.policies.flow.dsrl import Dsrl, NoiseAction, NoiseDistribution
from rlrun.policies.flow.folder import (
    NETWORK,
    FlowParts,
    RunSettings,
    read_heads,
    read_settings,
    run_settings,
    save_policy,
)
from rlrun.policies.flow.lerobot_config import LeRobotConfig
from rlrun.policies.flow.method import ChunkShape, VelocityFn
from rlrun.policies.flow.model import FlowModel, FlowNetwork, FlowOutput, Matching, NoiseFeatures
from rlrun.policies.flow.processor import FlowProcessor
from rlrun.policies.flow.real_time import Guidance, prefix_weights
from rlrun.policies.flow.spec import FlowSettings, Trains, trained_parts
from rlrun.policies.policy import ImitationPolicy
from rlrun.policies.spec import DemonstratedTask
from rlrun.policies.weight_files import WeightFiles, refuse


class FlowPolicy(ImitationPolicy):
    """A flow network, its heads and its processor; a kind adds its settings, network, and names in its files."""

    module: FlowModel
    section: ClassVar[type[FlowSettings]]  # keys of the kind
    # Names of the network's parameters that contain one of these are trained when only the expert is; the prefix is
    # then the same for ever, and is computed without gradients.
    expert_parts: ClassVar[tuple[str, ...]]
    unread_parts: ClassVar[tuple[str, ...]] = ()  # beginnings of names that folders contain and no forward pass reads

    def __init__(
        self,
        network: FlowNetwork,
        processor: FlowProcessor,
        settings: RunSettings,
        trains: Trains,
    ):
        config = processor.config
        self.module = FlowModel(network, settings.heads, trains)
        self.processor = processor
        self.settings = settings
        self.method = settings.method(network.flow_time)
        self.flow_time = network.flow_time
        self.num_actions = settings.num_actions
        self.num_action_chunks = settings.num_action_chunks
        self.shape = ChunkShape(config.horizon, config.max_action_dim, self.num_action_chunks, self.num_actions)
        self.num_proprio = processor.num_proprio
        self.device = next(self.module.parameters()).device
        frozen = self.frozen_names()
        for name, parameter in self.module.named_parameters():
            parameter.requires_grad_(name not in frozen)

    @classmethod
    @abstractmethod
    def read_parts(cls, folder: Path, files: WeightFiles, settings: FlowSettings, run: RunConfig | None) -> FlowParts:
        """Read a folder of LeRobot's layout. files: its tensors, which get the names of the network.

        Raises RunError that names what is missing or does not fit.
        """

    @classmethod
    @abstractmethod
    def begin(cls, config: RunConfig, task: DemonstratedTask) -> FlowParts:
        """Return the parts of a new policy; its vocabulary is the words that it will get."""

    @classmethod
    @abstractmethod
    def published_parts(cls, config: RunConfig, spaces: PlannedSpaces) -> FlowParts:
        """Return the parts of the published policy, whose files are not on this machine."""

    @classmethod
    @abstractmethod
    def processor_choices(cls, settings: FlowSettings) -> dict[str, Any]:
        """Return those of the processor's settings that the run decides, whatever the folder has."""

    @classmethod
    @abstractmethod
    def assemble(cls, parts: FlowParts, settings: RunSettings, trains: Trains) -> Self:
        """Return the policy with newly drawn weights, on the default device."""

    @classmethod
    def from_folder(cls, folder: Path, files: WeightFiles, run: RunConfig | None) -> Self:
        """Read a folder of rlrun's, or of LeRobot's, which the run completes. Heads that it lacks are new."""
        section = cls.section() if run is None else run.policy.section(cls.section)
        parts = cls.read_parts(folder, files, section, run)
        settings = read_settings(folder, parts.config, run, section)
        settings = replace(
            settings, processor={**parts.processor, **settings.processor, **cls.processor_choices(section)}
        )
        _require_features(folder, parts.config)
        _require_chunk(folder, parts.config, settings)
        files.rename(lambda name: NETWORK + name)
        trains = Trains.everything if run is None else trained_parts(section, is_new=run.policy.path is None)
        with torch.device("meta"):
            return cls.assemble(parts, settings, trains)

    @classmethod
    def from_demonstrations(cls, config: RunConfig, task: DemonstratedTask) -> Self:
        """Return a new policy, float32 on the CPU; the same arguments give the same weights."""
        section = config.policy.section(cls.section)
        parts = cls.begin(config, task)
        num_proprio = task.num_proprio if config.policy.use_proprio else 0
        processor = {**parts.processor, **cls.processor_choices(section)}
        settings = run_settings(config, section, task.num_actions, num_proprio, processor)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            return cls.assemble(parts, settings, Trains.everything)

    @classmethod
    def published(cls, config: RunConfig, spaces: PlannedSpaces) -> Self:
        """Return the published policy on the meta device as a run completes it, without its files."""
        section = config.policy.section(cls.section)
        parts = cls.published_parts(config, spaces)
        num_proprio = spaces.num_proprio if config.policy.use_proprio else 0
        processor = {**parts.processor, **cls.processor_choices(section)}
        settings = run_settings(config, section, spaces.num_actions, num_proprio, processor)
        with torch.device("meta"):
            return cls.assemble(parts, settings, trained_parts(section, is_new=False))

    def new_parts(self, folder: Path, seed: int) -> dict[str, Callable[[], Tensor]]:
        """Return the heads: those of the folder that fit the settings, others drawn by the seed."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            tensors = self.module.new_heads()
        stored = read_heads(folder)  # some may belong to other settings
        fit = {name for name in stored.keys() & tensors.keys() if stored[name].shape == tensors[name].shape}
        tensors |= {name: stored[name] for name in fit}
        return {name: lambda tensor=tensor: tensor for name, tensor in tensors.items()}  # type: ignore[misc]

    @abstractmethod
    def write_network(self, folder: Path, named_tensors: Iterable[tuple[str, Tensor]]) -> None:
        """Write LeRobot's files. named_tensors: of the network."""

    def __call__(
        self, images: np.ndarray, instructions: Sequence[str], proprio: np.ndarray, temperature: float
    ) -> tuple[ActionDistribution, Tensor | None]:
        output = self.module(self.processor(images, instructions, proprio, self.device), None)
        return self.method.sampler(self.shape, output, self._velocity_fn(output), temperature), output.values

    def plan(
        self,
        images: np.ndarray,
        instructions: Sequence[str],
        proprio: np.ndarray,
        temperature: float,
        keys: np.ndarray,
        coming: np.ndarray,
        goes_on: np.ndarray,
        delay: int,
        settings: RealTimeChunkingConfig,
    ) -> np.ndarray:
        """Return all actions of new chunks in simulator units, float32 [B, S, A], by real-time chunking.

        temperature: 0: the most likely ones. coming: float32 [B, L, A], simulator units, what the rows would execute
        from the observation on; the first `delay` of them are executed. goes_on: bool [B]; False: nothing is coming.
        """
        output = self.module(self.processor(images, instructions, proprio, self.device), None)
        shape = self.shape
        known = np.zeros((len(images), shape.num_steps, shape.num_dims), np.float32)
        known[:, : coming.shape[1], : shape.num_actions] = self.processor.as_planned(coming)
        horizon = min(settings.execution_horizon, coming.shape[1])
        weights = prefix_weights(settings.schedule, delay, horizon, shape.num_steps)
        weights = weights * torch.from_numpy(goes_on)[:, None]
        known_here = torch.from_numpy(known).to(self.device)
        weights_here = weights[:, :, None].to(self.device)
        guidance = Guidance(known_here, weights_here, settings.max_guidance_weight, self.flow_time)
        whole = replace(shape, num_executed=shape.num_steps)
        velocity_fn = guidance.guided(self._velocity_fn(output))
        distribution = self.method.sampler(whole, output, velocity_fn, temperature or 1.0)
        tokens = distribution.sample(keys) if temperature else distribution.most_likely()
        numbers = tokens[:, -shape.num_steps * shape.num_actions :].cpu().numpy()  # tokens end with the action
        return self.processor.denormalize(numbers.reshape(-1, shape.num_steps, shape.num_actions))

    def _velocity_fn(self, output: FlowOutput) -> VelocityFn:
        def velocity_fn(x: Tensor, time: Tensor, num_rows: int) -> tuple[Tensor, Tensor | None]:
            prefix = output.prefix
            prefix_of_rows = prefix if num_rows == output.num_rows else prefix.map(lambda part: part[:num_rows])
            return self.module.at(x.to(self.device), time.to(self.device), prefix_of_rows)

        return velocity_fn

    def evaluate(
        self,
        images: np.ndarray,
        instructions: Sequence[str],
        proprio: np.ndarray,
        temperature: float,
        tokens: Tensor,
    ) -> tuple[ActionDistribution, Tensor | None]:
        tokens = tokens.to(self.device)
        inputs = self.method.flow_input(self.shape, tokens)
        output = self.module(self.processor(images, instructions, proprio, self.device), inputs)
        return self.method.evaluate(self.shape, tokens, output, temperature), output.values

    def steered(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return DSRL's features, the summary [B, W], and the noise over its bound, [B, A]."""
        stored = NoiseAction.from_tokens(tokens, self.shape)
        return stored.summary, stored.raw.tanh()

    def steer(self, summary: Tensor) -> NoiseDistribution:
        """Return the distribution of the first noise for `summary` [B, W], by a pass of the noise actor alone."""
        assert isinstance(self.method, Dsrl)
        output = self.module(None, None, NoiseFeatures(summary.to(self.device)))
        return self.method.evaluate(self.shape, summary, output, temperature=1.0)

    @property
    def num_demonstrated_steps(self) -> int:
        return int(self.processor.config.chunk_size)

    def imitation_loss(
        self,
        images: np.ndarray,
        instructions: Sequence[str],
        proprio: np.ndarray,
        actions: np.ndarray,
        step_valid: np.ndarray,
        settings: SftConfig,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        shape = self.shape
        valid = torch.from_numpy(step_valid).to(self.device)
        shown = torch.from_numpy(self.processor.as_planned(_hold_last_action(actions, step_valid))).to(self.device)
        chunk = shown.new_zeros(len(actions), shape.num_steps, shape.num_dims)
        chunk[:, : shown.shape[1], : shape.num_actions] = shown
        chunk[:, shown.shape[1] :, : shape.num_actions] = shown[:, -1:]
        matching = Matching.sample(chunk, self.num_losses, self.flow_time)
        self.num_losses += 1
        output = self.module(self.processor(images, instructions, proprio, self.device), matching.flow_input)
        assert output.velocity is not None
        return matching.loss(output.velocity[:, 0], valid, shape.num_actions), {}

    def decode_actions(self, tokens: np.ndarray) -> np.ndarray:
        num = self.num_action_chunks * self.num_actions
        return self.processor.denormalize(tokens[:, -num:].reshape(-1, self.num_action_chunks, self.num_actions))

    def save(self, folder: Path, named_tensors: Iterable[tuple[str, Tensor]] | None = None) -> None:
        tensors = self.module.state_dict().items() if named_tensors is None else named_tensors
        save_policy(folder, self.settings, tensors, self.write_network)

    def stacks(self) -> list[list[nn.Module]]:
        network: Any = self.module.network
        return [network.vision_layers(), network.vlm_layers(), network.expert_layers()]

    def frozen_names(self) -> set[str]:
        return {name for name in self._network_names() if self._is_unread(name) or not self._is_trained(name)}

    def unread_names(self) -> set[str]:
        return {name for name in self._network_names() if self._is_unread(name)}

    def _network_names(self) -> list[str]:
        return [name for name, _ in self.module.named_parameters() if name.startswith(NETWORK)]

    def _is_trained(self, name: str) -> bool:
        trains = self.module.trains
        return trains is Trains.everything or (
            trains is Trains.expert and any(part in name for part in self.expert_parts)
        )

    def _is_unread(self, name: str) -> bool:
        return name.removeprefix(NETWORK).startswith(self.unread_parts)


def _require_features(folder: Path, config: LeRobotConfig) -> None:
    """Raise RunError if config.json names no camera or no action."""
    sizes = {"camera in input_features": len(config.cameras), "'action' in output_features": config.num_actions}
    for name, size in sizes.items():
        if size < 1:
            refuse(
                f"config.json of the policy in {folder} names no {name}.",
                "Take the config.json that LeRobot wrote at the end of a training on the robot's data.",
            )


def _require_chunk(folder: Path, config: LeRobotConfig, settings: RunSettings) -> None:
    if settings.num_action_chunks > config.chunk_size:
        refuse(
            f"The policy in {folder} plans {config.chunk_size} actions at a time (chunk_size), and the run executes "
            f"{settings.num_action_chunks}.",
            f"Set policy.num_action_chunks={config.chunk_size} or less.",
        )


def _hold_last_action(actions: np.ndarray, step_valid: np.ndarray) -> np.ndarray:
    """Return the actions [B, C, A] with those after the end of an episode replaced by its last one.

    The loss leaves them out, but the network sees all of its chunk.
    """
    steps = np.maximum.accumulate(np.where(step_valid, np.arange(step_valid.shape[1]), 0), axis=1)
    held = np.take_along_axis(actions, steps[..., None], axis=1)
    is_any = np.asarray(step_valid.any(axis=1)).reshape(-1, 1, 1)
    return np.where(is_any, held, 0.0).astype(np.float32)


def count_parameters(
    network: Callable[[Any], FlowNetwork], described: LeRobotConfig, run: RunConfig, settings: FlowSettings
) -> int:
    """Count the parameters of a new policy on the meta device, which allocates no memory.

    network: its class; described: the architecture.
    """
    heads = run_settings(run, settings, described.num_actions, described.num_proprio).heads
    with torch.device("meta"):
        module = FlowModel(network(described), heads, Trains.everything)
    return sum(parameter.numel() for parameter in module.parameters())
