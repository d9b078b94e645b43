"""Comparison of a data set's pictures with those of the world's first states: orientation, colours, frozen cameras."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rlrun.data.fit_report import FITS, CompatibilityReport, Row, World, listed, mismatch
from rlrun.data.lerobot.changes import PICTURES
from rlrun.data.thumbnails import NOISE_LEVELS, ORIENTATIONS, SWAP, differences, likeness, spread, thumbnail

if TYPE_CHECKING:
    from rlrun.data.lerobot.reader import DatasetInfo, ShownPictures
    from rlrun.edges.spaces import PolicySpaces

MIN_LIKENESS = 0.5  # correlation with the world's pictures above which a changed orientation is believed
CLEARLY = 0.5  # of the distance, 1 - correlation: what fits so much better is no accident
AGREEING = 0.9  # of the data set's pictures must fit better
_FROZEN_REMEDY = "Record it again with a camera that works, or take others in demos.keys.images."


def judge_pictures(fit: CompatibilityReport, data: DatasetInfo, world: World, policy: PolicySpaces | None) -> None:
    """Add a row for each camera of the world that the data set shows, and what is wrong with it."""
    if not data.shown or not fit.cameras:
        return
    shown = [data.shown[data.cameras.index(name)] for name in fit.cameras]
    starts = _starts(world, len(shown))
    if starts is not None:
        _judge_order(fit, shown, starts)
    for at, (name, pictures) in enumerate(zip(fit.cameras, shown, strict=True)):
        theirs = None if starts is None else starts[at]
        verdict = _unusable(fit, name, pictures, world, at, theirs)
        if verdict is None:
            verdict = "" if theirs is None else _orientation(fit, name, pictures, theirs)
        height, width = data.camera_sizes[data.cameras.index(name)]
        ours = f"{height}x{width}, mean {pictures.first.mean():.0f}"
        there = world.spaces.cameras[at] if world.spaces.cameras else f"camera {at + 1}"
        there = there if theirs is None else f"{there}, mean {theirs.mean():.0f}"
        fit.rows.append(Row(f"camera {name}", ours, there, "" if policy is None else "taken", verdict))


def _starts(world: World, num_cameras: int) -> list[np.ndarray] | None:
    """Return thumbnails of the world's starts, uint8 [R, …] by camera; None: it was not started."""
    if world.sample is None or world.sample.images.shape[1] != num_cameras:
        return None
    images = world.sample.images
    return [np.stack([thumbnail(row[at]) for row in images]) for at in range(num_cameras)]


def _unusable(
    fit: CompatibilityReport, name: str, pictures: ShownPictures, world: World, at: int, theirs: np.ndarray | None
) -> str | None:
    """Return the verdict on pictures that show nothing or never move; None: they do."""
    sample = world.sample
    if pictures.is_flat.any():
        is_world_flat = theirs is not None and not (spread(theirs) > NOISE_LEVELS).any()
        return FITS if is_world_flat else _frozen(fit, name, pictures, pictures.is_flat, "one colour")
    is_still = ~pictures.has_moved
    if not is_still.any():
        return None
    if sample is None or theirs is None:
        is_one = bool((differences(pictures.first[:1], pictures.first) <= NOISE_LEVELS).all())
        is_frozen = len(is_still) > 1 and is_still.all() and is_one
    else:
        moves = differences(sample.images[:, at], sample.last_images[:, at]) > 2 * NOISE_LEVELS
        is_frozen = moves.mean() >= CLEARLY if is_still.all() else moves.all() and is_still.mean() < CLEARLY
    return _frozen(fit, name, pictures, is_still, "one picture") if is_frozen else None


def _frozen(fit: CompatibilityReport, name: str, pictures: ShownPictures, is_frozen: np.ndarray, what: str) -> str:
    """Refuse a camera that shows nothing in any episode, and warn of one that does in some. Returns the verdict."""
    if is_frozen.all():
        cause = f"The camera {name} shows {what} in all frames of every episode that was looked at"
        fit.refusals.append(mismatch("pictures", cause, "demos.keys.images", _FROZEN_REMEDY))
        return f"{what} in all frames"
    episodes = listed([str(episode) for episode in pictures.episodes[is_frozen]])
    fit.warnings.append(
        f"the camera {name} shows {what} in all frames of episode {episodes}: demos.episodes can leave it out"
    )
    return f"{what} in all frames of episode {episodes}"


def _orientation(fit: CompatibilityReport, name: str, pictures: ShownPictures, theirs: np.ndarray) -> str:
    """Compare eight orientations and two orders of colours. Returns the verdict."""
    plain = likeness(pictures.first, theirs).max(1)
    best: tuple[float, tuple[str, ...], str] = (float(plain.mean()), (), "")
    for steps, words in ORIENTATIONS.items():
        for swap in ((), (SWAP,)):
            found = likeness(_changed(pictures.first, (*steps, *swap)), theirs).max(1)
            is_better = (found > plain).mean() >= AGREEING and 1 - found.mean() < CLEARLY * (1 - plain.mean())
            if is_better and found.mean() > max(best[0], MIN_LIKENESS):
                told = " and ".join([words] * bool(words) + ["with red and blue exchanged"] * bool(swap))
                best = float(found.mean()), (*steps, *swap), told
    if not best[1]:
        return FITS if plain.mean() > MIN_LIKENESS else f"unlike the world's first ones (likeness {plain.mean():.2f})"
    fit.warnings.append(
        f"pictures of {name} fit the world's first ones best {best[2]} (likeness {best[0]:.2f}, as they are "
        f"{plain.mean():.2f}): demos.keys.pictures={{{name}: [{', '.join(best[1])}]}} changes them so"
    )
    return f"fits best {best[2]}"


def _changed(pictures: np.ndarray, steps: tuple[str, ...]) -> np.ndarray:
    for step in steps:
        pictures = PICTURES[step](pictures)
    return pictures


def _judge_order(fit: CompatibilityReport, shown: list[ShownPictures], starts: list[np.ndarray]) -> None:
    """Warn if two cameras of the data set show what the other one of the world shows."""
    number = len(shown)
    far = np.array([[1 - likeness(one.first, other).max(1).mean() for other in starts] for one in shown])
    for at in range(number):
        for other in range(at + 1, number):
            exchanged = max(far[at, other], far[other, at])
            if exchanged < CLEARLY * min(far[at, at], far[other, other]) and exchanged < 1 - MIN_LIKENESS:
                names = fit.cameras[at], fit.cameras[other]
                order = list(fit.cameras)
                order[at], order[other] = order[other], order[at]
                fit.warnings.append(
                    f"{names[0]} shows what the world shows where {names[1]} is taken, and the reverse: "
                    f"demos.keys.images names the features in the world's order, here {', '.join(order)}"
                )
