"""Actions of a SmolVLA folder by rlrun, for the observation of the oracle."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from rlrun.policies.smolvla.folder import read_folder
from rlrun.policies.smolvla.network import SmolVLANetwork
from rlrun.policies.smolvla.policy import pixels
from rlrun.policies.weight_files import StoredWeights, WeightFiles, fill
from scripts.oracles.smolvla import INSTRUCTION, NUM_ACTIONS, NUM_STATES, learned, observed


@torch.no_grad()
def acted(folder: Path) -> np.ndarray:
    """Return float32 [B, T, actions] in simulator units."""
    files = WeightFiles(folder)
    stored = read_folder(folder, files)
    config, given = stored.config, observed()
    with torch.device("meta"):
        network = SmolVLANetwork(config)
    fill(network, StoredWeights(files, {}, seed=0), "cpu")
    ids = stored.tokenizer.encode(f"{INSTRUCTION}\n").ids[: config.tokenizer_max_length]
    batch, length = len(given["state"]), config.tokenizer_max_length
    tokens = torch.tensor([*ids, *[0] * (length - len(ids))]).expand(batch, -1)
    state = torch.zeros(batch, config.max_state_dim)
    own, scale = given["state"][:, :NUM_STATES], stored.statistics.state
    state[:, :NUM_STATES] = torch.from_numpy(own if scale is None else scale.normalize(own))
    pictures = pixels(torch.from_numpy(given["pictures"]), config.vlm.vision.image_size)
    shown = torch.ones(pictures.shape[:2], dtype=torch.bool)
    prefix = network.prefix(pictures, shown, tokens, (torch.arange(length) < len(ids)).expand(batch, -1), state)
    x = torch.from_numpy(learned()["noise"])
    for step in range(config.num_steps):
        time = torch.full((batch,), 1 - step / config.num_steps)
        x = x - network.velocity(x, time, prefix)[0] / config.num_steps
    actions = x[..., :NUM_ACTIONS].numpy()
    return actions if stored.statistics.action is None else stored.statistics.action.denormalize(actions)
