"""Comparison of a data set, a simulator ("world") and a policy before training: cameras, state, actions, rate, texts.

Cameras are matched by name, else by position. Shape legend: N cameras, P numbers of the state, A action dimensions.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlrun.data.fit_numbers import judge_numbers
from rlrun.data.fit_pictures import judge_pictures
from rlrun.data.fit_report import CompatibilityReport, Row, World, listed, mismatch
from rlrun.edges.spaces import PolicySpaces
from rlrun.system.errors import ExitStatus, RunError

if TYPE_CHECKING:
    from rlrun.data.lerobot.reader import DatasetInfo

_GENERIC_WORDS = {"observation", "observations", "obs", "image", "images", "pixels", "rgb", "camera", "cameras"}
RATE_TOLERANCE = 0.01  # 29.97 frames per second count as 30
_COUNT_REMEDY = "Take the world that the data was recorded in, or name the right feature in demos.keys."
_RATE_REMEDY = (
    "if the frames are such control steps whatever meta/info.json says: some published data sets say 10 for steps of "
    "20 a second. Else resample the data set. Only if the world should have another rate than its own:"
)
_CAMERA_REMEDY = (
    "List the data set's cameras in the order of the world's, as demos.keys.images=[…], or let the world show what was "
    "recorded (the simulator's own key for its pictures)."
)


@dataclass(frozen=True)
class CameraMatch:
    """Assignment of a world's cameras to the wanted ones.

    Example: CameraMatch(("wrist", "top"), ("pixels.top", "pixels.wrist"), (1, 0), is_by_name=(True, True))
    """

    wanted: tuple[str, ...]  # N names, in the order of the policy or the data set
    there: tuple[str, ...]  # names of the world's cameras
    order: tuple[int, ...]  # N indices into `there`
    is_by_name: tuple[bool, ...]  # N; False: no name matched, so that the position decides

    @property
    def is_certain(self) -> bool:
        """Whether names decide; at most one camera is matched by elimination."""
        return self.is_by_name.count(False) <= 1

    @property
    def differs(self) -> bool:
        """Whether names or their order differ, or cameras are unused: worth a note to the user."""
        is_same = [short_name(name) for name in self.wanted] == [short_name(name) for name in self.there]
        return not is_same or self.order != tuple(range(len(self.there)))

    def __str__(self) -> str:
        """Example: "pixels.wrist → wrist, pixels.top → top"."""
        pairs = zip(self.order, self.wanted, self.is_by_name, strict=True)
        parts = [f"{self.there[at]} → {name}{'' if fits else ' (by place)'}" for at, name, fits in pairs]
        left_out = [name for at, name in enumerate(self.there) if at not in self.order]
        return ", ".join(parts) + (f"; left out: {', '.join(left_out)}" if left_out else "")


def match_cameras(wanted: Sequence[str], there: Sequence[str], renamed: Mapping[str, str] | None = None) -> CameraMatch:
    """Match cameras by name; the rest by position, if equally many are left on both sides.

    Names match if they are equal except for prefixes: "observation.images.top", "pixels.top" and "top" are one camera.
    renamed: names of `wanted` -> names of `there`, which take precedence. Raises ValueError naming the cameras without
    a match.
    """
    names = _renamed(wanted, there, renamed or {})
    matched = [_matching_index(name, there) for name in names]
    rest = [at for at in range(len(there)) if at not in matched]
    _require_partners(wanted, there, matched, rest)
    places = iter(rest)
    order = tuple(next(places) if at is None else at for at in matched)
    return CameraMatch(tuple(wanted), tuple(there), order, tuple(at is not None for at in matched))


def _require_partners(
    wanted: Sequence[str], there: Sequence[str], matched: Sequence[int | None], rest: Sequence[int]
) -> None:
    """Raise ValueError if two cameras match one, or if not as many are left without a match on both sides."""
    counts = Counter(at for at in matched if at is not None)
    repeated = [there[at] for at, count in counts.items() if count > 1]
    if repeated:
        raise ValueError(f"{repeated[0]} would stand for several cameras of {', '.join(wanted)}")
    missing = [name for name, at in zip(wanted, matched, strict=True) if at is None]
    if missing and len(missing) != len(rest):
        left = ", ".join(there[at] for at in rest) or "none"
        have = "has" if len(missing) == 1 else "have"
        raise ValueError(f"{', '.join(missing)} {have} no partner by name; left: {left}")


def _renamed(wanted: Sequence[str], there: Sequence[str], renamed: Mapping[str, str]) -> list[str]:
    """Return the wanted names, the renamed ones as `there` has them. Raises ValueError for a name that is unknown."""
    names = list(wanted)
    for name, other in renamed.items():
        at = _matching_index(name, wanted)
        if at is None:
            raise _no_camera(name, wanted)
        if _matching_index(other, there) is None:
            raise _no_camera(other, there)
        names[at] = other
    return names


def _no_camera(name: str, known: Sequence[str]) -> ValueError:
    return ValueError(f"there is no camera {name} among {', '.join(known) or 'none'}")


def short_name(name: str) -> str:
    """Return a camera's name without generic parts. Example: "observation.images.top" -> "top"."""
    parts = [part for part in re.split(r"[./]", name) if part]
    specific = [part for part in parts if part.lower() not in _GENERIC_WORDS]
    return "_".join(specific or parts[-1:])


