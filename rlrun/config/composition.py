"""Hydra composition: turns YAML files and overrides into one checked tree, and faults into RunErrors."""

from __future__ import annotations

import copy
import difflib
import re
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, cast

from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import ConfigCompositionException, HydraException, MissingConfigException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import GrammarParseError, OmegaConfBaseException
from yaml import YAMLError

from rlrun.config import reference
from rlrun.config.own_reward import locations
from rlrun.config.provenance import format_value, own_version, selected
from rlrun.config.recorded import RecordedConfig
from rlrun.config.recorded_keys import recorded_kinds, require_all_keys
from rlrun.config.reference import advice
from rlrun.config.registry import REGISTRIES, schema_with
from rlrun.config.sections import folder_of, put_on_path
from rlrun.system.errors import ExitStatus, RunError, exception_chain

SHIPPED = Path(__file__).parent / "shipped"  # a link to configs/ in the repository, a copy in a wheel
RECORDED = "recorded"  # Hydra's name for the configuration of a run
UNKNOWN_REMEDY = "Run with --help to see every key."


def groups(folders: list[Path]) -> dict[str, list[str]]:
    """Return the config groups with the names of their files. Example: {"run": ["debug", "single_process", …]}.

    A file whose name begins with "_" is a part of others, and is not chosen by itself.
    """
    names: dict[str, list[str]] = {}
    for folder in folders:
        for file in sorted(folder.glob("*/[!_]*.yaml")):
            names.setdefault(file.parent.name, []).append(file.stem)
    return names


def compose_config(
    overrides: list[str], extra_folder: Path | None = None, recorded: RecordedConfig | None = None
) -> DictConfig:
    """Return the checked tree of shipped (and extra) YAML files and `overrides`. Raises RunError.

    Its type is a schema with the sections of all installed kinds, and of kinds that it names as module:ATTRIBUTE.
    recorded: the configuration of a run, instead of a file `run`. An override such as `placement={}` returns a section
    of it to the defaults.
    """
    folders = yaml_folders(extra_folder)
    schema, found_in = schema_for(overrides, extra_folder, recorded)
    known_groups = groups(folders)
    parsed = [parse_override(text) for text in overrides]
    if recorded is not None:
        recorded, parsed = _without_emptied(recorded, parsed, schema)
    lines = [_normalise(override, known_groups, schema) for override in parsed]
    try:
        config = _typed(lines, folders, schema, recorded)
        reference.resolve(config, overrides, folders, schema)
        reference.refuse_truth_values(config, overrides, folders, schema)
        reference.take_numbers(config, overrides, folders, schema)
        absolute = [str(Path(folder).absolute()) for folder in config.python_path]  # to resume in another folder, too
        found_in += _folders_of_reward(config, extra_folder)
        config.python_path = list(dict.fromkeys([*absolute, *found_in]))
        return config
    except UnicodeDecodeError as error:
        raise (reference.misread(error, folders) or error) from error
    except YAMLError as error:
        raise RunError(
            "A configuration file is not YAML.",
            cause=str(error),
            remedy="Correct that line.",
        ) from error
    except (HydraException, OmegaConfBaseException) as error:
        misread = reference.misread(error, folders) or _marked(error, folders)
        raise misread or _explain(error, dict(zip(lines, parsed, strict=False)), schema, recorded) from error


def _folders_of_reward(config: DictConfig, extra_folder: Path | None) -> list[str]:
    """Return the folders of the modules that `env.reward` names, for the processes that import them."""
    given = config.env.reward
    value = OmegaConf.to_container(given) if OmegaConf.is_config(given) else given
    places = [*(Path(folder) for folder in config.python_path), Path.cwd(), *([extra_folder] if extra_folder else [])]
    found = [folder_of(location, places) for location in locations(value)]
    folders = [str(folder) for folder in found if folder is not None]
    put_on_path(folders)
    return folders


