"""Reference of all keys, and advice on values that were written wrongly."""

from __future__ import annotations

import codecs
import difflib
import inspect
import io
import re
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, get_type_hints

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import GrammarParseError, OmegaConfBaseException

from rlrun.config.registry import REGISTRIES, schema_with
from rlrun.config.sections import AUTO, NO_KEY, Section, as_yaml, auto_names
from rlrun.system.errors import RunError, exception_chain

Schema = Any  # a configuration dataclass, or None; to mypy, types of dataclasses cannot be keys of a cache
FAMILIAR = {  # other libraries' names of choices
    "ddp": "no_shard",
    "fsdp": "full_shard",
    "zero2": "shard_grad_op",
    "zero3": "full_shard",
    "hsdp": "hybrid_shard",
    "bfloat16": "bf16",
    "float32": "fp32",
}
FORMER = {  # names of earlier versions -> the present name, and what an alike one is
    "seq_mean_token_sum": ("chunk_mean_token_sum", "verl has none such"),
    "seq_mean_token_mean": ("chunk_mean_token_mean", "episode_mean_token_mean is verl's"),
}
_MARKS = {  # first bytes of a file -> its encoding
    codecs.BOM_UTF8: "UTF-8 with a byte order mark",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}
_TRUTH = ("True", "False")
_OF_VARIABLE = re.compile(r"\$\{oc\.env:\s*([^,}\s]+)")
_CLASS = re.compile(r"class\s+(\w+)")
_OF_KEY = re.compile(r"\$\{([\w.]+)\}")


@dataclass(frozen=True)
class Key:
    """One key. Example: Key("env.num_envs", "int", "16", is_free=False, section=EnvConfig)."""

    path: str
    type: str  # as in the schema; an enum as its choices "a | b"
    default: str  # as in YAML
    is_free: bool  # a mapping whose own keys are free, such as placement.roles
    section: Schema  # the class whose field it is

    @property
    def comment(self) -> str:
        """The comment after it in the schema's source, which is read for --help alone."""
        return _comments(self.section).get(self.path.rpartition(".")[2], "")


@cache
def all_keys(schema: Schema = None) -> tuple[Key, ...]:
    """Return all keys of a schema in its order. None: the schema with the sections of all installed kinds."""
    return tuple(_keys_of(schema or schema_with(), ""))


@cache
def sections(schema: Schema = None) -> tuple[str, ...]:
    """Return the paths of all sections, such as "env"."""
    return tuple(path for path, _ in _section_types(schema or schema_with(), ""))


def is_known(path: str, schema: Schema = None) -> bool:
    """Return whether `path` is a key, a section, or below a free mapping."""
    return path in sections(schema) or any(
        path == key.path or (key.is_free and path.startswith(key.path + ".")) for key in all_keys(schema)
    )


def suggestion(path: str, schema: Schema = None) -> str | None:
    """Return a sentence with the keys that are similar to an unknown one, or on a removed one; None: no key is similar.

    Example: "Did you mean 'actor.lr' or 'sft.lr'?" for lr; the keys of the section for algorithm.foo.
    """
    parent, _, name = path.rpartition(".")
    removed = _type_of(parent, schema).removed
    if name in removed:
        return removed[name].remedy
    keys = [key.path for key in all_keys(schema)]
    if name in getattr(_type_of(parent, schema), "to_kinds", ()):
        now = [known for known in keys if re.fullmatch(rf"{parent}\.\w+\.{name}", known)]
        noun = next(registry.noun for registry in REGISTRIES if registry.parent == parent)
        return f"It belongs to the {noun}: write {' or '.join(now)}."
    ending = [known for known in keys if known.endswith(f".{path}")]
    if ending:
        return f"Did you mean {' or '.join(f'{known!r}' for known in ending[:6])}?"
    near = _nearest(path, [*keys, *sections(schema)])
    if near is not None:
        return f"Did you mean '{near}'?"
    section = path.rpartition(".")[0]
    inside = [known.removeprefix(f"{section}.") for known in keys if known.startswith(f"{section}.")]
    return f"The keys of {section} are {', '.join(inside)}." if section and inside else None


