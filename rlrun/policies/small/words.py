"""The words of a sentence as rows of a table of embeddings, by hashes, so that no vocabulary need be stored."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

NUM_ROWS = 1024  # of the table; row 0 is that of the token before the first word, and of padding
NUM_HASHES = 2  # rows of a word, whose sum stands for it: words that share one row nearly never share both
CACHED_SENTENCES = 1024
HALVES = "surrogatepass"  # JSON, and an argument that is no UTF-8, may have halves of surrogate pairs
_WORD = re.compile(r"\w+|[^\w\s]")


@lru_cache(CACHED_SENTENCES)
def rows_of(sentence: str) -> tuple[tuple[int, ...], ...]:
    """Return the rows of the token before the first word, and of each word in small letters."""
    rows = [(0,) * NUM_HASHES]
    for word in _WORD.findall(sentence.lower()):
        first, second = divmod(zlib.crc32(word.encode(errors=HALVES)), NUM_ROWS - 1)
        rows.append((1 + first % (NUM_ROWS - 1), 1 + second))
    return tuple(rows)


def padded_rows(sentences: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return int64 [B, L, hashes] and bool [B, L], False at padding on the right."""
    rows_of_sentences = [rows_of(sentence) for sentence in sentences]
    longest = max(map(len, rows_of_sentences))
    words = np.zeros((len(rows_of_sentences), longest, NUM_HASHES), np.int64)
    seen = np.zeros((len(rows_of_sentences), longest), bool)
    for row, hashes in enumerate(rows_of_sentences):
        words[row, : len(hashes)] = hashes
        seen[row, : len(hashes)] = True
    return words, seen
