"""Serves a policy until a signal: chooses the wire of its simulator, then runs the server."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path

from rlrun.config.schema import RunConfig
from rlrun.config.simulator_spec import simulator_spec
from rlrun.data.messages import ActionChunk, Observation
from rlrun.policies.spec import policy_spec
from rlrun.policies.weight_files import read_json
from rlrun.serving.robot import RobotWire
from rlrun.serving.server import PolicyServer
from rlrun.serving.session import ClientSession
from rlrun.serving.simulator_wire import SimulatorWire, Wire
from rlrun.system.errors import RunError
from rlrun.system.exit_status import ExitStatus


def wire_of(config: RunConfig, folder: Path, num_actions: int, num_proprio: int) -> Wire:
    """Return the wire of the policy in `folder`. Raises RunError if the policy does not fit the configured robot.

    num_actions, num_proprio: of the policy; 0: it takes no proprioception.
    """
    env, instruction = config.env, config.serve.instruction
    if simulator_spec(env).is_r1pro:
        robot = RobotWire(env, instruction)
        _check_fit(config, robot, num_actions, num_proprio)
        return robot
    described = read_json(folder / "config.json")
    num_images = described.get("num_images", simulator_spec(env).planned_spaces(env).num_images)
    is_instructed = "instruction" in policy_spec(config).observes
    return SimulatorWire(env, (num_images, num_proprio, num_actions), instruction or (None if is_instructed else ""))


def _check_fit(config: RunConfig, robot: RobotWire, num_actions: int, num_proprio: int) -> None:
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


async def serve(config: RunConfig, wire: Wire, act: Callable[[Observation], ActionChunk]) -> None:
    """Serve until SIGINT or SIGTERM. Raises RunError if the port is taken."""
    evaluation = config.evaluation

    def make_session(number: int) -> ClientSession:
        return ClientSession(wire, act, number, evaluation.seed, evaluation.temperature, config.serve.replan_steps)

    metadata = {
        "server": "rlrun",
        "simulator": config.env.simulator,
        "instruction": wire.instruction,
        "num_action_chunks": config.policy.num_action_chunks,
        "observation": wire.described(),
        "actions": {"dtype": "float32", "shape": [config.policy.num_action_chunks, wire.num_client_actions]},
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
