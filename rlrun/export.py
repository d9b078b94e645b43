"""Convert a trained policy to the format of another library: python -m rlrun.export lerobot FOLDER [OUT]."""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from rlrun.config.registry import POLICIES
from rlrun.policies.folders import spec_of
from rlrun.policies.spec import CONFIG_FILE, PolicySpec
from rlrun.system.errors import CONFIG, ExitStatus, RunError
from rlrun.system.storage_error import storage_failure

FORMS = ("lerobot",)
POLICY = "policy"  # the folder of the policy in that of a run or checkpoint
MOVES = (
    f"{CONFIG_FILE} and policy_preprocessor.json name the VLM's files by the path of this folder. If it moves, write "
    "the new path there, or export again with --vlm and the VLM's name on the hub."
)


def main(arguments: list[str] | None = None) -> ExitStatus:
    """Export the policy; print the path, the code that opens it, and differences in its behaviour there."""
    parser = argparse.ArgumentParser(prog="python -m rlrun.export", description=__doc__)
    parser.add_argument("form", choices=FORMS, help="library that opens the result")
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="folder of a run, a checkpoint or a policy")
    parser.add_argument("out", type=Path, nargs="?", metavar="OUT", help="new folder; else lerobot in that of the run")
    parser.add_argument("--vlm", metavar="NAME", help="where LeRobot finds the VLM's files, on the hub; else in OUT")
    given = parser.parse_args(arguments)
    try:
        for line in export(given.folder, given.out, given.vlm):
            print(line)
    except RunError as error:
        print(f"rlrun.export: {error}", file=sys.stderr)
        return error.exit_status
    return ExitStatus.ok


def export(folder: Path, out: Path | None, vlm_name: str | None) -> list[str]:
    """Write the policy in `folder` to `out` in LeRobot's format. Returns the lines to print. Raises RunError."""
    policy = _policy_in(folder)
    spec = _exportable(policy)
    out = _new_folder(folder, out)
    try:
        out.mkdir(parents=True, exist_ok=True)
        written = POLICIES.part(spec, "to_lerobot")(policy, out, vlm_name)
    except BaseException as error:
        shutil.rmtree(out, ignore_errors=True)  # an incomplete policy folder must not remain
        failure = storage_failure(error, "The export", [str(out)]) if isinstance(error, OSError) else None
        if failure is None:
            raise
        raise failure from error
    module, _, name = written.opened_by.rpartition(".")
    return [
        str(out.absolute()),
        f"opens by: from {module} import {name}; {name}.from_pretrained({str(out.absolute())!r}, strict=True)",
        *(f"note: {remark}" for remark in (*([MOVES] if vlm_name is None else []), *written.remarks)),
    ]


def _policy_in(folder: Path) -> Path:
    from rlrun.training.policy_folders import verify_policy

    for candidate in (folder, folder / POLICY):
        if (candidate / CONFIG_FILE).is_file():
            verify_policy(candidate, "FOLDER", is_content_read=True)
            return candidate
    raise RunError(
        f"There is no policy at {folder}.",
        cause=f"Neither the folder nor a folder {POLICY} in it has a {CONFIG_FILE}.",
        remedy="Name a run folder that ended, a checkpoint folder, or a policy folder.",
        exit_status=ExitStatus.bad_input,
    )


def _exportable(policy: Path) -> PolicySpec:
    spec = spec_of(policy, None)
    if spec.to_lerobot is None:
        others = sorted(installed.name for installed in POLICIES.installed() if installed.to_lerobot is not None)
        raise RunError(
            f"LeRobot has no class for a policy of the kind {spec.name}.",
            remedy=f"Kinds that it has: {', '.join(others)}.",
            exit_status=ExitStatus.bad_input,
        )
    return spec


def _new_folder(folder: Path, out: Path | None) -> Path:
    if out is None:
        if not (folder / CONFIG).is_file() or (folder / CONFIG_FILE).is_file():
            raise RunError(
                f"{folder} is no run folder, in which rlrun would write a folder of its own.",
                remedy="Name the new folder: rlrun export lerobot FOLDER OUT.",
                exit_status=ExitStatus.bad_input,
            )
        out = folder / "lerobot"
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise RunError(
            f"{out} exists and is not empty.",
            remedy="Name a new folder, or remove that one.",
            exit_status=ExitStatus.bad_input,
        )
    return out


if __name__ == "__main__":
    sys.exit(main())
