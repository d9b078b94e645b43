"""Write a project of your own: rlrun init FOLDER. YAML, a world, a policy, sbatch files, a README with the commands."""

from __future__ import annotations

import argparse
import shlex
import shutil
import sys
from pathlib import Path

from rlrun.system.errors import ExitStatus, RunError

STARTERS = Path(__file__).parent / "starters"  # links to folders of the repository, copies in a wheel
EXAMPLES = STARTERS / "examples"
PROJECT = "project"
LAUNCHED_BY = ("slurm", "skypilot")  # folders of STARTERS that a project has in scripts/, where the repository has them
SITE = Path("scripts/slurm/site.sh")  # what is peculiar to a cluster


def main(arguments: list[str] | None = None) -> ExitStatus:
    """Write the folder; print its files and its README, whose commands run there."""
    parser = argparse.ArgumentParser(prog="rlrun init", description=__doc__)
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="a new folder, or an empty one")
    kinds = sorted(path.name for path in EXAMPLES.iterdir())
    about = "what to write: a project, or a package with an entry point that brings a world, a policy or an algorithm"
    parser.add_argument("what", nargs="?", default=PROJECT, choices=kinds, metavar="WHAT", help=f"{about} ({PROJECT})")
    given = parser.parse_args(arguments)
    try:
        files = write(given.folder, given.what)
    except RunError as error:
        print(f"rlrun.init: {error}", file=sys.stderr)
        return error.exit_status
    print("\n".join(str(file) for file in files))
    print(f"\n{(given.folder / 'README.md').read_text(encoding='utf-8')}", end="")
    return ExitStatus.ok


def write(folder: Path, what: str = PROJECT) -> list[Path]:
    """Write one of the examples to a folder that is new or empty. Returns its files. Raises RunError."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RunError(
            f"{folder} is no empty folder.",
            key="FOLDER",
            value=str(folder),
            cause="It would be mixed with what lies there.",
            remedy="Name a folder that does not exist.",
        )
    try:
        _copy(EXAMPLES / what, folder)
        if what == PROJECT:
            for name in LAUNCHED_BY:
                _copy(STARTERS / name, folder / "scripts" / name)
            _name_interpreter(folder / SITE)
    except OSError as error:
        raise RunError(
            f"{folder} cannot be written.",
            key="FOLDER",
            value=str(folder),
            cause=str(error),
            remedy="Name a folder on a disk with free space, where this user may write.",
            exit_status=ExitStatus.storage,
        ) from error
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _copy(source: Path, target: Path) -> None:
    """Copy without modes, since an installed package may be read-only; scripts may be called."""
    for path in sorted(source.rglob("*")):
        if path.is_dir() or "__pycache__" in path.parts:
            continue
        copy = target / path.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
        if path.suffix == ".sh":
            copy.chmod(copy.stat().st_mode | 0o111)


def _name_interpreter(site: Path) -> None:
    """Jobs of the project run under the Python that wrote it, unless its user names another."""
    with site.open("a", encoding="utf-8") as stream:
        stream.write(f"\nexport PYTHON=${{PYTHON:-{shlex.quote(sys.executable)}}} # which ran `rlrun init`\n")


if __name__ == "__main__":
    sys.exit(main())
