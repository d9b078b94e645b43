"""Makes a simulator from a configuration, in this process or in one of its own; all callers use it."""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import metadata

from rlrun.config.own_reward import reward_terms
from rlrun.config.schema import EnvConfig
from rlrun.config.sections import load_object
from rlrun.config.simulator_spec import SimulatorSpec, simulator_spec
from rlrun.envs import opengl
from rlrun.envs.vector_env import VectorEnv
from rlrun.system.errors import ExitStatus, RunError
from rlrun.system.process_io import empty_standard_input

log = logging.getLogger(__name__)


@contextmanager
def simulator_code() -> Iterator[None]:
    """Run third-party code with an empty standard input. Raises RunError if it asks a question or ends the process."""
    with empty_standard_input(), questions_refused():
        try:
            yield
        except SystemExit as end:
            raise RunError(
                f"The simulator ended the process: {end.code}",
                key="env.simulator",
                cause=f"It called sys.exit in {_place(end)}.",
                remedy="Repair what it says; `rlrun check-simulator` with the same arguments repeats it.",
                exit_status=ExitStatus.bad_input,
            ) from end


@contextmanager
def questions_refused() -> Iterator[None]:
    """Raise RunError if third-party code asks a question; it gets no answer, since its standard input is empty."""
    try:
        yield
    except EOFError as error:
        question = _question(error)
        if question is None:
            raise
        raise question from error


def _question(error: EOFError) -> RunError | None:
    """Return the error for a question of `input()`; None: another file or connection has ended."""
    frames = traceback.extract_tb(error.__traceback__)
    asked = [frame for frame in frames if "input(" in (frame.line or "")]
    if not asked or "reading a line" not in str(error):
        return None
    return RunError(
        f"The simulator asked a question: {asked[-1].line}",
        key="env.simulator",
        cause=f"{asked[-1].filename}:{asked[-1].lineno} waits for an answer, and simulators have no standard input.",
        remedy="Run that code once by hand and answer, or set what it asks for by its variable or its file.",
        exit_status=ExitStatus.bad_input,
    )


def close_or_warn(close: Callable[[], object], what: str) -> None:
    """Close a part of a simulator; a failure is a warning in the log."""
    try:
        close()
    except (Exception, SystemExit) as failure:  # third-party code may raise anything
        log.warning("%s did not close: %s: %s", what, type(failure).__name__, failure, exc_info=failure)


def last_lines(error: BaseException, limit: int) -> str:
    """Return the end of an error's traceback."""
    return "\n".join("".join(traceback.format_exception(error)).rstrip().splitlines()[-limit:])


def _place(error: BaseException) -> str:
    """Return the place where an error was raised. Example: "world.py:12"."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "its code"


def make_env(
    config: EnvConfig, num_envs: int, progress: Callable[[], None] = lambda: None, python: str | None = None
) -> VectorEnv:
    """Make `num_envs` rows of the simulator that `config` names.

    progress: called after every loaded part; loading may take minutes, and must show signs of progress.
    python: the interpreter that has the simulator; None: this one.
    Raises ValueError for an unknown activity, part or camera, and RuntimeError if the
    simulator cannot run here; both name the key and the remedy.
    """
    spec = simulator_spec(config)
    if not is_apart(config, python):
        with simulator_code():
            return make_here(spec, config, num_envs, progress)
    from rlrun.envs.remote_env import RemoteEnv

    return RemoteEnv(config, num_envs, python or sys.executable, progress)


def is_apart(config: EnvConfig, python: str | None) -> bool:
    """Return whether the simulator gets a process of its own."""
    if config.own_process is not None:
        return config.own_process
    return python not in (None, sys.executable) or simulator_spec(config).process.needs_own_process


def make_here(
    spec: SimulatorSpec, config: EnvConfig, num_envs: int, progress: Callable[[], None] = lambda: None
) -> VectorEnv:
    """Make the simulator in this process. Raises TypeError if the spec's function returns no VectorEnv."""
    if opengl.EGL_DEVICE in spec.process.variables:
        opengl.prepare_process()
    with questions_refused():
        make = load_object(spec.make) if isinstance(spec.make, str) else spec.make
        env = make(config, num_envs, progress)
    if not isinstance(env, VectorEnv):
        raise TypeError(f"the simulator {spec.name} made {type(env).__name__}, which is no VectorEnv")
    env.fingerprint = _versions(spec) | {str(name): str(value) for name, value in env.fingerprint.items()}
    return _with_own_reward(env, config)


def _with_own_reward(env: VectorEnv, config: EnvConfig) -> VectorEnv:
    """Return the simulator with the reward of `env.reward`. Raises RunError for functions that cannot be called."""
    terms = reward_terms(config)
    if not terms:
        return env
    from rlrun.envs.own_reward import OwnRewardEnv

    try:
        with questions_refused():
            return OwnRewardEnv(env, terms, config.max_abs_reward)
    except BaseException:
        close_or_warn(env.close, "the simulator")
        raise


def _versions(spec: SimulatorSpec) -> dict[str, str]:
    """Return the versions of this interpreter's packages on which a simulator's results depend."""
    versions = {"simulator": spec.name}
    for package in ("numpy", *spec.process.packages):
        with suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    return versions
