"""Address and token of a Ray cluster."""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass
from pathlib import Path

import psutil

from rlrun.config.schema import ClusterKind, RunConfig
from rlrun.system.errors import ExitStatus, RunError
from rlrun.system.network import require_ipv4, require_ipv4_name
from rlrun.system.user import home_folder

VARIABLE = "RAY_ADDRESS"
KEY = "cluster.address"
LOCAL = "local"
AUTO = "auto"
_CURRENT = "ray/ray_current_cluster"  # where Ray writes the address of the last head that started, in RAY_TMPDIR
MODE = "RAY_AUTH_MODE"
TOKEN = "RAY_AUTH_TOKEN"
TOKEN_PATH = "RAY_AUTH_TOKEN_PATH"
_OTHERS = 0o077  # permissions of group and others
_DEFAULT_PORT = 6379
_RAYS_OWN = ".ray/auth_token"  # in the home folder, created by `ray get-auth-token --generate`


@dataclass(frozen=True)
class NamedCluster:
    """The name of a run's cluster, and its source.

    address: "10.77.0.1:6379"; None: a private Ray on this machine. source: "cluster.address" or "RAY_ADDRESS".
    Example: NamedCluster("10.77.0.1:6379", "RAY_ADDRESS", "RAY_ADDRESS=10.77.0.1:6379: the run joins that Ray")
    """

    address: str | None
    source: str
    remark: str | None = None  # a sentence for the console, where a variable decides

    def with_cause(self, error: RunError) -> RunError:
        """Add to an error about the cluster that a variable named it, and how to be rid of the variable."""
        if self.source == VARIABLE:
            error.cause = "\n".join(filter(None, [error.cause, f"The address comes from the variable {VARIABLE}."]))
            more = f"If no such cluster is meant: unset {VARIABLE}, and the run starts a Ray of its own."
            error.remedy = "\n".join(filter(None, [error.remedy, more]))
        return error


def named_cluster(config: RunConfig) -> NamedCluster | None:
    """Return the cluster that the configuration or the environment names; None if neither does, or no Ray is used.

    Raises RunError for IPv6, and for `auto` if it is not clear which Ray that is.
    """
    if config.cluster.kind is ClusterKind.local:
        return None
    source = KEY if config.cluster.address else VARIABLE
    given = config.cluster.address or os.environ.get(VARIABLE, "").strip()
    if not given:
        return None
    is_variable = source == VARIABLE
    if given == LOCAL:
        remark = f"{VARIABLE}={LOCAL}: the run starts a Ray of its own"
        return NamedCluster(None, source, remark if is_variable else None)
    address = _running_address(source) if given == AUTO else given
    require_ipv4(address, source)
    require_ipv4_name(address.rpartition("/")[2].partition(":")[0], source)
    where = f" at {address}" if given == AUTO else ""
    return NamedCluster(address, source, f"{VARIABLE}={given}: the run joins that Ray{where}" if is_variable else None)


def _running_address(source: str) -> str:
    """Return the address of the one Ray on this machine, or of the last that started there. Raises RunError."""
    running = running_addresses()
    if len(running) == 1:
        return running[0]
    last = _last_started()
    if last in running:
        return last
    sentence = (
        f"several run there: {', '.join(running)}" if running else "no Ray runs there, or it is hidden from this user"
    )
    error = RunError(
        f"{source}={AUTO} means the Ray of this machine, and {sentence}.",
        key=source,
        value=AUTO,
        remedy="Name the address of its head, as train-0:6379, or start Ray first: scripts/start_head.sh.",
        exit_status=ExitStatus.placement,
    )
    raise NamedCluster(None, source).with_cause(error)


def running_addresses() -> list[str]:
    """Return the addresses of the heads of all Rays that run on this machine, from the options of their raylets."""
    addresses: dict[str, None] = {}
    for process in psutil.process_iter(["name", "cmdline"]):
        for word in process.info["cmdline"] or () if (process.info["name"] or "").startswith("raylet") else ():
            option, _, value = word.partition("=")
            if option == "--gcs-address" and value:
                addresses[value] = None
    return list(addresses)


def _last_started() -> str:
    try:
        return (Path(os.environ.get("RAY_TMPDIR", "/tmp")) / _CURRENT).read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return ""


def is_required() -> bool:
    """Return whether Ray needs a token; False if the user has switched tokens off."""
    return os.environ.get(MODE, "token") != "disabled"


def is_missing() -> bool:
    """Return whether this process needs a token and has none; a request to Ray would then end the process."""
    return is_required() and not os.environ.get(TOKEN)


def check_mode() -> None:
    """Raise RunError if tokens are switched off; call it before starting a Ray."""
    if not is_required():
        raise RunError(
            "rlrun starts no Ray without a token.",
            key=MODE,
            value="disabled",
            cause="Every process that reaches such a Ray can run code as its user. The variable only serves to join a "
            "cluster that was started without a token.",
            remedy=f"unset {MODE}",
        )


