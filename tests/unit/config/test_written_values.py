"""What a person wrote and YAML or OmegaConf reads otherwise is one sentence, with the file and what to write."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlrun.config.loader import load
from rlrun.system.errors import RunError

HEADER = b"# @package _global_\ndefaults:\n  - cartpole\n  - _self_\n"


def refuse(folder: Path, content: bytes, *overrides: str, beside: bytes | None = None) -> RunError:
    (folder / "run").mkdir()
    (folder / "run" / "mine.yaml").write_bytes(content)
    if beside is not None:
        (folder / "run" / "other.yaml").write_bytes(beside)
    with pytest.raises(RunError) as caught:
        load(["run=mine", *overrides], str(folder))
    assert type(caught.value) is RunError
    return caught.value


@pytest.mark.parametrize(
    ("line", "key", "told", "remedy"),
    [
        ("name: ${oc.env:NOT_THERE}", "name", "'NOT_THERE' not found", "export NOT_THERE=…"),
        ("name: x\nnum_steps: ${algorithm.horizn}", "num_steps", "'algorithm.horizn' not found", "algorithm.horizon"),
        ("name: ${name}", "name", "Recursive", "another key"),
        ("name: ${nobody:1}", "name", "Unsupported interpolation type nobody", "oc.env"),
        (
            "name: x\nenv: {libero: {cameras: ['${oc.env:NOT_THERE}']}}",
            "env.libero.cameras[0]",
            "NOT_THERE",
            "oc.env:NOT_THERE,null",
        ),
    ],
)
def test_an_interpolation_of_nothing(
    tmp_path: Path, line: str, key: str, told: str, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NOT_THERE", raising=False)
    error = refuse(tmp_path, HEADER + line.encode() + b"\n")
    assert error.key == key and told in error.cause and remedy in error.remedy
    assert f"{tmp_path}/run/mine.yaml, line " in error.cause


def test_an_interpolation_of_an_argument_names_the_argument() -> None:
    with pytest.raises(RunError, match="has no value") as refused:
        load(["run=cartpole", "name=${oc.env:NOT_THERE}"])
    assert "the argument 'name=${oc.env:NOT_THERE}'" in refused.value.cause


def test_interpolations_with_a_value_are_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_NAME", "mine")
    assert load(["run=cartpole", "name=${oc.env:MY_NAME}"]).name == "mine"


def test_latin_1_is_told_with_its_line_and_only_where_it_is_used(tmp_path: Path) -> None:
    error = refuse(tmp_path, HEADER + "name: größe\n".encode("latin-1"), beside="a: ä\n".encode("latin-1"))
    assert f"{tmp_path}/run/mine.yaml is not plain UTF-8" in error.message
    assert "Line 5 has the byte 0xf6" in error.cause and "iconv -f latin1" in error.remedy
    (tmp_path / "run" / "mine.yaml").write_bytes(HEADER + b"name: x\n")
    assert load(["run=mine"], str(tmp_path)).name == "x"


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_byte_order_marks(tmp_path: Path, encoding: str) -> None:
    error = refuse(tmp_path, (HEADER + b"name: x\n").decode().encode(encoding))
    assert "mine.yaml is not plain UTF-8" in error.message
    assert ("byte order mark" in error.cause and "sed -i" in error.remedy) or "utf-16" in error.remedy


@pytest.mark.parametrize("word", ["no", "off", "yes", "True"])
def test_words_that_yaml_takes_for_truth_values(tmp_path: Path, word: str) -> None:
    error = refuse(tmp_path, HEADER + f"name: x\ncheckpoint:\n  resume: {word}\n".encode())
    assert error.key == "checkpoint.resume" and "truth value" in error.message
    assert f"{tmp_path}/run/mine.yaml, line 7" in error.cause and "null for none" in error.remedy
