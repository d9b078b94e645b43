"""Reads the dumps of PyTorch's flight recorder, and says in one sentence which rank holds up a collective."""

from __future__ import annotations

import io
import json
import pickle
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

FOLDER = "flight_recorder"  # of the run
_FILE = re.compile(rf".*/{FOLDER}/(?P<role>\w+)-(?P<number>\d+)_(?P<rank>\d+)\.(?P<format>json|hex)")
_NUM_FRAMES = 3  # innermost frames of each collective in the text of a dump
# collectives to which every rank gives tensors of the same size
_EVEN = {"all_reduce", "broadcast", "all_gather", "all_gather_base", "reduce_scatter_base"}


@dataclass(frozen=True)
class Collective:
    """One collective as one rank recorded it. Example: Collective(1412, "all_gather", ((4096,),), False)."""

    number: int  # counts the collectives of its group
    name: str
    sizes: tuple[tuple[int, ...], ...]  # of its inputs
    is_finished: bool


@dataclass(frozen=True)
class _Group:
    """A process group of some ranks: its members, and what each of those with a dump recorded, by rank and number."""

    members: frozenset[int]
    recorded: Mapping[int, Mapping[int, Collective]]


class _PlainUnpickler(pickle.Unpickler):
    """Reads containers, numbers and strings only: a dump has nothing else, and a file may come from anybody."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it refers to {module}.{name}")


def text_of(content: bytes) -> str:
    """Return a dump as JSON, with the innermost frames only. Raises ValueError if `content` is no dump."""
    try:
        dump = _PlainUnpickler(io.BytesIO(content)).load()
        entries = [entry | {"frames": entry.get("frames", [])[:_NUM_FRAMES]} for entry in dump["entries"]]
        text = json.dumps(dump | {"entries": entries})
        _groups({0: json.loads(text)})
    except Exception as error:  # damaged bytes raise anything
        raise ValueError(f"{type(error).__name__}: {error}") from error
    return text


def sentences(files: Mapping[str, str]) -> list[str]:
    """Return one sentence for each set of ranks with dumps.

    files: the files of an archive by name; a dump is `<host>/flight_recorder/<role>-<rank of the role>_<rank>.json`,
    or `….hex` if it cannot be read. The actor workers form one set, each rollout worker with its engine another.
    Example: ["actor: rank 3 never entered all_gather #1412; the others wait in it"]
    """
    dumps: dict[str, dict[int, Any]] = {}
    lines = []
    for name, text in sorted(files.items()):
        file = _FILE.fullmatch(name)
        if file is None:
            continue
        worker = f"{file['role']}/{file['number']}"
        if file["format"] == "hex":
            lines.append(f"{worker}: the dump of its flight recorder cannot be read")
            continue
        ranks = "actor" if file["role"] == "actor" else worker
        dumps.setdefault(ranks, {})[int(file["rank"])] = json.loads(text)
    return [f"{ranks}: {_sentence(_groups(found))}" for ranks, found in dumps.items()] + lines


def _groups(dumps: Mapping[int, Any]) -> list[_Group]:
    """Return the process groups in the dumps of some ranks."""
    found: dict[tuple[str, frozenset[int]], dict[int, dict[int, Collective]]] = {}
    for rank, dump in sorted(dumps.items()):
        for entry in dump["entries"]:
            if entry["is_p2p"]:
                continue
            (name, kind), known = entry["process_group"], dump["pg_config"].get(entry["process_group"][0])
            members = frozenset(json.loads(known["ranks"])) if known else frozenset()
            if not members and kind == "default_pg":  # Gloo records it under another name
                members = frozenset(dumps)
            recorded = found.setdefault((name, members), {member: {} for member in sorted(members & dumps.keys())})
            each = _collective(entry)
            recorded.setdefault(rank, {}).setdefault(each.number, each)  # the first of a coalesced set
    return [_Group(members or frozenset(recorded), recorded) for (_, members), recorded in found.items()]


def _collective(entry: Mapping[str, Any]) -> Collective:
    library, _, name = entry["profiling_name"].rpartition(":")
    # what NCCL has aborted is retired too; Gloo records no other end
    is_finished = entry["state"] == "completed" or (library == "gloo" and entry["retired"])
    sizes = tuple(tuple(size) for size in entry["input_sizes"])
    return Collective(entry["collective_seq_id"], name.lstrip("_"), sizes, is_finished)


def _sentence(groups: Iterable[_Group]) -> str:
    """Return the most specific sentence of all groups: a missing rank comes before a collective that does not end."""
    kinds: tuple[Callable[[_Group, int], str], ...] = (_missing, _order, _sizes, _undumped, _all_entered)
    stuck = [(group, number) for group in groups if (number := _first_unfinished(group)) is not None]
    for kind in kinds:
        for group, number in stuck:
            if sentence := kind(group, number):
                return sentence
    return "no rank waits in a collective"


def _first_unfinished(group: _Group) -> int | None:
    """Return the number of the first collective that a rank has entered and not left."""
    return min((c.number for own in group.recorded.values() for c in own.values() if not c.is_finished), default=None)


def _missing(group: _Group, number: int) -> str:
    """Return "" if every rank with a dump has entered the collective."""
    absent = [rank for rank, own in group.recorded.items() if max(own, default=-1) < number]
    return f"{_ranks(absent)} never entered {_usual(group, number)}; the others wait in it" if absent else ""


def _order(group: _Group, number: int) -> str:
    """Return "" if all ranks entered the same collective."""
    names = {rank: own[number].name for rank, own in group.recorded.items() if number in own}
    usual, other = _usual_and_other(names)
    if not other:
        return ""
    name = names[other[0]]
    others = [rank for rank in other if names[rank] == name]
    return f"collective #{number} is {name} for {_ranks(others)} and {usual} for the others; they wait for each other"


def _sizes(group: _Group, number: int) -> str:
    """Return "" if all ranks gave tensors of the same size, or may give different ones."""
    entered = {rank: own[number] for rank, own in group.recorded.items() if number in own}
    usual, other = _usual_and_other({rank: each.sizes for rank, each in entered.items() if each.name in _EVEN})
    if not other:
        return ""
    sizes = entered[other[0]].sizes
    others = [rank for rank in other if entered[rank].sizes == sizes]
    return (
        f"{_ranks(others)} entered {_usual(group, number)} with {_numbers(sizes)} numbers, the others with "
        f"{_numbers(usual)}"
    )


def _undumped(group: _Group, number: int) -> str:
    """Return "" if there is a dump of every rank."""
    unknown = sorted(group.members - group.recorded.keys())
    waiting = [rank for rank, own in group.recorded.items() if number in own and not own[number].is_finished]
    return (
        f"there is no dump of {_ranks(unknown)}; waiting in {_usual(group, number)}: {_ranks(waiting)}"
        if unknown
        else ""
    )


def _all_entered(group: _Group, number: int) -> str:
    return f"every rank entered {_usual(group, number)}, which does not end"


def _usual(group: _Group, number: int) -> str:
    """Return the name of a collective. Example: "all_gather #1412"."""
    names = Counter(own[number].name for own in group.recorded.values() if number in own)
    return f"{names.most_common(1)[0][0]} #{number}"


def _usual_and_other(values: Mapping[int, Any]) -> tuple[Any, list[int]]:
    """Return the commonest value, and the ranks that have another one."""
    if not values:
        return None, []
    usual = Counter(values.values()).most_common(1)[0][0]
    return usual, [rank for rank, value in values.items() if value != usual]


def _numbers(sizes: Iterable[tuple[int, ...]]) -> str:
    """Return sizes in words. Example: "4096x16 + 4096"."""
    return " + ".join("x".join(map(str, size)) or "1" for size in sizes) or "0"


def _ranks(ranks: list[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
