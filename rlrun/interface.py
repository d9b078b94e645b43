"""rlrun from Python: read a configuration, open a policy and act, step a simulator, do a whole run.

Shape legend: B rows, N images per row, C control steps per chunk, A action dimensions, P proprioception.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rlrun.config.faults import Check
from rlrun.config.loader import load
from rlrun.config.recorded import config_of_policy
from rlrun.config.schema import RunConfig
from rlrun.system.errors import ExitStatus
from rlrun.system.errors import RunError as RunError
from rlrun.training.callbacks import Callback as Callback

if TYPE_CHECKING:
    from rlrun.envs.simulator_env import SimulatorEnv
    from rlrun.observability.records import EvaluationRecord
    from rlrun.policies.policy import Policy

logger = logging.getLogger(__name__)
ARRANGED = "Give np.stack([picture]) of one camera, and np.moveaxis(images, 1, -1) of channels before rows."
CONVERTED = (
    "Give images.astype(np.uint8) of numbers up to 255, and (images * 255).round().astype(np.uint8) of numbers up to 1."
)
SENSOR = "Ask for actions only after every sensor has given its first number."


Source = Sequence[str] | str | Path  # of a configuration: arguments, or the folder of a run, checkpoint or policy


def load_config(
    source: Source, config_dir: str | None = None, changes: Sequence[str] = (), trust: bool = False
) -> RunConfig:
    """Return the checked configuration of arguments as on the command line, or that of a run. Raises RunError.

    source: arguments, or a folder that a run wrote: then all but what says where that run was, such as output_dir.
    config_dir: a folder of further YAML files. changes: arguments on top of those of a folder. trust: the folder is
    yours, although no run of yours wrote it on this machine; else only what its policy needs is taken.

    Example: load_config(["run=cartpole", "num_steps=10"]); load_config("runs/first", changes=["seed=1"])
    """
    return _loaded(source, config_dir, changes, trust, frozenset())


def _loaded(
    source: Source, config_dir: str | None, changes: Sequence[str], trust: bool, skipped: frozenset[Check]
) -> RunConfig:
    """Compose and check. skipped: checks of `config.checks` to leave out."""
    if not isinstance(source, (str, Path)):
        return load([*source, *changes], config_dir, skipped=skipped)
    given = {change.partition("=")[0] for change in changes}
    recorded = config_of_policy(Path(source), trust, given)
    if recorded is None:
        raise RunError(
            f"There is no configuration of a run at {source}.",
            key="source",
            value=str(source),
            cause="It is no folder that a run wrote: a run folder, a checkpoint, or an exported policy.",
            remedy="Name such a folder, or give arguments as a list.",
            exit_status=ExitStatus.bad_input,
        )
    if recorded.remark is not None:
        logger.warning(recorded.remark)
    return load(list(changes), config_dir, recorded, skipped)


@dataclass(frozen=True)
class RunResult:
    """The end of a run, and what it left. Example: ``run(config).evaluation.success_rate``"""

    status: ExitStatus
    folder: Path  # of the run
    evaluation: EvaluationRecord | None  # the last one; None without any
    policy: Path | None  # the folder that `load_policy` opens; None if the run did not come to its end

    @classmethod
    def from_folder(cls, status: ExitStatus, folder: Path) -> RunResult:
        """Read the result of a run from its folder."""
        from rlrun.observability.records import read_evaluations

        evaluation = next(reversed(read_evaluations(folder)), None)
        return cls(status, folder, evaluation, folder / "policy" if status is ExitStatus.ok else None)

    def __str__(self) -> str:
        """Return the result in three lines; `repr` has every episode of the evaluation."""
        done = f"status {int(self.status)} ({self.status.meaning})"
        lines = [f"{self.folder}: {done}"]
        if self.evaluation is not None:
            one = self.evaluation
            interval = f"95 % interval {100 * one.ci_low:.0f}-{100 * one.ci_high:.0f} %"
            counted = f"{one.successes}/{one.episodes} = {100 * one.success_rate:.0f} % ({interval})"
            lines.append(f"after step {one.step}: success {counted}, mean return {one.mean_return:.4g}")
        if self.policy is not None:
            lines.append(f"policy {self.policy}")
        return "\n".join(lines)


def run(config: RunConfig, callbacks: Sequence[Callback] = ()) -> RunResult:
    """Train as `rlrun train` does: start or resume, evaluate, write policy and report to `config.output_dir`.

    callbacks: called after those that the configuration names. Raises RunError.
    """
    from rlrun.train import train
    from rlrun.training.final_run import with_run_folder

    config = with_run_folder(config)
    return RunResult.from_folder(train(config, callbacks), Path(str(config.output_dir)))


def load_policy(
    folder: str | Path, config: RunConfig | None = None, device: str = "cpu", trust: bool = False
) -> LoadedPolicy:
    """Open a policy folder, or the one inside a run or checkpoint folder.

    config: of the run that an official checkpoint is for; folders that rlrun wrote need none. trust: the folder is
    yours, although no run of yours wrote it on this machine: if it names its kind of policy as module:SPEC, that module
    is imported. Raises RunError.
    """
    import torch

    from rlrun.config.loader import config_of_guest
    from rlrun.policies.folders import spec_of
    from rlrun.policies.opening import open_policy
    from rlrun.policies.spec import CONFIG_FILE

    place = Path(folder)
    inside = place / "policy"
    if config is None:
        config = config_of_guest(place, trust)
    here = inside if (inside / CONFIG_FILE).is_file() else place
    policy = open_policy(here, torch.float32, device, config)
    return LoadedPolicy(policy, tuple(spec_of(here, config).cameras(here)))


class LoadedPolicy:
    """A policy that acts: `act` for one robot, step by step, or `chunk` for whole chunks of any robot."""

    def __init__(self, policy: Policy, cameras: tuple[str, ...] = ()):
        """cameras: names of the pictures, in the order of `images`; (): the policy's folder does not name them."""
        self.policy = policy
        self.cameras = cameras
        self.num_actions = policy.num_actions
        self.num_action_chunks = policy.num_action_chunks
        self._rest = np.zeros((0, policy.num_actions), np.float32)  # actions of the last chunk that are not taken yet
        self._seed = 0

    def reset(self, seed: int = 0) -> None:
        """Begin an episode: drop the rest of the last chunk. seed: of actions that are drawn."""
        self._rest = self._rest[:0]
        self._seed = seed

    def act(
        self,
        images: np.ndarray | None = None,
        instruction: str = "",
        proprio: np.ndarray | None = None,
        temperature: float = 0.0,
    ) -> np.ndarray:
        """Return the next action, float32 [A]. Only every C-th call looks: the others take the rest of its chunk.

        Arguments are those of `chunk`. Call `reset` at the start of each episode.
        """
        if not len(self._rest):
            self._rest = self.chunk(images, instruction, proprio, temperature, self._seed)
            self._seed += 1
        action = self._rest[0]
        self._rest = self._rest[1:]
        return action

    def chunk(
        self,
        images: np.ndarray | None = None,
        instruction: str = "",
        proprio: np.ndarray | None = None,
        temperature: float = 0.0,
        seed: int = 0,
    ) -> np.ndarray:
        """Return the next chunk of actions for one robot: float32 [C, A], in simulator units.

        images: uint8 [N, H, W, 3]; proprio: float32 [P]; each None where the policy takes none. temperature 0 gives
        the most likely actions; above 0 they are drawn, and `seed` decides. Raises RunError for pictures that are no
        bytes, other numbers of them or of the state than the policy takes, and what is not finite, actions too.
        """
        import torch

        pixels = np.zeros((1, 0, 16, 16, 3), np.uint8) if images is None else _bytes(images)[None]
        state = np.zeros((1, 0), np.float32) if proprio is None else np.asarray(proprio, np.float32)[None]
        _require_finite("proprio", state[0], "The robot's state holds a number that is not finite.", SENSOR)
        with torch.inference_mode():
            try:
                distribution, _ = self.policy(pixels, [instruction], state, temperature or 1.0)
            except ValueError as error:  # other numbers of pictures, or of the state, than it takes
                raise _unfit(str(error), list(self.cameras), self.policy.num_proprio) from error
            keys = np.array([seed], np.uint64)
            tokens = distribution.sample(keys) if temperature else distribution.most_likely()
            actions = self.policy.decode_actions(tokens.cpu().numpy())[0]
        if not np.isfinite(actions).all():
            _require_finite("action", actions, "The policy answers with a number that is not finite.", self._culprit())
        return actions

    def _culprit(self) -> str:
        """Return what to do about actions that are not finite: it depends on whether the weights are."""
        import torch

        parameters = self.policy.module.named_parameters()
        broken = next((name for name, parameter in parameters if not torch.isfinite(parameter).all()), None)
        if broken is None:
            return "Its weights are finite: a number of the state is far outside of what it was trained with."
        return f"Its parameter {broken} is not finite: open an earlier checkpoint."


