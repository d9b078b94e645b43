"""What a package index shows: links and pictures of the README lead to the repository, or nowhere at all."""

from __future__ import annotations

import tarfile
from pathlib import Path
from zipfile import ZipFile

from scripts.publish import copy_sources, long_description, missing, tracked

README = "![A\nplan](docs/a.svg) and [Faults](docs/faults.md#x), [PyPI](https://pypi.org), [below](#below)"


def test_links_and_pictures_are_absolute() -> None:
    shown = long_description(README, "https://code.example/rlrun/", "1.2")
    assert "![A\nplan](https://code.example/rlrun/raw/v1.2/docs/a.svg)" in shown
    assert "[Faults](https://code.example/rlrun/blob/v1.2/docs/faults.md#x)" in shown
    assert "[PyPI](https://pypi.org), [below](#below)" in shown


def test_without_a_repository_texts_stand_for_them() -> None:
    assert long_description(README, None, "1.2") == "A\nplan and Faults, [PyPI](https://pypi.org), [below](#below)"


def test_the_copy_is_the_repository_but_for_the_readme(tmp_path: Path) -> None:
    copy_sources(tmp_path, None)
    assert "](docs/" not in (tmp_path / "README.md").read_text()
    assert (tmp_path / "rlrun/config/shipped").is_symlink() and (tmp_path / "rlrun/config/shipped/config.yaml").exists()
    assert all((tmp_path / name).exists() for name in tracked())


def test_what_an_archive_lacks_is_named(tmp_path: Path) -> None:
    with ZipFile(tmp_path / "a.whl", "w") as wheel:
        wheel.writestr("rlrun/init.py", "")
    lacking = list(missing(tmp_path / "a.whl"))
    assert "rlrun/init.py" not in lacking
    assert {"rlrun/train.py", "rlrun/config/shipped/run/debug.yaml", "rlrun/starters/slurm/launch.sh"} <= {*lacking}
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz"):
        pass
    assert "docs/index.md" in missing(tmp_path / "a.tar.gz")
