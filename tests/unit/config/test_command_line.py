"""What a person sees: help, resolved configuration, short errors, true exit statuses."""

from __future__ import annotations

import resource
import subprocess
import sys
from dataclasses import fields
from importlib import import_module
from pathlib import Path

import pytest
import yaml

from rlrun.config.loader import entry_point, load
from rlrun.config.reference import all_keys
from rlrun.config.registry import REGISTRIES
from rlrun.config.schema import RunConfig
from rlrun.config.sections import Section
from rlrun.system.errors import ExitStatus, RunError

ROOT = Path(__file__).resolve().parents[3]
COMMANDS = [
    "rlrun.doctor.__main__" if path.parent.name == "doctor" else f"rlrun.{path.stem}"
    for path in sorted((ROOT / "rlrun").glob("*.py")) + [ROOT / "rlrun" / "doctor" / "__main__.py"]
    if "@entry_point(" in path.read_text(encoding="utf-8")
]
HEAVY = ("torch", "ray", "mujoco", "transformers")
PROGRAMS = sorted(
    path.stem for path in (ROOT / "rlrun").glob("*.py") if "@entry_point(" in path.read_text(encoding="utf-8")
)


def run(main, *arguments: str) -> int:
    with pytest.raises(SystemExit) as stopped:
        main(list(arguments))
    return stopped.value.code


@entry_point("Does nothing.", positional="output_dir", aliases={"checkpoint": "evaluation.checkpoint"})
def program(config: RunConfig) -> None:
    """Prints what it was given."""
    print(config.output_dir, config.evaluation.checkpoint, config.seed)


def helped(capsys, name: str, *arguments: str) -> str:
    """What a command prints as its help."""
    assert run(import_module(name).main, *arguments, "--help") == 0
    return capsys.readouterr().out


def listed(text: str) -> set[str]:
    """The keys of a help."""
    return {key.path for key in all_keys() if f"\n  {key.path}={key.default}" in text}


def test_help_shows_every_key_group_and_comment(capsys) -> None:
    assert run(program, "--help") == 0
    text = capsys.readouterr().out
    others = text.rpartition("sections of other kinds")[2].replace(",", "").split()
    assert {"env.omnigibson", "policy.cnn", "algorithm.sac"} <= set(others)
    assert listed(text) == {key.path for key in all_keys() if key.path.rpartition(".")[0] not in others}
    assert "run=behavior_2026 | behavior_ppo_openvla_oft | cartpole | debug | halfcheetah | " in text
    files = "gr00t gr00t_dsrl gr00t_nft pi0 pi05 pi05_dsrl pi05_nft pi0_dsrl pi0_nft small smolvla smolvla_dsrl"
    assert f"policy={files.replace(' ', ' | ')} | smolvla_nft\n" in text
    assert "OUTPUT_DIR is output_dir=…" in text
    assert "egl | osmesa | raycast" in text
    assert "time limit of an episode" in text


@pytest.mark.parametrize("name", COMMANDS)
def test_help_lists_what_the_command_reads(capsys, name: str) -> None:
    keys = listed(helped(capsys, name))
    assert 0 < len(keys) < 250 and not any(key.startswith("env.gymnasium.") for key in keys)
    assert any(key.startswith("node.") for key in keys) == (name == "rlrun.node")
    assert any(key.startswith("certify.") for key in keys) == (name == "rlrun.certify")
    assert any(key.startswith("serve.") for key in keys) == (name == "rlrun.serve")


def test_every_key_is_in_the_help_of_a_command(capsys) -> None:
    kinds = {f"{registry.parent}.{spec.name}" for registry in REGISTRIES for spec in registry.installed()}
    known = set().union(*(listed(helped(capsys, name)) for name in COMMANDS))
    missing = {key.path for key in all_keys()} - known
    assert {key for key in missing if key.rpartition(".")[0] not in kinds} == set()


