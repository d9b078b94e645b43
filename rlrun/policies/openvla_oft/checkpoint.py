"""A policy in a folder: config.json, safetensors, tokenizer, image statistics; written by rlrun or official."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from rlrun.config.schema import RunConfig
from rlrun.config.simulator_spec import num_cameras
from rlrun.policies.adapters import merged
from rlrun.policies.folders import ADAPTER_CONFIG, ADAPTER_FILE, base_of, has_only_adapters
from rlrun.policies.openvla_oft.config import OpenVLAOFTConfig
from rlrun.policies.openvla_oft.model import NEW_PARTS, OFFICIAL_ARCHITECTURE, OpenVLAOFT, new_parts
from rlrun.policies.openvla_oft.processor import Processor
from rlrun.policies.openvla_oft.settings import OpenVLAOFTSettings
from rlrun.policies.openvla_oft.statistics import StoredStatistics
from rlrun.policies.weight_files import (
    MAX_FILE_BYTES,
    Shape,
    StoredWeights,
    WeightFiles,
    check_tensors,
    fill,
    official_name,
    read_json,
    refuse,
    write_weights,
)
from rlrun.system.errors import ExitStatus, RunError

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


CONFIG_FILE = "config.json"
STATISTICS_FILE = "dataset_statistics.json"
OFFICIAL_PROMPT_LENGTH = 50
_VALUE_WEIGHT = re.compile(r"value_head\.layers\.\d+\.weight$")
logger = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class StoredPolicy:
    """A policy folder that was checked to be complete; its values are still on disk."""

    config: OpenVLAOFTConfig
    processor: Processor
    weights: StoredWeights

    def without_memory(self) -> OpenVLAOFT:
        """Return the model on the meta device, to be sharded or cast before it is filled (`stored_weights.fill`)."""
        with torch.device("meta"):
            return OpenVLAOFT(self.config)


def save_policy(
    folder: str | Path,
    model: OpenVLAOFT,
    processor: Processor,
    named_tensors: Iterable[tuple[str, Tensor]] | None = None,
    max_file_bytes: int = MAX_FILE_BYTES,
) -> None:
    """Write everything that `load_policy`, `from_pretrained` and `rlrun.eval` need, with the official names.

    named_tensors: whole tensors that replace the model's own, for a sharded model; held one file's worth at a time.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    write_weights(folder, model.state_dict().items() if named_tensors is None else named_tensors, max_file_bytes)
    model.config.architectures = [OFFICIAL_ARCHITECTURE]
    model.config.dtype = model.dtype
    model.config.save_pretrained(folder)
    processor.save(folder)


def find_policy(folder: str | Path, run: RunConfig | None = None) -> StoredPolicy:
    """Read the description of a policy folder; nothing is downloaded, and no code from the folder runs.

    run: the run that uses the policy. It completes an official checkpoint (which lacks chunk length, value head,
    proprioception; new parts start from `run.seed`), and one written by rlrun must agree with it.
    Raises RunError that names the missing file, or the tensors that are missing, unknown or of other shapes.
    """
    folder = Path(folder)
    _require_description(folder)
    files = weight_files(folder)
    config = _read_config(folder, run, files.shapes)
    is_official = not _is_ours(folder)
    if not config.num_proprio and any(name.startswith("proprio_projector.") for name in files.shapes):
        refuse(
            f"The policy in {folder} was trained with proprioception, which policy.use_proprio=false leaves out.",
            "Set policy.use_proprio=true.",
        )
    with torch.device("meta"):
        model = OpenVLAOFT(config)
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    if is_official:
        _set_aside_action_level_values(folder, files)
    check_tensors(folder, expected, files.shapes, NEW_PARTS if is_official else ())
    seed = run.seed if run is not None else 0
    new = new_parts(model, seed)
    absent = {name: make for name, make in new.items() if name not in files.shapes}
    return StoredPolicy(config, Processor.load(folder, config), StoredWeights(files, absent, seed))


def load_policy(
    folder: str | Path, dtype: torch.dtype, device: torch.device | str, run: RunConfig | None = None
) -> tuple[OpenVLAOFT, Processor]:
    """Open a policy folder (see `find_policy`) and read it, tensor by tensor, into `device` as `dtype`."""
    stored = find_policy(folder, run)
    model = stored.without_memory()
    module: nn.Module = model
    fill(module.to(dtype), stored.weights, device)
    return model.eval(), stored.processor


def _require_description(folder: Path) -> None:
    if not (folder / CONFIG_FILE).is_file():
        refuse(
            f"There is no policy in {folder}: {CONFIG_FILE} is missing.",
            "Give the folder of a checkpoint (config.json, *.safetensors, tokenizer.json), or leave policy.path out.",
        )


