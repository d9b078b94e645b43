"""A folder from elsewhere is data: what it names is not imported, opened, started or asked, unless `trust=true`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml

from rlrun.config import provenance
from rlrun.config.loader import entry_point, load
from rlrun.config.recorded import POLICY_CONFIG, config_of_policy
from rlrun.config.schema import RunConfig
from rlrun.eval import main as evaluate
from rlrun.observability.records import read_run
from rlrun.placement.inventory import load_inventory
from rlrun.serve import main as serve
from rlrun.system.errors import CONFIG, ExitStatus, RunError
from rlrun.system.local_files import read_yaml
from rlrun.training.session import resume_command

CALLED = "called"  # the file that the attacker's code leaves


@pytest.fixture
def at_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], None]:
    """Go to the home folder of somebody."""

    def go(name: str) -> None:
        (tmp_path / name).mkdir(exist_ok=True)
        monkeypatch.setenv("HOME", str(tmp_path / name))

    go("me")
    return go


@pytest.fixture
def foreign(at_home: Callable[[str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A policy folder that somebody else's run exported, with a module beside it; the working folder has both."""
    at_home("stranger")
    folder = tmp_path / "download" / "policy"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "evil.py").write_text(f"open({str(tmp_path / CALLED)!r}, 'w')\nX = None\n")
    provenance.write_config(load(["run=cartpole", "seed=7", "num_steps=3"]), folder / POLICY_CONFIG)
    at_home("me")
    monkeypatch.chdir(tmp_path / "download")
    return folder


def written(folder: Path, changes: dict, file: str = POLICY_CONFIG) -> Path:
    """The folder, after its author has set some keys, given as {"env.simulator": value}."""
    tree = yaml.safe_load((folder / file).read_text())
    for key, value in changes.items():
        *sections, name = key.split(".")
        place = tree
        for section in sections:
            place = place.setdefault(section, {})
        place[name] = value
    (folder / file).write_text(yaml.safe_dump(tree))
    return folder


EVAL = {"uses_policy": True, "aliases": {"checkpoint": "evaluation.checkpoint"}}
TRAIN = {"resumes": True}


def started(options: dict, *arguments: str) -> RunConfig | int:
    """What a program of these options gets, or the status with which it refuses."""
    got: list[RunConfig] = []

    @entry_point("Keeps its configuration.", **options)
    def program(config: RunConfig) -> None:
        got.append(config)

    with pytest.raises(SystemExit) as ended:
        program(list(arguments))
    return got[0] if got else ended.value.code


def test_a_policy_from_elsewhere_acts_as_in_its_run(foreign: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = started(EVAL, f"checkpoint={foreign}")
    assert isinstance(config, RunConfig) and (config.env.simulator, config.policy.kind) == ("gymnasium", "mlp")
    run = load(["run=cartpole"])
    assert config.env.sections == run.env.sections and config.policy.sections == run.policy.sections
    assert config.env.max_control_steps == run.env.max_control_steps
    assert config.num_steps == RunConfig().num_steps, "how it trained does not matter"
    assert capsys.readouterr().err == "", "a run of the usual kind leaves nothing to tell"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("env.simulator", "evil:X"),
        ("policy.kind", "evil:X"),
        ("algorithm.name", "evil:X"),
        ("env.gymnasium.maker", "evil:X"),
        ("env.gymnasium.id", "evil:Name-v0"),
    ],
)
def test_no_code_of_it_runs(foreign: Path, key: str, value: str, tmp_path: Path, capsys) -> None:
    written(foreign, {key: value, "python_path": ["policy"]})
    assert started(EVAL, f"checkpoint={foreign}") == ExitStatus.bad_input
    said = capsys.readouterr().err
    assert all(text in said for text in (key, value, f"{foreign / POLICY_CONFIG}", "module evil", "trust=true"))
    assert not (tmp_path / CALLED).exists() and "evil" not in sys.modules


@pytest.mark.parametrize("program", [evaluate, serve])
def test_the_programs_refuse_it(foreign: Path, program: Callable[[list[str]], None], tmp_path: Path, capsys) -> None:
    written(foreign, {"env.simulator": "evil:X", "python_path": ["policy"]})
    with pytest.raises(SystemExit) as ended:
        program([f"checkpoint={foreign}"])
    assert ended.value.code == ExitStatus.bad_input and "module evil" in capsys.readouterr().err
    assert not (tmp_path / CALLED).exists()


