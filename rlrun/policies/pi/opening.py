"""Reads the folder of a pi0 or pi0.5, of rlrun, LeRobot or openpi, to be opened as a policy.

Importing this module imports transformers, which takes seconds: the spec does so only when a policy is opened.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rlrun.config.schema import RunConfig
from rlrun.config.simulator_spec import PlannedSpaces, simulator_spec
from rlrun.policies.flow.checkpoint import RunSettings
from rlrun.policies.flow.opening import FlowFolder
from rlrun.policies.flow.settings import Trains
from rlrun.policies.pi.folder import read_folder
from rlrun.policies.pi.network import PiNetwork
from rlrun.policies.pi.pictures import LEROBOT_PADDING, OPENPI_PADDING
from rlrun.policies.pi.policy import PiPolicy
from rlrun.policies.pi.processor import PiProcessor
from rlrun.policies.pi.settings import PiSettings, StateInPrompt


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
