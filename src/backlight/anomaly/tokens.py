"""Cuts an expression into words, numbers, texts and signs, each with its column."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, NoReturn

from backlight.errors import BacklightError

LONGEST: Final = 1000
"""Characters of an expression, at most."""

_TOKEN: Final = re.compile(
    r"""(?P<space>\s+)
    |(?P<number>(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)
    |(?P<word>[A-Za-z_][A-Za-z_0-9]*)
    |(?P<text>'[^'\n]*'|"[^"\n]*")
    |(?P<sign><=|>=|==|!=|[-+*/()<>,])""",
    re.VERBOSE,
)


@dataclass(frozen=True)
class Token:
    """A piece of an expression. Columns are counted from 1; the last token is the end."""

    kind: str  # number, word, text, sign or end
    text: str
    column: int


class ExpressionError(BacklightError):
    """What is wrong with an expression, and where."""

    def __init__(self, sentence: str, text: str, column: int) -> None:
        self.column = column
        shown = "".join(each if each.isprintable() else "?" for each in text[:LONGEST])
        super().__init__(
            f"{sentence.rstrip('.')}, at column {column}:\n  {shown}\n  {' ' * (column - 1)}^"
        )


def fail(sentence: str, text: str, column: int) -> NoReturn:
    """Say what is wrong, and where."""
    raise ExpressionError(sentence, text, column)


def tokens_of(text: str) -> list[Token]:
    """The tokens of an expression, without the space between them.

    >>> [token.text for token in tokens_of("rms('a') > 1e-3")]
    ['rms', '(', 'a', ')', '>', '1e-3', '']
    """
    if len(text) > LONGEST:
        fail(f"The expression has more than {LONGEST} characters: make it shorter", text, LONGEST)
    found, place = [], 0
    while place < len(text):
        match = _TOKEN.match(text, place)
        if match is None:
            _explain(text, place)
        kind, piece = str(match.lastgroup), match.group()
        if kind != "space":
            found.append(Token(kind, piece[1:-1] if kind == "text" else piece, place + 1))
        place = match.end()
    return [*found, Token("end", "", len(text) + 1)]


def _explain(text: str, place: int) -> NoReturn:
    if text[place] in "'\"":
        fail("A text begins here that does not end", text, place + 1)
    if text[place] == "=":
        fail("A single = compares nothing: write ==", text, place + 1)
    fail(f"The sign {text[place]!r} means nothing here", text, place + 1)
