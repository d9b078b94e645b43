"""Loads a checked and sealed RunConfig from the command line; every entry point starts here."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path

from rlrun.config.schema import RunConfig
from rlrun.config.sealing import seal
from rlrun.system.errors import RunError
from rlrun.system.exit_status import ExitStatus
from rlrun.system.storage_error import is_storage_error, storage_error


def load(overrides: list[str], config_dir: str | None = None) -> RunConfig:
    """Compose, type-check, cross-check and seal.

    overrides: as on the command line. config_dir: a folder of further YAML files, laid out like `configs/`.
    Raises RunError (exit status 2). Example: load(["run=debug", "env.num_envs=4"])
    """
    from omegaconf import OmegaConf

    from rlrun.config.checks import check
    from rlrun.config.composition import compose_config
    from rlrun.config.open_schema import closed, require_chosen_kinds

    config = OmegaConf.to_object(compose_config(overrides, _folder(config_dir)))
    assert isinstance(config, RunConfig)
    require_chosen_kinds(overrides, config)
    config = closed(config)
    check(config)
    seal(config)
    return config


def _folder(config_dir: str | None) -> Path | None:
    if config_dir is None:
        return None
    folder = Path(config_dir)
    if not folder.is_dir():
        raise RunError(
            f"--config-dir {config_dir} is not a folder.",
            remedy="Name a folder laid out like configs/.",
            row="config-folder",
        )
    return folder


def entry_point(
    description: str, positional: str | None = None, aliases: dict[str, str] | None = None
) -> Callable[[Callable[[RunConfig], ExitStatus | int | None]], Callable[..., None]]:
    """Make `main(config)` the program `python -m rlrun.<name> key=value …`.

    positional: the key that an argument without "=" sets. aliases: short keys of this program, such as
    {"checkpoint": "evaluation.checkpoint"}. The program always ends by SystemExit with the status that
    `main` returned (None: 0) or that its RunError carries. Modules of torch, ray or a simulator belong
    inside `main`, so that --help answers at once.

    Example::

        @entry_point("Train a policy.")
        def main(config: RunConfig) -> ExitStatus: ...

        if __name__ == "__main__":
            main()
    """

    def decorate(main: Callable[[RunConfig], ExitStatus | int | None]) -> Callable[..., None]:
        @functools.wraps(main)
        def program(arguments: list[str] | None = None) -> None:
            line = CommandLine(_name(main), description, positional, aliases or {})
            sys.exit(line.run(main, sys.argv[1:] if arguments is None else arguments))

        return program

    return decorate


class CommandLine:
    """The command line of one entry point. `run` handles --help, --info and --cfg itself, else calls the program."""

    def __init__(self, name: str, description: str, positional: str | None, aliases: dict[str, str]):
        self.name = name
        self.description = description
        self.positional = positional
        self.aliases = aliases

    def run(self, main: Callable[[RunConfig], ExitStatus | int | None], arguments: list[str]) -> int:
        """Run `main` with the configuration that `arguments` describe. Returns its exit status."""
        try:
            options, overrides = self._split(arguments)
            if "--help" in options or "-h" in options:
                from rlrun.config.help_text import help_text

                names = (self.name, self.description, self.positional, self.aliases)
                print(help_text(*names, overrides, _folder_of(options)))
                return ExitStatus.ok
            config = load(overrides, options.get("--config-dir"))
            if "--cfg" in options or "--info" in options:
                self._print(config, options, overrides)
                return ExitStatus.ok
            return self._call(main, config)
        except RunError as error:
            print(f"{self.name}: {error}", file=sys.stderr)
            return int(error.exit_status)
        except KeyboardInterrupt:
            print(f"{self.name}: interrupted", file=sys.stderr)
            return int(ExitStatus.interrupted)

    def _call(self, main: Callable[[RunConfig], ExitStatus | int | None], config: RunConfig) -> int:
        try:
            return int(main(config) or ExitStatus.ok)
        except OSError as error:
            if not is_storage_error(error):
                raise
            places = [config.output_dir or str(Path("runs") / config.name), config.cache_dir]
            raise storage_error(error, "The run", [str(Path(place).absolute()) for place in places]) from error

    def _print(self, config: RunConfig, options: dict[str, str], overrides: list[str]) -> None:
        from rlrun.config import provenance
        from rlrun.config.help_text import info_text

        if "--info" in options:
            print(info_text(overrides, _folder_of(options)))
        else:
            print(provenance.config_yaml(config), end="")

    def _split(self, arguments: list[str]) -> tuple[dict[str, str], list[str]]:
        """Return the options with their values, and the overrides with positional arguments and aliases expanded."""
        options: dict[str, str] = {}
        overrides: list[str] = []
        rest = iter(arguments)
        for argument in rest:
            option, _, value = argument.partition("=")
            if option in ("--help", "-h", "--info"):
                options[option] = ""
            elif option in ("--cfg", "-c", "--config-dir"):
                options["--cfg" if option == "-c" else option] = value or next(rest, "")
            elif argument.startswith("-"):
                raise RunError(
                    f"Unknown option '{argument}'.",
                    remedy="Options: --help, --info, --cfg job, --config-dir.",
                    row="command-line",
                )
            else:
                overrides.append(self._spell_out(argument))
        if options.get("--cfg", "job") != "job":
            raise RunError(f"--cfg {options['--cfg']} is unknown.", remedy="Write --cfg job.", row="command-line")
        return options, overrides

    def _spell_out(self, argument: str) -> str:
        key, equals, value = argument.partition("=")
        if not equals and self.positional is not None:
            return f"{self.positional}={_quoted(argument)}"
        if key in self.aliases and not value.startswith("{"):
            return f"{self.aliases[key]}={_quoted(value)}"
        return argument


def _quoted(value: str) -> str:
    return "'" + value.replace("'", "\\'") + "'"


def _folder_of(options: dict[str, str]) -> Path | None:
    return _folder(options.get("--config-dir"))


def _name(main: Callable) -> str:
    spec = getattr(sys.modules.get(main.__module__), "__spec__", None)
    return spec.name if spec else main.__module__
