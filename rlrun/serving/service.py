"""Serves a policy until a signal: checks that it fits the configured robot, then runs the server."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable

from rlrun.config.schema import RunConfig
from rlrun.data.messages import ActionChunk, Observation
from rlrun.serving.robot import RobotWire
from rlrun.serving.server import PolicyServer
from rlrun.serving.session import ClientSession
from rlrun.system.errors import RunError
from rlrun.system.exit_status import ExitStatus


def check_fit(config: RunConfig, num_actions: int, num_proprio: int) -> None:
    """Raise RunError if the policy does not fit the configured robot."""
    robot = RobotWire(config.env)
    if (num_actions, num_proprio or robot.num_proprio) != (robot.num_actions, robot.num_proprio):
        raise RunError(
            f"The policy has {num_actions} actions and {num_proprio} proprioceptive values; the robot of this "
            f"configuration has {robot.num_actions} and {robot.num_proprio}.",
            key="env.controlled",
            value=list(config.env.controlled),
            remedy="Set env.controlled, env.cameras and env.proprio as in the run that trained it (its config.yaml).",
            exit_status=ExitStatus.bad_input,
            row="policy-does-not-fit-robot",
        )


async def serve(config: RunConfig, act: Callable[[Observation], ActionChunk]) -> None:
    """Serve until SIGINT or SIGTERM. Raises RunError if the port is taken."""
    robot = RobotWire(config.env, config.serve.instruction)
    evaluation = config.evaluation

    def make_session(number: int) -> ClientSession:
        return ClientSession(robot, act, number, evaluation.seed, evaluation.temperature, config.serve.replan_steps)

    metadata = {
        "server": "rlrun",
        "instruction": robot.instruction,
        "num_action_chunks": config.policy.num_action_chunks,
    }
    is_over = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, is_over.set)
    try:
        await PolicyServer(config.serve, make_session, metadata).run(is_over, tell_address)
    except OSError as error:
        raise RunError(
            f"The server cannot listen on {config.serve.host}:{config.serve.port}.",
            key="serve.port",
            value=config.serve.port,
            cause=str(error),
            remedy="Choose another port (0: any free one), or a host name of this machine.",
            exit_status=ExitStatus.doctor,
            row="serve-port",
        ) from error


def tell_address(host: str, port: int) -> None:
    """Print a line that scripts can wait for."""
    print(f"serving on ws://{host}:{port} (GET /healthz); end with ctrl-C", flush=True)
