"""Rules such as `clean_probability > 0.9 and not 'duplicate_key' in flags` over the columns of a weight table.

A small language with its own parser, so that a rule can neither call, import, open nor loop. It accepts words of Python and
of SQL (`==` and `=`, `!=` and `<>`, `is null`, `between`, `like`).
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from noisegate.pipeline.errors import ConfigError, TableError

from . import where_terms as terms
from .table import RunFolder
from .where_terms import CONDITION, FLAGS, KINDS, NOTHING, NUMBER, TEXT, Term

MAX_LENGTH = 10_000
MAX_DEPTH = 50
CAPTIONS = ("caption", "captions", "text", "txt")  # names that people try for the caption, which a table does not have
_TOKEN = re.compile(
    r"""(?P<number>(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)
    | (?P<word>[A-Za-z_][A-Za-z_0-9]*)
    | (?P<text>'(?:[^']|'')*'|"(?:[^"]|"")*")
    | (?P<sign>\*\*|//|<=|>=|<>|!=|==|&&|\|\||[-<>=+*/%(),\[\]])""",
    re.VERBOSE,
)
_COMPARISONS = {"=": "=", "==": "=", "<>": "<>", "!=": "<>", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_KEYWORDS = {"and", "or", "not", "in", "is", "between", "like", "null", "none", "true", "false"}
_ADVICE = {
    "**": "powers are not known; multiply",
    "//": "whole division is not known; write /",
    "&": "write and",
    "&&": "write and",
    "|": "write or",
    "||": "write or",
    "~": "write not",
    "!": "write not",
    ".": "there are no attributes; a number reads 0.5",
    "'": "a quote is never closed",
    '"': "a quote is never closed",
}


@dataclass(frozen=True)
class Where:
    """A parsed rule with the `columns` it needs; `mask(table)` selects the rows for which it is true.

    >>> table = pa.table({"similarity": [0.1, 0.4, None]})
    >>> parse_where("similarity > 0.3").mask(table).tolist()
    [False, True, False]
    >>> parse_where("not similarity > 0.3").mask(table).tolist()  # unknown is neither
    [True, False, False]
    """

    text: str
    columns: tuple[str, ...]
    _condition: Callable[[pa.Table], Any] = field(repr=False, compare=False)

    def mask(self, table: pa.Table) -> NDArray[np.bool_]:
        """Return which rows the rule selects, (N,) bool, false for unknown (null); raise TableError if a column is missing."""
        if missing := [name for name in self.columns if name not in table.column_names]:
            raise TableError.of("where", self.text, f"needs the column {missing[0]}, which this table does not have")
        values = self._condition(table)
        if isinstance(values, pa.Scalar):
            return np.full(len(table), values.as_py() is True)
        return np.asarray(pc.fill_null(values, False).to_numpy(zero_copy_only=False), bool)

    def rows(self, run: RunFolder, stem: str) -> NDArray[np.bool_]:
        """Return which rows of one of the run's tables the rule selects, (N,) bool."""
        table = run.read(stem, [name for name in self.columns if name != "shard"] or ["index"])
        shard = pa.DictionaryArray.from_arrays(pa.array(np.zeros(len(table), np.int32)), [stem])
        return self.mask(table.append_column("shard", shard))

    def __reduce__(self) -> tuple[Callable[[str], Where], tuple[str]]:
        return parse_where, (self.text,)


def parse_where(text: str) -> Where:
    """Parse a rule over the columns of the weight table and `shard`; raise ConfigError with the place of a mistake.

    Comparisons (also `0.2 < similarity <= 0.8`), `and`, `or`, `not`, `in (…)`, `between`, `is null` or `isnull(x)`, `like`,
    and + - * / % on numbers. Text is in quotes, digests compare as hex, `'word' in flags` searches the flags.
    """
    parser = _Parser(text)
    condition = parser.parse()
    return Where(text, tuple(sorted(parser.columns)), condition.of)


class _Token(NamedTuple):
    what: str  # number, word, text, sign or end
    text: str
    at: int

    @property
    def word(self) -> str:
        return self.text.lower() if self.what == "word" else self.text if self.what == "sign" else ""


class _Parser:
    """Recursive descent, one method for each precedence level from `or` to a single word, in Python's order."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._depth = 0
        self._place = 0
        self.columns: set[str] = set()
        if len(text) > MAX_LENGTH:
            raise ConfigError(f"where: {len(text):,} characters are too many; {MAX_LENGTH:,} are read", "where", text)
        if text.encode("utf-8", "ignore").decode() != text:
            raise ConfigError("where: the rule holds bytes that are no UTF-8; columns and texts are", "where", text)
        self._tokens = self._split()

    def _split(self) -> list[_Token]:
        tokens, at = [], 0
        while at < len(self._text):
            if self._text[at].isspace():
                at += 1
                continue
            match = _TOKEN.match(self._text, at)
            if match is None:
                what = self._text[at]
                raise self._wrong(at, f"{what!r} has no meaning here; {_ADVICE.get(what, 'see --help for what has')}")
            tokens.append(_Token(str(match.lastgroup), match.group(), at))
            at = match.end()
        return [*tokens, _Token("end", "", len(self._text))]

    def parse(self) -> Term:
        if len(self._tokens) == 1:
            raise ConfigError("where: the rule is empty; write clean_probability > 0.9", "where", self._text)
        term = self._or()
        if self._next.what != "end":
            raise self._unexpected("and, or, or the end")
        return self._condition(term)

    # --- tokens -----------------------------------------------------------------------------------------------------------
    @property
    def _next(self) -> _Token:
        return self._tokens[self._place]

    def _take(self, *words: str) -> _Token | None:
        """Take the next token if it is one of these words or signs (any token if none are given), else None."""
        token = self._next
        if words and token.word not in words:
            return None
        self._place += 1
        return token

    def _need(self, word: str) -> None:
        if not self._take(word):
            raise self._unexpected(repr(word))

    def _wrong(self, at: int, problem: str) -> ConfigError:
        return ConfigError(f"where {self._text!r}: {problem} (character {at + 1})", "where", self._text)

    def _unexpected(self, wanted: str) -> ConfigError:
        token = self._next
        if token.text in _ADVICE:
            return self._wrong(token.at, f"{token.text!r} has no meaning here; {_ADVICE[token.text]}")
        before = self._tokens[self._place - 1] if self._place else None
        if token.text == "(" and before and before.what == "word":
            return self._wrong(before.at, f"{before.text!r} cannot be called; the only function is isnull(column)")
        if token.text == "[" and before and before.what == "word":
            return self._wrong(token.at, "a column has no parts; a list only follows in, as in label in [1, 2]")
        found = repr(token.text) if token.text else "the end"
        return self._wrong(token.at, f"found {found} where {wanted} should be")

    def _condition(self, term: Term) -> Term:
        if term.kind == CONDITION:
            return term
        name = self._text[term.at :].split()[0]
        advice = {NUMBER: f"{name} > 0.5", TEXT: f"{name} = 'ok'", FLAGS: f"'duplicate_key' in {name}"}
        raise self._wrong(term.at, f"{term.kind} is not a condition; write {advice.get(term.kind, 'x is null')}")

    def _of_kind(self, term: Term, kind: str, use: str) -> Term:
        if term.kind != kind:
            raise self._wrong(term.at, f"{use} needs {kind}, and this is {term.kind}")
        return term

    def _deeper(self, read: Callable[[], Term]) -> Term:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._wrong(self._next.at, f"nested deeper than {MAX_DEPTH} levels")
        term = read()
        self._depth -= 1
        return term

    # --- levels -----------------------------------------------------------------------------------------------------------
    def _or(self) -> Term:
        parts = [self._and()]
        while self._take("or"):
            parts.append(self._and())
        return terms.any_of([self._condition(part) for part in parts]) if len(parts) > 1 else parts[0]

    def _and(self) -> Term:
        parts = [self._not()]
        while self._take("and"):
            parts.append(self._not())
        return terms.all_of([self._condition(part) for part in parts]) if len(parts) > 1 else parts[0]

    def _not(self) -> Term:
        if self._take("not"):
            return terms.opposite(self._condition(self._deeper(self._not)))
        return self._comparison()

    def _comparison(self) -> Term:
        left = self._sum()
        if self._take("is"):
            denied = self._take("not")
            if not self._take("null", "none"):
                raise self._unexpected("null")
            absent = terms.apply(CONDITION, pc.is_null, left)
            return terms.opposite(absent) if denied else absent
        denied = self._take("not")
        for word, read in (("in", self._in), ("between", self._between), ("like", self._like)):
            if self._take(word):
                test = read(left)
                return terms.opposite(test) if denied else test
        if denied:
            raise self._unexpected("in, between or like")
        chain, signs = [left], []
        while sign := self._take(*_COMPARISONS):
            signs.append(_COMPARISONS[sign.text])
            chain.append(self._sum())
            self._check_comparable(chain[-2], chain[-1], sign)
        return terms.compare(chain, signs) if signs else left

    def _check_comparable(self, left: Term, right: Term, sign: _Token) -> None:
        if NOTHING in (left.kind, right.kind):
            raise self._wrong(sign.at, "nothing equals null; write is null or is not null")
        if left.kind != right.kind:
            raise self._wrong(sign.at, f"{sign.text} compares {left.kind} with {right.kind}")
        if left.kind == FLAGS:
            raise self._wrong(left.at, "flags are a list; write 'duplicate_key' in flags")
        if left.kind == CONDITION and _COMPARISONS[sign.text] not in ("=", "<>"):
            raise self._wrong(sign.at, f"{sign.text} does not compare true and false; use = or <>")

    def _in(self, left: Term) -> Term:
        if self._next.what == "word":
            flags = self._of_kind(self._atom(), FLAGS, "in")
            if left.literal is None or left.kind != TEXT:
                raise self._wrong(left.at, "before in flags stands a text, such as 'duplicate_key' in flags")
            return terms.contains(flags, lambda flat: pc.equal(flat, left.literal))
        if left.kind not in (NUMBER, TEXT):
            raise self._wrong(left.at, f"in (…) needs a number or a text, and this is {left.kind}")
        closing = {"(": ")", "[": "]"}.get(self._next.text)
        if closing is None:
            raise self._unexpected("a list such as (1, 2)")
        self._take()
        values: list[Any] = []
        while not self._take(closing):
            item = self._sum()
            if item.literal is None:
                raise self._wrong(item.at, "a list holds plain numbers or texts only")
            values.append(self._of_kind(item, left.kind, "this list").literal)
            if not self._take(",") and self._next.text != closing:
                raise self._unexpected(f"',' or {closing!r}")
        return terms.is_in(left, values)

    def _between(self, left: Term) -> Term:
        low = self._sum()
        self._need("and")
        high = self._sum()
        for bound in (low, high):
            if bound.kind != left.kind or left.kind not in (NUMBER, TEXT):
                raise self._wrong(bound.at, f"between compares {left.kind} with {bound.kind}")
        return terms.compare([low, left, high], ["<=", "<="])

    def _like(self, left: Term) -> Term:
        if left.kind not in (TEXT, FLAGS):
            raise self._wrong(left.at, f"like needs a text, and this is {left.kind}")
        pattern = self._sum()
        if pattern.kind != TEXT or pattern.literal is None:
            raise self._wrong(pattern.at, "like needs a pattern in quotes, such as 'duplicate_of:%'")
        return terms.like(left, pattern.literal)

    def _sum(self) -> Term:
        return self._arithmetic(self._product, "+", "-")

    def _product(self) -> Term:
        return self._arithmetic(self._signed, "*", "/", "%")

    def _arithmetic(self, read: Callable[[], Term], *known: str) -> Term:
        parts, signs = [read()], []
        while sign := self._take(*known):
            signs.append(sign.text)
            parts.append(read())
            for term in parts[-2:]:
                self._of_kind(term, NUMBER, sign.text)
        return terms.arithmetic(parts, signs)

    def _signed(self) -> Term:
        sign = self._take("-", "+")
        if sign is None:
            return self._atom()
        term = self._of_kind(self._deeper(self._signed), NUMBER, sign.text)
        if sign.text == "+":
            return term
        return (
            terms.literal(NUMBER, -term.literal, sign.at)
            if term.literal is not None
            else terms.apply(NUMBER, pc.negate, term)
        )

    def _atom(self) -> Term:
        token = self._next
        if self._take("("):
            inner = self._deeper(self._or)
            self._need(")")
            return inner
        if token.what == "number":
            self._take()
            if not math.isfinite(float(token.text)):
                raise self._wrong(token.at, f"{token.text} is too large for a number")
            return terms.literal(NUMBER, float(token.text), token.at)
        if token.what == "text":
            self._take()
            quote = token.text[0]
            return terms.literal(TEXT, token.text[1:-1].replace(2 * quote, quote), token.at)
        if token.what != "word" or token.word in _KEYWORDS - {"true", "false", "null", "none"}:
            raise self._unexpected("a column, a number or a text")
        self._take()
        if token.word in ("true", "false"):
            return terms.literal(CONDITION, token.word == "true", token.at)
        if token.word in ("null", "none"):
            return Term(NOTHING, lambda _: pa.scalar(None), token.at)
        return self._named(token)

    def _named(self, token: _Token) -> Term:
        """Parse a column, or `isnull(…)`."""
        if token.word == "isnull" and self._take("("):
            inner = self._deeper(self._or)
            self._need(")")
            return terms.apply(CONDITION, pc.is_null, inner)
        if self._next.text in ("(", "["):
            raise self._unexpected("a comparison")
        if token.text not in KINDS:
            near = difflib.get_close_matches(token.text.lower(), KINDS, n=2, cutoff=0.5)
            advice = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(KINDS)};"
            if token.word in CAPTIONS:
                raise self._wrong(
                    token.at, f"{token.text!r} is no column: captions stay in the shards, not in the table"
                )
            raise self._wrong(token.at, f"unknown column {token.text!r}; {advice} Text stands in quotes")
        self.columns.add(token.text)
        return terms.column(token.text, token.at)
