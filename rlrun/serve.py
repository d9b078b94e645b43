"""Serve a policy over the BEHAVIOR evaluator's protocol: websocket, msgpack, /healthz."""

from __future__ import annotations

import asyncio
import signal

from rlrun.config.loader import entry_point
from rlrun.config.schema import RunConfig
from rlrun.system.errors import RunError
from rlrun.system.exit_status import ExitStatus


@entry_point(
    "Serve a policy to the BEHAVIOR evaluator, or any client of its wire.",
    aliases={"checkpoint": "evaluation.checkpoint", "port": "serve.port"},
)
def main(config: RunConfig) -> ExitStatus:
    from rlrun.eval import policy_folder
    from rlrun.observability.telemetry import Telemetry
    from rlrun.workers.rollout_worker import RolloutWorker

    folder = policy_folder(config)
    worker = RolloutWorker(config, 0, Telemetry("rollout/0"))
    try:
        check_fit(config, *worker.load(str(folder), is_final=True))
        asyncio.run(serve(config, lambda observation: worker.act([observation])[0]))
    finally:
        worker.close()
    return ExitStatus.ok


def check_fit(config: RunConfig, num_actions: int, num_proprio: int) -> None:
    """Raise RunError if the policy does not fit the configured robot."""
    from rlrun.serving.robot import RobotWire

    robot = RobotWire(config.env)
    if (num_actions, num_proprio or robot.num_proprio) != (robot.num_actions, robot.num_proprio):
        raise RunError(
            f"The policy has {num_actions} actions and {num_proprio} proprioceptive values; the robot of this "
            f"configuration has {robot.num_actions} and {robot.num_proprio}.",
            key="env.controlled",
            value=list(config.env.controlled),
            remedy="Set env.controlled, env.cameras and env.proprio as in the run that trained it (its config.yaml).",
            exit_status=ExitStatus.bad_input,
        )


async def serve(config: RunConfig, act) -> None:
    """Serve until SIGINT or SIGTERM. act: Observation -> ActionChunk. Raises RunError if the port is taken."""
    from rlrun.serving.robot import RobotWire
    from rlrun.serving.server import PolicyServer
    from rlrun.serving.session import ClientSession

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
        ) from error


def tell_address(host: str, port: int) -> None:
    """Print a line that scripts can wait for."""
    print(f"serving on ws://{host}:{port} (GET /healthz); end with ctrl-C", flush=True)


if __name__ == "__main__":
    main()
