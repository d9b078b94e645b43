"""The tokenizer of a LeRobot folder, which LeRobot itself takes from the hub."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from tokenizers import Tokenizer

from rlrun.policies.tokenizer import TOKENIZER_FILE
from rlrun.policies.weight_files import refuse


def tokenizer_file(folder: Path, places: Sequence[Path], given: Path | None, name: str) -> Path:
    """Return the first tokenizer.json in `folder`, `places`, or where the run names it; nothing is downloaded.

    given: the file or its folder. name: of the model on the hub that has it. Raises RunError that says where to put it.
    """
    folders = [folder, *places] + ([given] if given is not None else [])
    candidates = (place / TOKENIZER_FILE if place.is_dir() else place for place in folders)
    file = next((file for file in candidates if file.is_file()), None)
    if file is None:
        refuse(
            f"There is no {TOKENIZER_FILE} in {folder}, as LeRobot leaves it on the hub.",
            f"Download {TOKENIZER_FILE} of {name} into {places[0]}.",
        )
    return file


def padding_token(tokenizer: Tokenizer) -> str:
    """Return the token beside shorter prompts: it is masked, but LeRobot asks for one."""
    return str(tokenizer.id_to_token((tokenizer.padding or {}).get("pad_id", 0)))


def write_tokenizer(tokenizer: Tokenizer, folder: Path, special: Mapping[str, str] | None = None) -> None:
    """Write tokenizer.json, and what transformers' AutoTokenizer needs beside it.

    special: further tokens by the names with which a processor of transformers asks for them.
    """
    tokenizer.save(str(folder / TOKENIZER_FILE))
    described: dict[str, object] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": padding_token(tokenizer),
    }
    if special:
        described["extra_special_tokens"] = dict(special)
    (folder / "tokenizer_config.json").write_text(json.dumps(described, indent=4) + "\n", encoding="utf-8")
