"""The files of a flow policy beside LeRobot's: how it acts, its heads, and the first noise for LeRobot's class."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, NoReturn, TypeVar

from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor

from rlrun.config.registry import ALGORITHMS
from rlrun.config.schema import RunConfig
from rlrun.policies.flow.dsrl import Dsrl
from rlrun.policies.flow.flow_noise import FlowNoise
from rlrun.policies.flow.lerobot_config import LeRobotConfig, Statistics
from rlrun.policies.flow.method import ChunkShape, FlowMethod, FlowSde, FlowSdeMethod
from rlrun.policies.flow.model import HeadSizes
from rlrun.policies.flow.nft import Nft
from rlrun.policies.flow.spec import (
    CriticInput,
    FirstNoise,
    FlowSettings,
    Steering,
    learned_range,
    num_points,
    steering,
)
from rlrun.policies.flow.time import FlowTime
from rlrun.policies.weight_files import WeightFiles, read_json, refuse
from rlrun.system.errors import ExitStatus, RunError

ConfigType = TypeVar("ConfigType", bound=LeRobotConfig)
RUN_FILE = "flow_policy.json"
HEADS_FILE = "heads.safetensors"  # critic, learned noise, noise actor
NETWORK = "network."  # before LeRobot's names
NOISE_FILE = "first_noise.safetensors"
NOISE = "noise"
REMARK = (
    f"LeRobot draws the noise that a chunk begins with. rlrun evaluates from the numbers in {NOISE_FILE}: "
    "predict_action_chunk(batch, noise=load_file(…)['noise']) begins with them."
)


@dataclass(frozen=True, eq=False)
class FlowParts(Generic[ConfigType]):
    """The parts of a flow policy beside its weights: of a folder, or of a new policy."""

    config: ConfigType
    tokenizer: Tokenizer
    statistics: Statistics
    processor: Mapping[str, Any]  # RunSettings.processor where the folder does not contain it


@dataclass(frozen=True)
class RunSettings:
    """Settings of a policy that LeRobot's config.json has no place for."""

    num_action_chunks: int  # C
    num_actions: int  # A
    num_proprio: int  # P; 0: no proprioception
    num_flow_steps: int
    noise_level: float
    value_hidden_sizes: list[int]
    first_noise: FirstNoise = FirstNoise.drawn
    learned_range: tuple[float, float] | None = None  # of learned noise; None: none is learned
    steering: Steering | None = None  # of DSRL; None: the first noise is drawn
    num_points: int | None = None  # of NFT, per chunk; None: another method
    critic_input: CriticInput = CriticInput.prefix
    critic_detached: bool = False
    processor: dict[str, Any] = field(default_factory=dict)  # of the kind's processor

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> RunSettings:
        """Read the settings from JSON."""
        learned = content.get("learned_range")
        steering = content.get("steering")
        nested: dict[str, Any] = {
            "learned_range": learned and (learned[0], learned[1]),
            "steering": steering and Steering(**steering),
            "first_noise": FirstNoise(content.get("first_noise", "drawn")),
            "critic_input": CriticInput(content.get("critic_input", "prefix")),
        }
        return cls(**{**content, **nested})

    @property
    def heads(self) -> HeadSizes:
        """Sizes of the heads."""
        critic = (self.value_hidden_sizes, self.critic_input, self.critic_detached)
        return HeadSizes(*critic, self.learned_range, self.steering, self.num_actions)

    def method(self, flow_time: FlowTime) -> FlowMethod:
        """Return the method of sampling actions. flow_time: the network's."""
        if self.steering is not None:
            return Dsrl(self.num_flow_steps, self.steering.bound, flow_time)
        if self.num_points is not None:
            return Nft(self.num_flow_steps, self.num_points, flow_time)
        if self.learned_range is not None:
            return FlowNoise(self.num_flow_steps, self.first_noise, flow_time)
        return FlowSdeMethod(FlowSde(self.num_flow_steps, self.noise_level, flow_time), self.first_noise)


