"""The operations of a `where` rule on Arrow columns. Numbers are float64, digests are hex text, null means unknown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .table import READ_BY_NAME

NUMBER, TEXT, CONDITION, FLAGS, NOTHING = "a number", "a text", "true or false", "a list of flags", "null"


@dataclass(frozen=True)
class Term:
    """A part of a rule: its kind, its value on a table (an Arrow scalar, or one value per row) and its position in the text.

    `literal` is the Python value of a number, a text or true and false; None for everything else.
    """

    kind: str
    of: Callable[[pa.Table], Any]
    at: int
    literal: Any = None


def _kind(stored: pa.DataType) -> str:
    if pa.types.is_boolean(stored):
        return CONDITION
    if pa.types.is_integer(stored) or pa.types.is_floating(stored):
        return NUMBER
    return FLAGS if pa.types.is_list(stored) else TEXT


KINDS = {"shard": TEXT} | {name: _kind(stored) for name, (stored, _) in READ_BY_NAME.items()}


def column(name: str, at: int) -> Term:
    """Make the term of a column of the weight table."""

    def of(table: pa.Table) -> Any:
        values = table[name]
        if KINDS[name] == NUMBER:
            return values.cast(pa.float64())
        if KINDS[name] != TEXT:
            return values
        if pa.types.is_fixed_size_binary(values.type) or pa.types.is_binary(values.type):
            return pa.array([None if value is None else value.hex() for value in values.to_pylist()], pa.string())
        return values.cast(pa.string())

    return Term(KINDS[name], of, at)


COMPARE = {
    **{"=": pc.equal, "<>": pc.not_equal},
    **{"<": pc.less, "<=": pc.less_equal, ">": pc.greater, ">=": pc.greater_equal},
}


def apply(kind: str, function: Callable[..., Any], *terms: Term) -> Term:
    """Make a term whose value is a function of the values of other terms."""
    return Term(kind, lambda table: function(*(term.of(table) for term in terms)), terms[0].at)


def literal(kind: str, value: Any, at: int) -> Term:
    stored = {NUMBER: pa.float64(), TEXT: pa.string(), CONDITION: pa.bool_()}[kind]
    return Term(kind, lambda _: pa.scalar(value, stored), at, value)


def opposite(term: Term) -> Term:
    return apply(CONDITION, pc.invert, term)


def compare(terms: Sequence[Term], signs: Sequence[str]) -> Term:
    """Compare all neighbouring terms of `a < b <= c`, joined by `and`."""
    pairs = zip(signs, terms, terms[1:], strict=False)
    return all_of([apply(CONDITION, COMPARE[sign], left, right) for sign, left, right in pairs])


def all_of(terms: Sequence[Term]) -> Term:
    """Join terms by `and`: false if one term is false, null if one is unknown, else true."""
    return apply(CONDITION, lambda *values: reduce(pc.and_kleene, values), *terms)


def any_of(terms: Sequence[Term]) -> Term:
    """Join terms by `or`: true if one term is true, null if one is unknown, else false."""
    return apply(CONDITION, lambda *values: reduce(pc.or_kleene, values), *terms)


def arithmetic(terms: Sequence[Term], signs: Sequence[str]) -> Term:
    """Compute left to right in float64; a result that is not finite, such as of a division by zero, is null."""
    steps = {"+": pc.add, "-": pc.subtract, "*": pc.multiply, "/": pc.divide, "%": _remainder}

    def compute(value: Any, *others: Any) -> Any:
        for sign, other in zip(signs, others, strict=True):
            value = steps[sign](value, other)
            value = pc.if_else(pc.is_finite(value), value, pa.scalar(None, pa.float64()))
        return value

    return apply(NUMBER, compute, *terms) if signs else terms[0]


def _remainder(a: Any, b: Any) -> Any:
    """Compute the remainder with the sign of the divisor, as in Python."""
    given = [np.array(x.as_py(), np.float64) if isinstance(x, pa.Scalar) else x.to_numpy() for x in (a, b)]
    with np.errstate(all="ignore"):
        left = np.mod(*given)
    return pa.scalar(float(left)) if left.ndim == 0 else pa.array(left, from_pandas=True)


def is_in(term: Term, values: Sequence[Any]) -> Term:
    """Whether the term is one of the values; null for null."""
    among = pa.array(list(values), pa.float64() if term.kind == NUMBER else pa.string())

    def test(given: Any) -> Any:
        if isinstance(given, pa.Scalar):
            return pa.scalar(given.as_py() in values if given.is_valid else None, pa.bool_())
        return pc.if_else(pc.is_null(given), pa.scalar(None, pa.bool_()), pc.is_in(given, value_set=among))

    return apply(CONDITION, test, term)


def contains(flags: Term, test: Callable[[Any], Any]) -> Term:
    """Whether one of the row's flags passes the test; null for a row without a list."""

    def search(lists: Any) -> Any:
        lists = lists.combine_chunks() if isinstance(lists, pa.ChunkedArray) else lists
        hits = test(pc.list_flatten(lists).cast(pa.string())).to_numpy(zero_copy_only=False).astype(bool)
        rows = np.zeros(len(lists), bool)
        rows[pc.list_parent_indices(lists).to_numpy()[hits]] = True
        return pa.array(rows, mask=pc.is_null(lists).to_numpy(zero_copy_only=False))

    return apply(CONDITION, search, flags)


def like(term: Term, pattern: str) -> Term:
    """Apply SQL's LIKE: `%` is any run of characters, `_` any one character. For flags: whether one of them matches."""
    if term.kind == FLAGS:
        return contains(term, lambda flat: pc.match_like(flat, pattern))
    return apply(CONDITION, lambda values: pc.match_like(values, pattern), term)