def _without_emptied(
    recorded: RecordedConfig, parsed: list[Override], schema: reference.Schema
) -> tuple[RecordedConfig, list[Override]]:
    """Return a recorded configuration without the sections that overrides empty (`placement={}`), and the overrides.

    An override of a section is left out, since it is done; one of a key with a mapping stays. Raises RunError for a
    choice of `run`, and for a recorded configuration that lacks keys.
    """
    _refuse_run(parsed, recorded)
    require_all_keys(recorded, schema)
    emptied = [override for override in parsed if override.value() == {}]
    kept = [
        override
        for override in parsed
        if override not in emptied or not reference.is_known(override.key_or_group, schema)
    ]
    return recorded.without([override.key_or_group for override in emptied]), kept


def _marked(error: Exception, folders: list[Path]) -> RunError | None:
    """Return the error for the file that Hydra names if it begins with a byte order mark, which hides its header."""
    named = re.search(r"In '(.*?)'", str(error))
    files = [folder / f"{named.group(1)}.yaml" for folder in folders] if named else []
    return next((fault for file in files if (fault := reference.misread_file(file)) is not None), None)


def _refuse_run(parsed: list[Override], recorded: RecordedConfig) -> None:
    for override in parsed:
        if override.key_or_group == "run":
            raise RunError(
                "The configuration comes from a run already.",
                key="run",
                value=str(override.value()),
                cause=f"It is that of {recorded.file}.",
                remedy="Leave out run=…, and write the keys that differ.",
            )


def yaml_folders(extra_folder: Path | None) -> list[Path]:
    """Return the folders with YAML files: rlrun's own, those of packages with kinds, and `extra_folder`."""
    schema_with()  # imports the specs, beside whose modules packages keep their YAML
    brought = [folder for registry in REGISTRIES for folder in registry.config_folders()]
    return [SHIPPED, *dict.fromkeys(brought), *([extra_folder] if extra_folder else [])]


def schema_for(
    overrides: list[str], extra_folder: Path | None, recorded: RecordedConfig | None = None
) -> tuple[reference.Schema, list[str]]:
    """Return the schema with the section of each kind named as module:ATTRIBUTE, and the folders of those modules.

    Raises RunError for a module that cannot be imported.
    """
    names = recorded_kinds(recorded) | _names_of_kinds(overrides, extra_folder)
    named = {key: name for key, name in names.items() if ":" in name}
    # first where the run found them: a stranger may have sent its folder back with other modules beside it
    places = [*(Path(folder) for folder in (recorded.tree.get("python_path") or [] if recorded else [])), Path.cwd()]
    if extra_folder is not None:
        places += [extra_folder, *sorted(folder for folder in extra_folder.iterdir() if folder.is_dir())]
    module_folders = [folder_of(location, places) for location in named.values()]
    folders = [str(folder) for folder in module_folders if folder is not None]
    put_on_path(folders)
    return schema_with(tuple(named.items())), folders


def _names_of_kinds(overrides: list[str], extra_folder: Path | None) -> dict[str, str]:
    """Return the values of `env.simulator`, `policy.kind` and `algorithm.name`, before anything is checked.

    Shipped files name installed kinds only, so without an extra folder the arguments are enough.
    """
    keys = [registry.key for registry in REGISTRIES]
    parsed = [parse_override(text) for text in overrides]
    names = {override.key_or_group: str(override.value()) for override in parsed if override.key_or_group in keys}
    if extra_folder is None:
        return names
    folders = yaml_folders(extra_folder)
    known_groups = groups(folders)
    lines = []
    for override in parsed:
        is_choice = override.key_or_group in known_groups and isinstance(override.value(), str)
        line = (override.input_line or "").lstrip("+")
        lines.append(
            f"{'' if override.key_or_group == 'run' or not is_choice else '+'}{line}" if is_choice else f"++{line}"
        )
    try:
        untyped = _compose(lines, folders, {})
        chosen = {key: OmegaConf.select(untyped, key) for key in keys}
    except (
        YAMLError,
        HydraException,
        OmegaConfBaseException,
        UnicodeDecodeError,
    ):  # composing with the schema gives a better message
        return names
    return {key: str(name) for key, name in chosen.items() if name is not None} | names