def _matching_index(name: str, names: Sequence[str]) -> int | None:
    """Return the index of the only matching name; None: none or several match."""
    if name in names:
        return list(names).index(name)
    alike = [at for at, other in enumerate(names) if _normalized_name(other) == _normalized_name(name)]
    return alike[0] if len(alike) == 1 else None


def _normalized_name(name: str) -> str:
    return short_name(name).lower().replace("-", "_")


def compare(
    data: DatasetInfo | None,
    world: World,
    policy: PolicySpaces | None = None,
    renamed: Mapping[str, str] | None = None,
    learns_rewards: bool = False,
) -> CompatibilityReport:
    """Compare a data set, the world and the policy.

    renamed: policy.cameras. learns_rewards: the algorithm learns from the rewards of the data set.
    """
    fit = CompatibilityReport()
    spaces = world.spaces
    if data is None and policy is not None and policy.cameras and (spaces.cameras or world.is_exact):
        try:
            number = world.known(spaces.num_images) or 0
            match = match_policy_cameras(policy.cameras, spaces.cameras, number, renamed or {})
            fit.notes += [f"cameras, world → policy: {match}"] if match.differs else []
        except RunError as error:
            fit.refusals.append(error)
    if data is not None:
        _compare_cameras(fit, data, world)
        state = world.known(spaces.num_proprio), spaces.proprio_names
        actions = world.known(spaces.num_actions), spaces.action_names
        _compare_vector(fit, "state", (data.num_proprio, data.proprio_names), state)
        _compare_vector(fit, "actions", (data.num_actions, data.action_names), actions)
        _compare_rate(fit, data, world)
        _compare_sentences(fit, data, world)
        fit.notes += [f"the data set: {sentence}" for sentence in data.left_out]
    _add_columns(fit, data, world, policy)
    if data is not None:
        judge_pictures(fit, data, world, policy)
        judge_numbers(fit, data, world, policy, learns_rewards)
    return fit


def match_policy_cameras(
    named: Sequence[str], cameras: Sequence[str], num_images: int, renamed: Mapping[str, str]
) -> CameraMatch:
    """Match a policy's cameras with a world's. Raises RunError if one has no match.

    cameras, num_images: of the world, whose cameras may have no names. renamed: policy.cameras.
    """
    there = tuple(cameras) or tuple(f"camera_{at}" for at in range(num_images))
    try:
        return match_cameras(named, there, renamed)
    except ValueError as error:
        raise RunError(
            f"The policy looks through {', '.join(named)}; the simulator shows {', '.join(there) or 'no pictures'}.",
            key="policy.cameras",
            value=dict(renamed),
            cause=f"{error}.",
            remedy="Say which is which, as policy.cameras={POLICY_CAMERA: SIMULATOR_CAMERA}, or let the simulator "
            "show what the policy was trained with (the simulator's own key for its pictures).",
            exit_status=ExitStatus.bad_input,
        ) from error


def match_dataset_cameras(data: DatasetInfo, world: World) -> CameraMatch | None:
    """Match a world's cameras with those of a data set; None: the world has no cameras, or they are unknown.

    Raises ValueError naming cameras without a match.
    """
    there = world.spaces.cameras
    number = world.known(world.spaces.num_images)
    if number == 0 or (number is None and not there):
        return None
    wanted = there or tuple(f"camera {at + 1}" for at in range(number or 0))
    if data.is_ordered and len(data.cameras) == len(wanted):
        return CameraMatch(wanted, data.cameras, tuple(range(len(wanted))), (True,) * len(wanted))
    return match_cameras(wanted, data.cameras)


def _compare_cameras(fit: CompatibilityReport, data: DatasetInfo, world: World) -> None:
    try:
        match = match_dataset_cameras(data, world)
    except ValueError as error:
        fit.refusals.append(mismatch("cameras", f"{error}", "demos.keys.images", _CAMERA_REMEDY))
        return
    if match is None:
        return
    fit.cameras = tuple(data.cameras[at] for at in match.order)
    if not match.is_certain:
        cause = f"No name fits: {match}, by their order alone. A swap of two cameras would not be noticed"
        fit.refusals.append(mismatch("cameras", cause, "demos.keys.images", _CAMERA_REMEDY))
    elif match.differs:
        fit.notes.append(f"cameras, data set → world: {match}")
    sizes = {name: size for name, size in zip(data.cameras, data.camera_sizes, strict=True) if name in fit.cameras}
    stretched = [f"{name} ({height} x {width})" for name, (height, width) in sizes.items() if height != width]
    if stretched and world.image_size:
        fit.warnings.append(
            f"pictures of {', '.join(stretched)} are not square, and those of the world are ({world.image_size} x "
            f"{world.image_size}): the policy sees other proportions than in the data set"
        )


