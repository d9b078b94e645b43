"""The installed kind of the policy in a folder, by its config.json; without torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from math import prod
from pathlib import Path
from typing import Any, TypeVar

from rlrun.config.registry import POLICIES
from rlrun.config.schema import RunConfig
from rlrun.policies.spec import CONFIG_FILE, PolicySpec, policy_spec
from rlrun.system.errors import ExitStatus, RunError
from rlrun.system.local_files import parse_json, read_json

T = TypeVar("T")
COPY = "It is damaged or was not copied completely: copy it again."
MAX_HEADER_BYTES = 100_000_000  # the format's own limit
INNER_FOLDER = "pretrained_model"  # in which LeRobot's training checkpoints hold the policy
ADAPTER_FILE = "adapter_model.safetensors"
ADAPTER_CONFIG = "adapter_config.json"
_ADAPTERS = "adapter_model.*"
PICKLED_FILES = ("full_weights.pt", "model_state_dict/full_weights.pt")  # RLinf's training checkpoints
_WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "model-*.safetensors", *PICKLED_FILES)
_BASE_KEY = "base_model_name_or_path"
_CONVERSION = (
    'python -c "import glob, torch; from safetensors.torch import save_file; w = {{}}; '
    "[w.update(torch.load(f, map_location='cpu', weights_only=True)) for f in glob.glob('{folder}/pytorch_*.bin')]; "
    "save_file({{k: v.clone() for k, v in w.items()}}, '{folder}/model.safetensors')\""
)


def parameters_in(folder: Path) -> int:
    """Return the count of numbers in a folder's safetensors files; 0 without any. Raises RunError for a damaged one."""
    return sum(prod(shape) for file in _weight_files(folder) for shape in _shapes_in(file).values())


def named_parameters_in(folder: Path) -> dict[str, int]:
    """Return the counts by tensor name. Raises RunError for a damaged file."""
    return {name: prod(shape) for file in _weight_files(folder) for name, shape in _shapes_in(file).items()}


def _weight_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors"))


def _shapes_in(file: Path) -> dict[str, list[int]]:
    """Return the shapes of a file, whose header is a length (8 bytes) and JSON."""

    def read() -> dict[str, list[int]]:
        with file.open("rb") as stream:
            size = int.from_bytes(stream.read(8), "little")
            if size > MAX_HEADER_BYTES:
                raise ValueError(f"its header would have {size} bytes")
            header = parse_json(stream.read(size).decode())
        return {name: tensor["shape"] for name, tensor in header.items() if name != "__metadata__"}

    return readable(file, read)


def readable(file: Path, read: Callable[[], T], remedy: str = COPY) -> T:
    """Return the result of `read`. Raises RunError that names the file if it is damaged.

    remedy: of a file that is whole, and holds what rlrun cannot use.
    """
    try:
        return read()
    except (OSError, ValueError, ArithmeticError, MemoryError, LookupError, TypeError, AttributeError) as error:
        raise RunError(
            f"{file} cannot be read.",
            key="policy.path",
            value=str(file.parent),
            cause=f"{type(error).__name__}: {error}",
            remedy=remedy,
            exit_status=ExitStatus.bad_input,
        ) from error


def spec_of(folder: Path, run: RunConfig | None) -> PolicySpec:
    """Return the kind of policy in a folder; without config.json that of the run, since a plan needs no files.

    Raises RunError that names the folder's own type if it is not the kind of the run, or if no installed kind opens it.
    """
    described = _described(folder / CONFIG_FILE)
    if run is not None:
        wanted = policy_spec(run)
        if described is None or _recognizes(wanted, described):
            return wanted
    if described is None:
        raise without_description(folder)
    kind: PolicySpec | None = next((spec for spec in POLICIES.installed() if _recognizes(spec, described)), None)
    if kind is None:
        raise _of_no_kind(folder, described)
    if run is not None:
        raise unfit(folder, "policy.kind", run.policy.kind, kind.name, f"It is of {type_in(described)}.")
    return kind


def type_in(described: Mapping[str, Any]) -> str:
    """Return the type that a config.json declares, in words. Example: "LeRobot's type 'act'"."""
    for key, whose in (("type", "LeRobot's"), ("model_type", "transformers'")):
        if isinstance(described.get(key), str):
            return f"{whose} {key} {described[key]!r}"
    return f"a kind that its {CONFIG_FILE} does not name, as it has neither `type` nor `model_type` in words"


def unfit(folder: Path, key: str, wanted: object, stored: object, cause: str | None = None) -> RunError:
    """Return the error of a policy that is fine, but not for this run. stored: the value of `key` that fits it."""
    return RunError(
        f"The policy in {folder} does not fit the run.",
        key=key,
        value=wanted,
        cause=cause or f"The policy was made with {stored}.",
        remedy=f"Set {key}={stored}, or take another policy.",
        exit_status=ExitStatus.bad_input,
    )


def _described(file: Path) -> dict[str, Any] | None:
    """Return config.json; None: there is none. Raises RunError for a damaged one."""

    def read() -> dict[str, Any]:
        content = read_json(file)
        if not isinstance(content, dict):
            raise ValueError(f"it holds a {type(content).__name__}, not an object")
        return content

    return readable(file, read) if file.is_file() else None