def _type_of(section: str, schema: Schema) -> type[Section]:
    return dict(_section_types(schema or schema_with(), "")).get(section, Section)


def _nearest(path: str, known: list[str]) -> str | None:
    """Return the most similar key or section, whose last part must be similar by itself."""
    leaf = path.rsplit(".", 1)[-1]
    by_leaf = {known_path: _similarity(leaf, known_path.rsplit(".", 1)[-1]) for known_path in known}
    best = max(known, key=lambda known_path: (by_leaf[known_path] + _similarity(path, known_path), -len(known_path)))
    return best if by_leaf[best] >= 0.6 else None


def _similarity(left: str, right: str) -> float:
    return difflib.SequenceMatcher(None, left, right).ratio()


def _section_types(section: type, prefix: str) -> Iterator[tuple[str, type[Section]]]:
    """Yield (path, type) of each section below one."""
    for name, hint in get_type_hints(section).items():
        if isinstance(hint, type) and issubclass(hint, Section):
            yield prefix + name, hint
            yield from _section_types(hint, f"{prefix}{name}.")


def _keys_of(section: type, prefix: str) -> Iterator[Key]:
    hints = get_type_hints(section)
    for field in fields(section):
        if field.metadata.get(NO_KEY):
            continue
        hint = hints[field.name]
        if isinstance(hint, type) and issubclass(hint, Section):
            yield from _keys_of(hint, f"{prefix}{field.name}.")
            continue
        default = field.default_factory() if field.default_factory is not MISSING else field.default
        is_free = getattr(hint, "__origin__", hint) is dict
        kind = _type_name(hint, str(field.type))
        if field.name in auto_names(section):
            kind = kind.replace("str", AUTO)
        yield Key(prefix + field.name, kind, as_yaml(default), is_free, section)


def _type_name(hint: Any, annotation: str) -> str:
    if isinstance(hint, type) and issubclass(hint, Enum):
        return " | ".join(member.name for member in hint)
    return annotation


@cache
def _comments(section: type) -> dict[str, str]:
    """Return field -> the comment after it in the source of its class or a base class."""
    comments: dict[str, str] = {}
    for base in reversed(section.__mro__):
        if is_dataclass(base):
            comments |= _comments_in(base)
    return comments


def _comments_in(section: type) -> dict[str, str]:
    """Return the comments of one class; {} for one without source, such as a schema made during composition."""
    try:
        file = inspect.getsourcefile(section)
    except TypeError:
        return {}
    return _comments_of_file(file).get(section.__qualname__, {}) if file else {}


@cache
def _comments_of_file(file: str) -> dict[str, dict[str, str]]:
    """Return class -> field -> the comment after it; {} if the file cannot be read."""
    comments: dict[str, dict[str, str]] = {}
    try:
        source = Path(file).read_text(encoding="utf-8")
    except OSError:
        return {}
    of_class: dict[str, str] = {}
    name = ""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.NAME and token.start[1] == 0:
            name = ""
            found = _CLASS.match(token.line)
            of_class = comments.setdefault(found[1], {}) if found else {}
        elif token.type == tokenize.NAME and token.start[1] == 4:
            name = token.string if token.line[token.end[1] : token.end[1] + 1] == ":" else name
        elif token.type == tokenize.COMMENT and name and token.start[1] > 4:
            of_class[name] = token.string.lstrip("# ")
    return comments


