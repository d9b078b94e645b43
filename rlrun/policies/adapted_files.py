"""The weights of a folder that holds only low-rank adapters: those of its base policy, with the adapters merged."""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor

from rlrun.policies.adapter_values import merged
from rlrun.policies.base_folder import ADAPTER_CONFIG, ADAPTER_FILE, base_of, has_only_adapters
from rlrun.policies.weight_files import WeightFiles, official_name, read_json, refuse

_MATRICES = (".lora_A.weight", ".lora_B.weight")
_WHOLE = ".modules_to_save."
_UNSUPPORTED = ("use_dora", "rank_pattern", "alpha_pattern")  # of peft's configuration, if set


def weight_files(folder: Path) -> WeightFiles:
    """Return the tensors of a policy folder. Raises RunError as `WeightFiles`, and if its adapters cannot be merged."""
    return AdaptedFiles(folder) if has_only_adapters(folder) else WeightFiles(folder)


class AdaptedFiles(WeightFiles):
    """Each row is merged when it is read, so that a shard reads only its part."""

    def __init__(self, folder: Path):
        super().__init__(base_of(folder))
        self._adapter_file = folder / ADAPTER_FILE
        described = read_json(folder / ADAPTER_CONFIG)
        unsupported = [key for key in _UNSUPPORTED if described.get(key)]
        if described.get("peft_type", "LORA") != "LORA":
            unsupported.append("peft_type")
        if unsupported:
            refuse(
                f"The adapters in {folder} cannot be merged, because {ADAPTER_CONFIG} sets {', '.join(unsupported)}.",
                "Merge them with peft (merge_and_unload), and give the folder of the result.",
            )
        rank = described["r"]
        self._scale = described["lora_alpha"] / (rank**0.5 if described.get("use_rslora") else rank)
        self._adapted: dict[str, str] = {}  # name of a weight -> what its two matrices are called in the file
        for stored in self._opened(self._adapter_file):
            if stored.endswith(_MATRICES):
                layer = stored[: -len(_MATRICES[0])]
                self._adapted[f"{official_name(layer)}.weight"] = layer
            else:  # a bias or a part that was trained whole replaces the base's
                plain = stored.replace(f"{_WHOLE}default.", ".").replace(_WHOLE, ".")
                self._add(official_name(plain), self._adapter_file, stored)
        self.close()
        unknown = [name for name in self._adapted if name not in self.shapes or len(self.shapes[name]) != 2]
        if unknown:
            refuse(
                f"The adapters in {folder} change weights that the base policy lacks, or that are no matrices: "
                f"{', '.join(unknown[:8])}.",
                "Take the base policy with which the adapters were trained.",
            )

    def read(self, name: str, start: int = 0, stop: int | None = None) -> Tensor:
        weight = super().read(name, start, stop)
        if name not in self._adapted:
            return weight
        try:
            with safe_open(self._adapter_file, framework="pt") as stored:
                a, b = (stored.get_slice(self._adapted[name] + matrix) for matrix in _MATRICES)
                return merged(weight, a[:], b[start:stop], self._scale).to(weight.dtype)
        except (SafetensorError, OSError, RuntimeError) as error:
            self._unreadable(self._adapter_file, error)
