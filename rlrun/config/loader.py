"""Loads a checked and frozen RunConfig from the command line; every entry point starts here."""

from __future__ import annotations

import functools
import logging
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

from rlrun.config.faults import Check
from rlrun.config.program import Program, StartSweep
from rlrun.config.recorded import RecordedConfig, config_of_policy, quoted, resumption
from rlrun.config.registry import POLICIES
from rlrun.config.schema import RunConfig
from rlrun.config.sections import freeze
from rlrun.system import process_io
from rlrun.system.errors import ExitStatus, IndentingFormatter, RunError, RunErrors, fault_report, indent
from rlrun.system.import_path import close_folder
from rlrun.system.local_files import require_bounded
from rlrun.system.process_io import PreemptedError
from rlrun.system.storage_error import storage_failure

RESUME = "resume"  # an argument of programs that continue a run; no key of the configuration
TRUST = "trust"  # an argument of programs that read a run's or policy's folder: "it is mine"; no key either

OPENED = ("evaluation.checkpoint", "policy.path", "demos.path", "checkpoint.resume", "replay.path", RESUME)


def load(
    overrides: list[str],
    config_dir: str | None = None,
    recorded: RecordedConfig | None = None,
    skipped: frozenset[Check] = frozenset(),
) -> RunConfig:
    """Compose, type-check, cross-check and freeze.

    overrides: as on the command line. config_dir: a folder of further YAML files, laid out like `configs/`. recorded:
    the configuration of a run, below the overrides. skipped: checks to leave out. Raises RunError (exit status 2).

    Example: load(["run=debug", "env.num_envs=4"])
    """
    from rlrun.config.checks import check

    config = compose_only(overrides, config_dir, recorded)
    check(config, skipped)
    return config


def compose_only(
    overrides: list[str], config_dir: str | None = None, recorded: RecordedConfig | None = None
) -> RunConfig:
    """Compose, type-check and freeze, without the checks of ranges and between keys; arguments as of `load`."""
    from omegaconf import OmegaConf

    from rlrun.config.composition import compose_config, with_one_key_each
    from rlrun.config.registry import finalize, require_chosen_kinds, require_read_keys

    config = OmegaConf.to_object(compose_config(overrides, _folder(config_dir), recorded))
    assert isinstance(config, RunConfig)
    given = with_one_key_each(overrides)
    require_chosen_kinds(given, config)
    config = finalize(config)
    require_read_keys(given, config)
    freeze(config)
    return config


def config_of_guest(folder: Path, is_trusted: bool) -> RunConfig | None:
    """Return the configuration of the run that made a policy whose kind is not installed, but a module:SPEC.

    None: the kind of the policy is installed, or no run left a configuration. Raises RunError, also for a folder that
    no run of this user wrote, and that is not trusted.
    """
    recorded = config_of_policy(folder, is_trusted)
    kind = POLICIES.in_tree(recorded.tree) if recorded is not None else None
    return compose_only([], recorded=recorded) if kind is not None and ":" in kind else None


def _folder(config_dir: str | None) -> Path | None:
    if config_dir is None:
        return None
    folder = Path(config_dir)
    if not folder.is_dir():
        raise RunError(
            f"--config-dir {config_dir} is not a folder.",
            remedy="Name a folder laid out like configs/.",
        )
    for file in (*folder.glob("*.yaml"), *folder.glob("*/*.yaml")):
        try:
            require_bounded(file)
        except UnicodeDecodeError:
            continue  # composing raises the error if the configuration uses it
        except (OSError, ValueError) as error:
            raise RunError(
                f"The configuration file {file} cannot be read.",
                cause=str(error),
                remedy="Correct it, or take it out of the folder of --config-dir.",
            ) from error
    return folder


def entry_point(
    description: str,
    positional: str | None = None,
    aliases: dict[str, str] | None = None,
    resumes: bool = False,
    uses_policy: bool = False,
    reads_inputs: bool = True,
    sweep: StartSweep | None = None,
    reads: Sequence[str] = (),
) -> Callable[[Callable[[RunConfig], ExitStatus | int | None]], Callable[..., None]]:
    """Make `main(config)` the program `python -m rlrun.<name> key=value …`.

    Arguments as of `Program`. The program always ends by SystemExit with the status that `main` returned (None: 0)
    or that its RunError carries. Modules of torch, ray or a simulator belong inside `main`, so that --help answers at
    once.

    Example::

        @entry_point("Train a policy.")
        def main(config: RunConfig) -> ExitStatus: ...

        if __name__ == "__main__":
            main()
    """

    def decorate(main: Callable[[RunConfig], ExitStatus | int | None]) -> Callable[..., None]:
        @functools.wraps(main)
        def program(arguments: list[str] | None = None) -> None:
            options = (description, positional, aliases or {}, resumes, uses_policy, reads_inputs, sweep, reads)
            line = CommandLine(_name(main), *options)
            process_io.protect_standard_streams()
            sys.excepthook = _show_exception
            if logging.lastResort is not None:  # prints warnings where no log is open
                logging.lastResort.setFormatter(IndentingFormatter())
            sys.exit(line.run(main, sys.argv[1:] if arguments is None else arguments))

        return program

    return decorate


