"""Serve a policy over the BEHAVIOR evaluator's protocol: websocket, msgpack, /healthz."""

from __future__ import annotations

import asyncio

from rlrun.config.loader import entry_point
from rlrun.config.schema import RunConfig
from rlrun.system.exit_status import ExitStatus


@entry_point(
    "Serve a policy to the BEHAVIOR evaluator, or any client of its wire.",
    aliases={"checkpoint": "evaluation.checkpoint", "port": "serve.port"},
)
def main(config: RunConfig) -> ExitStatus:
    from rlrun.observability.telemetry import Telemetry
    from rlrun.serving.service import check_fit, serve
    from rlrun.training.whole_policy import policy_folder
    from rlrun.workers.rollout_worker import RolloutWorker

    folder = policy_folder(config)
    worker = RolloutWorker(config, 0, Telemetry("rollout/0"))
    try:
        check_fit(config, *worker.load(str(folder), is_final=True))
        asyncio.run(serve(config, lambda observation: worker.act([observation])[0]))
    finally:
        worker.close()
    return ExitStatus.ok


if __name__ == "__main__":
    main()