def own_file(port: int) -> Path:
    """Return the file for the token that a head at `port` creates. Raises RunError if the user has no home folder."""
    home = home_folder()
    if home is None:
        raise _homeless("this user has none, and HOME is not set")
    return home / _file_name(port)


def _file_name(port: int) -> str:
    """Return the file for a head's token, relative to the home folder."""
    return f".rlrun/ray_token_{port}"


def _homeless(cause: str) -> RunError:
    return RunError(
        "Ray's token cannot be kept in the home folder.",
        key="HOME",
        value=os.environ.get("HOME"),
        cause=cause,
        remedy=f"Set HOME to a folder in which this user may write, or give a token that is kept elsewhere: "
        f"export {TOKEN}=$(openssl rand -hex 32).",
        exit_status=ExitStatus.placement,
    )


def use_new() -> None:
    """Create a token for a private Ray, in the environment of this process and its children only.

    A process has one token, since Ray reads it once. Raises RunError if tokens are switched off.
    """
    check_mode()
    if not os.environ.get(TOKEN):
        os.environ[TOKEN] = secrets.token_hex(32)


def use_known(address: str) -> None:
    """Find the token of the Ray at `address` ("10.77.0.1:6379"), for this process and its children.

    Raises RunError if there is none, or if others can read its file.
    """
    if not is_required():
        return
    host, port = _parts(address)
    token = _stored_token(port)
    if token is None:
        raise RunError(
            f"There is no token for the Ray cluster at {address}.",
            key=TOKEN,
            cause=f"neither {TOKEN} nor {TOKEN_PATH} is set, and ~/{_file_name(port)} does not exist",
            remedy=copy_line(host, port) + f"\nor export {TOKEN_PATH}=FILE, a file of mode 600. For a cluster that "
            f"was started without a token: export {MODE}=disabled.",
            exit_status=ExitStatus.placement,
        )
    os.environ[TOKEN] = token


def use_or_create(port: int) -> Path | None:
    """Use the given token for the head of a new cluster, or create one. Returns the file of a new token, else None."""
    token = _environment_token()
    if token is not None:
        os.environ[TOKEN] = token
        return None
    os.environ[TOKEN] = token = secrets.token_hex(32)
    path = own_file(port)
    try:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        path.unlink(missing_ok=True)
        with os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as stream:
            stream.write(token)
    except OSError as error:
        raise _homeless(f"{type(error).__name__}: {error}") from error
    return path


def remove(path: Path | None) -> None:
    """Remove the file of `use_or_create`, unless another head has replaced it by its own."""
    if path is not None and path.exists() and path.read_text() == os.environ.get(TOKEN):
        path.unlink()


def refused(address: str) -> RunError:
    """Return the error for a Ray that refuses the token of this process."""
    host, port = _parts(address)
    return RunError(
        f"The Ray cluster at {address} refuses this token.",
        key=TOKEN,
        cause="it is the token of another cluster, or of one that has ended, in the environment or in a file"
        if is_required()
        else f"{MODE}=disabled is set, but that cluster requires a token",
        remedy=f"unset {TOKEN} {TOKEN_PATH} {MODE}\n" + copy_line(host, port),
        exit_status=ExitStatus.placement,
    )


def copy_line(host: str, port: int) -> str:
    """Return the shell command that copies a head's token to another node. It contains no secret."""
    name = _file_name(port)
    return f"mkdir -p -m 700 ~/.rlrun && scp -p {host}:{name} ~/{name}"


def _parts(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return (host, int(port)) if port.isdigit() else (address, _DEFAULT_PORT)


def _environment_token() -> str | None:
    """Return the token that the environment gives; None without one."""
    if token := os.environ.get(TOKEN, "").strip():
        return token
    named = os.environ.get(TOKEN_PATH)
    return _read(Path(named)) if named else None


def _stored_token(port: int) -> str | None:
    """Return the token from the environment, else from the home folder; None without one."""
    home = home_folder()
    files = [] if home is None else [home / _file_name(port), home / _RAYS_OWN]
    return _environment_token() or next((_read(path) for path in files if path.exists()), None)


def _read(path: Path) -> str:
    try:
        with path.open() as stream:
            mode = os.fstat(stream.fileno()).st_mode
            token = stream.read().strip()
    except OSError as error:
        raise _unusable(
            path, str(error.strerror), f"Name a file that holds the token, or unset {TOKEN_PATH}."
        ) from error
    if mode & _OTHERS:
        cause = f"its mode is {mode & 0o777:o}: other users of this machine can read the token, or replace it"
        raise _unusable(path, cause, f"chmod 600 {path}; if others may have read it, create a new token.")
    if not token:
        raise _unusable(path, "it is empty", f"Write a token into it: openssl rand -hex 32 > {path}")
    return token


def _unusable(path: Path, cause: str, remedy: str) -> RunError:
    return RunError(
        "The file with Ray's token cannot be used.",
        key=TOKEN_PATH,
        value=str(path),
        cause=cause,
        remedy=remedy,
        exit_status=ExitStatus.placement,
    )
