"""What an export to LeRobot's class shares among flow policies: what is refused, what is written, and what is told."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from safetensors.torch import save_file
from torch import Tensor

from rlrun.policies.flow.checkpoint import RUN_FILE, RunSettings
from rlrun.policies.flow.method import ChunkShape
from rlrun.policies.lerobot.config import LeRobotConfig
from rlrun.policies.weight_files import WeightFiles, read_json
from rlrun.system.errors import ExitStatus, RunError

NOISE_FILE, NOISE = "first_noise.safetensors", "noise"
REMARK = (
    f"LeRobot draws the noise that a chunk begins with. rlrun evaluates from the numbers in {NOISE_FILE}: "
    "predict_action_chunk(batch, noise=load_file(…)['noise']) begins with them."
)


def settings_to_export(folder: Path) -> RunSettings:
    """Return how a policy acts. Raises RunError for one that LeRobot's class cannot act like."""
    file = folder / RUN_FILE
    if not file.is_file():
        refuse_export(f"rlrun did not write the policy in {folder}.", "LeRobot opens the folders that it wrote itself.")
    settings = RunSettings.of(read_json(file))
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
    shape = ChunkShape(config.chunk_size, config.max_action_dim, settings.num_action_chunks, settings.num_actions)
    save_file({NOISE: shape.fixed_noise(1)}, folder / NOISE_FILE)


def refuse_export(message: str, remedy: str) -> NoReturn:
    """Raise a RunError about a policy that LeRobot's class cannot hold."""
    raise RunError(message, remedy=remedy, exit_status=ExitStatus.bad_input)
