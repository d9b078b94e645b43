"""Reads the folder of a SmolVLA, rlrun's or LeRobot's, to be opened as a policy.

Importing this module imports transformers, which takes seconds: the spec does so only when a policy is opened.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rlrun.config.schema import RunConfig
from rlrun.policies.flow.checkpoint import RunSettings
from rlrun.policies.flow.opening import FlowFolder
from rlrun.policies.flow.settings import Trains
from rlrun.policies.flow.vision_sizes import PatchPositions
from rlrun.policies.smolvla.folder import read_folder
from rlrun.policies.smolvla.network import SmolVLANetwork
from rlrun.policies.smolvla.policy import SmolVLAPolicy
from rlrun.policies.smolvla.processor import SmolVLAProcessor
from rlrun.policies.smolvla.settings import SmolVLASettings


def smolvla_in(folder: Path, run: RunConfig | None) -> FlowFolder[SmolVLAPolicy]:
    """Read all but the weights. Raises RunError that names what is missing or does not fit."""
    own: SmolVLASettings = SmolVLASettings() if run is None else run.policy.section(SmolVLASettings)
    stored = read_folder(folder, None if own.tokenizer_path is None else Path(own.tokenizer_path))

    def new(settings: RunSettings, trains: Trains) -> SmolVLAPolicy:
        said = PatchPositions[settings.processor.get("patch_positions", PatchPositions.exact.name)]
        positions = own.patch_positions or said
        settings = replace(settings, processor={"patch_positions": positions.name})
        config = stored.config.with_(patch_positions=positions)
        processor = SmolVLAProcessor(config, stored.tokenizer, stored.statistics, settings.num_proprio)
        return SmolVLAPolicy(SmolVLANetwork(config), processor, settings, trains)

    return FlowFolder(folder, stored.config, stored.weights, own, new)