def advice(key: Key, value: str) -> str:
    """Return a sentence. Example: "Write a number such as 3e-4." for actor.lr=fast."""
    kinds = [kind for kind in key.type.split(" | ") if kind != "None"]
    kind = kinds[0]
    or_auto = ", or auto" if AUTO in kinds else ""
    if kind.startswith("list["):
        return f"Write {key.path}=[{value}]." if value and value[0] not in "[{" else f"The default is {key.default}."
    if kind in ("float", "int"):
        noun = "number" if kind == "float" else "whole number"
        return f"Write a {noun} such as {_example(key)}{or_auto}."
    if kind == "bool":
        return f"Write true or false{', a share such as 0.5' if 'float' in kinds else ''}{or_auto}."
    if kind == "str" or kind.startswith("dict["):
        return f"The default is {key.default}."
    return _advice_on_choice(key, kinds, value)


def _advice_on_choice(key: Key, names: list[str], value: str) -> str:
    """Return a sentence on a key that takes one of some names."""
    familiar = FAMILIAR.get(value.lower())
    if familiar in names:
        return f"{value} is {familiar} here: {key.path}={familiar}."
    former, remark = FORMER.get(value, ("", ""))
    if former in names:
        return f"What earlier versions computed under this name is {key.path}={former}; {remark}."
    close = difflib.get_close_matches(value, names, n=1)
    return f"Did you mean {close[0]}?" if close else f"Choose one of {', '.join(names)}; the default is {key.default}."


def _example(key: Key) -> str:
    """Return a number as people write it, the default if there is one. Example: "3e-4"."""
    try:
        number = float(key.default)
    except ValueError:
        return "1"
    if number and abs(number) < 1e-2:
        digits, _, exponent = f"{number:e}".partition("e")
        return f"{float(digits):g}e{int(exponent)}"
    return key.default


def resolve(config: DictConfig, sources: Sequence[str], folders: Sequence[Path], schema: Schema) -> None:
    """Replace every interpolation by its value. Raises RunError for the first that has none.

    sources: the arguments. folders: of the YAML files; both are searched for where the interpolation is written.
    """
    try:
        OmegaConf.resolve(config)
    except OmegaConfBaseException as error:
        for key, text in _interpolations(OmegaConf.to_container(config, resolve=False), ""):
            try:
                OmegaConf.select(config, key, throw_on_resolution_failure=True)
            except OmegaConfBaseException as fault:
                raise unresolved(key, text, fault, _where(text, sources, folders), schema) from error
        raise


def unresolved(key: str, text: str, fault: Exception, where: str, schema: Schema) -> RunError:
    """Return the error for one interpolation. where: the file or argument that holds it."""
    said = str(fault).strip().splitlines()[0]
    said = said.partition("raised while resolving interpolation: ")[2].strip('"') or said
    return RunError(
        f"The interpolation {text} of '{key}' has no value.",
        key=key,
        value=text,
        cause=f"{said}. It comes from {where}.",
        remedy=_remedy(text, fault, schema),
    )


def _remedy(text: str, fault: Exception, schema: Schema) -> str:
    variable = _OF_VARIABLE.search(text)
    named = _OF_KEY.search(text)
    if isinstance(fault, GrammarParseError):
        return r"Close each ${ with }; a text that contains ${ itself is written \${."
    if variable is not None:
        name = variable.group(1)
        return f"export {name}=…, or write a value for when it is unset: ${{oc.env:{name},null}}."
    if "Recursive" in str(fault):
        return "Let it name another key than itself."
    if named is not None:
        return suggestion(named.group(1), schema) or "Write a key that --help lists."
    return "Write ${KEY} or ${oc.env:VARIABLE,DEFAULT}; OmegaConf's documents list what else there is."


def _interpolations(content: Any, prefix: str) -> Iterator[tuple[str, str]]:
    """Yield key and text of each value with an interpolation. Example: ("env.libero.cameras[0]", "${camera}")."""
    if isinstance(content, dict):
        for name, value in content.items():
            yield from _interpolations(value, f"{prefix}.{name}" if prefix else str(name))
    elif isinstance(content, list):
        for place, value in enumerate(content):
            yield from _interpolations(value, f"{prefix}[{place}]")
    elif isinstance(content, str) and "${" in content:
        yield prefix, content


