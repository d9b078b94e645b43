"""Reads YAML and JSON that others may have written: bounded in size, in depth, and in what aliases multiply to."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

MAX_DEPTH = 64  # of nested lists and mappings
MAX_YAML_BYTES = 4 * 1024**2
MAX_YAML_NODES = 200_000  # an alias counts as all that it stands for
MAX_JSON_BYTES = 256 * 1024**2


def read_yaml(file: Path) -> Any:
    """Return the content of a YAML file. Raises OSError, and ValueError with the cause for a damaged or unbounded one.

    Only plain types are made, as by `yaml.safe_load`.
    """
    return parse_yaml(read_text(file))


def parse_yaml(text: str) -> Any:
    """Return the content of the text of a YAML file; raises as `read_yaml`."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        _check_events(yaml.parse(text, Loader=loader))
        return yaml.load(text, Loader=loader)
    except ValueError:
        raise
    # PyYAML raises the last four for tagged scalars such as `!!int ""`
    except (yaml.YAMLError, LookupError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(str(error)) from error


def require_bounded(file: Path) -> None:
    """Raise ValueError if a YAML file that another library will read is unbounded. Raises OSError."""
    import yaml

    with suppress(yaml.YAMLError):  # that library says what is no YAML
        _check_events(yaml.parse(read_text(file), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)))


def read_json(file: Path) -> Any:
    """Return the content of a JSON file; raises as `read_yaml`."""
    return parse_json(read_text(file, MAX_JSON_BYTES))


def parse_json(text: str) -> Any:
    """Return the content of a JSON text. Raises ValueError as `read_yaml`."""
    try:
        content = json.loads(text)
    except RecursionError:
        raise _too_deep() from None
    _check_depth(content)
    return content


def read_text(file: Path, max_bytes: int = MAX_YAML_BYTES) -> str:
    """Return the text of a file in UTF-8. Raises OSError, and ValueError for other bytes or too many."""
    with file.open("rb") as stream:
        content = stream.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise ValueError(f"it is larger than {max_bytes} bytes")
    return content.decode("utf-8")


def _check_events(events: Any) -> None:
    """Raise ValueError if the nodes, each counted as often as aliases repeat it, are too many or too deep."""
    from yaml import AliasEvent, CollectionEndEvent, CollectionStartEvent, ScalarEvent

    anchored: dict[str, tuple[int, int]] = {}  # name -> (nodes, height) of what an alias stands for
    opened: list[list[Any]] = [[None, 0, 0]]  # name, nodes, height of each collection that has not ended
    for event in events:
        if isinstance(event, CollectionStartEvent):
            opened.append([event.anchor, 1, 0])
            name, nodes, height = None, 0, 0
        elif isinstance(event, AliasEvent):
            if event.anchor not in anchored:
                raise ValueError(f"the alias *{event.anchor} stands for something that contains it")
            name, (nodes, height) = None, anchored[event.anchor]
        elif isinstance(event, CollectionEndEvent):
            name, nodes, height = opened.pop()
            height += 1
        elif isinstance(event, ScalarEvent):
            name, nodes, height = event.anchor, 1, 0
        else:
            continue
        if name is not None:
            anchored[name] = nodes, height
        around = opened[-1]
        around[1], around[2] = around[1] + nodes, max(around[2], height)
        if len(opened) + height > MAX_DEPTH:
            raise _too_deep()
        if around[1] > MAX_YAML_NODES:
            raise ValueError(f"it has more than {MAX_YAML_NODES} entries once its aliases are replaced")


def _check_depth(content: Any) -> None:
    level, depth = [content], 0
    while level := [item for item in level if isinstance(item, (dict, list))]:
        depth += 1
        if depth > MAX_DEPTH:
            raise _too_deep()
        level = [below for item in level for below in (item.values() if isinstance(item, dict) else item)]


def _too_deep() -> ValueError:
    return ValueError(f"its lists and mappings nest deeper than {MAX_DEPTH} levels")
