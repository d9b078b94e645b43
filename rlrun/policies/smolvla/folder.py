from __future__ import annotations
import json, pickle
from dataclasses import dataclass
from pathlib import Path
from tokenizers import Tokenizer
from rlrun.policies.smolvla.config import SmolVLAConfig, VLMSizes
from rlrun.policies.smolvla.statistics import Statistics
from rlrun.policies.adapted_files import weight_files
from rlrun.policies.weight_files import WeightFiles
from rlrun.policies.weight_writer import write_weights


@dataclass(frozen=True, eq=False)
class StoredSmolVLA:
    config: SmolVLAConfig
    tokenizer: Tokenizer
    statistics: Statistics
    weights: WeightFiles


def read_folder(folder, tokenizer_path):
    c = SmolVLAConfig.of(
        json.loads((folder / "config.json").read_text()), VLMSizes.of(json.loads((folder / "vlm.json").read_text()))
    )
    return StoredSmolVLA(
        c,
        Tokenizer.from_file(str(folder / "tokenizer.json")),
        pickle.loads((folder / "stats.pkl").read_bytes()),
        weight_files(folder),
    )


def write_folder(folder, config, tokenizer, statistics, named):
    folder = Path(folder)
    write_weights(folder, named)
    (folder / "config.json").write_text(json.dumps(config.as_lerobot()))
    (folder / "vlm.json").write_text(json.dumps(config.vlm.as_transformers()))
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "stats.pkl").write_bytes(pickle.dumps(statistics))