def test_help_has_the_keys_of_the_kinds_that_are_chosen(capsys) -> None:
    keys = listed(helped(capsys, "rlrun.check_policy", "cnn", "env.simulator=gymnasium"))
    assert {"env.gymnasium.id", "policy.cnn.conv_channels"} <= keys
    assert not any(key.startswith(("env.embedded.", "policy.openvla_oft.", "actor.", "node.")) for key in keys)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("rlrun.check_policy", ["mlp", "run=cartpole"]),
        ("rlrun.check_algorithm", ["ppo", "run=cartpole"]),
        ("rlrun.check_simulator", ["gymnasium", "run=cartpole"]),
        ("rlrun.plan", ["run=cartpole", "inventory=configs/inventory_example.yaml"]),
    ],
)
def test_a_command_reads_no_key_that_its_help_lacks(capsys, monkeypatch, name: str, arguments: list[str]) -> None:
    """Reads by checks, which look at the whole configuration, do not count."""
    place = {type(getattr(RunConfig(), entry.name)): f"{entry.name}." for entry in fields(RunConfig)}
    place[RunConfig] = ""
    read: set[str] = set()

    def noted(self: Section, attribute: str) -> object:
        value = object.__getattribute__(self, attribute)
        reader = sys._getframe(1).f_globals["__name__"]
        is_check = reader.startswith("rlrun.config.") or reader.endswith(".spec")
        if type(self) in place and reader.startswith("rlrun.") and not is_check:
            read.add(place[type(self)] + attribute)
        return value

    shown = listed(helped(capsys, name, *arguments))
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(Section, "__getattribute__", noted, raising=False)
    run(import_module(name).main, *arguments)
    monkeypatch.undo()
    keys = {key.path for key in all_keys()}
    assert len(read & keys) > 3 and read & keys <= shown


def test_comments_belong_to_their_key() -> None:
    comments = {key.path: key.comment for key in all_keys()}
    assert comments["env.num_envs"] == "total over all env workers"
    assert comments["env.embedded.physics_hz"] == ""
    assert comments["sft.num_steps"] == "optimizer steps"


def test_cfg_prints_yaml_that_loads_back(capsys) -> None:
    assert run(program, "--cfg", "job", "run=debug", "env.renderer=raycast") == 0
    tree = yaml.safe_load(capsys.readouterr().out)
    assert tree["env"]["renderer"] == "raycast"
    assert tree["num_steps"] == 2


def test_info_names_folder_and_overrides(capsys) -> None:
    assert run(program, "--info", "seed=3") == 0
    text = capsys.readouterr().out
    assert "configs" in text
    assert "seed=3" in text


def test_a_node_takes_the_arguments_of_the_program_that_it_runs(capsys, tmp_path: Path) -> None:
    untrainable = ["start", "--cfg", "job", "algorithm.global_batch_size=7"]
    assert run(import_module("rlrun.node").main, *untrainable, f"checkpoint={tmp_path}") == 0
    assert yaml.safe_load(capsys.readouterr().out)["evaluation"]["checkpoint"] == str(tmp_path)
    assert run(import_module("rlrun.node").main, *untrainable, f"replay={tmp_path}") == 2
    assert "algorithm.global_batch_size" in capsys.readouterr().err


def test_positional_and_alias(capsys, tmp_path: Path) -> None:
    assert run(program, str(tmp_path), f"checkpoint={tmp_path}") == 0
    assert capsys.readouterr().out == f"{tmp_path} {tmp_path} 0\n"


def test_a_second_positional_argument_is_refused(capsys, tmp_path: Path) -> None:
    assert run(program, "a", "b") == 2
    assert "takes one OUTPUT_DIR, and 2 were given" in capsys.readouterr().err


def test_section_is_not_taken_for_the_alias(capsys) -> None:
    assert run(program, "checkpoint={keep_last: 3}") == 0
    assert capsys.readouterr().out == "None None 0\n"


def test_refused_configuration_exits_2_without_traceback(capsys) -> None:
    assert run(program, "env.num_env=4") == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Unknown key 'env.num_env'" in captured.err
    assert "Traceback" not in captured.err


def test_unknown_option(capsys) -> None:
    assert run(program, "--multirun") == 2
    assert "Unknown option '--multirun'" in capsys.readouterr().err


@pytest.mark.parametrize("status", list(ExitStatus))
def test_status_of_an_error_becomes_the_exit_status(status: ExitStatus) -> None:
    @entry_point("Fails.")
    def failing(config: RunConfig) -> None:
        raise RunError("it broke", exit_status=status)

    assert run(failing) == status.value


def test_returned_status_becomes_the_exit_status() -> None:
    @entry_point("Is preempted.")
    def preempted(config: RunConfig) -> ExitStatus:
        return ExitStatus.preempted

    assert run(preempted) == 75


