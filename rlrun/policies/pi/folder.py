"""A pi0 or pi0.5 in a folder: LeRobot's layout, read and written, or openpi's, read.

LeRobot and openpi know the sizes of the networks and download the tokenizer; rlrun writes them to paligemma/
(config.json, tokenizer.json) and reads them there.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing
from torch import Tensor
from torch.nn import functional as F

from rlrun.config.simulator_spec import PlannedSpaces
from rlrun.policies.config_fields import LEROBOT, field_names, require_known_fields
from rlrun.policies.flow.folder import (
    REMARK,
    FlowParts,
    refuse_export,
    settings_to_export,
    stored_tensors,
    write_first_noise,
)
from rlrun.policies.flow.lerobot_config import MODES, Normalizer, Statistics
from rlrun.policies.flow.lerobot_processors import (
    BATCH,
    DEVICE,
    NORMALIZE,
    RENAME,
    Step,
    read_statistics,
    tokenize,
    tokenizer_file,
    write_processors,
    write_tokenizer,
)
from rlrun.policies.flow.processor import resize_to
from rlrun.policies.pi.config import (
    EMBEDDINGS,
    HEADS,
    PALIGEMMA_FOLDER,
    PiConfig,
    PiSizes,
    full_name,
    is_openpi,
    kind_of,
    read_config,
)
from rlrun.policies.pi.config import MODES as MODE_OF
from rlrun.policies.pi.spec import PiSettings, StateInPrompt
from rlrun.policies.spec import CONFIG_FILE, LeRobotFolder
from rlrun.policies.tokenizer import read_tokenizer
from rlrun.policies.weight_files import WeightFiles, read_json, refuse, write_weights

STATISTICS_FILE = "norm_stats.json"
EPS = 1e-6  # openpi adds it to deviations and ranges, in both directions
# LeRobot pads pictures in [0, 1] by -1, and then scales them to [-1, 1]. Its policies were trained with that, where
# pictures are no squares. openpi pads by black.
LEROBOT_PADDING = -3.0
OPENPI_PADDING = -1.0
PUBLISHED_PALIGEMMA = "google/paligemma-3b-pt-224"
BEGINNING = "<bos>"
CLASSES = {
    "pi0": "lerobot.policies.pi0.modeling_pi0.PI0Policy",
    "pi05": "lerobot.policies.pi05.modeling_pi05.PI05Policy",
}  # LeRobot's
OPENPI_FIELDS = {  # with those that change no action: the tensors tell which of the two it is
    *("action_dim", "action_horizon", "paligemma_variant", "action_expert_variant"),
    *("precision", "pi05", "pytorch_compile_mode"),
}
OLDER_HARMLESS = {"num_steps", "proj_width"}  # of LeRobot before 0.4: the run says the steps, the tensors the width
EXPORTED_SIZES = PiSizes()  # LeRobot's classes have these only
PATCHED_TRANSFORMERS = (
    "LeRobot 0.4 opens pi0 and pi0.5 only with its own transformers: "
    "pip install 'transformers @ git+https://github.com/huggingface/transformers.git@fix/lerobot_openpi'."
)
NEWLINE: Step = {"registry_name": "pi0_new_line_processor", "config": {}}


def read_openpi_statistics(folder: Path, config: PiConfig, given: str | None) -> Statistics:
    """Read the statistics of the first dimensions. given: the file; None: the only one in assets/.

    Raises RunError if there is none, or more than one to choose from.
    """
    files = [Path(given)] if given else sorted((folder / "assets").rglob(STATISTICS_FILE))
    if len(files) != 1 or not files[0].is_file():
        refuse(
            f"{folder} has {len(files)} files {STATISTICS_FILE} in assets/, where one is needed.",
            "Name it with policy.pi.norm_stats_path=FILE.",
        )
    stored = read_json(files[0])
    statistics = stored.get("norm_stats", stored)
    return Statistics(
        _normalizer(files[0], statistics, "state", config.num_proprio, MODE_OF[config.type]),
        _normalizer(files[0], statistics, "actions", config.num_actions, MODE_OF[config.type]),
    )


def _normalizer(file: Path, statistics: Mapping[str, Any], name: str, size: int, mode: str) -> Normalizer:
    kind = MODES[mode]
    values = [statistics.get(name, {}).get(part) for part in kind.parts]
    if any(value is None or len(value) < size for value in values):
        refuse(
            f"{file} lacks {' and '.join(kind.parts)} of {size} dimensions of {name}.",
            "Compute it with openpi's scripts/compute_norm_stats.py on data of the run's state and actions.",
        )
    low, high = (np.asarray(value[:size], np.float32) for value in values if value is not None)
    for part, numbers in zip(kind.parts, (low, high), strict=True):
        if len(wrong := np.flatnonzero(~np.isfinite(numbers))):
            refuse(
                f"{file}: {part}[{wrong[0]}] of {name} is {numbers[wrong[0]]}, and {len(wrong) - 1} more are so.",
                "Compute it again without the episodes that hold NaN.",
            )
    return kind(low, high + np.float32(EPS))


def pixels(images: Tensor, size: int, padding: float) -> Tensor:
    """Convert uint8 [B, N, H, W, 3] -> float32 [B, N, 3, size, size] in [-1, 1], on the device of the images.

    size: pixels per side; padding: the value beside a picture, which stays in the middle.
    """
    x = resize_to(images, size) * 2.0 - 1.0
    height, width = x.shape[2:]
    top = (size - height) // 2
    left = (size - width) // 2
    beside = left, size - width - left, top, size - height - top
    return F.pad(x, beside, value=padding).unflatten(0, images.shape[:2])


def read_folder(folder: Path, files: WeightFiles, settings: PiSettings, spaces: PlannedSpaces) -> FlowParts[PiConfig]:
    """Read the description of a folder that openpi, LeRobot or rlrun wrote; nothing is downloaded.

    files: its tensors, which get the names of PiNetwork. spaces: of the run; openpi's folders do not say how many
    dimensions are real. Raises RunError that names the missing file, or the variant that rlrun lacks.
    """
    content = read_json(folder / CONFIG_FILE)
    _require_known(folder, content)
    _name_tensors(files)
    try:
        sizes = _sizes(folder)
        tokenizer = _tokenizer(folder, settings, sizes.vocab_size)
        is_of_openpi = is_openpi(content)
        kind = kind_of(files.shapes)
        config = read_config(content, kind, sizes, spaces) if is_of_openpi else PiConfig.from_lerobot(content, sizes)
    except (ValueError, TypeError, KeyError) as error:
        refuse(f"rlrun cannot run the policy in {folder}: {error}.", "Take a checkpoint of LeRobot's or openpi's.")
    if is_of_openpi:
        statistics = read_openpi_statistics(folder, config, settings.norm_stats_path)
    else:
        statistics = read_statistics(folder, config, files)
    return FlowParts(config, tokenizer, statistics, processor_settings(is_of_openpi))


def _require_known(folder: Path, content: Mapping[str, Any]) -> None:
    """Raise RunError for a field that rlrun does not read and that may change actions."""
    if is_openpi(content):
        require_known_fields(folder, content, OPENPI_FIELDS)
        return
    resized = content.get("resize_imgs_with_padding")
    is_usual = resized in (None, list(PiConfig.image_resolution))
    resizing = {"resize_imgs_with_padding"} if is_usual else set()
    require_known_fields(folder, content, field_names(PiConfig) | LEROBOT | OLDER_HARMLESS | resizing)


def processor_settings(is_openpi: bool) -> dict[str, Any]:
    """Return the settings of the processor where the folder does not contain them."""
    padding = OPENPI_PADDING if is_openpi else LEROBOT_PADDING
    return {"state_in_prompt": StateInPrompt.real.name, "padding": padding, "cleans_prompt": is_openpi}


def write_folder(
    folder: Path,
    config: PiConfig,
    tokenizer: Tokenizer,
    statistics: Statistics,
    named_tensors: Iterable[tuple[str, Tensor]],
    state_in_prompt: StateInPrompt,
    tokenizer_name: str | None = None,
) -> None:
    """Write all that `read_folder` and LeRobot need, in LeRobot's layout.

    named_tensors: whole tensors with the names of PiNetwork; LeRobot reads one file, so all of them are held.
    tokenizer_name: on the hub, or a folder, where LeRobot finds it. Raises OSError if a file cannot be written.
    """
    beside = folder / PALIGEMMA_FOLDER
    beside.mkdir(parents=True, exist_ok=True)
    write_weights(folder, _with_heads(config, named_tensors), max_file_bytes=sys.maxsize)
    config = config.with_(normalization_mapping=statistics.mapping)
    (folder / CONFIG_FILE).write_text(json.dumps(config.as_lerobot(), indent=4) + "\n", encoding="utf-8")
    (beside / CONFIG_FILE).write_text(json.dumps(config.sizes.as_json(), indent=4) + "\n", encoding="utf-8")
    write_tokenizer(tokenizer, beside)
    name = tokenizer_name or (PUBLISHED_PALIGEMMA if config.sizes == PiSizes() else PALIGEMMA_FOLDER)
    words = tokenize(config, name, "max_length")
    if config.type == "pi0":
        steps = [RENAME, BATCH, NEWLINE, words, DEVICE, NORMALIZE]
    else:
        steps = [RENAME, BATCH, NORMALIZE, _prompt(config, state_in_prompt), words, DEVICE]
    write_processors(folder, config, statistics, steps)


def export_folder(folder: Path, out: Path, vlm_name: str | None) -> LeRobotFolder:
    """Write a policy that rlrun trained as LeRobot's class opens it, in the folder `out`.

    vlm_name: where LeRobot finds PaliGemma's tokenizer; None: in `out`, by its absolute path. Raises RunError.
    """
    settings = settings_to_export(folder)
    files = WeightFiles(folder)
    stored = read_folder(folder, files, PiSettings(), PlannedSpaces(0, 0, 0))
    if stored.config.sizes != EXPORTED_SIZES:
        refuse_export(
            f"The policy in {folder} is not of the published sizes, the only ones that LeRobot's class has.",
            "Export one that began with a released checkpoint. Of policy=smolvla LeRobot opens any size.",
        )
    config = stored.config.with_(n_action_steps=settings.num_action_chunks, num_inference_steps=settings.num_flow_steps)
    shown = StateInPrompt[settings.processor["state_in_prompt"]]
    described = (config, stored.tokenizer, stored.statistics, stored_tensors(files))
    write_folder(out, *described, shown, vlm_name or str(out.absolute() / PALIGEMMA_FOLDER))
    write_first_noise(out, config, settings)
    remarks = [REMARK, PATCHED_TRANSFORMERS]
    if settings.processor["padding"] != LEROBOT_PADDING:
        remarks.append("Beside a picture that is no square LeRobot's class has -3, and rlrun black.")
    if settings.processor.get("cleans_prompt", False) and config.type == "pi0":
        remarks.append("LeRobot's pi0 takes an instruction as it is: write it on one line, without underscores.")
    return LeRobotFolder(CLASSES[config.type], tuple(remarks))


def _prompt(config: PiConfig, state_in_prompt: StateInPrompt) -> Step:
    """Return the step of pi0.5 that makes the prompt. LeRobot 0.4 pads the state to the step's own `max_state_dim`."""
    if state_in_prompt is StateInPrompt.none:
        return NEWLINE
    sizes = {"max_state_dim": config.num_proprio} if state_in_prompt is StateInPrompt.real else {}
    return {"registry_name": "pi05_prepare_state_tokenizer_processor_step", "config": sizes}


