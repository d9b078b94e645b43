"""A SmolVLA in a folder of LeRobot's layout: config.json, model.safetensors, processors, and the VLM's own files.

LeRobot takes sizes and processor of the VLM from the hub; rlrun writes them to vlm/, where it reads config.json and
tokenizer.json. LeRobot opens such a folder if `vlm_model_name` leads it to vlm/: `rlrun export lerobot` writes it so.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from torch import Tensor

from rlrun.policies.config_fields import LEROBOT, field_names, require_known_fields
from rlrun.policies.flow.folder import REMARK, FlowParts, settings_to_export, stored_tensors, write_first_noise
from rlrun.policies.flow.lerobot_config import Statistics
from rlrun.policies.flow.lerobot_processors import (
    BATCH,
    BUFFERS,
    DEVICE,
    NORMALIZE,
    RENAME,
    padding_token,
    read_statistics,
    tokenize,
    tokenizer_file,
    write_processors,
    write_tokenizer,
)
from rlrun.policies.flow.spec import PatchPositions
from rlrun.policies.smolvla.config import VLM_FOLDER, SmolVLAConfig, VLMSizes
from rlrun.policies.spec import CONFIG_FILE, LeRobotFolder
from rlrun.policies.tokenizer import read_tokenizer
from rlrun.policies.weight_files import WeightFiles, read_json, refuse, write_weights

PROCESSOR_SETTINGS = {"patch_positions": PatchPositions.exact.name}  # where the folder does not contain them
PUBLISHED_VLM = "SmolVLM2-500M-Video-Instruct"  # its sizes are the defaults of VLMSizes
IMAGE_PROCESSOR = "preprocessor_config.json"  # transformers looks for this file
PROCESSOR = "SmolVLMProcessor"
SPECIAL_TOKENS = {"fake_image_token_id": "<fake_token_around_image>", "global_image_token_id": "<global-img>"}
SHIFTED_HERE = "It was trained with shifted positions, as LeRobot has them on transformers below 5 and not on 5."
SHIFTED_THERE = (
    "LeRobot 0.4 runs on transformers below 5, which shifts the positions of a picture's patches: actions differ. "
    "docs/policies.md says more."
)


def read_folder(folder: Path, files: WeightFiles, tokenizer_path: Path | None = None) -> FlowParts[SmolVLAConfig]:
    """Read the description of a folder that LeRobot or rlrun wrote; nothing is downloaded.

    files: its tensors; those that are none of SmolVLANetwork's are set aside. tokenizer_path: tokenizer.json of the VLM
    or its folder, for a folder that does not contain it, as LeRobot's. Raises RunError that names the missing file, or
    the variant that rlrun lacks.
    """
    content = read_json(folder / CONFIG_FILE)
    require_known_fields(folder, content, field_names(SmolVLAConfig) | LEROBOT)
    name = content.get("vlm_model_name", PUBLISHED_VLM)
    file = tokenizer_file(folder, _vlm_folders(folder, content), tokenizer_path, name)
    try:
        vlm = _vlm(folder, content)
        tokenizer = read_tokenizer(file, vlm.text.vocab_size)
        config = SmolVLAConfig.from_lerobot(content, _with_token_ids(vlm, tokenizer))
    except (ValueError, TypeError) as error:
        refuse(f"rlrun cannot run the policy in {folder}: {error}.", "Take a checkpoint of LeRobot's SmolVLA.")
    statistics = read_statistics(folder, config, files)
    for prefix in BUFFERS:
        files.skip_prefix(prefix)
    return FlowParts(config, tokenizer, statistics, PROCESSOR_SETTINGS)


def write_folder(
    folder: Path,
    config: SmolVLAConfig,
    tokenizer: Tokenizer,
    statistics: Statistics,
    named_tensors: Iterable[tuple[str, Tensor]],
) -> None:
    """Write all that `read_folder` and LeRobot need.

    named_tensors: whole tensors with the names of SmolVLANetwork; LeRobot reads one file, so all of them are held.
    Raises OSError if a file cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    write_weights(folder, named_tensors, max_file_bytes=sys.maxsize)
    config = replace(config, normalization_mapping=statistics.mapping)
    _write_json(folder / CONFIG_FILE, config.as_lerobot())
    _write_vlm(folder / VLM_FOLDER, config, tokenizer)
    newline = {"registry_name": "smolvla_new_line_processor", "config": {}}
    words = tokenize(config, config.vlm_model_name, config.pad_language_to)
    write_processors(folder, config, statistics, [RENAME, BATCH, newline, words, DEVICE, NORMALIZE])