def _read_config(folder: Path, run: RunConfig | None, shapes: Mapping[str, Shape]) -> OpenVLAOFTConfig:
    """Return config.json, completed by the run, with statistics that were checked. shapes: of the weights."""
    found = read_json(folder / CONFIG_FILE)
    # an attention named owner/kernel would be downloaded and run by transformers; the model sets its own
    public = {name: value for name, value in found.items() if not name.startswith("_")}
    config = OpenVLAOFTConfig.from_dict(public, attn_implementation="eager")
    beside = read_json(folder / STATISTICS_FILE) if (folder / STATISTICS_FILE).is_file() else {}
    config.norm_stats = {**config.norm_stats, **beside}
    if _is_ours(folder):
        if run is not None:
            _check_agreement(folder, config, run)
        own = _statistics(folder, config, str(config.unnorm_key), config.action_bounds)
        _require_sizes(folder, "actions", config.num_actions, own.num_actions())
        if config.num_proprio:
            _require_sizes(folder, "proprioceptive values", config.num_proprio, own.num_proprio(shapes))
    elif run is None:
        refuse(
            f"{folder} is an official checkpoint: it does not say how many actions a chunk has.",
            "Open it with the configuration of a run (policy.path), which completes it.",
        )
    else:
        _complete(folder, config, run, shapes)
    return config


def _statistics(folder: Path, config: OpenVLAOFTConfig, key: str, bounds: str) -> StoredStatistics:
    """Return the statistics of that name. Raises RunError if there are none."""
    if key not in config.norm_stats:
        raise RunError(
            f"The policy in {folder} has no normalisation statistics named {key!r}.",
            key="policy.openvla_oft.unnorm_key",
            value=key,
            remedy=f"Set policy.openvla_oft.unnorm_key to one of {sorted(config.norm_stats)}."
            if config.norm_stats
            else f"Copy {STATISTICS_FILE} from the training of this checkpoint into the folder.",
            exit_status=ExitStatus.bad_input,
        )
    beside = folder / STATISTICS_FILE
    is_beside = beside.is_file() and key in read_json(beside)
    return StoredStatistics(beside if is_beside else folder / CONFIG_FILE, key, config.norm_stats[key], bounds)


def _require_sizes(folder: Path, what: str, described: int, found: int) -> None:
    if described != found:
        refuse(
            f"{folder / CONFIG_FILE} describes {described} {what}, and its statistics {found}.",
            "Take config.json as it was written with the weights.",
        )


def _is_ours(folder: Path) -> bool:
    return "num_action_chunks" in read_json(folder / CONFIG_FILE)


def _complete(folder: Path, config: OpenVLAOFTConfig, run: RunConfig, shapes: Mapping[str, Shape]) -> None:
    """Complete an official config.json from the configuration of the run."""
    policy, own = run.policy, run.policy.section(OpenVLAOFTSettings)
    found = _statistics(folder, config, own.unnorm_key, own.action_bounds.value)
    config.unnorm_key = own.unnorm_key
    config.num_actions = found.num_actions()
    config.num_action_chunks = policy.num_action_chunks
    config.num_images = num_cameras(run.env)
    config.num_proprio = found.num_proprio(shapes) if policy.use_proprio else 0
    config.value_hidden_sizes = list(policy.value_hidden_sizes)
    config.has_action_queries = own.has_action_queries
    config.has_stop_token = own.has_stop_token
    config.max_prompt_length = own.max_prompt_length or OFFICIAL_PROMPT_LENGTH
    config.action_bounds = own.action_bounds.value
    config.center_crop = own.center_crop


def _set_aside_action_level_values(folder: Path, files: WeightFiles) -> None:
    """Drop a value head with one value per control step, as RLinf trains it; rlrun's critic has one per chunk step."""
    last = max((name for name in files.shapes if _VALUE_WEIGHT.match(name)), key=_layer_number, default=None)
    if last is not None and files.shapes[last][0] > 1:
        logger.warning(
            "The value head in %s has %d outputs, one per control step: it is set aside, and a new one is trained.",
            folder,
            files.shapes[last][0],
        )
        files.set_aside("value_head.")


def _layer_number(name: str) -> int:
    return int(name.split(".")[2])


def _check_agreement(folder: Path, config: OpenVLAOFTConfig, run: RunConfig) -> None:
    pairs = {
        "policy.num_action_chunks": (run.policy.num_action_chunks, config.num_action_chunks),
        "policy.use_proprio": (run.policy.use_proprio, config.num_proprio > 0),
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