def _with_heads(config: PiConfig, named_tensors: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """Add the heads over words, which LeRobot's classes have: PaliGemma's is its embeddings, the expert's is unread."""
    of_paligemma, of_expert = HEADS
    for name, tensor in named_tensors:
        yield name, tensor
        if name == EMBEDDINGS:
            yield of_paligemma, tensor.detach().clone()
            yield of_expert, torch.zeros(len(tensor), config.sizes.expert.width, dtype=tensor.dtype)


def _name_tensors(files: WeightFiles) -> None:
    """Give the tensors the names of PiNetwork."""
    files.rename(full_name)
    of_paligemma = HEADS[0]
    if EMBEDDINGS not in files.shapes:  # one tensor under two names, of which safetensors keeps any
        files.rename(lambda name: EMBEDDINGS if name == of_paligemma else name)
    for head in HEADS:
        files.skip_prefix(head)


def _sizes(folder: Path) -> PiSizes:
    file = folder / PALIGEMMA_FOLDER / CONFIG_FILE
    return PiSizes.from_json(read_json(file)) if file.is_file() else PiSizes()


def _tokenizer(folder: Path, settings: PiSettings, num_words: int) -> Tokenizer:
    """Return PaliGemma's tokenizer, which begins every text by <bos>, as openpi and LeRobot do."""
    given = None if settings.tokenizer_path is None else Path(settings.tokenizer_path)
    file = tokenizer_file(folder, [folder / PALIGEMMA_FOLDER], given, PUBLISHED_PALIGEMMA)
    tokenizer = read_tokenizer(file, num_words)
    beginning = tokenizer.token_to_id(BEGINNING)
    if beginning is not None and tokenizer.encode("a").ids[:1] != [beginning]:
        tokenizer.post_processor = TemplateProcessing(single=f"{BEGINNING} $A", special_tokens=[(BEGINNING, beginning)])
    return tokenizer
