"""A flow policy behind the policy interface: it acts and is judged by its method, and imitates by matching.

Shape legend: B rows, N images per row, H x W pixels, S control steps and D dimensions of the network's own chunk,
C executed control steps, A real dimensions, K = C*A, W numbers of a packed choice, P proprioception.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from rlrun.algorithms.algorithm import ActionDistribution
from rlrun.config.schema import RunConfig, SftConfig
from rlrun.policies.flow.dsrl import Dsrl, SteeredChoice, SteeredNoise
from rlrun.policies.flow.flow_noise import FlowNoise
from rlrun.policies.flow.lerobot_config import LeRobotConfig
from rlrun.policies.flow.method import ChunkShape, FlowMethod, FlowSde, FlowSdeMethod
from rlrun.policies.flow.model import Features, FlowModel, FlowNetwork, HeadSizes, Matching
from rlrun.policies.flow.processor import FlowProcessor
from rlrun.policies.flow.settings import (
    CriticInput,
    FirstNoise,
    FlowSettings,
    Steering,
    Trains,
    learned_range,
    steering,
)
from rlrun.policies.policy import ImitationPolicy
from rlrun.policies.weight_files import read_json, refuse

RUN_FILE = "flow_policy.json"
HEADS_FILE = "heads.safetensors"  # critic, learned noise, noise actor
NETWORK = "network."  # before LeRobot's names


@dataclass(frozen=True)
class RunSettings:
    """What LeRobot's config.json has no place for."""

    num_action_chunks: int  # C
    num_actions: int  # A
    num_proprio: int  # P; 0: no proprioception
    num_flow_steps: int
    noise_level: float
    value_hidden_sizes: list[int]
    first_noise: FirstNoise = FirstNoise.drawn
    learned_range: tuple[float, float] | None = None  # of learned noise; None: none is learned
    steering: Steering | None = None  # of DSRL; None: the first noise is drawn
    critic_input: CriticInput = CriticInput.prefix
    critic_detached: bool = False
    processor: dict[str, Any] = field(default_factory=dict)  # what the kind's processor needs beside LeRobot's files

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> RunSettings:
        """Read what was written as JSON."""
        learned, steering = found.get("learned_range"), found.get("steering")
        nested: dict[str, Any] = {
            "learned_range": learned and (learned[0], learned[1]),
            "steering": steering and Steering(**steering),
            "first_noise": FirstNoise(found.get("first_noise", "drawn")),
            "critic_input": CriticInput(found.get("critic_input", "prefix")),
        }
        return cls(**{**found, **nested})

    @property
    def heads(self) -> HeadSizes:
        """What heads the policy has."""
        critic = (self.value_hidden_sizes, self.critic_input, self.critic_detached)
        return HeadSizes(*critic, self.learned_range, self.steering, self.num_actions)

    def method(self) -> FlowMethod:
        """Return how actions are drawn."""
        if self.steering is not None:
            return Dsrl(self.num_flow_steps, self.steering.bound)
        if self.learned_range is not None:
            return FlowNoise(self.num_flow_steps, self.first_noise)
        return FlowSdeMethod(FlowSde(self.num_flow_steps, self.noise_level), self.first_noise)


def save_policy(
    folder: str | Path,
    settings: RunSettings,
    named_tensors: Iterable[tuple[str, Tensor]],
    write_network: Callable[[Path, Iterable[tuple[str, Tensor]]], None],
) -> None:
    """Write everything that `opening.open_whole` and LeRobot's class need. Tensors may arrive one by one.

    write_network: writes LeRobot's files of tensors with LeRobot's names.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    heads: dict[str, Tensor] = {}

    def of_network() -> Iterator[tuple[str, Tensor]]:
        for name, tensor in named_tensors:
            if name.startswith(NETWORK):
                yield name.removeprefix(NETWORK), tensor
            else:
                heads[name] = tensor.detach().cpu().clone().contiguous()

    write_network(folder, of_network())
    if heads:
        save_file(heads, folder / HEADS_FILE)
    (folder / RUN_FILE).write_text(json.dumps(asdict(settings), indent=2, default=lambda choice: choice.value) + "\n")


def read_settings(
    folder: Path, config: LeRobotConfig, run: RunConfig | None, own: FlowSettings, processor: Mapping[str, Any]
) -> RunSettings:
    """Return the folder's settings, with the flow steps of the run; for a folder of LeRobot's all are of the run.

    processor: what a folder of LeRobot's does not say. Raises RunError for such a folder without a run.
    """
    file = folder / RUN_FILE
    if file.is_file():
        found = RunSettings.of(read_json(file))
        if run is None:
            return found
        _check_state(folder, run, found.num_proprio > 0)
        return replace(found, **_sampling(own))
    if run is None:
        refuse(
            f"{folder} does not say how many actions a chunk executes: rlrun did not write it.",
            "Open it with the configuration of a run (policy.path), which completes it.",
        )
    _check_state(folder, run, config.num_proprio > 0)
    return run_settings(run, own, config.num_actions, config.num_proprio, processor)


def _check_state(folder: Path, run: RunConfig, has_state: bool) -> None:
    if run.policy.use_proprio != has_state:
        refuse(
            f"The policy in {folder} was trained {'with' if has_state else 'without'} the robot's state.",
            f"Set policy.use_proprio={str(has_state).lower()}.",
        )


def run_settings(
    run: RunConfig, own: FlowSettings, num_actions: int, num_proprio: int, processor: Mapping[str, Any] | None = None
) -> RunSettings:
    """Return the settings of a run. num_proprio: 0: it uses no proprioception."""
    return RunSettings(
        num_action_chunks=run.policy.num_action_chunks,
        num_actions=num_actions,
        num_proprio=num_proprio,
        value_hidden_sizes=list(run.policy.value_hidden_sizes),
        processor=dict(processor or {}),
        **_sampling(own),
    )


def _sampling(own: FlowSettings) -> dict[str, Any]:
    return {
        "num_flow_steps": own.num_flow_steps,
        "noise_level": own.noise_level,
        "first_noise": own.first_noise,
        "learned_range": learned_range(own),
        "steering": steering(own),
        "critic_input": own.critic_input,
        "critic_detached": own.critic_detached,
    }


def read_heads(folder: Path) -> dict[str, Tensor]:
    """Return the tensors of the heads by the module's names; {}: the folder has none."""
    file = folder / HEADS_FILE
    return load_file(file) if file.is_file() else {}


