"""Typed requests to workers: a lambda over the worker's class, and the future of its result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar, cast

T = TypeVar("T")
W = TypeVar("W")


@dataclass(frozen=True, eq=False)
class Future(Generic[T]):
    """The result to come of one request. `reference` is a Ray reference, or in one process a function that returns it.

    Example: Future("actor/0", "update", ObjectRef(…), producers=("env/0", "env/1"))
    """

    worker: str  # "role/rank"
    method: str
    reference: Any
    producers: tuple[str, ...] = ()  # workers whose results are among the arguments


def value_of(future: Future[T]) -> T:
    """Return a future typed as its value, for the arguments of a request. The value does not pass through the driver.

    Example: actors.submit(0, lambda actor: actor.update(step, value_of(shard)))
    """
    return cast(T, future)  # the launcher replaces the future by its value


class Call(NamedTuple):
    """One method call of a worker, with futures among its arguments."""

    method: str
    arguments: tuple[Any, ...] = ()


class _CallRecorder:
    """Takes the place of a worker in a request, and returns the call instead of making it."""

    def __getattr__(self, method: str) -> Callable[..., Call]:
        return lambda *arguments: Call(method, arguments)


def recorded(request: Callable[[W], object]) -> Call:
    """Return the call that a request makes. Type checkers see the worker's own class `W`.

    Example: recorded(lambda env: env.collect(3, 3)) == Call("collect", (3, 3))
    """
    return cast(Call, request(cast(W, _CallRecorder())))
