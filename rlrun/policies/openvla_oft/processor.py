"""Converts frames to model inputs, and actions to tokens and back.

Shape legend: B rows, N images per row, H x W camera pixels, S x S the towers' pixels, L prompt tokens,
C control steps, A action dimensions, K = C*A, P proprioception.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional as F

from rlrun.policies.action_bounds import ActionBins, Bounds
from rlrun.policies.openvla_oft.config import RESIZE, OpenVLAOFTConfig
from rlrun.policies.tokenizer import TOKENIZER_FILE, prompt, read_tokenizer, save_tokenizer
from rlrun.policies.upload import uploaded
from rlrun.policies.weight_files import read_json
from rlrun.system.errors import ExitStatus, RunError

IMAGE_FILE = "preprocessor_config.json"
CROP_AREA = 0.9


@dataclass(frozen=True, eq=False)
class PolicyInputs:
    """The arguments of `OpenVLAOFT.forward`; its tensors are on one device."""

    input_ids: Tensor  # int64 [B, L]
    # bool [B, L]; None: no row has padding. An array, as FSDP moves each tensor argument to the device.
    attention_mask: np.ndarray | None
    pixel_values: Tensor  # [B, 6*N, S, S]
    proprio: Tensor | None  # [B, P] in [-1, 1]; None: the policy uses none


@dataclass(frozen=True)
class ImageStatistics:
    """Mean and deviation of the three channels, per tower; ImageNet's in bfloat16 for DINOv2, 0.5 for SigLIP."""

    means: tuple[tuple[float, ...], ...] = ((0.484375, 0.455078125, 0.40625), (0.5, 0.5, 0.5))
    stds: tuple[tuple[float, ...], ...] = ((0.228515625, 0.2236328125, 0.224609375), (0.5, 0.5, 0.5))

    @classmethod
    def read(cls, file: Path, image_sizes: Sequence[int]) -> ImageStatistics:
        """Read preprocessor_config.json. image_sizes: [H, W] of the towers' input.

        Raises RunError for the file of another image processor, and for numbers that cannot be right.
        """
        described = read_json(file)
        kind = f"its image_processor_type is {described.get('image_processor_type')!r}"
        means, stds = (_per_tower(described.get(name)) for name in ("means", "stds"))
        strategy = described.get("image_resize_strategy", RESIZE)
        sizes = described.get("input_sizes")
        cause = None
        if means is None or stds is None:
            cause = f"Its means and stds are not three finite numbers for each of two towers; {kind}."
        elif min(map(min, stds)) <= 0:
            cause = f"Its stds hold {min(map(min, stds)):g}, and pixels are divided by it."
        elif strategy != RESIZE:
            cause = f"Its image_resize_strategy is {strategy!r}, and rlrun resizes pictures by {RESIZE!r}."
        elif sizes is not None and sizes != [[3, *image_sizes]] * 2:
            cause = f"Its input_sizes are {sizes}, and the towers of config.json take {[3, *image_sizes]} each."
        if cause is not None:
            raise _unusable(file, cause, f"Take {IMAGE_FILE} of the checkpoint's own folder (PrismaticImageProcessor).")
        assert means is not None
        assert stds is not None
        return cls(means, stds)


