"""Serve a policy to openpi's clients, the BEHAVIOR evaluator or vla-eval: websocket, msgpack, /healthz."""

from __future__ import annotations

import asyncio

from rlrun.config.loader import entry_point
from rlrun.config.program import OF_A_POLICY, OF_A_RUN
from rlrun.config.schema import RunConfig
from rlrun.system.errors import ExitStatus


@entry_point(
    "Serve a policy to openpi's clients, to the BEHAVIOR evaluator, or to vla-eval's runner.",
    aliases={"checkpoint": "evaluation.checkpoint", "port": "serve.port"},
    uses_policy=True,
    reads=(*OF_A_RUN, *OF_A_POLICY, "env", "serve", "evaluation.checkpoint", "evaluation.temperature", "seed"),
)
def main(config: RunConfig) -> ExitStatus:
    from rlrun.policies.spec import CONFIG_FILE, policy_spec
    from rlrun.policies.weight_files import read_json
    from rlrun.serving.server import ServedPolicy, make_wire, serve_policy
    from rlrun.system.telemetry import Telemetry
    from rlrun.training.policy_folders import policy_folder
    from rlrun.workers.rollout_worker import RolloutWorker

    folder = policy_folder(config)
    worker = RolloutWorker(config, 0, Telemetry("rollout/0"))
    try:
        num_images = read_json(folder / CONFIG_FILE).get("num_images")
        is_instructed = "instruction" in policy_spec(config).observes
        policy = ServedPolicy(worker.load(str(folder), is_final=True), num_images, is_instructed)
        wire = make_wire(config, policy)
        asyncio.run(serve_policy(config, wire, lambda observation: worker.act([observation])[0]))
    finally:
        worker.close()
    return ExitStatus.ok


if __name__ == "__main__":
    main()