class FlowPolicy(ImitationPolicy):
    """A kind of policy adds the names of what it trains, and its folder; the rest is here."""

    module: FlowModel
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
        self.processor, self.settings, self.method = processor, settings, settings.method()
        self.num_actions, self.num_action_chunks = settings.num_actions, settings.num_action_chunks
        self.shape = ChunkShape(config.chunk_size, config.max_action_dim, self.num_action_chunks, self.num_actions)
        self.num_proprio = processor.num_proprio
        self.device = next(self.module.parameters()).device
        self._num_losses = 0  # of imitation, which draws by it
        frozen = self.frozen_names()
        for name, parameter in self.module.named_parameters():
            parameter.requires_grad_(name not in frozen)

    @abstractmethod
    def write_network(self, folder: Path, named_tensors: Iterable[tuple[str, Tensor]]) -> None:
        """Write LeRobot's files. named_tensors: of the network."""

    def __call__(
        self, images: np.ndarray, instructions: Sequence[str], proprio: np.ndarray, temperature: float
    ) -> tuple[ActionDistribution, Tensor | None]:
        answer = self.module(self.processor(images, instructions, proprio, self.device), None)

        def field(x: Tensor, time: Tensor, num_rows: int) -> tuple[Tensor, Tensor | None]:
            prefix = answer.prefix
            own = prefix if num_rows == len(images) else prefix.map(lambda part: part[:num_rows])
            return self.module.at(x.to(self.device), time.to(self.device), own)

        return self.method.sampler(self.shape, answer, field, temperature), answer.values

    def evaluate(
        self,
        images: np.ndarray,
        instructions: Sequence[str],
        proprio: np.ndarray,
        temperature: float,
        tokens: Tensor,
    ) -> tuple[ActionDistribution, Tensor | None]:
        tokens = tokens.to(self.device)
        point = self.method.point(self.shape, tokens)
        answer = self.module(self.processor(images, instructions, proprio, self.device), point)
        return self.method.judged(self.shape, tokens, answer, temperature), answer.values

    def steered(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return the features of DSRL's choices, the summary [B, W], and the chosen noise, over its bound, [B, A]."""
        choice = SteeredChoice.of(tokens, self.shape)
        return choice.summary, choice.raw.tanh()

    def steer(self, summary: Tensor) -> SteeredNoise:
        """Return the distribution of the first noise for `summary` [B, W], by a pass of the noise actor alone."""
        assert isinstance(self.method, Dsrl)
        answer = self.module(None, None, Features(summary.to(self.device)))
        return self.method.judged(self.shape, summary, answer, temperature=1.0)

    def imitation_loss(
        self,
        images: np.ndarray,
        instructions: Sequence[str],
        proprio: np.ndarray,
        actions: np.ndarray,
        step_valid: np.ndarray,
        settings: SftConfig,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        shape, valid = self.shape, torch.from_numpy(step_valid).to(self.device)
        shown = torch.from_numpy(self.processor.normalized(_held(actions, step_valid))).to(self.device)
        chunk = shown.new_zeros(len(actions), shape.num_steps, shape.num_dims)
        chunk[:, : shape.num_executed, : shape.num_actions] = shown
        chunk[:, shape.num_executed :, : shape.num_actions] = shown[:, -1:]
        matching = Matching.drawn(chunk, self._num_losses)
        self._num_losses += 1
        answer = self.module(self.processor(images, instructions, proprio, self.device), matching.point)
        assert answer.velocity is not None
        return matching.loss(answer.velocity[:, 0], valid, shape.num_actions), {}

    def decode_actions(self, tokens: np.ndarray) -> np.ndarray:
        num = self.num_action_chunks * self.num_actions
        return self.processor.physical(tokens[:, -num:].reshape(-1, self.num_action_chunks, self.num_actions))

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


def _held(actions: np.ndarray, step_valid: np.ndarray) -> np.ndarray:
    """Return the actions [B, C, A] with those after the end of an episode replaced by its last one.

    The loss leaves them out, but the network sees all of its chunk.
    """
    steps = np.maximum.accumulate(np.where(step_valid, np.arange(step_valid.shape[1]), 0), axis=1)
    held = np.take_along_axis(actions, steps[..., None], axis=1)
    is_any = np.asarray(step_valid.any(axis=1)).reshape(-1, 1, 1)
    return np.where(is_any, held, 0.0).astype(np.float32)
