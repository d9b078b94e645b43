"""A GR00T N1.7 in a folder of LeRobot's layout: config.json, model.safetensors, processors, sizes and tokenizer.

LeRobot takes the sizes of the network from a base model, and those of the VLM, its tokenizer and its picture processor
from another one; rlrun writes them to base/ and backbone/, where it reads them. LeRobot opens such a folder if its
files lead it there: `rlrun export lerobot` writes them so.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor

from rlrun.policies.config_fields import LEROBOT, field_names, require_known_fields
from rlrun.policies.flow.folder import REMARK, FlowParts, settings_to_export, stored_tensors, write_first_noise
from rlrun.policies.flow.lerobot_config import LeRobotConfig, Statistics
from rlrun.policies.flow.lerobot_processors import tokenizer_file, write_tokenizer
from rlrun.policies.gr00t.config import (
    BACKBONE_FOLDER,
    BASE_FOLDER,
    HARMLESS,
    NEW_EMBODIMENT,
    PUBLISHED_BACKBONE,
    PUBLISHED_BASE,
    BackboneSizes,
    Gr00tConfig,
    Gr00tSizes,
    in_order,
)
from rlrun.policies.gr00t.processors import read_processors, write_gr00t_processors
from rlrun.policies.gr00t.prompt import CHAT_TEMPLATE, IMAGE_TOKEN
from rlrun.policies.spec import CONFIG_FILE, LeRobotFolder
from rlrun.policies.tokenizer import read_tokenizer
from rlrun.policies.weight_files import WEIGHTS_FILE, WeightFiles, read_json, refuse, write_weights

PREFIX = "_groot_model."  # before the names of the network
EMBEDDINGS = "backbone.model.model.language_model.embed_tokens.weight"
HEAD = "backbone.model.lm_head.weight"  # over words: the same tensor under another name, which safetensors may keep
OPENED_BY = "lerobot.policies.groot.modeling_groot.GrootPolicy"
PLACEHOLDER = "unread"  # the only tensor of base/: transformers opens no model without weights
PRECISION = (
    "LeRobot's class computes in bfloat16: set use_bf16=false in config.json for the actions that rlrun has in float32."
)
PADDING = "In a batch of instructions of unequal lengths LeRobot's class lets tokens see padding; rlrun does not."


def read_folder(folder: Path, files: WeightFiles, tokenizer_path: Path | None = None) -> FlowParts[Gr00tConfig]:
    """Read the description of a folder that LeRobot or rlrun wrote; nothing is downloaded.

    files: its tensors, which get the names of Gr00tNetwork. tokenizer_path: tokenizer.json of the VLM or its folder,
    for a folder that does not contain it, as LeRobot's. Raises RunError that names the missing file, or the variant
    that rlrun lacks.
    """
    stored = read_json(folder / CONFIG_FILE)
    require_known_fields(folder, stored, field_names(Gr00tConfig) | LEROBOT | HARMLESS)
    _name_tensors(files)
    file = tokenizer_file(folder, [folder / BACKBONE_FOLDER], tokenizer_path, PUBLISHED_BACKBONE)
    try:
        sizes = _sizes(folder, stored)
        tokenizer = read_tokenizer(file, sizes.backbone.text.vocab_size)
        plain = LeRobotConfig.of_features(stored)
        tag = stored.get("embodiment_tag", NEW_EMBODIMENT)
        described = read_processors(folder, tag, plain.num_proprio, plain.num_actions)
        shown = {"input_features": in_order(plain.input_features, described.cameras)}
        limited = _limited(stored, described.valid_horizon)
        config = Gr00tConfig.from_lerobot(stored | shown | limited, sizes, **described.config_fields)
    except (ValueError, TypeError, KeyError) as error:
        refuse(f"rlrun cannot run the policy in {folder}: {error}.", "Take a checkpoint of LeRobot's GR00T N1.7.")
    if tokenizer.token_to_id(IMAGE_TOKEN) != sizes.backbone.image_token_id:
        refuse(
            f"{file} has the token {IMAGE_TOKEN} as number {tokenizer.token_to_id(IMAGE_TOKEN)}; the VLM takes "
            f"{sizes.backbone.image_token_id} for pictures.",
            f"Take tokenizer.json of {PUBLISHED_BACKBONE}.",
        )
    return FlowParts(config, tokenizer, described.statistics, {})


def _limited(stored: Mapping[str, Any], valid_horizon: int | None) -> dict[str, int]:
    """Return the fields of config.json that count control steps of a chunk, without steps that were not trained."""
    steps = {name: int(stored.get(name, getattr(Gr00tConfig, name))) for name in ("chunk_size", "n_action_steps")}
    return {} if valid_horizon is None else {name: min(number, int(valid_horizon)) for name, number in steps.items()}


def write_folder(
    folder: Path,
    config: Gr00tConfig,
    tokenizer: Tokenizer,
    statistics: Statistics,
    named_tensors: Iterable[tuple[str, Tensor]],
    backbone_name: str = BACKBONE_FOLDER,
) -> None:
    """Write all that `read_folder` and LeRobot need.

    named_tensors: whole tensors with the names of Gr00tNetwork; LeRobot reads one file, so all of them are held.
    backbone_name: of the VLM on the hub, or its folder, where LeRobot finds it. Raises OSError if a file cannot be
    written.
    """
    base = folder / BASE_FOLDER
    backbone = folder / BACKBONE_FOLDER
    for place in (base, backbone):
        place.mkdir(parents=True, exist_ok=True)
    write_weights(folder, _with_prefix(named_tensors), max_file_bytes=sys.maxsize)
    _write_json(folder / CONFIG_FILE, config.as_lerobot())
    _write_json(base / CONFIG_FILE, config.sizes.as_nvidia(backbone_name))
    write_gr00t_processors(folder, config, statistics, backbone_name)
    _write_backbone(backbone, config.sizes.backbone, tokenizer)


def export_folder(folder: Path, out: Path, vlm_name: str | None) -> LeRobotFolder:
    """Write a policy that rlrun trained as LeRobot's class opens it, in the folder `out`.

    vlm_name: where LeRobot finds the VLM's sizes and processor; None: in `out`, by its absolute path. Raises RunError.
    """
    files = WeightFiles(folder)
    stored = read_folder(folder, files)
    settings = settings_to_export(folder)
    config = stored.config.with_(
        n_action_steps=settings.num_action_chunks,
        num_inference_timesteps=settings.num_flow_steps,
        base_model_path=str(out.absolute() / BASE_FOLDER),
    )
    name = vlm_name or str(out.absolute() / BACKBONE_FOLDER)
    write_folder(out, config, stored.tokenizer, stored.statistics, stored_tensors(files), name)
    save_file({PLACEHOLDER: torch.zeros(1)}, out / BASE_FOLDER / WEIGHTS_FILE, metadata={"format": "pt"})
    write_first_noise(out, config, settings)
    return LeRobotFolder(OPENED_BY, (REMARK, PRECISION, PADDING))


def _name_tensors(files: WeightFiles) -> None:
    files.rename(lambda name: name.removeprefix(PREFIX))
    if EMBEDDINGS not in files.shapes:
        files.rename(lambda name: EMBEDDINGS if name == HEAD else name)
    files.skip_prefix(HEAD)


def _with_prefix(named_tensors: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    return ((PREFIX + name, tensor) for name, tensor in named_tensors)


def _sizes(folder: Path, content: Mapping[str, Any]) -> Gr00tSizes:
    """Return the sizes of the network: in the folder, or the published ones."""
    base = folder / BASE_FOLDER / CONFIG_FILE
    backbone = folder / BACKBONE_FOLDER / CONFIG_FILE
    of_backbone = BackboneSizes.from_transformers(read_json(backbone)) if backbone.is_file() else BackboneSizes()
    if base.is_file():
        return Gr00tSizes.from_nvidia(read_json(base), of_backbone)
    name = str(content.get("base_model_path", PUBLISHED_BASE))
    if not name.startswith("nvidia/"):
        refuse(
            f"The policy in {folder} is made of the base model {name!r}, whose sizes rlrun does not know.",
            f"Copy the base model's config.json to {base}.",
        )
    return Gr00tSizes(backbone=of_backbone)


def _write_backbone(folder: Path, sizes: BackboneSizes, tokenizer: Tokenizer) -> None:
    """Write the sizes of the VLM, its tokenizer, and its processor of pictures, which changes no size."""
    _write_json(folder / CONFIG_FILE, sizes.as_transformers())
    write_tokenizer(tokenizer, folder)
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
    pictures = {
        "image_processor_type": "Qwen2VLImageProcessor",
        "processor_class": "Qwen3VLProcessor",
        "size": {"shortest_edge": 1, "longest_edge": 2**24},
        "patch_size": sizes.vision.patch_size,
        "temporal_patch_size": 2,
        "merge_size": 2,
        "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3,
    }
    _write_json(folder / "preprocessor_config.json", pictures)
    videos = pictures | {"video_processor_type": "Qwen3VLVideoProcessor"}
    del videos["image_processor_type"]
    _write_json(folder / "video_preprocessor_config.json", videos)


def _write_json(file: Path, values: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(values, indent=4) + "\n", encoding="utf-8")
