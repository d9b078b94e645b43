"""The parts that reinforcement learning adds to an official checkpoint, as they begin."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rlrun.policies.openvla_oft.model import ActionQueries, OpenVLAOFT, ProprioProjector, ValueHead

NEW_PARTS = ("value_head.", "proprio_projector.", "action_queries.")


def new_parts(model: OpenVLAOFT, seed: int) -> dict[str, Tensor]:
    """Name -> float32 tensor on the CPU of every new part that `model` (a meta one will do) has.

    The same on every rank and however the rest is loaded. Action queries begin as the zeros that official
    checkpoints were trained with.
    """
    config, width = model.config, model.config.text_config.hidden_size
    parts: dict[str, nn.Module] = {}
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.manual_seed(seed)
        if config.value_hidden_sizes:
            parts["value_head"] = ValueHead(width, config.value_hidden_sizes).apply(model._init_weights)
        if config.num_proprio:
            parts["proprio_projector"] = ProprioProjector(config.num_proprio, width).apply(model._init_weights)
        if config.has_action_queries:
            parts["action_queries"] = ActionQueries(config.num_action_tokens, width)
    return {f"{part}.{name}": t.detach() for part, module in parts.items() for name, t in module.state_dict().items()}
