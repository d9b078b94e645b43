"""Faults in what a person wrote and YAML or OmegaConf reads otherwise, each told with its file.

Interpolations that fail, words that YAML takes for truth values, and encodings other than UTF-8.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import GrammarParseError, OmegaConfBaseException

from rlrun.config import reference
from rlrun.system.errors import RunError

_MARKS = {  # first bytes of a file -> its encoding
    codecs.BOM_UTF8: "UTF-8 with a byte order mark",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}
_TRUTH = ("True", "False")
_OF_VARIABLE = re.compile(r"\$\{oc\.env:\s*([^,}\s]+)")
_OF_KEY = re.compile(r"\$\{([\w.]+)\}")


def resolve(config: DictConfig, sources: Sequence[str], folders: Sequence[Path], schema: reference.Schema) -> None:
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


def unresolved(key: str, text: str, fault: Exception, where: str, schema: reference.Schema) -> RunError:
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


def _remedy(text: str, fault: Exception, schema: reference.Schema) -> str:
    variable, named = _OF_VARIABLE.search(text), _OF_KEY.search(text)
    if isinstance(fault, GrammarParseError):
        return r"Close each ${ with }; a text that contains ${ itself is written \${."
    if variable is not None:
        name = variable.group(1)
        return f"export {name}=…, or write a value for when it is unset: ${{oc.env:{name},null}}."
    if "Recursive" in str(fault):
        return "Let it name another key than itself."
    if named is not None:
        return reference.suggestion(named.group(1), schema) or "Write a key that --help lists."
    return "Write ${KEY} or ${oc.env:VARIABLE,DEFAULT}; OmegaConf's documents list what else there is."


def _interpolations(content: Any, prefix: str) -> Iterator[tuple[str, str]]:
    """Yield key and text of each value with an interpolation. Example: ("env.cameras[0]", "${camera}")."""
    if isinstance(content, dict):
        for name, value in content.items():
            yield from _interpolations(value, f"{prefix}.{name}" if prefix else str(name))
    elif isinstance(content, list):
        for place, value in enumerate(content):
            yield from _interpolations(value, f"{prefix}[{place}]")
    elif isinstance(content, str) and "${" in content:
        yield prefix, content


def refuse_truth_values(
    config: DictConfig, sources: Sequence[str], folders: Sequence[Path], schema: reference.Schema
) -> None:
    """Raise RunError for a text that YAML took for a truth value: `no`, `off`, `yes` and `on` mean False and True."""
    for key in reference.all_keys(schema):
        if "str" not in key.type or key.is_free:
            continue
        value = OmegaConf.select(config, key.path)
        found = value if isinstance(value, str) else next((one for one in value or () if one in _TRUTH), None)
        if found in _TRUTH:
            name = key.path.rpartition(".")[2]
            where = _where(f"{name}:", sources, folders, among=f"{name}=")
            raise RunError(
                f"'{key.path}' takes text, and YAML read a truth value.",
                key=key.path,
                value=found,
                cause=f"It comes from {where}; YAML takes no, off, yes, on, true and false without quotes for those.",
                remedy=f'Write null for none, or quote the text: {name}: "no".',
            )


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
    seen: BaseException | None = error
    while seen is not None and not isinstance(seen, UnicodeDecodeError):
        seen = seen.__cause__ or seen.__context__
    if seen is None:
        return None
    files = [file for folder in folders for file in sorted(folder.glob("**/*.yaml"))]
    found = [(file, fault) for file in files if (fault := misread_file(file)) is not None]
    exact = [fault for file, fault in found if seen.object in file.read_bytes()]
    return next(iter(exact), found[0][1] if found else None)


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