def test_the_user_s_own_choice_replaces_what_was_refused(foreign: Path) -> None:
    written(foreign, {"algorithm.name": "evil:X"})
    assert isinstance(started(EVAL, f"checkpoint={foreign}", "algorithm.name=ppo"), RunConfig)


def test_trust_obeys_it(foreign: Path, tmp_path: Path) -> None:
    """The other side of the tests above: what they refuse would have run."""
    written(foreign, {"env.simulator": "evil:X", "python_path": ["policy"]})
    command = [sys.executable, "-m", "rlrun.eval", f"checkpoint={foreign}", "--cfg", "job"]
    subprocess.run([*command, "trust=true"], cwd=foreign.parent, capture_output=True, timeout=120, check=False)
    assert (tmp_path / CALLED).exists()


@pytest.mark.parametrize(
    ("changes", "left"),
    [
        ({"callbacks": ["evil:X"], "python_path": ["policy"]}, ("callbacks", "python_path")),
        ({"env.reward": "evil:X", "python_path": ["policy"]}, ("env.reward",)),
        ({"env.reward": {"term": {"function": "evil:X", "weight": 2}}}, ("env.reward",)),
        ({"logging.wandb": True, "logging.project": "theirs"}, ("logging.wandb", "logging.project")),
        ({"cache_dir": "/root/.ssh"}, ("cache_dir",)),
        ({"placement.nodes": {"here": {"python": "/tmp/evil"}}}, ("placement.nodes",)),
        ({"rollout.sglang.python": "/tmp/evil"}, ("rollout.sglang.python",)),
        ({"cluster.address": "evil.example:6379"}, ("cluster.address",)),
        ({"demos.path": "/etc", "replay.path": "/etc"}, ("demos.path", "replay.path")),
        ({"checkpoint.resume": "/etc", "evaluation.server": "ws://evil"}, ("checkpoint.resume", "evaluation.server")),
        ({"serve.host": "0.0.0.0"}, ("serve.host",)),
        ({"env.gymnasium.kwargs": {"xml_file": "/tmp/evil.xml"}}, ("env.gymnasium.kwargs",)),
        ({"hydra": {"searchpath": ["/etc"]}, "defaults": [{"run": "debug"}]}, ("hydra",)),
        ({"a_newer_key": "of a newer rlrun"}, ("a_newer_key",)),
    ],
)
def test_what_names_a_place_or_a_service_is_left_out_and_said(foreign: Path, changes: dict, left, capsys) -> None:
    plain = started(EVAL, f"checkpoint={foreign}")
    capsys.readouterr()
    config = started(EVAL, f"checkpoint={written(foreign, changes)}")
    assert config == plain
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and all(name in said for name in left)


