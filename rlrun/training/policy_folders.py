"""The first policy of a run: a given one, a new one, or one that has imitated the expert's demonstrations."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from rlrun.config import provenance
from rlrun.config.recorded import read_config
from rlrun.config.registry import ALGORITHMS
from rlrun.config.schema import RunConfig
from rlrun.config.sources import computing_digest, world_digest
from rlrun.data import checkpoint_folder, checksums
from rlrun.data.fit import World, compare
from rlrun.data.fit_replay import MAX_STARTS, MIN_STARTS, replayed_actions
from rlrun.data.lerobot import dataset_digest
from rlrun.data.lerobot.reader import DatasetInfo, dataset_info
from rlrun.edges.spaces import PolicySpaces
from rlrun.edges.world_sample import WorldSample
from rlrun.observability.records import ABLATION_NOTE, ablation_sentence
from rlrun.observability.run_files import DATASET
from rlrun.policies.spec import CONFIG_FILE, policy_spec
from rlrun.system.errors import ExitStatus, RunError
from rlrun.training.session import Session

SHOWN = 3  # damaged files named in a message


def verify_policy(folder: Path, key: str, is_content_read: bool, progress: Callable[[], None] = lambda: None) -> None:
    """Raise RunError naming the damaged files of a policy that rlrun wrote; folders from elsewhere have no checksums.

    key: the configuration key that names the folder. is_content_read: False: compare only names and sizes.
    """
    if not (folder / checksums.CHECKSUMS).is_file():
        return
    damages = checksums.find_corruption(folder, is_content_read, progress=progress)
    if damages:
        raise RunError(
            f"The policy in {folder} is damaged.",
            key=key,
            value=str(folder),
            cause="; ".join(damages[:SHOWN]),
            remedy=f"Copy the whole folder again from where it was whole. If its files were changed on purpose, delete "
            f"{checksums.CHECKSUMS} in it.",
            exit_status=ExitStatus.bad_input,
        )


def policy_folder(config: RunConfig) -> Path:
    """Return the policy folder for `evaluation.checkpoint`: itself, or the one inside a run or checkpoint folder.

    Raises RunError if there is none, or if it is damaged.
    """
    checkpoint = config.evaluation.checkpoint
    if checkpoint is None:
        raise RunError(
            "No policy was named.",
            key="evaluation.checkpoint",
            value=None,
            remedy="Add checkpoint=runs/<name>/<time>, or server=ws://host:port.",
        )
    folder = Path(checkpoint)
    for candidate in (folder, folder / "policy"):
        if (candidate / CONFIG_FILE).is_file():
            verify_policy(candidate, "evaluation.checkpoint", config.checkpoint.verify)
            return candidate
    raise RunError(
        f"There is no policy at {folder}.",
        key="evaluation.checkpoint",
        value=checkpoint,
        cause="neither the folder nor a folder `policy` in it has a config.json",
        remedy="Name a run folder that ended, a checkpoint folder, or an exported policy folder.",
        exit_status=ExitStatus.bad_input,
    )


def newer_checkpoint(policy: Path) -> Path | None:
    """Return the last checkpoint of the run that exported the folder `policy` when it ended, if it went on since."""
    recorded = policy / provenance.POLICY_CONFIG
    newest = checkpoint_folder.latest(policy.parent / provenance.CHECKPOINTS)
    if policy.name != "policy" or newest is None or not recorded.is_file():
        return None
    num_steps = read_config(recorded).tree.get("num_steps")
    return newest if isinstance(num_steps, int) and (checkpoint_folder.step_of(newest) or 0) > num_steps else None


def demonstrations(session: Session) -> Path:
    """Return the dataset of `demos.path`, or one from the cache, which is recorded now if it is missing."""
    config = session.config
    if config.demos.path is not None:
        return _existing(Path(config.demos.path), "demos.path", "dataset")  # its reader compares the checksums
    folder = _cached(config, "demos", _content(session, ("env", "demos")))
    if not _is_cached(session, folder, "demonstrations"):
        with session.phase("demos", "env/demos", config.demos.num_episodes):
            _made_once(session, folder, lambda draft: session.controller.record_demos(str(draft)))
    session.console.note(f"demonstrations: {folder}")
    return folder


def first_policy(session: Session) -> Path:
    """Return the folder of `policy.path`, of a policy that imitated demonstrations, or of a new one that needs none."""
    config = session.config
    if config.policy.path is not None:
        folder = _existing(Path(config.policy.path), "policy.path", "policy")
        with session.phase("verify policy"):
            verify_policy(folder, "policy.path", config.checkpoint.verify, session.progress)
        return folder
    if not policy_spec(config).needs_demonstrations:
        folder = session.run_dir / "first_policy"
        session.controller.begin_policy(str(folder))
        return folder
    folder = _cached(config, "sft", _content(session, ("env", "demos", "policy", "sft", "seed", "actor")))
    if not _is_cached(session, folder, "policy"):
        dataset = demonstrations(session)
        _made_once(session, folder, lambda draft: imitate(session, dataset, draft))
    session.console.note(f"policy after imitation: {folder}")
    return folder


def imitate(session: Session, dataset: Path, folder: Path) -> None:
    """Train a new policy on `dataset` and write it to `folder`, completely or not at all."""
    cameras = fitting_cameras(session, dataset)
    with session.phase("sft", "actor/0/imitation_steps", session.config.sft.num_steps):
        last = session.controller.imitate(str(dataset), cameras)
    session.console.note("imitation: " + "  ".join(f"{name} {value:.4g}" for name, value in last.items()))
    if last.get("num_nonfinite"):
        session.console.warning(
            f"{last['num_nonfinite']:.0f} of {session.config.sft.num_steps} optimizer steps of imitation had infinite "
            "gradients and were skipped; the numbers are of the last finite one"
        )
    looks = ablation_sentence(last)
    if looks is not None:
        say = session.console.warning if looks.is_blind else session.console.note
        say(f"after imitation, {looks.words}")
        session.sinks.text(0, ABLATION_NOTE, looks.words)
    session.controller.export(str(folder))


def _content(session: Session, sections: tuple[str, ...]) -> dict:
    """Return all inputs of demonstrations or of a policy after imitation.

    These are the sections, the dataset, all sources, and what the simulators say that they are: their versions, which
    are those of their own interpreter, their renderer and their assets.
    """
    config = session.config
    tree = provenance.as_tree(config)
    keys = {name: tree[name] for name in sections}
    keys["demos"] = {name: value for name, value in tree["demos"].items() if name != "memory_gb"}
    if config.demos.path is not None:
        keys["dataset"] = dataset_digest(_existing(Path(config.demos.path), "demos.path", "dataset"))
    worlds = sorted({tuple(sorted(fingerprint.items())) for fingerprint in session.controller.fingerprints()})
    return keys | {"world": world_digest(tree["env"]), "worlds": worlds, "sources": computing_digest(config)}


def fitting_cameras(session: Session, dataset: Path) -> tuple[str, ...]:
    """Compare a dataset with the simulators. The comparison with a user's own is shown, and kept in the run folder.

    Returns the dataset's cameras in the order of the simulators'. Raises RunError if the two do not fit.
    """
    config = session.config
    console = session.console
    data = dataset_info(config.demos, str(dataset))
    sample = _answers(session, data) if config.demos.path is not None else None
    world = World(session.controller.world, config.env.image_size, sample=sample)
    num_proprio = data.num_proprio if config.policy.use_proprio else 0
    policy = PolicySpaces(data.num_actions, num_proprio, world.spaces.cameras)
    learns_rewards = ALGORITHMS.get(config.algorithm.name).needs_demonstrations
    fit = compare(data, world, policy, learns_rewards=learns_rewards)
    if config.demos.path is not None:
        console.note(f"sft: {dataset} beside the world and the new policy; every number is in {DATASET}")
        for line in fit.lines(is_whole=False):
            console.note(line)
        (session.run_dir / DATASET).write_text(fit.text(), encoding="utf-8")
    for line in fit.notes:
        console.note(line)
    for warning in fit.warnings:
        console.warning(warning)
    fit.require()
    return fit.cameras


def _answers(session: Session, data: DatasetInfo) -> WorldSample | None:
    """Start episodes in the world with the first actions of the data set; None: the world takes other actions."""
    config = session.config
    num_rows = min(MAX_STARTS, max(MIN_STARTS, config.env.num_envs // config.env.num_workers))
    actions = replayed_actions(data, session.controller.world, num_rows)
    if actions is None:
        return None
    with session.phase("compare data set"):
        return session.controller.sample_world([config.demos.seed + row for row in range(num_rows)], actions)


def _cached(config: RunConfig, kind: str, keys: dict) -> Path:
    """Return the cache folder whose name is derived from everything that its content depends on."""
    versions = provenance.origin()["packages"]
    text = json.dumps([keys, [versions.get(name) for name in ("torch", "rlrun")]], sort_keys=True)
    return Path(config.cache_dir) / f"{kind}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def _is_cached(session: Session, folder: Path, what: str) -> bool:
    """Return whether the cache has a valid `folder`. Removes a damaged one, so that it is made again."""
    if not folder.exists():
        return False
    damages = checksums.find_corruption(folder, progress=session.progress)
    if not damages:
        return True
    session.console.note(f"cached {what}, {folder}: damaged ({'; '.join(damages[:SHOWN])}), made again")
    aside = folder.with_name(f".{folder.name}.{_own(session)}.damaged")  # so that nothing reads it half deleted
    with suppress(FileNotFoundError):  # another run has moved it
        folder.rename(aside)
        shutil.rmtree(aside) if aside.is_dir() else aside.unlink()
    return False


def _own(session: Session) -> str:
    """Return a name that is unique among runs."""
    return hashlib.sha256(str(session.run_dir).encode()).hexdigest()[:8]


def _made_once(session: Session, folder: Path, make: Callable[[Path], None]) -> None:
    """Make `folder` under a temporary name, unique among runs, and move it into place.

    Several runs may make the same folder at the same time. The first one keeps its place, since others may be reading
    it already; the later copies, which are equal, are removed.
    """
    draft = folder.with_name(f".{folder.name}.{_own(session)}")
    make(draft)
    try:
        checksums.rename_durably(draft, folder)
    except OSError:
        if not folder.is_dir():
            raise
        shutil.rmtree(draft)


def _existing(folder: Path, key: str, what: str) -> Path:
    if folder.is_dir():
        return folder
    raise RunError(
        f"There is no {what} folder at {folder}.",
        key=key,
        value=str(folder),
        remedy="Correct the path, or leave the key out: rlrun then makes its own.",
        exit_status=ExitStatus.bad_input,
    )
