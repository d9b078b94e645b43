"""The official evaluator's client and server of a checkout, unmodified.

`python -m tests.omnigibson_source.official <checkout> client <port>` asks a server as the evaluator does, and prints
what came; `… server <port>` serves a policy whose actions count its calls.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.omnigibson_source.inert_modules import add_source
from tests.unit.serving.public_client import observation


def ask(port: int) -> None:
    """Two episodes: five steps, a reset, one step."""
    import torch
    from omnigibson.learning.utils.network_utils import WebsocketClientPolicy

    client = WebsocketClientPolicy(host="127.0.0.1", port=port)
    client.reset()
    actions = [client.act(observation(num_proprio=256, seed=step)) for step in range(5)]
    client.reset()
    actions.append(client.act(observation(num_proprio=256)))
    assert all(one.dtype == torch.float32 for one in actions)
    told = {
        "shapes": [list(one.shape) for one in actions],
        "first": [round(float(one.flatten()[0]), 3) for one in actions],
    }
    print("TOLD " + json.dumps(told | {"metadata": sorted(client.get_server_metadata())}))


class Counting:
    """A policy whose n-th action since the last reset is n everywhere."""

    def __init__(self) -> None:
        self.num_calls = 0

    def act(self, seen: dict):
        import torch

        assert seen["robot_r1::proprio"].shape == (256,)
        self.num_calls += 1
        return torch.full((23,), float(self.num_calls))

    def reset(self) -> None:
        self.num_calls = 0


def serve(port: int) -> None:
    from omnigibson.learning.utils.network_utils import WebsocketPolicyServer

    print("ready", flush=True)
    WebsocketPolicyServer(Counting(), "127.0.0.1", port).serve_forever()


if __name__ == "__main__":
    add_source(Path(sys.argv[1]))
    {"client": ask, "server": serve}[sys.argv[2]](int(sys.argv[3]))
