"""SGLang's HTTP server in a child process: the pipe starts and ends it, requests go to its port."""

from __future__ import annotations

import threading
from typing import Any

from rlrun.pipe.server import error_message, exit_process, open_channel
from rlrun.pipe.wire import Channel, WireClosed
from rlrun.rollout.sglang.engine import EngineFault
from rlrun.rollout.sglang.gate import gated
from rlrun.rollout.sglang.host_check import check_switch, known_arguments, version


def serve(connection: int, arena: int, lifeline: int) -> None:
    """Answer one call, `make`, then run the server. Arguments are file descriptors made by the rollout worker."""
    channel = open_channel(connection, arena, lifeline, is_writing_arena=False)
    arguments = channel.receive(None)["arguments"]["arguments"]
    try:
        check_switch()
        wanted = known_arguments(arguments)
    except Exception as error:  # the rollout worker handles all of them
        channel.send({"error": error_message(error, EngineFault)}, None)
        exit_process()
    channel.send({"answer": {"version": version()}}, None)
    threading.Thread(target=_await_close, args=(channel,), daemon=True).start()
    with gated(wanted) as complete:
        _serve(complete)
    exit_process()


def _serve(arguments: dict[str, Any]) -> None:
    """Run the server until the process ends. The arguments need our plug-in, so it is loaded first."""
    from sglang.srt.entrypoints.http_server import launch_server
    from sglang.srt.plugins import load_plugins
    from sglang.srt.server_args import ServerArgs

    load_plugins()
    launch_server(ServerArgs(**arguments))


def _await_close(channel: Channel) -> None:
    """Wait for `close` or the end of the worker. After `close` the worker kills the whole group."""
    try:
        channel.receive(None)
        channel.send({"answer": None}, None)
    except WireClosed:
        exit_process()
