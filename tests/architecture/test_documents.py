"""What documents name exists: files, modules, configuration keys, links; and what is generated is current."""

from __future__ import annotations

import re
import runpy
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from rlrun.config.loader import load
from rlrun.config.reference import is_known, sections
from rlrun.config.registry import REGISTRIES
from rlrun.envs.r1pro_keys import R1ProConfig
from tests.architecture.source import ROOT, assert_no_breach

DOCUMENTS = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
FOLDERS = ("rlrun", "tests", "benchmarks", "scripts", "configs", "docs", "docker", "examples")
CODE = re.compile(r"`([^`\n]+)`")
PATH = re.compile(rf"(?<![\w./-])(?:{'|'.join(FOLDERS)})/[\w./-]+")
MODULE = re.compile(r"(?<![\w./-])(?:rlrun|benchmarks)(?:\.[a-z_][a-z0-9_]*)+")
KEY = re.compile(r"(?<![\w./:-])[a-z_]+(?:\.[a-z_][a-z0-9_]*)+(?![\w./(-])")
PLACEHOLDER = re.compile(r"[…<>*$]|\bNAME\b")


@cache
def pieces(path: Path) -> tuple[tuple[str, int], ...]:
    """Text in back-ticks and lines of code, with their line numbers; left out are what programs print (blocks of
    "text") and names of other projects."""
    found: list[tuple[str, int]] = []
    block, is_foreign = "", False
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if line.startswith("```"):
            block = "" if block else line
        elif block:
            found += [(line.partition(" #")[0], number)] if block != "```text" else []
        else:
            is_foreign = line.startswith("| RLinf |") or (is_foreign and line.startswith("|"))
            shown = line.partition(" | ")[2] if is_foreign else line
            found += [(code, number) for code in CODE.findall(shown)]
    return tuple(found)


OF_EXAMPLES = ("env.reach",)  # sections that a package of examples/ brings


def missing_files(path: Path) -> Iterator[str]:
    """Paths of the repository that are not there."""
    for text, number in pieces(path):
        for name in PATH.findall(text):
            rest = text[text.index(name) + len(name) :]
            if not PLACEHOLDER.match(rest) and not (ROOT / name.rstrip(".")).exists():
                yield f"{path.name}:{number}: {name}"


def missing_modules(path: Path) -> Iterator[str]:
    """Modules, and names within them, that are not there."""
    for text, number in pieces(path):
        for name in MODULE.findall(text):
            rest = text[text.index(name) + len(name) :]
            if not PLACEHOLDER.match(rest.lstrip(".")) and not is_there(name):
                yield f"{path.name}:{number}: {name}"


@cache
def is_there(name: str) -> bool:
    """Whether `name` is a module, or stands at the top level of one."""
    if name in [registry.group for registry in REGISTRIES]:
        return True
    package, _, last = name.rpartition(".")
    if (folder := ROOT.joinpath(*name.split("."))).is_dir() or folder.with_suffix(".py").exists():
        return True
    source = ROOT.joinpath(*package.split("."))
    source = source.with_suffix(".py") if source.with_suffix(".py").exists() else source / "__init__.py"
    return source.exists() and bool(re.search(rf"\b{last}\b", source.read_text(encoding="utf-8")))


def unknown_keys(path: Path) -> Iterator[str]:
    """Dotted names that begin with a section of the configuration, and are no key of it."""
    first = {section.partition(".")[0] for section in sections()}
    for text, number in pieces(path):
        for name in KEY.findall(text):
            is_file = name.endswith((".py", ".md", ".yaml", ".json"))
            if name.partition(".")[0] in first and not is_file and not is_known(name):
                if name.startswith(OF_EXAMPLES):
                    continue
                yield f"{path.name}:{number}: {name}"


def test_what_documents_name_exists() -> None:
    rules = (missing_files, missing_modules, unknown_keys)
    assert_no_breach(breach for path in DOCUMENTS for rule in rules for breach in rule(path))


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("`rlrun/nowhere.py`", 1),
        ("`rlrun/train.py` and `configs/run/debug.yaml`", 0),
        ("`runs/<name>/<time>`, `rlrun/…`, `tests/*.py`", 0),
        ("`python -m rlrun.nowhere`", 1),
        ("`python -m rlrun.train`, `benchmarks.learning`, `rlrun.edges.frames.Frames`, `rlrun.<name>`", 0),
        ("`env.num_env`", 1),
        ("`env.num_envs=8` and `placement.nodes.train.python`", 0),
        ("```bash\npython -m rlrun.train env.num_env=8  # rlrun/nowhere.py\n```", 1),
        ("| RLinf | rlrun |\n|---|---|\n| `algorithm.adv_type` | `algorithm.gamma` |", 0),
    ],
)
def test_the_rule_finds(text: str, count: int, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(text, encoding="utf-8")
    assert len([*missing_files(page), *missing_modules(page), *unknown_keys(page)]) == count


@pytest.mark.parametrize("page", ["README.md", "docs/howto/configuration.md"])
def test_example_of_a_file_is_accepted(page: str, tmp_path: Path) -> None:
    (text,) = re.findall(
        r"```yaml\n(# @package _global_\n.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL
    )
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "two_cameras.yaml").write_text(text, encoding="utf-8")
    world = load(["run=two_cameras"], str(tmp_path)).env.section(R1ProConfig)
    assert world.cameras == ["zed_link", "right_realsense_link"]


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_links_lead_somewhere(name: str) -> None:
    """Those of docs/ are checked by `make docs`."""
    text = (ROOT / name).read_text(encoding="utf-8")
    targets = re.findall(r"\]\((?!https?:|#)([^)#]+)", text)
    assert [target for target in targets if not (ROOT / target).exists()] == []


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 200


def between(text: str, marker: str) -> str:
    """What stands between `<!-- marker -->` and `<!-- end of marker -->`."""
    return text.split(f"<!-- {marker} -->\n")[1].split(f"\n<!-- end of {marker} -->")[0]


@pytest.fixture
def generator(monkeypatch: pytest.MonkeyPatch) -> dict:
    """The functions of scripts/write_docs.py."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    return runpy.run_path(str(ROOT / "scripts" / "write_docs.py"))


def test_generated_tables_are_current(generator: dict) -> None:
    for page, tables in generator["tables"](ROOT).items():
        text = (ROOT / page).read_text(encoding="utf-8")
        for marker, table in tables.items():
            assert between(text, marker) == table, f"{page}: run `make reference`"


def test_generated_pictures_are_current(generator: dict) -> None:
    for name, svg in generator["drawn"](ROOT).items():
        assert (ROOT / "docs" / "pictures" / name).read_text(encoding="utf-8") == svg + "\n", "run `make reference`"


def test_a_word_of_the_glossary_has_one_line() -> None:
    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    words = [word for word in re.findall(r"^\| ([^|]+) \|", text, re.MULTILINE) if word != "word"]
    assert sorted(word for word in set(words) if words.count(word) > 1) == []


def test_pages_are_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("nav:")[2]
    pages = [path.relative_to(ROOT / "docs").as_posix() for path in DOCUMENTS if path.is_relative_to(ROOT / "docs")]
    assert [page for page in pages if f": {page}\n" not in navigation] == []
