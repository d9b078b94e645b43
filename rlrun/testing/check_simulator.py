"""Check a simulator against the contract of rlrun, and measure it: rlrun check-simulator NAME."""

from __future__ import annotations

import sys
import time

from rlrun.config.loader import entry_point
from rlrun.config.schema import RunConfig
from rlrun.system.errors import ExitStatus, hanging

SECONDS = 3.0  # of stepping, for the rate


@entry_point("Print what a simulator breaks of the contract, its steps per second, and its memory.", "env.simulator")
def check(config: RunConfig) -> ExitStatus:
    import psutil

    from rlrun.envs.make import make_env
    from rlrun.testing.simulators import NUM_ENVS, EnvUnderTest, broken_promises, contract_config

    env = contract_config(config.env)
    before = psutil.Process().memory_info().rss
    started = time.monotonic()
    make = lambda: make_env(env, NUM_ENVS)  # noqa: E731
    subject = EnvUnderTest(env, make, make())
    seconds = time.monotonic() - started
    children = psutil.Process().children(recursive=True)
    used = sum(one.memory_info().rss for one in (psutil.Process(), *children)) - before
    found = subject.env
    print(f"{config.env.simulator}: {found.num_images} images, {found.num_proprio} proprioceptive values, "
          f"{found.num_actions} actions; {NUM_ENVS} envs made in {seconds:.1f} s, {used / 1e6:.0f} MB")  # fmt: skip
    faults = list(broken_promises(subject))
    for name, fault in faults:
        print(f"broken: {name.replace('_', ' ')}: {hanging(str(fault))}")
    if not faults:
        print(f"the contract holds; {_rate(subject):.0f} control steps per second in {NUM_ENVS} envs")
    subject.env.close()
    return ExitStatus.bad_input if faults else ExitStatus.ok


def _rate(subject) -> float:
    """Control steps per second, resets and frames included."""
    from rlrun.testing.simulators import CHUNK, TIME_LIMIT

    num_steps, started = 0, time.monotonic()
    while time.monotonic() - started < SECONDS:
        subject.start()
        for _ in range(TIME_LIMIT // CHUNK):
            num_steps += int(subject.env.step_chunk(subject.random_actions()).step_valid.sum())
    return num_steps / (time.monotonic() - started)


def main(arguments: list[str] | None = None) -> None:
    """A policy that needs no demonstrations, so that every simulator can be named."""
    check(["policy.kind=mlp", *(sys.argv[1:] if arguments is None else arguments)])


if __name__ == "__main__":
    main()