def _typed(
    lines: list[str], folders: list[Path], schema: reference.Schema, recorded: RecordedConfig | None
) -> DictConfig:
    """Compose, and take the schema's types and defaults.

    Merging them once takes half the time of composing with them, which is done after a fault: its error names the file
    and the argument.
    """
    try:
        return cast("DictConfig", OmegaConf.merge(_typed_node(schema), _untyped(lines, folders, recorded)))
    except (HydraException, OmegaConfBaseException):
        return _compose(lines, folders, schema, recorded)


def _untyped(lines: list[str], folders: list[Path], recorded: RecordedConfig | None) -> DictConfig:
    """Compose without types. The same choices of rlrun's files are read once, until a file changes."""
    if recorded is not None or folders != yaml_folders(None):
        return _compose(lines, folders, {}, recorded)
    choices = tuple(line for line in lines if not line.startswith("++"))
    files = [(file, file.stat()) for folder in folders for file in folder.rglob("*.yaml") if file.is_file()]
    stamps = frozenset((file, stat.st_mtime_ns, stat.st_size) for file, stat in files)
    config = copy.deepcopy(_chosen_files(choices, tuple(folders), stamps))
    for value in (parse_override(line) for line in lines if line not in choices):
        OmegaConf.update(config, value.key_or_group, value.value(), merge=True, force_add=True)  # as Hydra does
    return config


@lru_cache(maxsize=64)
def _chosen_files(choices: tuple[str, ...], folders: tuple[Path, ...], _stamps: frozenset[Any]) -> DictConfig:
    return _compose(list(choices), list(folders), {})


def _compose(lines: list[str], folders: list[Path], schema: Any, recorded: RecordedConfig | None = None) -> DictConfig:
    """Compose from `folders`, of which the first is rlrun's. schema: a dataclass, or {} for no types."""
    ConfigStore.instance().store(name="schema", node=_typed_node(schema) if schema else {})
    if recorded is not None:
        ConfigStore.instance().store(name=RECORDED, node={"defaults": ["schema", "_self_"], **recorded.tree})
    GlobalHydra.instance().clear()
    more = ",".join(f"file://{folder.resolve()}" for folder in folders[1:])
    with initialize_config_dir(str(folders[0].resolve()), version_base="1.3"):
        primary = "config" if recorded is None else RECORDED
        return _compose_once_or_twice(primary, [*lines, f"hydra.searchpath=[{more}]"])


@cache
def _typed_node(schema: type) -> DictConfig:
    """Return the tree of a dataclass. The store copies it, which takes a sixth of the time of reading the dataclass."""
    node: DictConfig = OmegaConf.structured(schema)
    return node


def _compose_once_or_twice(primary: str, lines: list[str]) -> DictConfig:
    """Compose. A choice from a group on the command line replaces the choice in the run's own defaults."""
    try:
        return compose(primary, lines)
    except ConfigCompositionException as error:
        twice = re.search(r"Multiple values for (\w+)\.|^(\w+) appears more than once", str(error))
        if twice is None:
            raise
    group = f"+{twice.group(1) or twice.group(2)}="
    return compose(primary, [line.lstrip("+") if line.startswith(group) else line for line in lines])


def parse_override(text: str) -> Override:
    """Read one argument, as Hydra does. Raises RunError."""
    try:
        return OverridesParser.create().parse_override(text)
    except HydraException as error:
        raise RunError(
            f"The argument '{text}' cannot be read.",
            cause=str(error).splitlines()[0],
            remedy="Write key=value, lists as key=[a,b], and quote special characters: 'key=\"a=b\"'.",
        ) from error


def with_one_key_each(overrides: list[str]) -> list[str]:
    """Return overrides of which each names one key. Example: ["algorithm={gamma:1}"] -> ["algorithm.gamma=1"]."""
    spelled = []
    for text in overrides:
        value = parse_override(text).value() if "{" in text else None
        spelled += _below(text.partition("=")[0], value) if isinstance(value, dict) and value else [text]
    return spelled


