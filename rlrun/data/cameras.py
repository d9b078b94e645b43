"""Matches cameras by their names: those that a policy or a data set names with those that a world shows."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_GENERIC = {"observation", "observations", "obs", "image", "images", "pixels", "rgb", "camera", "cameras"}


@dataclass(frozen=True)
class CameraMatch:
    """Which camera of a world stands for each wanted one.

    Example: CameraMatch(("wrist", "top"), ("pixels.top", "pixels.wrist"), (1, 0), is_by_name=(True, True))
    """

    wanted: tuple[str, ...]  # N names, in the order of the policy or the data set
    there: tuple[str, ...]  # names of the world's cameras
    order: tuple[int, ...]  # N indices into `there`
    is_by_name: tuple[bool, ...]  # N; False: no name fitted, and the place in the order decides

    @property
    def is_certain(self) -> bool:
        """Return whether names decide everything, but for one camera at most, which is then the only one left."""
        return self.is_by_name.count(False) <= 1

    @property
    def differs(self) -> bool:
        """Return whether a person would want to know: other names, another order, or cameras that are left out."""
        is_same = [short_name(name) for name in self.wanted] == [short_name(name) for name in self.there]
        return not is_same or self.order != tuple(range(len(self.there)))

    def __str__(self) -> str:
        """Example: "pixels.wrist → wrist, pixels.top → top"."""
        pairs = zip(self.order, self.wanted, self.is_by_name, strict=True)
        parts = [f"{self.there[at]} → {name}{'' if fits else ' (by place)'}" for at, name, fits in pairs]
        left_out = [name for at, name in enumerate(self.there) if at not in self.order]
        return ", ".join(parts) + (f"; left out: {', '.join(left_out)}" if left_out else "")


def match_cameras(wanted: Sequence[str], there: Sequence[str], renamed: Mapping[str, str] | None = None) -> CameraMatch:
    """Match names; what no name fits is matched by its place, if as many are left on both sides.

    Names fit if they are equal but for prefixes: "observation.images.top", "pixels.top" and "top" are one camera.
    renamed: names of `wanted` -> names of `there`, which win. Raises ValueError naming the cameras without a partner.
    """
    asked = list(wanted)
    for name, other in (renamed or {}).items():
        at = _index(name, wanted)
        if at is None or _index(other, there) is None:
            unknown, known = (name, wanted) if at is None else (other, there)
            raise ValueError(f"there is no camera {unknown} among {', '.join(known) or 'none'}")
        asked[at] = other
    found: list[int | None] = [_index(name, there) for name in asked]
    twice = [there[at] for at, count in Counter(at for at in found if at is not None).items() if count > 1]
    if twice:
        raise ValueError(f"{twice[0]} would stand for several cameras of {', '.join(wanted)}")
    rest = [at for at in range(len(there)) if at not in found]
    missing = [name for name, at in zip(wanted, found, strict=True) if at is None]
    if missing and len(missing) != len(rest):
        names = ", ".join(there[at] for at in rest) or "none"
        have = "has" if len(missing) == 1 else "have"
        raise ValueError(f"{', '.join(missing)} {have} no partner by name; left: {names}")
    places = iter(rest)
    order = tuple(next(places) if at is None else at for at in found)
    return CameraMatch(tuple(wanted), tuple(there), order, tuple(at is not None for at in found))


def short_name(name: str) -> str:
    """Return a name without what only says that it is a picture. Example: "observation.images.top" -> "top"."""
    parts = [part for part in re.split(r"[./]", name) if part]
    own = [part for part in parts if part.lower() not in _GENERIC]
    return "_".join(own or parts[-1:])


def _index(name: str, names: Sequence[str]) -> int | None:
    """Return the place of the only name that fits; None: none does, or several do."""
    if name in names:
        return list(names).index(name)
    alike = [at for at, other in enumerate(names) if _plain(other) == _plain(name)]
    return alike[0] if len(alike) == 1 else None


def _plain(name: str) -> str:
    return short_name(name).lower().replace("-", "_")