@pytest.mark.parametrize("name", ["../../../tmp/x", "/tmp/x", "a/../../x", "x\x1b]0;title\x07", "~/x", "a\nb"])
def test_a_name_stays_below_runs(foreign: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert started(EVAL, f"checkpoint={written(foreign, {'name': name})}") == ExitStatus.bad_input
    assert "key:    name" in capsys.readouterr().err
    if name != "~/x":  # a folder of that name, below runs/
        with pytest.raises(RunError) as refused:
            load([f"name={name!r}"] if name.isprintable() else [f'name="{name}"'])
        assert refused.value.key == "name"


@pytest.mark.parametrize("key", ["name", "env.embedded.activity", "actor.lr", "callbacks", "logging.project"])
def test_nothing_is_interpolated(foreign: Path, key: str, monkeypatch, capsys) -> None:
    monkeypatch.setenv("A_SECRET", "s3cret")
    value = "${oc.env:A_SECRET}"
    written(foreign, {key: [value] if key == "callbacks" else value})
    for arguments in ([], ["trust=true"]):
        assert started(EVAL, f"checkpoint={foreign}", *arguments) == ExitStatus.bad_input
        said = capsys.readouterr().err
        assert key in said and str(foreign / POLICY_CONFIG) in said and "s3cret" not in said


BOMBS = {
    "deep": "a: " + "[" * 5000 + "]" * 5000,
    "nested maps": "".join(f"{' ' * depth}a:\n" for depth in range(90)) + " " * 90 + "a: 1\n",
    "aliases": "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n"
    + "".join(f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 12)),
    "merges": "a0: &a0 {k: 1}\n"
    + "".join(f"a{i}: &a{i} {{<<: [{','.join([f'*a{i - 1}'] * 30)}]}}\n" for i in range(1, 9)),
    "endless": "a: &a [*a]\n",
    "large": "a: " + "x" * 5_000_000,
    "tag": "a: !!python/object/apply:os.system ['true']\n",
    "empty number": 'a: !!int ""\n',
    "date": "a: 2026-99-99\n",
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_its_yaml_is_bounded(foreign: Path, bomb: str, capsys: pytest.CaptureFixture[str]) -> None:
    (foreign / POLICY_CONFIG).write_text(BOMBS[bomb])
    assert started(EVAL, f"checkpoint={foreign}") == ExitStatus.bad_input
    said = capsys.readouterr().err
    assert "cannot be read" in said and str(foreign / POLICY_CONFIG) in said and "remedy:" in said


def test_a_copy_of_one_s_own_needs_no_word_and_a_changed_one_does(foreign: Path, capsys) -> None:
    """Here `me` writes it; that a stranger sends back what he changed in it does not make it his own."""
    provenance.write_config(load(["run=cartpole", "seed=7", "callbacks=['evil:X']"]), foreign / POLICY_CONFIG)
    config = started(EVAL, f"checkpoint={foreign}")
    assert isinstance(config, RunConfig) and config.seed == 7 and list(config.callbacks) == ["evil:X"]
    text = (foreign / POLICY_CONFIG).read_text()
    (foreign / POLICY_CONFIG).write_text(text.replace("seed: 7", "seed: 8"))
    config = started(EVAL, f"checkpoint={foreign}")
    assert isinstance(config, RunConfig) and config.seed == 0 and list(config.callbacks) == []
    assert started(EVAL, f"checkpoint={foreign}", "trust=true").seed == 8
    assert started(EVAL, f"checkpoint={foreign}", "trust=maybe") == ExitStatus.bad_config


@pytest.mark.parametrize(
    "changes",
    [
        {"env.gymnasium.instruction": "\x1b]0;title\x07:x", "a\x1b[2J": "x"},
        {"env.gymnasium.id": "evil\x1b[2J:X"},
        {"env.simulator": "evil:X\x1b[2J"},
        {"name": "${\x1b[2J}"},
        {"a\x1b[2J": "x"},
        {"env.gymnasium.instruction": "x" * 100_000},
    ],
)
def test_what_is_said_of_it_has_no_control_codes(foreign: Path, changes: dict, capsys) -> None:
    started(EVAL, f"checkpoint={written(foreign, changes)}")
    said = capsys.readouterr().err
    assert said and "\x1b" not in said and len(said) < 2000


def test_the_policy_that_it_began_with_is_not_looked_for(foreign: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = started(EVAL, f"checkpoint={written(foreign, {'policy.path': '/etc'})}")
    assert isinstance(config, RunConfig) and config.policy.path == str(foreign)
    assert capsys.readouterr().err == ""


def run_of_another(at_home: Callable[[str], None], place: Path, *overrides: str) -> Path:
    folder = place / "theirs"
    at_home("stranger")
    provenance.write(load(["run=cartpole", *overrides]), folder)
    at_home("me")
    return folder


def test_a_run_of_another_is_resumed_after_one_question(at_home, tmp_path: Path, capsys) -> None:
    folder = run_of_another(at_home, tmp_path, "callbacks=['subprocess:check_output']", "logging.wandb=true")
    assert started(TRAIN, f"resume={folder}") == ExitStatus.bad_input
    said = capsys.readouterr().err
    assert all(text in said for text in (str(folder), "callbacks", "logging.wandb", "trust=true"))
    config = started(TRAIN, f"resume={folder}", "trust=true")
    assert isinstance(config, RunConfig) and config.output_dir == str(folder)
    assert "trust" not in provenance.config_yaml(config)
    provenance.write(config, folder)  # as the run does when it has resumed
    assert isinstance(started(TRAIN, f"resume={folder}"), RunConfig)


def test_a_home_that_cannot_be_written(at_home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HOME", str(tmp_path / "file"))  # no folder can be made in it, whoever tries
    assert not provenance.can_mark() and provenance.why_unmarked() == "No writable home folder"
    provenance.write(load(["run=cartpole"]), tmp_path / "run")
    assert started(TRAIN, f"resume={tmp_path / 'run'}") == ExitStatus.bad_input
    assert isinstance(started(TRAIN, f"resume={tmp_path / 'run'}", "trust=true"), RunConfig)
    assert resume_command(tmp_path / "run").endswith("/run trust=true")
    at_home("me")
    assert resume_command(tmp_path / "run").endswith("/run")


def test_the_secret_is_one_s_own(at_home, tmp_path: Path) -> None:
    text = provenance.marked("a: 1\n")
    file = provenance.key_file()
    assert str(file) in provenance.why_unmarked()  # where it cannot be used although it is there
    assert file.is_relative_to(tmp_path / "me") and file.stat().st_mode & 0o777 == 0o600
    assert provenance.author_of(text) is provenance.Author.own
    assert provenance.author_of(text.replace("a: 1", "a: 2")) is provenance.Author.changed
    assert provenance.author_of("a: 1\n") is provenance.Author.other
    file.chmod(0o644)  # others could have read it
    assert provenance.author_of(text) is provenance.Author.other
    at_home("stranger")
    assert provenance.author_of(text) is provenance.Author.other
    assert provenance.author_of(provenance.marked("a: 1\n")) is provenance.Author.own


def test_processes_that_begin_together_have_one_secret(at_home) -> None:
    with ThreadPoolExecutor(16) as threads:
        assert len(set(threads.map(provenance.marked, ["a: 1\n"] * 64))) == 1
    assert [file.name for file in provenance.key_file().parent.iterdir()] == ["mark_key"]


def test_a_checkpoint_takes_the_configuration_beside_it(at_home, tmp_path: Path) -> None:
    folder = run_of_another(at_home, tmp_path, "seed=7")
    (folder / "checkpoints" / "step_00000001" / "policy").mkdir(parents=True)
    found = config_of_policy(folder / "checkpoints" / "step_00000001")
    assert found is not None and found.file == folder / CONFIG and "seed" not in found.tree


# --- YAML and JSON of users -------------------------------------------------------------------


@pytest.mark.parametrize("bomb", ["deep", "aliases", "merges", "endless", "large"])
def test_yaml_of_a_config_dir_is_bounded(tmp_path: Path, bomb: str) -> None:
    (tmp_path / "env").mkdir()
    (tmp_path / "env" / "mine.yaml").write_text(BOMBS[bomb])
    with pytest.raises(RunError) as refused:
        load(["env=mine"], str(tmp_path))
    assert str(tmp_path / "env" / "mine.yaml") in str(refused.value) and refused.value.remedy


def test_aliases_of_ordinary_use_are_read(tmp_path: Path) -> None:
    (tmp_path / "file.yaml").write_text("base: &base {a: 1, b: [1, 2]}\none: {<<: *base, b: 3}\ntwo: [*base, *base]\n")
    base = {"a": 1, "b": [1, 2]}
    assert read_yaml(tmp_path / "file.yaml") == {"base": base, "one": {"a": 1, "b": 3}, "two": [base, base]}


@pytest.mark.parametrize("bomb", BOMBS)
def test_an_inventory_is_bounded(tmp_path: Path, bomb: str) -> None:
    (tmp_path / "inventory.yaml").write_text(BOMBS[bomb])
    with pytest.raises(RunError, match="The inventory cannot be used"):
        load_inventory(tmp_path / "inventory.yaml")


@pytest.mark.parametrize("count", ["1000000000000", ".inf", ".nan", "-1", "x"])
def test_an_inventory_of_absurd_numbers(tmp_path: Path, count: str) -> None:
    (tmp_path / "inventory.yaml").write_text(f"nodes: [{{name: a, cpus: 8, memory_gb: 8, count: {count}}}]\n")
    with pytest.raises(RunError, match="count is"):
        load_inventory(tmp_path / "inventory.yaml")


@pytest.mark.parametrize("name", ["config.yaml", "plan.json", "metrics.jsonl", "timeline.json", "evaluations.jsonl"])
def test_a_report_of_a_bomb_names_it_or_leaves_it_out(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(BOMBS["aliases"] if name == "config.yaml" else "[" * 100_000)
    record = read_run(tmp_path)
    assert not record.metrics and not record.config and not record.worker_seconds
    assert any(name in damage for damage in record.damaged) == (name in ("config.yaml", "plan.json"))