def refuse_truth_values(config: DictConfig, sources: Sequence[str], folders: Sequence[Path], schema: Schema) -> None:
    """Raise RunError for a text that YAML took for a truth value: `no`, `off`, `yes` and `on` mean False and True."""
    for key in all_keys(schema):
        if "str" not in key.type or key.is_free:
            continue
        value = OmegaConf.select(config, key.path)
        text = value if isinstance(value, str) else next((item for item in value or () if item in _TRUTH), None)
        if text in _TRUTH:
            name = key.path.rpartition(".")[2]
            where = _where(f"{name}:", sources, folders, among=f"{name}=")
            raise RunError(
                f"'{key.path}' takes text, and YAML read a truth value.",
                key=key.path,
                value=text,
                cause=f"It comes from {where}; YAML takes no, off, yes, on, true and false without quotes for those.",
                remedy=f'Write null for none, or quote the text: {name}: "no".',
            )


def take_numbers(config: DictConfig, sources: Sequence[str], folders: Sequence[Path], schema: Schema) -> None:
    """Replace texts of keys that take `auto` by their numbers, in place. Raises RunError for another word."""
    for key in all_keys(schema):
        value = OmegaConf.select(config, key.path) if AUTO in key.type.split(" | ") else None
        if not isinstance(value, str) or value == AUTO:
            continue
        try:
            number = float(value) if "float" in key.type else int(value)
        except ValueError as error:
            name = key.path.rpartition(".")[2]
            where = _where(f"{name}:", sources, folders, among=f"{name}=")
            raise RunError(
                f"'{key.path}' does not take this value.",
                key=key.path,
                value=value,
                cause=f"It comes from {where}; expected {key.type}.",
                remedy=advice(key, value),
            ) from error
        OmegaConf.update(config, key.path, number)


def misread_file(file: Path) -> RunError | None:
    """Return the error for a file that is not plain UTF-8; None if it is, or cannot be read."""
    try:
        content = file.read_bytes()
    except OSError:
        return None
    mark = next((name for start, name in _MARKS.items() if content.startswith(start)), None)
    try:
        content.decode("utf-8")
        if mark is None:
            return None
        cause = (
            f"It begins with the bytes {content[:3].hex(' ')}: {mark}, after which its first line is not recognized."
        )
        remedy = f"Save it as UTF-8 without the mark: sed -i '1s/^\\xEF\\xBB\\xBF//' {file}"
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        cause = (
            f"Line {line} has the byte {content[error.start]:#04x}, which is not UTF-8; it may be {mark or 'Latin-1'}."
        )
        remedy = f"Save it as UTF-8: iconv -f {'utf-16' if mark else 'latin1'} -t utf-8 {file} > NEW"
    return RunError(f"The configuration file {file} is not plain UTF-8.", cause=cause, remedy=remedy)


def misread(error: BaseException, folders: Sequence[Path]) -> RunError | None:
    """Return the error for the file whose bytes could not be decoded; None if no file of the folders explains it."""
    seen = next((each for each in exception_chain(error) if isinstance(each, UnicodeDecodeError)), None)
    if seen is None:
        return None
    files = [file for folder in folders for file in sorted(folder.glob("**/*.yaml"))]
    faults = [(file, fault) for file in files if (fault := misread_file(file)) is not None]
    exact = [fault for file, fault in faults if seen.object in file.read_bytes()]
    return next(iter(exact), faults[0][1] if faults else None)


def _where(text: str, sources: Sequence[str], folders: Sequence[Path], among: str | None = None) -> str:
    """Return the argument, or the file and line, that holds a text; later folders are the user's own."""
    argument = next((source for source in sources if (among or text) in source), None)
    if argument is not None:
        return f"the argument '{argument}'"
    for folder in reversed(folders):
        for file in sorted(folder.glob("**/*.yaml")):
            for number, line in enumerate(_lines(file), 1):
                if text in line:
                    return f"{file}, line {number}"
    return "the configuration"


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
