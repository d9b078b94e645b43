"""Text from outside made safe to show: simulators, workers, policies and data sets may put anything into a message.

A terminal obeys control codes: they retitle windows, erase lines, and reverse the order of letters. Each edge where
text leaves rlrun calls `visible` or `hanging` once: the console, errors, logs, metric sinks, the report.
"""

from __future__ import annotations

import logging
import re

_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")  # as Ray writes into the causes of failures
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad"  # C0 without tab and newline, DEL, C1, soft hyphen
    "\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"  # line ends, marks, directions
    "\ud800-\udfff\U000e0000-\U000e007f]"  # halves of characters, which no file takes; tags
)


def visible(text: str) -> str:
    r"""Return `text` without colours, and with every other control code spelled out; newlines and tabs stay.

    Example: ESC becomes the four characters "\x1b".
    """
    return _HIDDEN.sub(lambda found: _spelled(ord(found.group())), _COLOUR.sub("", text).replace("\r\n", "\n"))


def hanging(text: str, indent: int = 2) -> str:
    """Return `visible` text whose later lines are indented, so that none of them passes for a line of rlrun's own."""
    return visible(text).replace("\n", "\n" + " " * indent)


class HangingFormatter(logging.Formatter):
    """Writes a record of a log as one line, and what else it says below that, indented."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the text of a record."""
        return hanging(super().format(record))


def _spelled(code: int) -> str:
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