def _below(path: str, value: Any) -> list[str]:
    if not isinstance(value, dict):
        return [f"{path}={value}"]
    return [line for key, inner in value.items() for line in _below(f"{path}.{key}", inner)]


def text_of(value: str) -> str:
    """Return the text of an argument's value without its quotes. Raises RunError."""
    return str(parse_override(f"value={value}").value())


def _normalise(override: Override, known_groups: dict[str, list[str]], schema: reference.Schema) -> str:
    """Return the override in Hydra's form, after a check of its key."""
    key = override.key_or_group
    text = override.input_line or ""
    value = override.value()
    if override.is_sweep_override() or override.is_delete():
        raise RunError(
            f"The argument '{text}' is a {'deletion' if override.is_delete() else 'sweep'}, which one run cannot take.",
            remedy="Write key=value; a list as key=[a,b]; null for none.",
        )
    if key in known_groups and isinstance(value, str):
        return _choose(key, value, known_groups[key])
    if not reference.is_known(key, schema):
        raise unknown_key(key, value, f"the argument '{text}'", schema)
    if key in reference.sections(schema) and not isinstance(value, dict):
        raise RunError(
            f"'{key}' is a section, not a key.",
            key=key,
            value="null" if value is None else value,
            cause=f"It comes from the argument '{text}'.",
            remedy=f"Set one of its keys, such as {_first_key(key, schema)}=…; --help lists them.",
        )
    return "++" + text.lstrip("+")


def _choose(group: str, option: str, options: list[str]) -> str:
    if option.removesuffix(".yaml") not in options:
        raise RunError(
            f"There is no file {group}/{option}.yaml among the configurations.",
            key=group,
            value=option,
            cause=f"Known: {', '.join(options)}.",
            remedy=_did_you_mean(group, option, options),
        )
    # Only `run` is in the defaults list; Hydra requires a plus before any other group.
    return f"{'' if group == 'run' else '+'}{group}={option}"


def _did_you_mean(group: str, option: str, options: list[str]) -> str:
    close = difflib.get_close_matches(option, options, n=1, cutoff=0.4)
    return f"Did you mean {group}={close[0]}?" if close else f"Choose one, or add configs/{group}/{option}.yaml."


def _first_key(section: str, schema: reference.Schema) -> str:
    return next(key.path for key in reference.all_keys(schema) if key.path.startswith(section + "."))


def unknown_key(
    key: str, value: object, source: str, schema: reference.Schema, remedy: str = UNKNOWN_REMEDY
) -> RunError:
    """Return the error for an unknown key. source: where it is written. remedy: used if no known key is similar."""
    return RunError(
        f"Unknown key '{key}'.",
        key=key,
        value=value,
        cause=f"It comes from {source}; no such key exists.",
        remedy=reference.suggestion(key, schema) or remedy,
    )


@dataclass(frozen=True)
class _Source:
    """Where Hydra read a key that it refuses: a file if it names one, else an argument."""

    description: str  # for the cause of an error
    file: str | None  # without .yaml
    override: Override | None  # the argument that Hydra quotes
    recorded: RecordedConfig | None  # the configuration of a run, if that is the file


def _explain(
    error: Exception, sources: dict[str, Override], schema: reference.Schema, recorded: RecordedConfig | None
) -> RunError:
    """Turn an exception of Hydra or OmegaConf into a RunError with key, value, expected type and remedy."""
    fault = _omegaconf_fault(error)
    text = str(error)
    if isinstance(fault, GrammarParseError):
        return _malformed_interpolation(fault, sources, schema)
    if isinstance(error, MissingConfigException):
        return RunError(
            "A configuration file is missing.",
            cause=text.strip(),
            remedy="Check its defaults list.",
        )
    if fault is None or not (fault.full_key or fault.key):
        return RunError(
            "The configuration cannot be composed.",
            cause=text.strip(),
            remedy="See --info and --help.",
        )
    return _explain_key(fault, _source_of(text, sources, recorded), schema)


