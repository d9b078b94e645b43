"""Builds and checks wheel and sdist, and uploads nothing: `make publish URL=https://…`, the repository at a code host.

Both are built from a copy of the tracked files, whose README has absolute links and pictures, since a package index
shows it outside of the repository: `URL/blob/vVERSION/…` and `URL/raw/vVERSION/…`. Without URL it has texts instead.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from zipfile import ZipFile

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:|#|mailto:)([^)\s]+)\)")
# folders of the repository -> where the wheel has them
IN_WHEEL = {
    "configs": "rlrun/config/shipped",
    "examples": "rlrun/starters/examples",
    "scripts/slurm": "rlrun/starters/slurm",
    "scripts/skypilot": "rlrun/starters/skypilot",
}


def long_description(readme: str, url: str | None, version: str) -> str:
    """Return README.md as a package index shows it."""

    def outside(link: re.Match[str]) -> str:
        picture, text, target = link.groups()
        if url is None:
            return text
        return f"{picture}[{text}]({url.rstrip('/')}/{'raw' if picture else 'blob'}/v{version}/{target})"

    return LINK.sub(outside, readme)


def tracked(root: Path = ROOT) -> list[str]:
    """Return the files of the repository, new ones that git does not ignore included."""
    command = ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split("\0")
    return [name for name in dict.fromkeys(names) if name and (root / name).exists()]


def copy_sources(target: Path, url: str | None) -> None:
    """Copy the repository to a new folder, with the README of a package index."""
    for name in tracked():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target / name, follow_symlinks=False)
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    readme = target / "README.md"
    readme.write_text(long_description(readme.read_text(encoding="utf-8"), url, version), encoding="utf-8")


def missing(archive: Path) -> Iterator[str]:
    """Files of the repository that a wheel or an sdist lacks."""
    if archive.suffix == ".whl":
        with ZipFile(archive) as wheel:
            there = set(wheel.namelist())
        wanted = {name for name in tracked() if name.startswith("rlrun/") and (ROOT / name).is_file()}
        for folder, place in IN_WHEEL.items():
            wanted |= {place + name.removeprefix(folder) for name in tracked() if name.startswith(f"{folder}/")}
    else:
        with tarfile.open(archive) as sdist:
            there = {name.partition("/")[2] for name in sdist.getnames()}
        wanted = {
            name for name in tracked() if name.startswith(("rlrun/", "tests/", "docs/")) and (ROOT / name).is_file()
        }
    yield from sorted(wanted - there)


def main() -> int:
    """Write the archives to dist/. Returns 1 if a check fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="of the repository; else the README has texts in place of links and pictures")
    url = parser.parse_args().url or None
    dist, sources = ROOT / "dist", ROOT / "build" / "publish"
    for folder in (dist, sources):
        shutil.rmtree(folder, ignore_errors=True)
    copy_sources(sources, url)
    subprocess.run([sys.executable, "-m", "build", "--outdir", str(dist), str(sources)], check=True)
    archives = sorted(dist.iterdir())
    checked = subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *map(str, archives)], check=False)
    lacking = [f"{archive.name} lacks {name}" for archive in archives for name in missing(archive)]
    print(*lacking, sep="\n", end="\n" if lacking else "")
    for archive in archives:
        print(f"{archive.relative_to(ROOT)}: {archive.stat().st_size / 1e6:.1f} MB; nothing was uploaded")
    return 1 if lacking or checked.returncode else 0


if __name__ == "__main__":
    sys.exit(main())