def save_policy(
    folder: str | Path,
    settings: RunSettings,
    named_tensors: Iterable[tuple[str, Tensor]],
    write_network: Callable[[Path, Iterable[tuple[str, Tensor]]], None],
) -> None:
    """Write everything that `FlowPolicy.from_folder` and LeRobot's class need. Tensors may arrive one by one.

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
    folder: Path, config: LeRobotConfig, run: RunConfig | None, flow_settings: FlowSettings
) -> RunSettings:
    """Return the folder's settings, with the flow steps of the run; for a folder of LeRobot's all are of the run.

    Raises RunError for such a folder without a run.
    """
    file = folder / RUN_FILE
    if file.is_file():
        settings = RunSettings.from_json(read_json(file))
        if run is None:
            return settings
        _check_state(folder, run, settings.num_proprio > 0)
        executed = min(settings.num_action_chunks, run.policy.num_action_chunks)  # a part of what it learned
        heads = settings.value_hidden_sizes
        if ALGORITHMS.get(run.algorithm.name).has_critic:
            heads = heads or list(run.policy.value_hidden_sizes)  # a policy without a critic gets that of the run
        return replace(settings, num_action_chunks=executed, value_hidden_sizes=heads, **_sampling(flow_settings))
    if run is None:
        refuse(
            f"{folder} does not say how many actions a chunk executes: rlrun did not write it.",
            "Open it with the configuration of a run (policy.path), which completes it.",
        )
    _check_state(folder, run, config.num_proprio > 0)
    return run_settings(run, flow_settings, config.num_actions, config.num_proprio)


def _check_state(folder: Path, run: RunConfig, has_state: bool) -> None:
    if run.policy.use_proprio != has_state:
        refuse(
            f"The policy in {folder} was trained {'with' if has_state else 'without'} the robot's state.",
            f"Set policy.use_proprio={str(has_state).lower()}.",
        )


def run_settings(
    run: RunConfig,
    settings: FlowSettings,
    num_actions: int,
    num_proprio: int,
    processor: Mapping[str, Any] | None = None,
) -> RunSettings:
    """Return the settings of a run. num_proprio: 0: it uses no proprioception."""
    return RunSettings(
        num_action_chunks=run.policy.num_action_chunks,
        num_actions=num_actions,
        num_proprio=num_proprio,
        value_hidden_sizes=list(run.policy.value_hidden_sizes),
        processor=dict(processor or {}),
        **_sampling(settings),
    )


def _sampling(settings: FlowSettings) -> dict[str, Any]:
    return {
        "num_flow_steps": settings.num_flow_steps,
        "noise_level": settings.noise_level,
        "first_noise": settings.first_noise,
        "learned_range": learned_range(settings),
        "steering": steering(settings),
        "num_points": num_points(settings),
        "critic_input": settings.critic_input,
        "critic_detached": settings.critic_detached,
    }


def read_heads(folder: Path) -> dict[str, Tensor]:
    """Return the tensors of the heads by the module's names; {}: the folder has none."""
    file = folder / HEADS_FILE
    return load_file(file) if file.is_file() else {}


def settings_to_export(folder: Path) -> RunSettings:
    """Return the settings of a policy. Raises RunError for one that LeRobot's class cannot act like."""
    file = folder / RUN_FILE
    if not file.is_file():
        refuse_export(f"rlrun did not write the policy in {folder}.", "LeRobot opens the folders that it wrote itself.")
    settings = RunSettings.from_json(read_json(file))
    if settings.steering is not None:
        refuse_export(
            f"The policy in {folder} is steered: DSRL learned the noise of the flow's beginning, which LeRobot draws.",
            "Export the policy that DSRL began with (policy.path).",
        )
    if not settings.num_proprio:
        refuse_export(
            f"The policy in {folder} was trained without the robot's state, which LeRobot's class always reads.",
            "Train with policy.use_proprio=true.",
        )
    return settings


def stored_tensors(weights: WeightFiles) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors one by one, in the types on disk."""
    return ((name, weights.read(name)) for name in weights.in_order())


def write_first_noise(folder: Path, config: LeRobotConfig, settings: RunSettings) -> None:
    """Write the noise from which rlrun evaluates, float32 [1, S, D], as LeRobot's methods take it."""
    shape = ChunkShape(config.horizon, config.max_action_dim, settings.num_action_chunks, settings.num_actions)
    save_file({NOISE: shape.fixed_noise(1)}, folder / NOISE_FILE)


def refuse_export(message: str, remedy: str) -> NoReturn:
    """Raise a RunError about a policy that LeRobot's class cannot hold."""
    raise RunError(message, remedy=remedy, exit_status=ExitStatus.bad_input)