def _malformed_interpolation(
    fault: GrammarParseError, sources: dict[str, Override], schema: reference.Schema
) -> RunError:
    """Return the error for an interpolation that OmegaConf cannot parse."""
    lines = [override.input_line or "" for override in sources.values()]
    argument = next((line for line in lines if "${" in line), "")
    where = f"the argument '{argument}'" if argument else "a configuration file"
    key = str(fault.full_key or fault.key or "")
    return reference.unresolved(key, argument.partition("=")[2] or "${…", fault, where, schema)


def _source_of(text: str, sources: dict[str, Override], recorded: RecordedConfig | None) -> _Source:
    """Return the source of the key that a message of Hydra names."""
    override = next((source for line, source in sources.items() if line in text), None)
    named = re.search(r"In '(.*?)'", text)
    if named is None:
        return _Source(f"the argument '{override.input_line if override else text}'", None, override, None)
    file = named.group(1)
    if recorded is not None and file == RECORDED:
        return _Source(f"the file {recorded.file}", file, override, recorded)
    return _Source(f"the file {file}.yaml", file, override, None)


def _explain_key(fault: OmegaConfBaseException, source: _Source, schema: reference.Schema) -> RunError:
    """Return the error for a key that does not exist, or whose value is of a wrong type."""
    key = re.sub(r"\[\d+\]$", "", fault.full_key or str(fault.key or ""))
    if source.recorded is not None and source.recorded.origin.is_newer:
        return _of_newer(source.recorded, key)
    if not reference.is_known(key, schema):
        value = None if source.override is None else source.override.value()
        return unknown_key(key, value, source.description, schema, _remedy_of_unknown(key, source))
    return _wrong_type(key, _refused_value(key, fault, source), source.description, schema)


def _remedy_of_unknown(key: str, source: _Source) -> str:
    """Return the remedy for an unknown key that resembles no known one."""
    if source.file is not None and key == source.file.partition("/")[0]:
        return "Make '# @package _global_' the first line of the file."  # else Hydra nests it in its folder's name
    if source.recorded is not None:
        return "Take the rlrun that wrote the file, or delete the key from it."
    return UNKNOWN_REMEDY


def _refused_value(key: str, fault: OmegaConfBaseException, source: _Source) -> str | None:
    """Return the value of a wrong type as it is written; None if OmegaConf does not quote it."""
    if source.override is not None:
        return source.override.get_value_element_as_str()
    if source.recorded is not None:
        return format_value(selected(source.recorded.whole, key))
    if quoted := re.search(r"[Vv]alue '(.*?)'", str(fault.msg)):
        return quoted.group(1)
    return "null" if "not Optional" in str(fault.msg) else None


def _of_newer(recorded: RecordedConfig, key: str) -> RunError:
    writer = recorded.origin.writer
    return RunError(
        f"The configuration {recorded.file} was written by a newer version, {writer}.",
        key=key,
        value=format_value(selected(recorded.whole, key)),
        cause=f"This is rlrun {own_version()}, which does not know this key or value.",
        remedy=f"Install {writer} or newer: what an older version makes of the rest would be another run.",
        exit_status=ExitStatus.bad_input,
    )


def _wrong_type(key: str, value: str | None, source: str, schema: reference.Schema) -> RunError:
    known = next((entry for entry in reference.all_keys(schema) if entry.path == key), None)
    if known is None:
        remedy = "Give a mapping of its keys."
        expected = "a section"
    else:
        remedy = advice(known, value or "")
        expected = known.type
    return RunError(
        f"'{key}' does not take this value.",
        key=key,
        value=value,
        cause=f"It comes from {source}; expected {expected}.",
        remedy=remedy,
    )


def _omegaconf_fault(error: BaseException) -> OmegaConfBaseException | None:
    return next((each for each in exception_chain(error) if isinstance(each, OmegaConfBaseException)), None)