def _unfit(cause: str, cameras: list[str], num_proprio: int) -> RunError:
    named = f" ({', '.join(cameras)})" if cameras else ""
    return RunError(
        "The policy does not take this observation.",
        key="observation",
        cause=cause,
        remedy=f"Give images, uint8 [N, H, W, 3], of its N cameras{named} and proprio of {num_proprio} numbers; None "
        "for what it does not take.",
        exit_status=ExitStatus.bad_input,
    )


def _bytes(images: np.ndarray) -> np.ndarray:
    """Return pictures, uint8. Raises RunError for others, whose bytes would be another picture's."""
    pictures = np.asarray(images)
    if pictures.dtype == np.uint8 and pictures.ndim == 4 and pictures.shape[-1] == 3:
        return pictures
    raise RunError(
        "The pictures are not those that a policy takes.",
        key="images",
        value=f"{pictures.dtype} {list(pictures.shape)}",
        cause="A policy takes uint8 [N, H, W, 3], red first, of 0 to 255.",
        remedy=ARRANGED if pictures.dtype == np.uint8 else f"{CONVERTED} {ARRANGED}",
        exit_status=ExitStatus.bad_input,
    )


def _require_finite(name: str, numbers: np.ndarray, message: str, remedy: str) -> None:
    """Raise RunError that names the first number of `numbers` which is not finite."""
    wrong = np.argwhere(~np.isfinite(numbers))
    if not len(wrong):
        return
    place = ", ".join(map(str, wrong[0].tolist()))
    value = str(numbers[tuple(wrong[0])])
    cause = f"{name}[{place}] is {value}, of {numbers.size} numbers {len(wrong)} are not finite"
    raise RunError(message, key=name, value=value, cause=cause, remedy=remedy, exit_status=ExitStatus.bad_input)


def make_env(config: RunConfig | Source) -> SimulatorEnv:
    """Return `env.num_envs` rows of the configured simulator. Raises RunError, and what `envs.make` does.

    config: or what `load_config` takes; nothing is then checked that only training needs, such as whole batches.
    Example: make_env(["run=cartpole", "env.num_envs=1"])
    """
    from rlrun.config.checks import OF_TRAINING
    from rlrun.envs.make import make_env as make
    from rlrun.envs.simulator_env import SimulatorEnv

    if not isinstance(config, RunConfig):
        config = _loaded(config, None, (), False, OF_TRAINING)
    return SimulatorEnv(make(config.env, config.env.num_envs), config.env.image_size)
