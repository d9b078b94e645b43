"""The checkpoints of a run: the one to resume from, and the one to restore after the loss of an actor worker."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, cast

from rlrun.config.recorded import CHECKPOINTS
from rlrun.data import checkpoint_folder
from rlrun.observability.disk_speed import folder_bytes
from rlrun.system.errors import ExitStatus, RunError
from rlrun.training.session import Session

LEFT_CHECKPOINTS = "checkpoints_left_"  # _1, …: of steps after a checkpoint that a run returned to
_NEVER = -1.0  # a success rate that was not measured yet
_NO_VERSION = -1
_COPIES = 4.0  # copies of a policy in a checkpoint: the policy twice, and two moments of the optimizer


@dataclass
class Progress:
    """The counters of the driver."""

    step: int = 0  # training steps done
    policy_version: int = 0
    env_steps: int = 0
    elapsed_s: float = 0.0
    best_success_rate: float = _NEVER
    best_version: int = _NO_VERSION  # of the policy whose evaluation had `best_success_rate`
    first_success_rate: float = _NEVER
    base_policy: str = ""  # folder of the first policy of this process
    is_evaluation_owed: bool = False  # a signal interrupted the evaluation of this step

    @property
    def is_best(self) -> bool:
        """Whether the present policy is the one whose evaluation was the best so far."""
        return self.best_version == self.policy_version

    def take_evaluation(self, success_rate: float) -> None:
        """Note the success rate of the present policy."""
        if success_rate > self.best_success_rate:
            self.best_success_rate = success_rate
            self.best_version = self.policy_version

    @classmethod
    def read(cls, stored: dict[str, object], checkpoint: Path) -> Progress:
        """Return the counters from a checkpoint's state.json. Raises RunError if counters are missing or wrong."""
        stored = {"best_version": _NO_VERSION} | stored  # version 0.3 did not store it
        faults = _faults(stored)
        if not faults:
            return cls(**stored)  # type: ignore[arg-type]  # the names were checked above
        raise RunError(
            f"The counters in {checkpoint / 'state.json'} are damaged, or of another version of rlrun.",
            key="checkpoint.resume",
            value=str(checkpoint),
            cause="\n".join(faults),
            remedy="Take another checkpoint, or start in a new output_dir.",
            exit_status=ExitStatus.bad_input,
        )


def _faults(stored: dict[str, object]) -> list[str]:
    defaults = {field.name: field.default for field in fields(Progress)}
    faults = [f"{name} is missing" for name in defaults.keys() - stored.keys()]
    faults += [f"{name} is unknown" for name in stored.keys() - defaults.keys()]
    if faults:
        return sorted(faults)
    kinds = {name: (int, float) if type(default) is float else (type(default),) for name, default in defaults.items()}
    faults = [f"{name} is {stored[name]!r}" for name, kind in kinds.items() if type(stored[name]) not in kind]
    if not faults:
        lowest = {
            name: _NEVER if default == _NEVER else 0 for name, default in defaults.items() if name != "base_policy"
        }
        faults = [
            f"{name} is {stored[name]}" for name, least in lowest.items() if not cast(float, stored[name]) >= least
        ]
        if stored["policy_version"] != stored["step"]:
            faults.append(f"policy_version is {stored['policy_version']} after {stored['step']} steps")
        if cast(int, stored["best_version"]) > cast(int, stored["policy_version"]):
            faults.append(f"best_version is {stored['best_version']}, and the newest is {stored['policy_version']}")
    return faults


@dataclass(frozen=True)
class Pending:
    """A checkpoint that the actor writes while training goes on."""

    folder: Path
    state: dict[str, Any]  # the counters in it
    watch: ExitStack  # warns, also beside training, of a disk that is slow or hangs; closed at the end


