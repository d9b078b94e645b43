"""Serves a policy until a signal: chooses the wire of its simulator, then runs the server."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from rlrun.config.schema import RunConfig
from rlrun.config.simulator_spec import simulator_spec
from rlrun.data.fit import match_cameras, short_name
from rlrun.data.messages import ActionChunk, Observation, PolicySpaces
from rlrun.serving.robot import RobotWire
from rlrun.serving.server import PolicyServer
from rlrun.serving.session import ClientSession
from rlrun.serving.simulator_wire import SimulatorWire, Wire, camera_names
from rlrun.system.errors import ExitStatus, RunError


@dataclass(frozen=True)
class ServedPolicy:
    """What a wire must know of a policy. num_images: None: as many as the simulator has."""

    spaces: PolicySpaces
    num_images: int | None  # N
    is_instructed: bool  # it needs an instruction


def wire_of(config: RunConfig, policy: ServedPolicy) -> Wire:
    """Return the wire of a policy. Raises RunError if the policy does not fit the configured robot."""
    env, instruction, spaces = config.env, config.serve.instruction, policy.spaces
    if simulator_spec(env).is_r1pro:
        robot = RobotWire(replace(env, cameras=_cameras(config, env.cameras, spaces.cameras)), instruction)
        _check_fit(config, robot, spaces.num_actions, spaces.num_proprio)
        return robot
    num_images = policy.num_images
    if num_images is None:
        num_images = len(spaces.cameras) or simulator_spec(env).planned_spaces(env).num_images
    cameras = _cameras(config, camera_names(env, num_images), spaces.cameras)
    sizes = spaces.num_proprio, spaces.num_actions
    return SimulatorWire(env, cameras, *sizes, instruction or (None if policy.is_instructed else ""))


def _cameras(config: RunConfig, there: Sequence[str], named: Sequence[str]) -> list[str]:
    """Return the simulator's names of the cameras that the policy takes, in the policy's order.

    named: what the policy calls them; its own short names are used if the simulator's do not fit.
    """
    if not named:
        return list(there)
    try:
        match = match_cameras(named, there, config.policy.cameras)
    except ValueError:
        return [short_name(name) for name in named]
    return [there[at] for at in match.order]


def _check_fit(config: RunConfig, robot: RobotWire, num_actions: int, num_proprio: int) -> None:
    if (num_actions, num_proprio or robot.num_proprio) != (robot.num_actions, robot.num_proprio):
        raise RunError(
            f"The policy has {num_actions} actions and {num_proprio} proprioceptive values; the robot of this "
            f"configuration has {robot.num_actions} and {robot.num_proprio}.",
            key="env.controlled",
            value=list(config.env.controlled),
            remedy="Set env.controlled, env.cameras and env.proprio as in the run that trained it (its config.yaml).",
            exit_status=ExitStatus.bad_input,
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
        ) from error


def tell_address(host: str, port: int) -> None:
    """Print a line that scripts can wait for."""
    print(f"serving on ws://{host}:{port} (GET /healthz); end with ctrl-C", flush=True)