def export_folder(folder: Path, out: Path, vlm_name: str | None) -> LeRobotFolder:
    """Write a policy that rlrun trained as LeRobot's class opens it, in the folder `out`.

    vlm_name: where LeRobot finds the VLM's sizes and processor; None: in `out`, by its absolute path. Raises RunError.
    """
    files = WeightFiles(folder)
    stored = read_folder(folder, files)
    settings = settings_to_export(folder)
    config = stored.config.with_(
        n_action_steps=settings.num_action_chunks,
        num_steps=settings.num_flow_steps,
        vlm_model_name=vlm_name or str(out.absolute() / VLM_FOLDER),
    )
    write_folder(out, config, stored.tokenizer, stored.statistics, stored_tensors(files))
    write_first_noise(out, config, settings)
    is_shifted = settings.processor.get("patch_positions") == PatchPositions.shifted.name
    remarks = (REMARK, SHIFTED_HERE if is_shifted else SHIFTED_THERE)
    return LeRobotFolder("lerobot.policies.smolvla.modeling_smolvla.SmolVLAPolicy", remarks)


def _write_vlm(folder: Path, config: SmolVLAConfig, tokenizer: Tokenizer) -> None:
    """Write the sizes of the VLM, its tokenizer, and the class of its processor, of which LeRobot reads tokens."""
    folder.mkdir(exist_ok=True)
    _write_json(folder / CONFIG_FILE, config.vlm.as_transformers())
    of_class = {"processor_class": PROCESSOR}
    _write_json(folder / IMAGE_PROCESSOR, of_class | {"image_processor_type": "SmolVLMImageProcessor"})
    _write_json(folder / "processor_config.json", of_class | {"image_seq_len": config.vlm.tokens_per_image})
    write_tokenizer(tokenizer, folder, _special_tokens(config, tokenizer))


def _special_tokens(config: SmolVLAConfig, tokenizer: Tokenizer) -> dict[str, str]:
    """Return the tokens that transformers' processor has names for.

    A special token is cut out of every text, so that one which the network does not read may be no word of a prompt:
    where the vocabulary lacks it, the padding stands for it.
    """
    unread = padding_token(tokenizer)
    texts = {}
    for field, usual in SPECIAL_TOKENS.items():
        token = str(tokenizer.id_to_token(getattr(config.vlm, field)))
        is_read = config.add_image_special_tokens or token == usual
        texts[field.removesuffix("_id")] = token if is_read else unread
    unused = {"image_token": "<image>", "end_of_utterance_token": "<end_of_utterance>"}
    return texts | {
        field: usual if tokenizer.token_to_id(usual) is not None else unread for field, usual in unused.items()
    }


def _write_json(file: Path, values: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(values, indent=4) + "\n", encoding="utf-8")


def _vlm_folders(folder: Path, content: Mapping[str, Any]) -> list[Path]:
    """Return the folders that may hold the VLM's files: that of the weights, or `vlm_model_name` within it."""
    named = Path(str(content.get("vlm_model_name", VLM_FOLDER)))
    return [folder / VLM_FOLDER, *([] if named.is_absolute() or ".." in named.parts else [folder / named])]


def _vlm(folder: Path, content: Mapping[str, Any]) -> VLMSizes:
    """Return the sizes of the VLM: in the folder, or the published ones."""
    for place in _vlm_folders(folder, content):
        if (place / CONFIG_FILE).is_file():
            return VLMSizes.from_transformers(read_json(place / CONFIG_FILE))
    name = str(content.get("vlm_model_name", PUBLISHED_VLM))
    if not name.endswith(PUBLISHED_VLM):
        refuse(
            f"The policy in {folder} is made of the VLM {name!r}, whose sizes rlrun does not know.",
            f"Copy the VLM's config.json to {folder / VLM_FOLDER / CONFIG_FILE}.",
        )
    return VLMSizes()


def _with_token_ids(vlm: VLMSizes, tokenizer: Tokenizer) -> VLMSizes:
    ids: dict[str, Any] = {field: tokenizer.token_to_id(token) for field, token in SPECIAL_TOKENS.items()}
    return replace(vlm, **{field: token for field, token in ids.items() if token is not None})