class Checkpoints:
    """Saves and restores the actor together with the driver's counters."""

    def __init__(self, session: Session, on_saved: Callable[[int, Path], None] = lambda step, folder: None):
        """on_saved: called with step and folder of each checkpoint once it is complete."""
        self._session = session
        self._on_saved = on_saved
        self._pending: Pending | None = None
        self.newest: Path | None = None  # the newest one that was saved or restored
        self._state: dict[str, Any] = {}  # the counters in `newest`

    @property
    def step(self) -> int | None:
        """The step of `newest`; None without one."""
        return self._state.get("step")

    def holds(self, progress: Progress) -> bool:
        """Return whether this run folder's newest checkpoint holds these counters: another would be the same."""
        is_own = self.newest is not None and self.newest.parent == self._session.run_dir / CHECKPOINTS
        return is_own and self._state == asdict(progress)

    def to_resume(self) -> Path | None:
        """Return the checkpoint that `checkpoint.resume` names; None: start anew. Raises RunError."""
        for folder in checkpoint_folder.list_all(self._session.run_dir / CHECKPOINTS):  # the run would overwrite them
            checkpoint_folder.require_format(folder, is_newer_only=True)
        wanted = self._session.config.checkpoint.resume
        if wanted is None:
            return None
        own = self._session.run_dir / CHECKPOINTS
        is_own = own.resolve() in (Path(wanted).resolve(), Path(wanted).resolve().parent)
        if wanted != "auto" and not is_own and checkpoint_folder.latest(own) is not None:
            # the same command again, as after a requeue, would lose what it has trained
            newest = self.latest_valid(own)
            if newest is not None:  # else all of them are damaged
                self._session.console.warning(f"checkpoint.resume={wanted} began this run, which goes on from {newest}")
                return newest
        if wanted == "auto":
            return self.latest_valid(own)
        if checkpoint_folder.is_checkpoint(Path(wanted)):
            with self._session.phase("verify checkpoints"):
                self._session.controller.verify_checkpoint(wanted)
            self._set_later_aside(Path(wanted).absolute())
            return Path(wanted)
        checkpoint = self.latest_valid(Path(wanted))
        if checkpoint is None:
            raise RunError(
                f"There is no checkpoint in {wanted}.",
                key="checkpoint.resume",
                value=wanted,
                remedy="Name a run's checkpoints folder, or one checkpoint in it; null starts afresh.",
                exit_status=ExitStatus.bad_input,
            )
        return checkpoint

    def _set_later_aside(self, checkpoint: Path) -> None:
        """Move this run's checkpoints after `checkpoint` aside: its next start goes on from where it returns to."""
        run_dir = self._session.run_dir
        if checkpoint.parent.resolve() != (run_dir / CHECKPOINTS).resolve():
            return
        place = run_dir / f"{LEFT_CHECKPOINTS}{1 + len(list(run_dir.glob(f'{LEFT_CHECKPOINTS}*')))}"
        moved = checkpoint_folder.set_later_aside(checkpoint, place)
        if moved:
            names = ", ".join(folder.name for folder in moved)
            self._session.console.warning(f"the run returns to {checkpoint.name}: {names} are now in {place}")

    def latest_valid(self, root: Path, at_most: Path | None = None) -> Path | None:
        """Return the latest valid checkpoint under `root`; None if there is no checkpoint.

        Warns of each newer, damaged one. at_most: the newest to consider.
        """
        with self._session.phase("verify checkpoints"):
            newest, skipped = self._session.controller.latest_checkpoint(
                str(root), str(at_most) if at_most is not None else None
            )
        for warning in skipped:
            self._session.console.warning(warning)
        return Path(newest) if newest else None

    def restore(self, checkpoint: Path) -> Progress:
        """Restore the loaded actor from a checkpoint. Returns the counters in it."""
        progress = Progress.read(self._session.controller.restore(str(checkpoint)), checkpoint)
        self.newest = checkpoint
        self._state = asdict(progress)
        root = self._session.run_dir / CHECKPOINTS
        top = checkpoint_folder.folder_of_step(root, max(0, progress.best_version))
        is_own = checkpoint.parent.resolve() == root.resolve()
        if is_own and checkpoint_folder.best(root) is None and checkpoint_folder.is_complete(top):
            checkpoint_folder.mark_best(top)  # a better one of later steps was set aside
        return progress

    def save(self, progress: Progress) -> Path:
        """Write a checkpoint, complete or not at all; no scheduler's signal cuts it short. Returns its folder."""
        session = self._session
        root = self._session.run_dir / CHECKPOINTS
        state = asdict(progress)
        with session.stop.saving():
            self.wait_until_saved()
            what = f"checkpoint of step {progress.step}"
            usual_s = session.watchdog.budgets.usual("driver", "save", False)  # None: no earlier save
            with session.phase("save") as saving, session.disk.watched(what, self.expected_bytes(progress), usual_s):
                folder = Path(session.controller.save(str(root), state, progress.is_best))
            session.disk.check_write(what, folder_bytes(folder), saving.seconds, session.controller.try_disk)
            self._completed(folder, state)
        return folder

    def begin(self, progress: Progress) -> None:
        """Copy the state of a checkpoint, which is written while training goes on."""
        self.wait_until_saved()
        session = self._session
        root = self._session.run_dir / CHECKPOINTS
        state = asdict(progress)
        with session.phase("save"):
            folder = Path(session.controller.begin_save(str(root), state, progress.is_best))
        watch = ExitStack()
        what = f"checkpoint of step {progress.step}"
        watch.enter_context(session.disk.watched(what, self.expected_bytes(progress), None))
        self._pending = Pending(folder, state, watch)

    def poll(self) -> None:
        """Take the pending checkpoint over if it is written; does not wait for the disk. Raises RunError, as `save`."""
        if self._pending is not None and self._session.controller.is_saved():
            self.wait_until_saved()

    def wait_until_saved(self) -> None:
        """Wait until the pending checkpoint, if there is one, is complete. Raises RunError, as `save`."""
        pending = self._pending
        self._pending = None
        if pending is None:
            return
        session = self._session
        with pending.watch, session.phase("save") as waiting:
            session.controller.finish_save(str(pending.folder))
        what = f"checkpoint of step {pending.state['step']}"
        session.disk.check_write(what, folder_bytes(pending.folder), waiting.seconds, session.controller.try_disk)
        self._completed(pending.folder, pending.state)

    def abandon(self) -> None:
        """Forget the pending checkpoint, since its writers are lost; it counts if it was complete before."""
        pending = self._pending
        self._pending = None
        if pending is None:
            return
        pending.watch.close()
        if checkpoint_folder.is_complete(pending.folder):
            self._completed(pending.folder, pending.state)

    def _completed(self, folder: Path, state: dict[str, Any]) -> None:
        self.newest = folder
        self._state = state
        self._on_saved(state["step"], folder)

    def expected_bytes(self, progress: Progress) -> float:
        """Return the size of a checkpoint: that of the newest one, or an estimate from the first policy."""
        if self.newest is not None:
            return folder_bytes(self.newest)
        return _COPIES * folder_bytes(Path(progress.base_policy))
