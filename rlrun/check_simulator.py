"""Check a simulator against the contract of rlrun, and measure it: rlrun check-simulator NAME."""

from __future__ import annotations

import dataclasses
import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rlrun.config.loader import entry_point, load
from rlrun.config.schema import EnvConfig, RunConfig
from rlrun.config.simulator_spec import simulator_spec
from rlrun.system.errors import ExitStatus, indent


@entry_point(
    "Print what a simulator breaks of the contract, its steps per second, and its memory.",
    positional="env.simulator",
    reads=("env", "placement", "python_path"),
)
def check(config: RunConfig) -> ExitStatus:
    import psutil

    from rlrun.envs.make import make_env
    from rlrun.placement.plan import simulator_python
    from rlrun.testing.random_play import RandomPlay
    from rlrun.testing.simulators import NUM_ENVS, EnvUnderTest, Note, contract_config, findings

    env = contract_config(config.env)
    before = psutil.Process().memory_info().rss
    started = time.monotonic()
    python = simulator_python(config.placement)
    make = lambda: make_env(env, NUM_ENVS, python=python)  # noqa: E731
    subject = EnvUnderTest(env, make, make())
    seconds = time.monotonic() - started
    children = psutil.Process().children(recursive=True)
    used = sum(process.memory_info().rss for process in (psutil.Process(), *children)) - before
    shown = subject.env.spaces
    print(f"{config.env.simulator}: {shown.num_images} images, {shown.num_proprio} proprioceptive values, "
          f"{shown.num_actions} actions; {NUM_ENVS} envs made in {seconds:.1f} s, {used / 1e6:.0f} MB")  # fmt: skip
    num_faults = 0
    with _without_its_limit():
        for name, fault in findings(subject):
            num_faults += not isinstance(fault, Note)
            kind = "note" if isinstance(fault, Note) else "broken"
            print(f"{kind}: {name.replace('_', ' ')}: {indent(str(fault))}")
    subject.env.close()
    if num_faults:
        return ExitStatus.bad_input
    played = _with_own_limit(config.env)
    subject = EnvUnderTest(played, make, make_env(played, NUM_ENVS, python=python))
    playing = RandomPlay(subject)
    playing.run()
    subject.env.close()
    for sentence in [*playing.info(), *playing.terms(), *playing.facts()]:
        print(f"note: by random actions: {indent(sentence)}")
    print(f"the contract holds; {playing.steps_per_s:.0f} control steps per second in {NUM_ENVS} envs, "
          f"episodes of at most {played.max_control_steps}")  # fmt: skip
    return ExitStatus.ok


@contextmanager
def _without_its_limit() -> Iterator[None]:
    """Drop warnings about the time limit: during the checks it is that of the checks, not the configured one."""
    handlers = [*logging.getLogger().handlers] or [handler for handler in (logging.lastResort,) if handler]
    for handler in handlers:
        handler.addFilter(_is_not_about_limit)
    try:
        yield
    finally:
        for handler in handlers:
            handler.removeFilter(_is_not_about_limit)


def _is_not_about_limit(record: logging.LogRecord) -> bool:
    return "env.max_control_steps" not in record.getMessage()


def _with_own_limit(env: EnvConfig) -> EnvConfig:
    """Return the world with its own time limit where only the default world's is configured. Called after it is made,
    since its module may register it."""
    usual = load(["policy.kind=mlp"]).env
    limit = simulator_spec(env).world.own_limit(env)
    is_inherited = env.simulator != usual.simulator and env.max_control_steps == usual.max_control_steps
    return dataclasses.replace(env, max_control_steps=limit) if is_inherited and limit is not None else env


def main(arguments: list[str] | None = None) -> None:
    """A policy that needs no demonstrations, so that every simulator can be named."""
    check(["policy.kind=mlp", *(sys.argv[1:] if arguments is None else arguments)])


if __name__ == "__main__":
    main()