def _recognizes(spec: PolicySpec, described: dict[str, Any]) -> bool:
    """Return whether a folder is of a kind, which may have looked for other types in its config.json."""
    with suppress(TypeError, ValueError, LookupError, AttributeError):
        return bool(spec.recognizes(described))
    return False


def without_description(folder: Path) -> RunError:
    """Return the error of a folder without config.json."""
    inner = folder / INNER_FOLDER
    is_inside = (inner / CONFIG_FILE).is_file()
    return RunError(
        f"There is no policy in {folder}: {CONFIG_FILE} is missing.",
        key="policy.path",
        value=str(folder),
        remedy=f"Give {inner}." if is_inside else "Give the folder of a checkpoint, which has it beside the weights.",
        exit_status=ExitStatus.bad_input,
    )


def _of_no_kind(folder: Path, described: Mapping[str, Any]) -> RunError:
    conversions = (spec.conversion(described) for spec in POLICIES.installed())
    converted = next((remedy for remedy in conversions if remedy is not None), None)
    return RunError(
        f"The policy in {folder} is of {type_in(described)}; no installed kind opens it.",
        key="policy.path",
        value=str(folder),
        cause=f"Installed kinds: {', '.join(POLICIES.names())}.",
        remedy=converted
        or "Give the folder of a policy of one of these kinds, or install the package that brings the other kind.",
        exit_status=ExitStatus.bad_input,
    )


def has_only_adapters(folder: Path) -> bool:
    """Return whether a folder has adapters and no weights of its own."""
    return (folder / ADAPTER_FILE).is_file() and not _weights_in(folder)


def _weights_in(folder: Path) -> list[Path]:
    return [file for pattern in _WEIGHTS for file in sorted(folder.glob(pattern))]


def refuse_unmerged(folder: Path) -> None:
    """Raise RunError for adapters beside weights, since no file says whether the weights have them already."""
    adapters = sorted(folder.glob(_ADAPTERS))
    weights = _weights_in(folder)
    if not (adapters and weights):
        return
    raise RunError(
        f"The policy folder {folder} has adapters beside whole weights.",
        key="policy.path",
        value=str(folder),
        cause=f"{adapters[0].name} changes {weights[0].name}; no file tells whether that was done already",
        remedy=f"If the weights have them already, move {adapters[0].name} and {ADAPTER_CONFIG} out of the folder. If "
        f"not, move the weights into a folder of their own, beside a copy of the other files, and write its path into "
        f"{folder / ADAPTER_CONFIG} as {_BASE_KEY}: rlrun then merges them.",
        exit_status=ExitStatus.bad_input,
    )


def without_weights(folder: Path, missing: str) -> RunError:
    """Return the error of a folder that lacks the file `missing` of its weights. The remedy is for what lies there."""
    return RunError(
        f"The policy folder {folder} lacks {missing}.",
        key="policy.path",
        value=str(folder),
        remedy=_instead_of_weights(folder),
        exit_status=ExitStatus.bad_input,
    )


def _instead_of_weights(folder: Path) -> str:
    pickled = next(iter(sorted(folder.glob("pytorch_model*.bin"))), None)
    adapters = next((file for file in sorted(folder.rglob(_ADAPTERS)) if file.name != ADAPTER_FILE), None)
    below = next(iter(sorted(folder.glob(f"*/{ADAPTER_FILE}"))), None)
    if pickled is not None:
        return (
            f"Its weights are in {pickled.name}, which is read by pickle. Write them as safetensors: "
            f"`{_CONVERSION.format(folder=folder)}`."
        )
    if below is not None:
        return (
            f"It has adapters in {below.parent.name}/. Copy {ADAPTER_FILE} and {ADAPTER_CONFIG} from there into the "
            f"folder, and write the path of the policy that they change into {ADAPTER_CONFIG} as {_BASE_KEY}."
        )
    if adapters is not None:
        return f"It has adapters in {adapters.name}: save them by peft as {ADAPTER_FILE} (safe_serialization=True)."
    if any(folder.glob("model-*.safetensors")):
        return "Some files of its weights are there: copy those that are missing, and model.safetensors.index.json."
    return (
        "Copy the whole checkpoint. Weights are read from *.safetensors, or from RLinf's full_weights.pt "
        "beside config.json."
    )


def base_of(folder: Path) -> Path:
    """Return the folder of the base policy, which adapter_config.json names: absolute, or relative to `folder`.

    Raises RunError if it is not on this machine; nothing is downloaded.
    """
    file = folder / ADAPTER_CONFIG
    named = readable(file, lambda: str(read_json(file)[_BASE_KEY]))
    base = folder / named
    if not base.is_dir() or has_only_adapters(base):
        raise RunError(
            f"The policy folder {folder} has only adapters, and the policy that they change is not at {base}.",
            key="policy.path",
            value=str(folder),
            cause=f"{ADAPTER_CONFIG} names it {named!r}; nothing is downloaded",
            remedy=f"Download {named}, and write its folder into {file} as {_BASE_KEY}.",
            exit_status=ExitStatus.bad_input,
        )
    return base
