"""Websocket server of a policy: openpi's clients and BEHAVIOR's evaluator at /, vla-eval's runner at /vla-eval.

A client that violates the protocol gets the reason in a text frame and is disconnected. Other clients are not affected:
each has its own session, forward passes run on a separate thread, and /healthz always answers.
"""

from __future__ import annotations

import asyncio
import http
import logging
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from urllib.parse import urlsplit

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.frames import CloseCode
from websockets.http11 import Request, Response

from rlrun.config.schema import VLA_EVAL_PATH, EnvConfig, RunConfig, ServeConfig
from rlrun.config.simulator_spec import simulator_spec
from rlrun.data.fit import match_cameras, short_name
from rlrun.edges.actions import ActionChunk
from rlrun.edges.observations import Observation
from rlrun.edges.spaces import PolicySpaces
from rlrun.envs.r1pro_keys import R1ProConfig
from rlrun.serving.formats import SimulatorWire, Wire, camera_names
from rlrun.serving.robot import RobotWire
from rlrun.serving.session import OpenpiSession, PolicySession, Session
from rlrun.serving.vla_eval_formats import Formats
from rlrun.serving.vla_eval_session import VlaEvalSession
from rlrun.serving.wire import WireError
from rlrun.system.errors import ExitStatus, RunError

log = logging.getLogger(__name__)

_OPEN_TIMEOUT_S = 10.0  # for the handshake
CLOSE_TIMEOUT_S = 5.0
_END_POLL_S = 0.2  # interval between checks for the end
_HEALTH_PATH = "/healthz"
_ROOT = "/"  # path of openpi's clients and of BEHAVIOR's evaluator
_MAX_REASON_CHARACTERS = 1000  # characters; a reason may quote the message
_CLIENT_LOGGERS = ("asyncio", "websockets.server", "rlrun.serving.server", "rlrun.serving.vla_eval_session")
_NUM_FULL = 100  # lines of each statement that are logged without gaps


class _FirstLines(logging.Filter):
    """Limit on lines that clients cause: of each statement the first 100, then the 1,000th, the 10,000th and so on."""

    def __init__(self) -> None:
        super().__init__()
        self._counts: Counter[tuple[str, int]] = Counter()

    def filter(self, record: logging.LogRecord) -> bool:
        statement = (record.pathname, record.lineno)
        self._counts[statement] += 1
        count = self._counts[statement]
        record.msg = record.getMessage()[:_MAX_REASON_CHARACTERS]
        record.args = ()
        if count >= _NUM_FULL:
            record.msg += f" (number {count} of its kind; the next that is logged is number {10 * count})"
        return count <= _NUM_FULL or str(count).strip("0") == "1"


@contextmanager
def _bounded_log() -> Iterator[None]:
    """Bound what a flood of connections or bad messages writes to the log."""
    limit = _FirstLines()
    loggers = [logging.getLogger(name) for name in _CLIENT_LOGGERS]
    for logger in loggers:
        logger.addFilter(limit)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(limit)