def _compare_vector(
    fit: CompatibilityReport, what: str, data: tuple[int, tuple[str, ...]], world: tuple[int | None, tuple[str, ...]]
) -> None:
    key = "demos.keys.state" if what == "state" else "demos.keys.action"
    (number, names) = data
    (wanted, there) = world
    if wanted is None or (what == "state" and number == 0 and wanted == 0):
        return
    if number != wanted:
        cause = f"The data set has {number} numbers of {what}, the world {wanted}"
        fit.refusals.append(mismatch(what, cause, key, _COUNT_REMEDY))
        return
    ours = _informative_names(there)
    theirs = _informative_names(names)
    common = set(ours) & set(theirs)
    if not ours or not theirs or ours == theirs:
        return
    misplaced = [name for name in ours if name in common and ours.index(name) != theirs.index(name)]
    if misplaced:
        cause = f"{misplaced[0]} is number {theirs.index(misplaced[0])} of the data set's {what} and number "
        cause += f"{ours.index(misplaced[0])} of the world's"
        fit.refusals.append(mismatch(what, cause, key, "Record or rewrite the data set in the world's order."))
    else:
        pairs = [f"{data_name} → {other}" for data_name, other in zip(names, there, strict=True) if data_name != other]
        fit.warnings.append(f"{what} have other names in the data set than in the world: {listed(pairs)}")


def _compare_rate(fit: CompatibilityReport, data: DatasetInfo, world: World) -> None:
    rate = world.spaces.control_hz
    if rate is None or abs(data.fps - rate) <= RATE_TOLERANCE * rate:
        return
    cause = f"The data set has {data.fps:g} frames a second, the world {rate:g} control steps"
    if world.spaces.is_hz_nominal:
        fit.warnings.append(f"{cause}: an imitated movement has another speed there")
    else:
        remedy = f"Set demos.fps={rate:g} {_RATE_REMEDY} env.action_hz={data.fps:g} makes the world's steps as long."
        fit.refusals.append(mismatch("rate", cause, "demos.fps", remedy))


def _compare_sentences(fit: CompatibilityReport, data: DatasetInfo, world: World) -> None:
    if not data.sentences:
        return
    if not all(sentence.strip() for sentence in data.sentences):
        fit.warnings.append("some frames of the data set have no sentence: the policy learns them for an empty one")
    unknown = [sentence for sentence in world.spaces.instructions if sentence not in data.sentences]
    if unknown:
        fit.warnings.append(
            f"the world says {listed([repr(text) for text in unknown])}, which no episode of the data set has "
            f"({listed([repr(text) for text in data.sentences])}): env.instruction or the data set can be changed"
        )


def _add_columns(fit: CompatibilityReport, data: DatasetInfo | None, world: World, policy: PolicySpaces | None) -> None:
    def numbers(count: int | None, names: Sequence[str] = ()) -> str:
        shown = _informative_names(tuple(names))
        return "" if count is None else f"{count}: {listed(shown)}" if shown else str(count)

    spaces = world.spaces
    cameras = numbers(world.known(spaces.num_images), spaces.cameras)
    ours = ("", "", "", "")
    if data is not None:
        sizes = zip(data.cameras, data.camera_sizes, strict=True)
        ours = (
            listed([f"{name} {height}x{width}" for name, (height, width) in sizes]),
            numbers(data.num_proprio, data.proprio_names),
            numbers(data.num_actions, data.action_names),
            f"{data.fps:g} Hz",
        )
    theirs = ("", "", "")
    if policy is not None:
        proprio = str(policy.num_proprio) if policy.num_proprio else "none"
        theirs = (", ".join(policy.cameras), proprio, str(policy.num_actions or ""))
    hz = "" if spaces.control_hz is None else f"{spaces.control_hz:g} Hz"
    fit.rows += [
        Row("cameras", ours[0], cameras, theirs[0]),
        Row("state", ours[1], numbers(world.known(spaces.num_proprio), spaces.proprio_names), theirs[1]),
        Row("actions", ours[2], numbers(world.known(spaces.num_actions), spaces.action_names), theirs[2]),
        Row("rate", ours[3], hz),
    ]
    if data is not None and data.sentences:
        fit.rows.append(Row("sentences", listed(data.sentences), listed(world.spaces.instructions)))


def _informative_names(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names; () if they only number the entries, as "action/3" and "motor_3" do."""
    stems = {name.rstrip("0123456789").rstrip("/_.") for name in names}
    numbered = len(stems) == 1 and all(name[-1:].isdigit() for name in names)
    return () if numbered else names
