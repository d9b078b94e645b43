"""Text from outside reaches terminals and files without control codes, and passes for no line of rlrun's own."""

from __future__ import annotations

import subprocess
import sys

import pytest

from rlrun.system.errors import RunError, RunErrors, escape_control, indent

HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b31mred\rback\u202etxt.exe\u2028next\x00"


def test_every_control_code_but_newline_and_tab_is_spelled_out() -> None:
    for code in [*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029, *range(0x202A, 0x202F), *range(0x2066, 0x206A)]:
        shown = escape_control(f"a{chr(code)}b")
        assert shown == f"a{chr(code)}b" if chr(code) in "\n\t" else shown.isprintable(), hex(code)
    assert escape_control("\ud800") == "\\ud800" and escape_control("\U000e0041") == "\\U000e0041"


def test_plain_text_of_any_language_stays() -> None:
    for text in ("Grüße, 机器人, مرحبا", "a\tb\nc", "naïve · 56 % ≥ 3", "🤖"):
        assert escape_control(text) == text


def test_colours_are_removed_and_other_codes_are_shown() -> None:
    assert escape_control("\x1b[36mray::EnvWorker\x1b[39m failed\r\n") == "ray::EnvWorker failed\n"
    assert escape_control("\x1b[1;31mx\x1b[0m\x1b[2J") == "x\\x1b[2J"


def test_no_line_of_a_message_passes_for_one_of_rlrun() -> None:
    fake = "failed\nstep 9/9 · success 100 %"
    assert indent(fake) == "failed\n  step 9/9 · success 100 %"
    error = RunError(fake, key=fake, value=fake, cause=fake, remedy=fake)
    for text in (str(error), str(RunErrors([error, error]))):
        assert not any(line.startswith("step") for line in text.splitlines())


@pytest.mark.parametrize("part", ["message", "key", "value", "cause", "remedy"])
def test_errors_are_shown_without_control_codes(part: str) -> None:
    shown = str(RunError(**({"message": "m"} | {part: HOSTILE})))
    assert all(line.isprintable() for line in shown.split("\n")) and "owned" in shown


def test_a_traceback_is_printed_without_control_codes() -> None:
    program = (
        "from rlrun.config.loader import entry_point\n"
        "@entry_point('Fails.')\n"
        "def main(config):\n"
        "    import logging; logging.getLogger('rlrun.policies').warning('\\x1b[2J of a folder\\nstep 8/9')\n"
        "    raise ValueError('\\x1b]0;owned\\x07\\nstep 9/9')\n"
        "main(['run=debug'])\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert ended.stderr.startswith("\\x1b[2J of a folder\n  step 8/9\n"), "a warning where no log is open"
    assert ended.returncode == 1 and "ValueError: \\x1b]0;owned\\x07\n  step 9/9" in ended.stderr
