"""Files of a policy's folder that carry numbers and are not read, such as statistics. Without torch."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from fnmatch import fnmatch
from itertools import islice
from pathlib import Path

from rlrun.system.notices import notice

CARRIERS = (".bin", ".ckpt", ".json", ".msgpack", ".npy", ".npz", ".pkl", ".pt", ".pth", ".safetensors")
MAX_LOOKED_AT = 10_000  # files of a folder
MAX_NAMES = 6  # in a notice
# read by every kind, or without a say in actions: second forms of a tokenizer, how text is generated, checksums, the
# state of a training, and adapters that OpenVLA-OFT's training leaves after it has merged them
_KNOWN = (
    "config.json",
    "*.index.json",
    "tokenizer*.json",
    "*/tokenizer*.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "generation_config.json",
    "checksums.json",
    "train_config.json",
    "train*_state*",
    "train*_metrics*",
    "training_args.bin",
    "training_state/*",
    "optimizer*",
    "scheduler*",
    "rng_state*",
    "global_step*/*",
    "wandb/*",
    "lora_adapter/*",
)


def tell_unread(folder: Path, opened: Collection[Path], patterns: Sequence[str]) -> None:
    """Tell which files of a folder are not read. opened: files of weights; patterns: of the kind's other files."""
    unread = unread_files(folder, opened, patterns)
    if not unread:
        return
    more = f" and {len(unread) - MAX_NAMES} more" if len(unread) > MAX_NAMES else ""
    notice(
        f"policy.path: not read in {folder}: {', '.join(unread[:MAX_NAMES])}{more}: the policy acts without what they "
        "hold; take out what it does not need"
    )


def unread_files(folder: Path, opened: Collection[Path], patterns: Sequence[str]) -> list[str]:
    """Return the names of unread files that may hold numbers, relative to the folder; arguments as of `tell_unread`."""
    names = [
        file.relative_to(folder).as_posix()
        for file in islice(folder.rglob("*"), MAX_LOOKED_AT)
        if file.suffix in CARRIERS and file not in opened and file.is_file()
    ]
    known = (*_KNOWN, *patterns)
    return sorted(name for name in names if not name.startswith(".") and not any(fnmatch(name, one) for one in known))