class CommandLine(Program):
    """The command line of one entry point. `run` handles --help, --info and --cfg itself, else calls the program."""

    def run(self, main: Callable[[RunConfig], ExitStatus | int | None], arguments: list[str]) -> int:
        """Run `main` with the configuration that `arguments` describe. Returns its exit status."""
        try:
            return self._dispatch(main, arguments)
        except RunError as error:
            print(f"{self.name}: {self._in_own_words(error)}", file=sys.stderr)
            return int(error.exit_status)
        except PreemptedError:
            print(f"{self.name}: ended at once by a scheduler's signal", file=sys.stderr)
            return int(ExitStatus.preempted)
        except KeyboardInterrupt:
            print(f"{self.name}: interrupted", file=sys.stderr)
            return int(ExitStatus.interrupted)
        except (Exception, SystemExit) as error:
            if sys.gettrace() is not None:  # a debugger looks at it where it was raised
                raise
            _show_exception(type(error), error, error.__traceback__)
            print(f"\n{self.name}: {fault_report(error)}", file=sys.stderr)
            return int(ExitStatus.unexpected)

    def _dispatch(self, main: Callable[[RunConfig], ExitStatus | int | None], arguments: list[str]) -> int:
        """Print the help or the configuration, start a sweep, or call `main`, as the options say. Raises RunError."""
        from rlrun.config.checks import OF_INPUTS, OF_TRAINING, check

        options, overrides = self._split(arguments)
        if "--help" in options or "-h" in options:
            from rlrun.config.program import help_text

            print(help_text(self, overrides, _folder_of(options)), flush=True)
            return ExitStatus.ok
        self._close_opened(overrides)
        if "--multirun" in options:
            return self._start_sweep(options, overrides)
        recorded, overrides = self._readable(overrides)
        config = compose_only(overrides, options.get("--config-dir"), recorded)
        is_shown = "--cfg" in options or "--info" in options
        if is_shown:
            self._print(config, options, overrides)
        check(config, OF_TRAINING if self.uses_policy else OF_INPUTS if not self.reads_inputs else frozenset())
        return ExitStatus.ok if is_shown else self._call(main, config)

    def _start_sweep(self, options: dict[str, str], overrides: list[str]) -> int:
        """Check the configurations of all runs, then start them."""
        from rlrun.config.program import SweepRequest, expand

        folder = [override for override in overrides if override.partition("=")[0] == "output_dir"]
        shared = [override for override in overrides if override not in folder]
        config_dir = options.get("--config-dir")
        names: list[str] = []

        def checked_name(run: Sequence[str]) -> str:
            recorded, arguments = self._readable(list(run))
            names.append(load(arguments, config_dir, recorded).name)
            return names[-1]

        runs = expand(shared, checked_name)
        output_dir = _unquoted(folder[-1].partition("=")[2]) if folder else None
        more = [] if config_dir is None else [f"--config-dir={Path(config_dir).absolute()}"]
        if "--cfg" in options or "--info" in options:
            print("\n".join(f"{run.label}: {' '.join(run.arguments)}" for run in runs), flush=True)
            return ExitStatus.ok
        name = names[0] if len(set(names)) == 1 else "sweep"
        assert self.sweep is not None
        return self.sweep(SweepRequest(self.name, name, output_dir, runs, more), options.get("--sbatch"))

    @staticmethod
    def _close_opened(overrides: list[str]) -> None:
        """Import nothing from the working folder if it is, or lies in, a folder that an argument opens."""
        for override in overrides:
            key, _, value = override.lstrip("+").partition("=")
            if key in OPENED and value:
                close_folder(_unquoted(value))

    def _readable(self, overrides: list[str]) -> tuple[RecordedConfig | None, list[str]]:
        """Return the result of `_recorded`. Raises RunError for a folder that this user may not read."""
        try:
            return self._recorded(overrides)
        except OSError as error:
            failure = storage_failure(error, "The start", [str(error.filename)])
            if failure is None:
                raise
            raise failure from error

    def _recorded(self, overrides: list[str]) -> tuple[RecordedConfig | None, list[str]]:
        """Return the configuration of the run that the arguments name, and the overrides on top of it."""
        given = dict(override.lstrip("+").partition("=")[::2] for override in overrides)
        is_trusted = (self.resumes or self.uses_policy) and _is_true(given.pop(TRUST, "false"))
        overrides = [override for override in overrides if override.lstrip("+").partition("=")[0] in given]
        if self.uses_policy and given.get("evaluation.checkpoint"):
            recorded = config_of_policy(Path(_unquoted(given["evaluation.checkpoint"])), is_trusted, set(given))
            if recorded is not None and recorded.remark is not None:
                print(f"{self.name}: {recorded.remark}", file=sys.stderr)
            return recorded, overrides
        if not self.resumes or RESUME not in given:
            return None, overrides
        resumed = resumption(_unquoted(given[RESUME]), is_trusted)
        output_dir = given.get("output_dir")
        kept = [override for override in overrides if override.lstrip("+").partition("=")[0] != RESUME]
        return resumed.recorded, [*resumed.overrides(output_dir and _unquoted(output_dir)), *kept]

    def _in_own_words(self, error: RunError) -> RunError:
        """Name a key as this program's short form, which a person has typed."""
        faults = error.errors if isinstance(error, RunErrors) else [error]
        for fault in faults:
            fault.key = next((short for short, key in self.aliases.items() if key == fault.key), fault.key)
        return error

    def _call(self, main: Callable[[RunConfig], ExitStatus | int | None], config: RunConfig) -> int:
        try:
            return int(main(config) or ExitStatus.ok)
        except (OSError, RuntimeError) as error:
            places = [config.output_dir or str(Path("runs") / config.name), config.cache_dir]
            failure = storage_failure(error, "The run", [str(Path(place).absolute()) for place in places])
            if failure is None:
                raise
            raise failure from error

    def _print(self, config: RunConfig, options: dict[str, str], overrides: list[str]) -> None:
        from rlrun.config import provenance
        from rlrun.config.program import info_text

        if "--info" in options:
            print(info_text(overrides, _folder_of(options)), flush=True)
        else:
            print(provenance.config_yaml(config).removesuffix("\n"), flush=True)

    def _split(self, arguments: list[str]) -> tuple[dict[str, str], list[str]]:
        """Return the options with their values, and the overrides with positional arguments and aliases expanded."""
        options: dict[str, str] = {}
        overrides: list[str] = []
        positional: list[str] = []
        rest = iter(arguments)
        for argument in rest:
            option, _, value = argument.partition("=")
            if option in ("--help", "-h", "--info"):
                options[option] = ""
            elif option in ("--cfg", "-c", "--config-dir"):
                options["--cfg" if option == "-c" else option] = value or next(rest, "")
            elif self.sweep and option in ("-m", "--multirun"):
                options["--multirun"] = ""
            elif self.sweep and option == "--sbatch":
                options[option] = value or next(rest, "")
            elif argument.startswith("-"):
                raise RunError(
                    f"Unknown option '{argument}'.",
                    remedy=f"Options: --help, --info, --cfg job, --config-dir{', -m, --sbatch' if self.sweep else ''}.",
                )
            else:
                overrides.append(self._spell_out(argument))
                positional += [argument] * ("=" not in argument)
        self._require_one(positional)
        if options.get("--cfg", "job") != "job":
            raise RunError(f"--cfg {options['--cfg']} is unknown.", remedy="Write --cfg job.")
        return options, overrides

    def _require_one(self, positional: list[str]) -> None:
        if self.positional is not None and len(positional) > 1:
            what = self.positional.rsplit(".", 1)[-1].upper()
            raise RunError(
                f"{self.name} takes one {what}, and {len(positional)} were given.",
                key=self.positional,
                value=" ".join(positional),
                remedy="Run it once for each, and write everything else as key=value.",
            )

    def _spell_out(self, argument: str) -> str:
        key, equals, value = argument.partition("=")
        if not equals and self.positional is not None:
            return f"{self.positional}={_quoted_once(argument)}"
        if key in self.aliases and not value.startswith("{"):
            return f"{self.aliases[key]}={_quoted_once(value)}"
        if self.resumes and key == RESUME:
            return f"{RESUME}={_quoted_once(value)}"
        return argument


def _quoted_once(value: str) -> str:
    """Return a value that may have any characters, quoted, unless a person has quoted it for Hydra already."""
    is_quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "'\"" and value[0] not in value[1:-1]
    return value if is_quoted else quoted(value)


def _show_exception(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print a traceback as Python does, but no control codes that its message may hold."""
    print(indent("".join(traceback.format_exception(kind, error, trace)).rstrip()), file=sys.stderr)


def _is_true(value: str) -> bool:
    """Return the value of `trust`. Raises RunError for anything but true and false."""
    if _unquoted(value) not in ("True", "False"):
        raise RunError(
            f"'{TRUST}' is true or false.",
            key=TRUST,
            value=value,
            remedy=f"Write {TRUST}=true for a folder whose writer you know.",
        )
    return _unquoted(value) == "True"


def _unquoted(value: str) -> str:
    """Return the text of an override's value, as Hydra reads it."""
    from rlrun.config.composition import text_of

    return text_of(value)


def _folder_of(options: dict[str, str]) -> Path | None:
    return _folder(options.get("--config-dir"))


def _name(main: Callable) -> str:
    spec = getattr(sys.modules.get(main.__module__), "__spec__", None)
    return spec.name if spec else main.__module__
