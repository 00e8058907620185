"""Parses an expression: what an anomaly is, as a tree. Nothing is ever executed.

truth      = both {"or" both}
both       = opposite {"and" opposite}
opposite   = "not" opposite | comparison
comparison = sum [("<" | "<=" | ">" | ">=" | "==" | "!=") sum]
sum        = product {("+" | "-") product}
product    = factor {("*" | "/") factor}
factor     = "-" factor | NUMBER | "(" truth ")" | NAME
           | STATISTIC "(" TEXT {"," WORD} ")" | FUNCTION "(" sum ")" | "scalar" "(" TEXT ")"
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

from backlight.anomaly.patterns import fault_of
from backlight.anomaly.tokens import Token, fail, tokens_of
from backlight.schema import COUNTS, QUANTITIES, UNIT_STATISTICS
from backlight.schema import STATISTICS as MOMENTS

STATISTICS: Final = (*MOMENTS, *COUNTS, *UNIT_STATISTICS)
"""What can be asked of the tensors whose sites' names match a pattern."""

FUNCTIONS: Final = ("abs", "log10", "is_finite", "previous", "usual", "rank")
"""What can be made of a number; `is_finite` makes a truth of it."""

STEP_FACTS: Final = ("step", "learning_rate", "batch_size", "iterations", "duration_secs")
"""Names that mean a fact of the step; every other name is something that was logged."""

SEVERAL: Final = ("together", "highest", "lowest")
ITERATIONS: Final = ("first", "last")
COMPARISONS: Final = ("<", "<=", ">", ">=", "==", "!=")
_DEEPEST: Final = 40
_KEYWORDS: Final = ("and", "or", "not")


@dataclass(frozen=True)
class Number:
    """A number that was written down."""

    value: float
    column: int


@dataclass(frozen=True)
class Scalar:
    """Something that was logged, or a fact of the step."""

    name: str
    column: int


@dataclass(frozen=True)
class Statistic:
    """A statistic of the tensors whose names match, and how several of them are taken."""

    name: str
    pattern: str
    column: int
    quantity: str = "value"
    several: str = "together"
    iteration: str = ""


@dataclass(frozen=True)
class Function:
    """A function of a number."""

    name: str
    argument: Node
    column: int


@dataclass(frozen=True)
class Operation:
    """One or two parts joined by a sign or a word; of one part, `left` is None."""

    sign: str
    left: Node | None
    right: Node
    column: int


Node: TypeAlias = Number | Scalar | Statistic | Function | Operation


@dataclass(frozen=True)
class Expression:
    """What was written, and what it means.

    >>> parse("abs_max('encoder.*') > 1").statistics[0].pattern
    'encoder.*'
    """

    text: str
    root: Node

    @property
    def statistics(self) -> list[Statistic]:
        """Every statistic that it asks for."""
        return [node for node in nodes_of(self.root) if isinstance(node, Statistic)]

    @property
    def scalars(self) -> list[Scalar]:
        """Everything logged that it asks for."""
        return [node for node in nodes_of(self.root) if isinstance(node, Scalar)]


def nodes_of(node: Node) -> Iterator[Node]:
    """A node and all below it."""
    yield node
    if isinstance(node, Function):
        yield from nodes_of(node.argument)
    elif isinstance(node, Operation):
        if node.left is not None:
            yield from nodes_of(node.left)
        yield from nodes_of(node.right)


def is_truth(node: Node) -> bool:
    """Whether a node is true or false, and no number.

    >>> is_truth(parse("not loss > 1").root)
    True
    """
    if isinstance(node, Operation):
        return node.sign in (*COMPARISONS, *_KEYWORDS)
    return isinstance(node, Function) and node.name == "is_finite"


def parse(text: str, own: Collection[str] = ()) -> Expression:
    """The meaning of an expression, or one sentence on what is wrong and at which column.

    `own` are the names of the run's own statistics.

    >>> parse("loss > ")
    Traceback (most recent call last):
    backlight.anomaly.tokens.ExpressionError: A number, a name or a statistic is missing, ...
    """
    parser = _Parser(text, own)
    root = parser.truth()
    if parser.token.kind != "end":
        fail(f"{parser.token.text!r} is one too many", text, parser.token.column)
    if not is_truth(root):
        fail("An anomaly is true or false: compare this with something", text, root.column)
    return Expression(text, root)