class Processor:
    """Prepares inputs at every use, which is cheap: prompts are cached, and the device normalizes pixels.

    Example::

        inputs = processor(frames.images, frames.instructions, frames.proprio)
        output = model(inputs.input_ids, inputs.attention_mask, inputs.pixel_values, inputs.proprio)
        actions = processor.decode_actions(tokens)          # [B, K] -> [B, C, A]

    Raises ValueError if norm_stats has other dimensions than the policy.
    """

    def __init__(self, config: OpenVLAOFTConfig, tokenizer: Tokenizer, image_statistics: ImageStatistics):
        self.config = config
        self.tokenizer = tokenizer
        self.image_statistics = image_statistics
        stats = config.norm_stats[config.unnorm_key]
        self._bins = ActionBins(Bounds(stats["action"], config.action_bounds, config.num_actions, "action"))
        self._proprio_bounds = None
        if config.num_proprio:
            self._proprio_bounds = Bounds(stats["proprio"], config.action_bounds, config.num_proprio, "proprio")
        self._prompts: dict[str, np.ndarray] = {}
        self._constants: dict[torch.device, tuple[Tensor, Tensor]] = {}

    def __call__(
        self,
        images: np.ndarray | Tensor,
        instructions: Sequence[str],
        proprio: np.ndarray | Tensor | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> PolicyInputs:
        """Prepare inputs. images: uint8 [B, N, H, W, 3] RGB; instructions: B sentences; proprio: [B, P] in SI units.

        device: None: that of `images`. Raises RunError for a prompt longer than the policy accepts, and
        ValueError for another number of images or proprioception values than the policy has.
        """
        there = torch.device(device) if device is not None else _device_of(images)
        input_ids, attention_mask = self._tokenize(instructions)
        state = self.state(proprio, len(images))
        host = [input_ids, *([] if state is None else [state])]
        if isinstance(images, Tensor):
            pixels = images.to(there)
            (input_ids, *states) = uploaded(host, there)
        else:
            input_ids, *states, pixels = uploaded([*host, _readable(images)], there)
        proprio_state = states[0].to(dtype) if states else None
        return PolicyInputs(input_ids, attention_mask, self.pixels(pixels, dtype), proprio_state)

    def encode_actions(self, actions: np.ndarray) -> np.ndarray:
        """Convert [B, C, A] in simulator units -> uint8 [B, K] tokens, relative to the action slice."""
        return self._bins.encode(actions).reshape(len(actions), -1)

    def decode_actions(self, tokens: np.ndarray) -> np.ndarray:
        """Convert integers [B, K] -> float32 [B, C, A] in simulator units."""
        return self._bins.decode(tokens.reshape(len(tokens), -1, self.config.num_actions))

    def save(self, folder: Path) -> None:
        """Write tokenizer and image statistics; everything else is in the model's config.json."""
        save_tokenizer(self.tokenizer, folder)
        height, width = self.config.image_sizes
        described = {
            "image_processor_type": "PrismaticImageProcessor",
            "image_resize_strategy": RESIZE,
            "input_sizes": [[3, height, width]] * 2,
            "interpolations": ["bicubic"] * 2,
            "means": self.image_statistics.means,
            "stds": self.image_statistics.stds,
        }
        (folder / IMAGE_FILE).write_text(json.dumps(described, indent=2) + "\n")

    @classmethod
    def load(cls, folder: Path, config: OpenVLAOFTConfig) -> Processor:
        """Load a folder, rlrun's or an official one. Raises RunError that names the file and what it lacks."""
        for name in (TOKENIZER_FILE, IMAGE_FILE):
            if not (folder / name).is_file():
                raise _unusable(folder / name, "It is missing.", "Copy the whole folder; nothing is downloaded.")
        statistics = ImageStatistics.read(folder / IMAGE_FILE, config.image_sizes)
        tokenizer = read_tokenizer(folder / TOKENIZER_FILE, config.text_config.vocab_size)
        tokenizer.no_padding()  # a tokenizer that was saved after use keeps its padding, which would pass for BOS
        tokenizer.no_truncation()
        return cls(config, tokenizer, statistics)

    # --- prompts ----------------------------------------------------------------------------

    def _tokenize(self, instructions: Sequence[str]) -> tuple[Tensor, np.ndarray | None]:
        """Return int64 [B, L] in host memory, and the mask."""
        padded = np.stack([self.prompt_ids(instruction) for instruction in instructions])
        needless = int((padded < 0).sum(1).min())  # padding that every row of this batch has
        padded = np.delete(padded, slice(1, 1 + needless), axis=1)
        ids = torch.from_numpy(np.where(padded < 0, self.config.pad_token_id, padded))
        return ids, padded >= 0 if (padded < 0).any() else None

    def prompt_ids(self, instruction: str) -> np.ndarray:
        """Return int64 [L]: BOS, padding (as -1), the rest of the prompt."""
        if instruction not in self._prompts:
            ids = self.tokenizer.encode(prompt(instruction)).ids
            self._require_bos(ids)
            if ids[-1] != self.config.space_token_id:
                ids.append(self.config.space_token_id)
            free = self.config.max_prompt_length - len(ids)
            if free < 0:
                raise RunError(
                    f"The prompt for {instruction!r} has {len(ids)} tokens.",
                    key="policy.openvla_oft.max_prompt_length",
                    value=self.config.max_prompt_length,
                    remedy=f"Set it to {len(ids)} or more, or shorten the instruction.",
                )
            self._prompts[instruction] = np.array([ids[0], *[-1] * free, *ids[1:]], np.int64)
        return self._prompts[instruction]

    def _require_bos(self, ids: list[int]) -> None:
        bos = self.config.bos_token_id
        if not ids or ids[0] != bos:
            raise RunError(
                f"Prompts do not start with BOS (token {bos}), but with {ids[:1]}.",
                cause=f"{TOKENIZER_FILE} of the policy folder adds no BOS, with which the policy was trained",
                remedy="Take the tokenizer.json of the checkpoint's own folder; its post-processor adds <s>.",
                exit_status=ExitStatus.bad_input,
            )

    # --- images -----------------------------------------------------------------------------

    def pixels(self, images: Tensor, dtype: torch.dtype) -> Tensor:
        """Convert uint8 [B, N, H, W, 3] -> [B, 6*N, S, S], on their device."""
        batch, num_images = images.shape[:2]
        if num_images != self.config.num_images:
            raise ValueError(f"{num_images} images per row; the policy takes {self.config.num_images}")
        raw = images.flatten(0, 1).permute(0, 3, 1, 2)
        height, width = size = tuple(self.config.image_sizes)
        if raw.shape[-2:] != size:
            raw = F.interpolate(raw.float(), size, mode="bicubic", antialias=True).round_().clamp_(0, 255)
        if self.config.center_crop:
            raw = _center_crop(raw.float())
        scale, shift = self._scale_and_shift(raw.device)
        normalized = raw.float().repeat(1, 2, 1, 1).mul_(scale).add_(shift)
        return normalized.view(batch, 6 * num_images, height, width).to(dtype)

    def _scale_and_shift(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return (pixel / 255 - mean) / std as one multiplication and one addition, float32 [6, 1, 1] each."""
        if device not in self._constants:
            statistics = (self.image_statistics.means, self.image_statistics.stds)
            mean, std = (torch.tensor(x, dtype=torch.float64).reshape(6, 1, 1) for x in statistics)
            self._constants[device] = ((1 / (255 * std)).float().to(device), (-mean / std).float().to(device))
        return self._constants[device]

    # --- proprioception ---------------------------------------------------------------------

    def state(self, proprio: np.ndarray | Tensor | None, num_rows: int) -> Tensor | None:
        """Return [B, P] in -1..1, in host memory; None if the policy uses none."""
        if self._proprio_bounds is None:
            return None
        if proprio is None or proprio.shape != (num_rows, self.config.num_proprio):
            got = "none" if proprio is None else tuple(proprio.shape)
            raise ValueError(f"proprioception: got {got}, the policy takes [{num_rows}, {self.config.num_proprio}]")
        raw = proprio.cpu().numpy() if isinstance(proprio, Tensor) else proprio
        return torch.from_numpy(self._proprio_bounds.normalize(raw))


def _per_tower(values: object) -> tuple[tuple[float, ...], ...] | None:
    """Return three finite numbers for each of two towers; None: the values are something else."""
    try:
        array = np.asarray(values, np.float64)
    except (TypeError, ValueError, OverflowError):
        return None
    is_right = array.shape == (2, 3) and bool(np.isfinite(array).all())
    return tuple(tuple(tower) for tower in array.tolist()) if is_right else None


def _unusable(file: Path, cause: str, remedy: str) -> RunError:
    return RunError(
        f"{file} cannot be used.",
        key="policy.path",
        value=str(file.parent),
        cause=cause,
        remedy=remedy,
        exit_status=ExitStatus.bad_input,
    )


def _device_of(images: np.ndarray | Tensor) -> torch.device:
    return images.device if isinstance(images, Tensor) else torch.device("cpu")


def _readable(array: np.ndarray) -> Tensor:
    """Return a tensor of an array; a copy if it is read-only, as those of the object store are."""
    return torch.from_numpy(array) if array.flags.writeable else torch.tensor(array)


def _center_crop(pixels: Tensor) -> Tensor:
    """Return the middle CROP_AREA of [B, 3, S, S], enlarged to S x S; bilinear between pixel centres, as TensorFlow's
    crop_and_resize."""
    theta = CROP_AREA**0.5 * torch.eye(2, 3, device=pixels.device, dtype=pixels.dtype)  # nothing is copied to a device
    grid = F.affine_grid(theta.expand(len(pixels), -1, -1), list(pixels.shape), align_corners=True)
    return F.grid_sample(pixels, grid, mode="bilinear", align_corners=True)