class PolicyServer:
    """Websocket server; each client gets a session, made by `sessions[path of its address](number of the client)`."""

    def __init__(self, config: ServeConfig, sessions: Mapping[str, Callable[[int], Session]]):
        self._config = config
        self._sessions = sessions
        self._num_clients = self._num_served = 0
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="policy")

    async def run(self, is_over: asyncio.Event, started: Callable[[str, int], None]) -> None:
        """Serve until `is_over`. Calls `started` with host and port once clients can connect. Raises OSError."""
        with _bounded_log():
            await self._run(is_over, started)

    async def _run(self, is_over: asyncio.Event, started: Callable[[str, int], None]) -> None:
        config = self._config
        async with serve(
            self._serve_client,
            config.host,
            config.port,
            process_request=self._before_handshake,
            compression=None,  # compression takes time and does not make images smaller
            max_size=config.max_message_bytes,
            open_timeout=_OPEN_TIMEOUT_S,
            close_timeout=CLOSE_TIMEOUT_S,
            ping_interval=config.ping_s,
            ping_timeout=config.ping_s,
        ) as server:
            started(*_address(server))
            while not is_over.is_set():
                await asyncio.sleep(_END_POLL_S)
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _before_handshake(self, connection: ServerConnection, request: Request) -> Response | None:
        if request.path == _HEALTH_PATH:
            return connection.respond(http.HTTPStatus.OK, "OK\n")
        if _path(request) not in self._sessions:
            text = f"there is nothing at {_path(request)}; this server speaks at {' and '.join(self._sessions)}\n"
            return connection.respond(http.HTTPStatus.NOT_FOUND, text)
        for origin in request.headers.get_all("Origin"):  # sent by browsers only, for any page that the user opens
            if origin not in self._config.allowed_origins and not self._is_own(origin, connection):
                log.warning("refused a web page of %s from %s", ascii(origin), connection.remote_address)
                text = "pages of this origin may not connect; serve.allowed_origins lists those that may\n"
                return connection.respond(http.HTTPStatus.FORBIDDEN, text)
        if self._num_clients >= self._config.max_clients:
            text = f"{self._num_clients} clients are connected, the limit of serve.max_clients\n"
            return connection.respond(http.HTTPStatus.SERVICE_UNAVAILABLE, text)
        return None

    def _is_own(self, origin: str, connection: ServerConnection) -> bool:
        """Return whether an origin is this server. The Host header is not used, since any name may resolve to here."""
        address, port = connection.local_address[:2]
        try:
            page = urlsplit(origin)
            return page.port == port and page.hostname in (address, self._config.host)
        except ValueError:
            return False

    async def _serve_client(self, connection: ServerConnection) -> None:
        self._num_clients += 1
        self._num_served += 1
        number = self._num_served
        log.info("client %d: connected from %s", number, connection.remote_address)
        try:
            assert connection.request is not None, "a handler runs after the handshake"
            await self._answer_all(connection, self._sessions[_path(connection.request)](number))
        except ConnectionClosed as closed:
            log.info("client %d: disconnected (%s)", number, closed)
        except TimeoutError:
            silence = f"no message for {self._config.idle_timeout_s:g} s"
            log.warning("client %d: %s", number, silence)
            await connection.close(CloseCode.GOING_AWAY, silence)
        except WireError as error:
            log.warning("client %d: refused: %s", number, error)
            await _refuse(connection, str(error)[:_MAX_REASON_CHARACTERS])
        finally:
            self._num_clients -= 1

    async def _answer_all(self, connection: ServerConnection, session: Session) -> None:
        if session.greeting is not None:
            await connection.send(session.greeting)
        loop = asyncio.get_running_loop()
        while True:
            data = await asyncio.wait_for(connection.recv(), self._config.idle_timeout_s)
            answer = await loop.run_in_executor(self._thread, session.answer, data)
            if answer is not None:
                await asyncio.wait_for(connection.send(answer), self._config.idle_timeout_s)


async def _refuse(connection: ServerConnection, reason: str) -> None:
    """Send the reason as text, which evaluators raise, then close."""
    try:
        await asyncio.wait_for(connection.send(reason), CLOSE_TIMEOUT_S)
    except (ConnectionClosed, TimeoutError):
        return  # the client does not read
    await connection.close(CloseCode.POLICY_VIOLATION, reason.encode()[:120].decode(errors="ignore"))


def _path(request: Request) -> str:
    return urlsplit(request.path).path.rstrip("/") or _ROOT


def _address(server: Server) -> tuple[str, int]:
    host, port = next(iter(server.sockets)).getsockname()[:2]
    return host, port


@dataclass(frozen=True)
class ServedPolicy:
    """Properties of a policy that its wire needs. num_images: None: as many as the simulator has."""

    spaces: PolicySpaces
    num_images: int | None  # N
    is_instructed: bool  # it needs an instruction