class _Parser:
    def __init__(self, text: str, own: Collection[str]) -> None:
        self._text = text
        self._statistics = (*STATISTICS, *own)
        self._tokens = tokens_of(text)
        self._place = self._depth = 0

    @property
    def token(self) -> Token:
        return self._tokens[self._place]

    def _take(self) -> Token:
        token = self.token
        self._place += token.kind != "end"
        return token

    def _is_at(self, *texts: str) -> bool:
        return self.token.kind in ("sign", "word") and self.token.text in texts

    def _expect(self, sign: str) -> None:
        if not self._is_at(sign):
            fail(f"{sign!r} is missing", self._text, self.token.column)
        self._take()

    def _check(self, node: Node, *, truth: bool) -> Node:
        if is_truth(node) != truth:
            wanted = "true or false" if truth else "a number"
            fail(f"This should be {wanted} and is not", self._text, node.column)
        return node

    # -- from the loosest to the tightest

    def truth(self) -> Node:
        left = self._both()
        while self._is_at("or"):
            left = self._joined(left, self._both, truth=True)
        return left

    def _both(self) -> Node:
        left = self._opposite()
        while self._is_at("and"):
            left = self._joined(left, self._opposite, truth=True)
        return left

    def _opposite(self) -> Node:
        if not self._is_at("not"):
            return self._comparison()
        word = self._take()
        self._deeper()
        right = self._check(self._opposite(), truth=True)
        self._depth -= 1
        return Operation("not", None, right, word.column)

    def _comparison(self) -> Node:
        left = self._sum()
        if self._is_at(*COMPARISONS):
            left = self._joined(left, self._sum, truth=False)
            if self._is_at(*COMPARISONS):
                fail("Compare two things at a time, joined by and", self._text, self.token.column)
        return left

    def _sum(self) -> Node:
        left = self._product()
        while self._is_at("+", "-"):
            left = self._joined(left, self._product, truth=False)
        return left

    def _product(self) -> Node:
        left = self._factor()
        while self._is_at("*", "/"):
            left = self._joined(left, self._factor, truth=False)
        return left

    def _joined(self, left: Node, rest: Callable[[], Node], *, truth: bool) -> Node:
        sign = self._take()
        right = self._check(rest(), truth=truth)
        return Operation(sign.text, self._check(left, truth=truth), right, left.column)

    def _deeper(self) -> None:
        self._depth += 1
        if self._depth > _DEEPEST:
            fail(f"Nested deeper than {_DEEPEST}: make it simpler", self._text, self.token.column)

    def _factor(self) -> Node:
        self._deeper()
        node = self._simple_factor()
        self._depth -= 1
        return node

    def _simple_factor(self) -> Node:
        token = self.token
        if self._is_at("-"):
            self._take()
            return Operation("-", None, self._check(self._factor(), truth=False), token.column)
        if self._is_at("("):
            self._take()
            node = self.truth()
            self._expect(")")
            return node
        if token.kind == "number":
            return Number(float(self._take().text), token.column)
        if token.kind == "word" and token.text not in _KEYWORDS:
            return self._named(self._take())
        return fail("A number, a name or a statistic is missing", self._text, token.column)

    def _named(self, name: Token) -> Node:
        if not self._is_at("("):
            if name.text in self._statistics:
                fail(f"Say of what: {name.text}('part of a name')", self._text, name.column)
            return Scalar(name.text, name.column)
        self._take()
        if name.text == "scalar":
            node: Node = Scalar(self._quoted("the name of what was logged"), name.column)
        elif name.text in self._statistics:
            node = self._statistic(name)
        elif name.text in FUNCTIONS:
            node = Function(name.text, self._check(self.truth(), truth=False), name.column)
        else:
            known = ", ".join((*self._statistics, *FUNCTIONS, "scalar"))
            fail(f"There is no {name.text!r}: use one of {known}", self._text, name.column)
        self._expect(")")
        return node

    def _quoted(self, what: str) -> str:
        if self.token.kind != "text":
            fail(f"{what} is missing, in quotation marks", self._text, self.token.column)
        return self._take().text

    def _statistic(self, name: Token) -> Node:
        place = self.token.column
        pattern = self._quoted("A pattern for names of sites")
        fault = fault_of(pattern)
        if fault is not None:
            fail(f"The pattern is no regular expression of RE2 ({fault})", self._text, place)
        words: dict[str, str] = {}
        while self._is_at(","):
            self._take()
            kind, word = self._word()
            if kind in words:
                fail(f"{word!r} and {words[kind]!r} exclude each other", self._text, place)
            words[kind] = word
        return Statistic(name.text, pattern, name.column, **words)

    def _word(self) -> tuple[str, str]:
        kinds = {"quantity": QUANTITIES, "several": SEVERAL, "iteration": ITERATIONS}
        for kind, allowed in kinds.items():
            if self.token.kind == "word" and self.token.text in allowed:
                return kind, self._take().text
        known = ", ".join(word for allowed in kinds.values() for word in allowed)
        return fail(f"A word is missing here: one of {known}", self._text, self.token.column)
