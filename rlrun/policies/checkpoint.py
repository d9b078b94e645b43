"""A policy in a folder: config.json, safetensors, tokenizer, image statistics; written by rlrun or official."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

import torch
from safetensors import safe_open
from torch import Tensor
from transformers.utils.logging import disable_progress_bar

from rlrun.config.errors import RunError
from rlrun.config.exit_status import ExitStatus
from rlrun.config.schema import RunConfig
from rlrun.policies.openvla_oft.config import OpenVLAOFTConfig
from rlrun.policies.openvla_oft.model import OFFICIAL_ARCHITECTURE, OpenVLAOFT
from rlrun.policies.processor import Processor

disable_progress_bar()  # of transformers: the run has its own, and workers write to log files

CONFIG_FILE = "config.json"
STATISTICS_FILE = "dataset_statistics.json"
OFFICIAL_PROMPT_LENGTH = 50
MAX_NAMES = 8  # in an error message


def save_policy(
    folder: str | Path, model: OpenVLAOFT, processor: Processor, state_dict: Mapping[str, Tensor] | None = None
) -> None:
    """Write everything that `load_policy`, `from_pretrained` and `rlrun.eval` need.

    state_dict: whole tensors in place of the model's own, for a sharded model.
    """
    folder = Path(folder)
    # a copy: transformers empties the dictionary while it writes
    model.save_pretrained(folder, state_dict=None if state_dict is None else dict(state_dict))
    model.config.architectures = [OFFICIAL_ARCHITECTURE]
    model.config.save_pretrained(folder)
    processor.save(folder)


def load_policy(
    folder: str | Path, dtype: torch.dtype, device: torch.device | str, run: RunConfig | None = None
) -> tuple[OpenVLAOFT, Processor]:
    """Open a policy folder; nothing is downloaded and no code of the folder is run.

    run: what the policy is for. It completes an official checkpoint (which lacks chunk length, value head,
    proprioception; new parts start from `run.seed`), and one written by rlrun must agree with it.
    Raises RunError naming the missing file, or the tensors that are missing, unknown or of other shapes.
    """
    folder = Path(folder)
    config = _read_config(folder, run)
    with torch.device("meta"):
        expected = {name: tuple(tensor.shape) for name, tensor in OpenVLAOFT(config).state_dict().items()}
    additions = ("value_head.", "proprio_projector.", "action_queries.")
    is_official = not _is_ours(folder)
    _check_tensors(folder, expected, additions if is_official else ())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(run.seed if run is not None else 0)
        model = OpenVLAOFT.from_pretrained(folder, config=config, dtype=dtype, local_files_only=True)
    if is_official and model.action_queries is not None:
        torch.nn.init.zeros_(model.action_queries.weight)  # the placeholders that it was trained with
    model.freeze_dead_weights()  # loading makes every parameter trainable
    model.eval()
    return model.to(device), Processor.load(folder, config)


def _read_config(folder: Path, run: RunConfig | None) -> OpenVLAOFTConfig:
    if not (folder / CONFIG_FILE).is_file():
        _refuse(
            f"There is no policy in {folder}: {CONFIG_FILE} is missing.",
            "Give the folder of a checkpoint (config.json, *.safetensors, tokenizer.json), or leave policy.path out.",
        )
    config = OpenVLAOFTConfig.from_pretrained(folder, local_files_only=True)
    if (folder / STATISTICS_FILE).is_file():
        config.norm_stats = {**config.norm_stats, **json.loads((folder / STATISTICS_FILE).read_text())}
    if _is_ours(folder):
        if run is not None:
            _check_agreement(folder, config, run)
    elif run is None:
        _refuse(
            f"{folder} is an official checkpoint: it does not say how many actions a chunk has.",
            "Open it with the configuration of a run (policy.path), which completes it.",
        )
    else:
        _complete(config, run)
    return config


def _is_ours(folder: Path) -> bool:
    return "num_action_chunks" in json.loads((folder / CONFIG_FILE).read_text())


def _complete(config: OpenVLAOFTConfig, run: RunConfig) -> None:
    """What an official config.json leaves open, from the configuration of the run."""
    policy = run.policy
    if policy.unnorm_key not in config.norm_stats:
        _refuse(
            f"The policy has no normalisation statistics named {policy.unnorm_key!r}.",
            f"Set policy.unnorm_key to one of {sorted(config.norm_stats)}.",
        )
    stats = config.norm_stats[policy.unnorm_key]
    config.unnorm_key = policy.unnorm_key
    config.num_actions = len(stats["action"]["q01"])
    config.num_action_chunks = policy.num_action_chunks
    config.num_images = len(run.env.cameras)
    config.num_proprio = len(stats["proprio"]["q01"]) if policy.use_proprio else 0
    config.value_hidden_sizes = list(policy.value_hidden_sizes)
    config.has_action_queries = policy.has_action_queries
    config.has_stop_token = policy.has_stop_token
    config.max_prompt_length = policy.max_prompt_length or OFFICIAL_PROMPT_LENGTH
    config.action_bounds = policy.action_bounds.value
    config.center_crop = policy.center_crop


def _check_agreement(folder: Path, config: OpenVLAOFTConfig, run: RunConfig) -> None:
    pairs = {
        "policy.num_action_chunks": (run.policy.num_action_chunks, config.num_action_chunks),
        "policy.use_proprio": (run.policy.use_proprio, config.num_proprio > 0),
        "env.cameras": (len(run.env.cameras), config.num_images),
    }
    for key, (wanted, found) in pairs.items():
        if wanted != found:
            raise RunError(
                f"The policy in {folder} does not fit the run.",
                key=key,
                value=str(wanted),
                cause=f"The policy was made with {found}.",
                remedy=f"Set {key} to what the policy has, or take another policy.",
                exit_status=ExitStatus.bad_input,
            )


def _check_tensors(folder: Path, expected: Mapping[str, tuple[int, ...]], additions: tuple[str, ...]) -> None:
    """Compare names and shapes before a value is read; `additions` may be missing."""
    found = _stored_shapes(folder)
    missing = [name for name in expected if name not in found and not name.startswith(additions or ("\0",))]
    unknown = [name for name in found if name not in expected]
    reshaped = [
        f"{name} {shape} (expected {expected[name]})"
        for name, shape in found.items()
        if name in expected and shape != expected[name]
    ]
    faults = [
        f"{len(names)} {what}: {', '.join(names[:MAX_NAMES])}{' …' if len(names) > MAX_NAMES else ''}"
        for what, names in (("missing", missing), ("unknown", unknown), ("of other shapes", reshaped))
        if names
    ]
    if faults:
        _refuse(
            f"The tensors in {folder} are not those that its {CONFIG_FILE} describes: {'; '.join(faults)}.",
            "Take config.json and weights from the same checkpoint, written completely.",
        )


def _stored_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    index = folder / "model.safetensors.index.json"
    files = ["model.safetensors"]
    if index.is_file():
        files = sorted(set(json.loads(index.read_text())["weight_map"].values()))
    shapes: dict[str, tuple[int, ...]] = {}
    for name in files:
        if not (folder / name).is_file():
            _refuse(
                f"The policy folder {folder} lacks {name}.",
                "Copy the whole checkpoint. rlrun reads safetensors only: pickled weights (*.bin, *.pt) can run code.",
            )
        with safe_open(folder / name, framework="pt") as tensors:
            shapes |= {key: tuple(tensors.get_slice(key).get_shape()) for key in tensors.keys()}  # noqa: SIM118
    return shapes


def _refuse(message: str, remedy: str) -> NoReturn:
    raise RunError(message, key="policy.path", remedy=remedy, exit_status=ExitStatus.bad_input)
