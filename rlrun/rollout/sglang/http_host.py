"""SGLang's own HTTP server in a process of ours: the pipe starts and ends it, requests go to its port."""

from __future__ import annotations

import threading
from typing import Any

from rlrun.pipe.answers import leave, open_channel, told
from rlrun.pipe.wire import Channel, WireClosed
from rlrun.rollout.sglang.engine import EngineFault
from rlrun.rollout.sglang.gate import gated
from rlrun.rollout.sglang.host_check import check_switch, known_arguments, version


def serve(connection: int, arena: int, lifeline: int) -> None:
    """Take one call, `make`, and become the server; all three are file descriptors of the rollout worker."""
    channel = open_channel(connection, arena, lifeline, is_writing_arena=False)
    arguments = channel.receive(None)["arguments"]["arguments"]
    try:
        check_switch()
        wanted = known_arguments(arguments)
    except Exception as error:  # whatever it is, the rollout worker decides
        channel.send({"error": told(error, EngineFault)}, None)
        leave()
    channel.send({"answer": {"version": version()}}, None)
    threading.Thread(target=_end_when_told, args=(channel,), daemon=True).start()
    with gated(wanted) as complete:
        _serve(complete)
    leave()


def _serve(arguments: dict[str, Any]) -> None:
    """Until the process ends. Our plug-in is loaded before the arguments are read."""
    from sglang.srt.entrypoints.http_server import launch_server
    from sglang.srt.plugins import load_plugins
    from sglang.srt.server_args import ServerArgs

    load_plugins()
    launch_server(ServerArgs(**arguments))


def _end_when_told(channel: Channel) -> None:
    """`close`, or the end of the worker; the worker then kills the whole group."""
    try:
        channel.receive(None)
        channel.send({"answer": None}, None)
    except WireClosed:
        leave()
