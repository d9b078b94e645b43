"""pi0 and pi0.5 behind the policy interface."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from rlrun.config.schema import RunConfig
from rlrun.config.simulator_spec import PlannedSpaces, simulator_spec
from rlrun.policies.flow.lerobot_config import MODES, Statistics, numbered, of_demonstrations
from rlrun.policies.flow.model import FlowModel
from rlrun.policies.flow.opening import FlowFolder
from rlrun.policies.flow.policy import FlowPolicy, RunSettings, run_settings
from rlrun.policies.flow.processor import FlowProcessor, ended
from rlrun.policies.flow.settings import Trains
from rlrun.policies.pi.config import MODES as MODE_OF
from rlrun.policies.pi.config import PiConfig
from rlrun.policies.pi.folder import LEROBOT_PADDING, OPENPI_PADDING, pixels, read_folder, write_folder
from rlrun.policies.pi.network import PiNetwork
from rlrun.policies.pi.settings import PiSettings, StateInPrompt, new_config
from rlrun.policies.spec import DemonstratedTask
from rlrun.policies.tokenizer import word_tokenizer

BINS = np.linspace(-1, 1, 256 + 1)[:-1]  # of the numbers of the state in the prompt


class PiProcessor(FlowProcessor):
    """pi0's expert reads the state; pi0.5 has it in the prompt, as numbers of 256 bins."""

    config: PiConfig

    def __init__(
        self,
        config: PiConfig,
        tokenizer: Tokenizer,
        statistics: Statistics,
        num_proprio: int,
        state_in_prompt: StateInPrompt,
        padding: float,
        cleans_prompt: bool = False,
    ):
        """state_in_prompt: of pi0.5. padding: the value beside a picture that is no square.

        cleans_prompt: of pi0, whether an instruction is `cleaned` as in openpi; LeRobot's pi0 takes it as it is, and
        pi0.5 always has it cleaned.
        """
        super().__init__(config, tokenizer, statistics, num_proprio)
        self.state_in_prompt, self.padding, self.cleans_prompt = state_in_prompt, padding, cleans_prompt

    def pixels(self, images: Tensor) -> Tensor:
        return pixels(images, self.config.sizes.vision.image_size, self.padding)

    def prompt(self, instruction: str, state: np.ndarray) -> str:
        if self.config.type == "pi05" and self.state_in_prompt is not StateInPrompt.none:
            return prompt_with_state(instruction, self._shown(state))
        if self.config.type == "pi05" or self.cleans_prompt:
            return f"{cleaned(instruction)}\n"
        return ended(instruction)

    def _shown(self, state: np.ndarray) -> np.ndarray:
        if self.state_in_prompt is StateInPrompt.padded:
            return np.pad(state, (0, self.config.max_state_dim - len(state)))
        return state


def cleaned(instruction: str) -> str:
    """Return the instruction on one line without underscores, as openpi takes it, and LeRobot for pi0.5."""
    return instruction.strip().replace("_", " ").replace("\n", " ")


def prompt_with_state(instruction: str, state: np.ndarray) -> str:
    """Return pi0.5's prompt. state: float [P], normalized to -1 … 1.

    Example: prompt_with_state("open it", [-1, 0.5]) == "Task: open it, State: 0 192;\\nAction: ".
    """
    numbers = " ".join(map(str, np.digitize(state, bins=BINS) - 1))
    return f"Task: {cleaned(instruction)}, State: {numbers};\nAction: "


class PiPolicy(FlowPolicy):
    """The network, its critic and its processor."""

    processor: PiProcessor
    expert_parts = ("gemma_expert.", "action_in_proj.", "action_out_proj.", "time_mlp_", "state_proj.")

    def write_network(self, folder: Path, named_tensors: Iterable[tuple[str, Tensor]]) -> None:
        processor = self.processor
        described = (processor.config, processor.tokenizer, processor.statistics)
        write_folder(folder, *described, named_tensors, processor.state_in_prompt)


def new_policy(config: RunConfig, task: DemonstratedTask) -> PiPolicy:
    """Return the policy, float32 on the CPU; the same arguments give the same weights.

    Its vocabulary is the words of the task's instructions and the numbers of the state.
    """
    own, tokenizer = config.policy.section(PiSettings), _tokenizer(task)
    num_proprio = task.num_proprio if config.policy.use_proprio else 0
    sizes = task.num_actions, task.num_proprio, task.cameras, tokenizer.get_vocab_size()
    network_config = new_config(config, *sizes)
    statistics = of_demonstrations(task.norm_stats, MODES[MODE_OF[network_config.type]])
    shown, padding = own.state_in_prompt or StateInPrompt.real, LEROBOT_PADDING
    processor = PiProcessor(network_config, tokenizer, statistics, num_proprio, shown, padding)
    of_processor = {"state_in_prompt": shown.name, "padding": padding, "cleans_prompt": False}
    settings = run_settings(config, own, task.num_actions, num_proprio, of_processor)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        return PiPolicy(PiNetwork(network_config), processor, settings, Trains.everything)


def num_parameters(config: RunConfig, num_actions: int, num_proprio: int) -> int:
    """Count the parameters of a new policy on the meta device, which allocates no memory."""
    described, own = new_config(config, num_actions, num_proprio, numbered(1)), config.policy.section(PiSettings)
    heads = run_settings(config, own, num_actions, num_proprio).heads
    with torch.device("meta"):
        module = FlowModel(PiNetwork(described), heads, Trains.everything)
    return sum(parameter.numel() for parameter in module.parameters())


def _tokenizer(task: DemonstratedTask) -> Tokenizer:
    prompts = [prompt_with_state(text, np.zeros(0)) for text in task.instructions]
    numbers = map(str, range(-1, len(BINS)))
    return word_tokenizer([*task.instructions, *prompts, " ".join(numbers)])


def pi_in(folder: Path, run: RunConfig | None) -> FlowFolder[PiPolicy]:
    """Read all but the weights. Raises RunError that names what is missing or does not fit."""
    own: PiSettings = PiSettings() if run is None else run.policy.section(PiSettings)
    spaces = PlannedSpaces(0, 0, 0) if run is None else simulator_spec(run.env).planned_spaces(run.env)
    stored = read_folder(folder, own, spaces)

    def new(settings: RunSettings, trains: Trains) -> PiPolicy:
        known = settings.processor
        if own.state_in_prompt is not None:
            known = known | {"state_in_prompt": own.state_in_prompt.name}
        settings = replace(settings, processor=known)
        processor = PiProcessor(
            stored.config,
            stored.tokenizer,
            stored.statistics,
            settings.num_proprio,
            StateInPrompt[known["state_in_prompt"]],
            known["padding"],
            known.get("cleans_prompt", False),
        )
        return PiPolicy(PiNetwork(stored.config), processor, settings, trains)

    padding = OPENPI_PADDING if stored.is_openpi else LEROBOT_PADDING
    unsaid = {"state_in_prompt": StateInPrompt.real.name, "padding": padding, "cleans_prompt": stored.is_openpi}
    return FlowFolder(folder, stored.config, stored.weights, own, new, unsaid)
