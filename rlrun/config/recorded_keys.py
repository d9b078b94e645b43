"""Keys of a recorded configuration: the kinds that it chooses, and the keys that are missing from it."""

from __future__ import annotations

import logging

from rlrun.config import reference
from rlrun.config.provenance import SHOWN, copy_of, missing
from rlrun.config.recorded import RecordedConfig, read_config, restoring
from rlrun.config.registry import REGISTRIES
from rlrun.system.errors import ExitStatus, RunError

logger = logging.getLogger(__name__)


def require_all_keys(recorded: RecordedConfig, schema: reference.Schema) -> None:
    """Raise RunError if a recorded configuration was cut; warn of keys that its writer's version lacked."""
    known = [key.path for key in reference.all_keys(schema)]
    sections = _other_kinds(recorded)
    absent = missing(recorded.whole, known, sections)
    if not recorded.origin.is_as_written and absent:
        copy = copy_of(recorded.file)
        unknown_then = missing(read_config(copy).whole, absent, sections) if copy is not None else []
        if cut := [key for key in absent if key not in unknown_then]:
            raise _cut(recorded, cut)
    if absent:
        default = "its default is" if len(absent) == 1 else "their defaults are"
        writer = recorded.origin.writer
        keys = _listed(absent)
        logger.warning("%s: %s wrote it, which had no %s; %s used", recorded.file, writer, keys, default)


def _cut(recorded: RecordedConfig, absent: list[str]) -> RunError:
    return RunError(
        f"The configuration of the run, {recorded.file}, is not whole.",
        cause=f"It was cut or edited: it lacks {_listed(absent)}. Defaults would make another run of it.",
        remedy=restoring(recorded.file),
        exit_status=ExitStatus.bad_input,
    )


def _listed(keys: list[str]) -> str:
    return ", ".join(keys[:SHOWN]) + (f" and {len(keys) - SHOWN} more keys" if len(keys) > SHOWN else "")


def _other_kinds(recorded: RecordedConfig) -> list[str]:
    """Return the sections of the kinds that a recorded configuration has not chosen. Example: "env.libero"."""
    chosen = recorded_kinds(recorded)
    return [
        f"{registry.parent}.{spec.name}"
        for registry in REGISTRIES
        for spec in registry.installed()
        if spec.section is not None and spec.name != chosen.get(registry.key)
    ]


def recorded_kinds(recorded: RecordedConfig | None) -> dict[str, str]:
    """Return the values of `env.simulator`, `policy.kind` and `algorithm.name` in the configuration of a run."""
    chosen = {registry.key: registry.in_tree(recorded.tree) for registry in REGISTRIES} if recorded is not None else {}
    return {key: name for key, name in chosen.items() if name is not None}