@pytest.mark.parametrize("error", [ZeroDivisionError("by zero"), SystemExit("no licence")])
def test_an_unexpected_error_keeps_its_traceback_and_says_who_raised_it(
    error: BaseException, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    @entry_point("Has a bug.")
    def buggy(config: RunConfig) -> None:
        raise error

    monkeypatch.setattr(sys, "gettrace", lambda: None)  # that of a coverage tool
    assert run(buggy) == ExitStatus.unexpected
    told = capsys.readouterr().err
    assert told.startswith("Traceback") and "in buggy" in told
    after = told.partition("An error that rlrun does not expect: ")[2]
    assert after.startswith(f"{type(error).__name__}: {error}") and "test_command_line.py" in after


def test_a_debugger_gets_the_error_where_it_was_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    @entry_point("Has a bug.")
    def buggy(config: RunConfig) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(sys, "gettrace", lambda: print)
    with pytest.raises(ZeroDivisionError):
        buggy([])


@pytest.mark.parametrize("given", ['output_dir="a=b"', "'a=b'", '"a=b"', "a=b"])
def test_a_value_that_is_quoted_already_is_not_quoted_again(given: str, capsys) -> None:
    @entry_point("Shows.", aliases={"folder": "output_dir"})
    def shows(config: RunConfig) -> None:
        print(config.output_dir)

    argument = given if given.startswith("output_dir") else f"folder={given}"
    assert run(shows, argument) == 0
    assert capsys.readouterr().out == "a=b\n"


@pytest.mark.parametrize("key", ["name", "output_dir", "cache_dir", "policy.path", "demos.path"])
def test_names_longer_than_file_systems_take(key: str) -> None:
    with pytest.raises(RunError) as refused:
        load(["run=cartpole", f"{key}={'x' * 300}"])
    assert refused.value.key == key and refused.value.remedy


def test_a_run_to_resume_with_a_name_that_is_too_long(capsys) -> None:
    @entry_point("Resumes.", resumes=True)
    def resuming(config: RunConfig) -> None: ...

    assert run(resuming, f"resume={'x' * 300}") == ExitStatus.storage
    told = capsys.readouterr().err
    assert "is longer than its file system takes" in told and "Traceback" not in told


def seconds(*arguments: str) -> float:
    """Processor time of a command: its wall time where nothing else shares the cores."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], cwd=ROOT, check=True, capture_output=True, timeout=60)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_there_are_programs() -> None:
    assert "train" in PROGRAMS


def test_all_answer_without_heavy_imports() -> None:
    """In one process, so that whatever imports torch is the first of them that does."""
    code = (
        "import runpy, sys\n"
        f"for name in {PROGRAMS!r}:\n"
        "    for option in ('--help', '--cfg=job'):\n"
        "        sys.argv = ['x', option]\n"
        "        try: runpy.run_module(f'rlrun.{name}', run_name='__main__')\n"
        "        except SystemExit as stop: assert not stop.code, (name, option, stop.code)\n"
        f"        print(name, option, *[m for m in {HEAVY!r} if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines() == [f"{name} {option}" for name in PROGRAMS for option in ("--help", "--cfg=job")]


@pytest.mark.parametrize("option", ["--help", "--cfg=job"])
def test_answers_soon(option: str) -> None:
    """In the processor time of a few imports: this machine may be slow, and other tests share its cores."""
    assert any(seconds("-m", "rlrun.train", option) < 2.5 * seconds("-c", "import ray") for _ in range(3))


def test_load_is_what_the_program_gets() -> None:
    assert load(["seed=5"]).seed == 5


@entry_point("Writes to a full disk.")
def writer(config: RunConfig) -> None:
    """As a log or a metric would."""
    with open("/dev/full", "w") as full:
        full.write("one line")


def test_a_full_disk_is_told_with_what_is_free(capsys, tmp_path) -> None:
    assert run(writer, f"output_dir={tmp_path}/new", f"cache_dir={tmp_path}") == ExitStatus.storage
    said = capsys.readouterr().err
    assert "The run could not write: a disk is full." in said and "No space left on device" in said
    assert f"{tmp_path}/new: " in said and "MB free" in said and "remedy:" in said