def make_wire(config: RunConfig, policy: ServedPolicy) -> Wire:
    """Return the wire for a policy. Raises RunError if the policy does not fit the configured robot."""
    env = config.env
    instruction = config.serve.instruction
    spaces = policy.spaces
    planned = simulator_spec(env).world.planned_spaces(env)
    if simulator_spec(env).world.is_r1pro:
        robot = RobotWire(env, instruction, _policy_cameras(config, planned.cameras, spaces.cameras))
        _check_fit(config, robot, spaces.num_actions, spaces.num_proprio)
        return robot
    num_images = policy.num_images
    if num_images is None:
        num_images = len(spaces.cameras) or planned.num_images
    unnamed = camera_names(env, num_images)
    cameras = _policy_cameras(config, planned.cameras or unnamed, spaces.cameras) if spaces.cameras else unnamed
    sizes = spaces.num_proprio, spaces.num_actions
    return SimulatorWire(env, cameras, *sizes, instruction or (None if policy.is_instructed else ""))


def _policy_cameras(config: RunConfig, there: Sequence[str], named: Sequence[str]) -> list[str]:
    """Return the simulator's names of the cameras that the policy takes, in the policy's order.

    named: the policy's names of its cameras, which are used, shortened, if they do not match the simulator's.
    """
    if not named:
        return list(there)
    try:
        match = match_cameras(named, there, config.policy.cameras)
    except ValueError:
        return [short_name(name) for name in named]
    return [there[at] for at in match.order]


def _check_fit(config: RunConfig, robot: RobotWire, num_actions: int, num_proprio: int) -> None:
    own = config.env.section(R1ProConfig)
    if (num_actions, num_proprio or robot.num_proprio) != (robot.num_actions, robot.num_proprio):
        raise RunError(
            f"The policy has {num_actions} actions and {num_proprio} proprioceptive values; the robot of this "
            f"configuration has {robot.num_actions} and {robot.num_proprio}.",
            key=own.key("controlled"),
            value=list(own.controlled),
            remedy=f"Set {own.key('controlled')}, cameras and proprio as in the run that trained it (its config.yaml).",
            exit_status=ExitStatus.bad_input,
        )


async def serve_policy(config: RunConfig, wire: Wire, act: Callable[[Observation], ActionChunk]) -> None:
    """Serve until SIGINT or SIGTERM. Raises RunError if the port is taken."""
    evaluation = config.evaluation

    def policy_session(number: int) -> PolicySession:
        return PolicySession(wire, act, number, evaluation.seed, evaluation.temperature, config.serve.replan_steps)

    metadata = {
        "server": "rlrun",
        "simulator": config.env.simulator,
        "instruction": wire.instruction,
        "num_action_chunks": config.policy.num_action_chunks,
        "observation": wire.describe_observation(),
        "actions": {"dtype": "float32", "shape": [config.policy.num_action_chunks, wire.num_client_actions]},
    }
    conventions = simulator_spec(config.env).wire.conventions(config.env)
    formats = Formats(conventions, tuple(wire.names.cameras), wire.num_proprio, wire.num_client_actions)
    sessions: dict[str, Callable[[int], Session]] = {
        _ROOT: lambda number: OpenpiSession(policy_session(number), metadata),
        VLA_EVAL_PATH: lambda number: VlaEvalSession(policy_session(number), formats, config.env.image_size),
    }
    is_over = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, is_over.set)
    try:
        await PolicyServer(config.serve, sessions).run(is_over, partial(print_start, config.env))
    except OSError as error:
        raise RunError(
            f"The server cannot listen on {config.serve.host}:{config.serve.port}.",
            key="serve.port",
            value=config.serve.port,
            cause=str(error),
            remedy="Choose another port (0: any free one), or a host name of this machine.",
            exit_status=ExitStatus.doctor,
        ) from error


def print_start(env: EnvConfig, host: str, port: int) -> None:
    """Print a line that scripts can wait for, and what is unusual in the observations that the policy takes."""
    print(f"serving on ws://{host}:{port} (GET /healthz); end with ctrl-C", flush=True)
    unusual = simulator_spec(env).wire.unusual_keys(env)
    if unusual:
        settings = ", ".join(f"{key}={value}" for key, value in unusual.items())
        print(
            f"the policy was trained with {settings}, other than usual: clients must send such observations, which are "
            "not converted",
            flush=True,
        )
