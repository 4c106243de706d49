"""What the words of a `where` rule mean on Arrow columns: numbers as float64, digests as hex, null for "not known"."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .table import ALL_COLUMNS

NUMBER, TEXT, CONDITION, FLAGS, NOTHING = "a number", "a text", "true or false", "a list of flags", "null"


@dataclass(frozen=True)
class Term:
    """A typed piece of a rule; `of(table)` is an Arrow scalar or an array with one value per row. `at` is its place."""

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


KINDS = {"shard": TEXT} | {name: _kind(stored) for name, (stored, _) in ALL_COLUMNS.items()}


def column(name: str, at: int) -> Term:
    """A column of the weight table."""

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


_COMPARE = {
    "=": pc.equal,
    "<>": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}


def compare(terms: Sequence[Term], signs: Sequence[str]) -> Term:
    """`a < b <= c`: every neighbouring pair must hold."""

    def pair(i: int) -> Term:
        left, right, test = terms[i], terms[i + 1], _COMPARE[signs[i]]
        return Term(CONDITION, lambda table: test(left.of(table), right.of(table)), left.at)

    return all_of([pair(i) for i in range(len(signs))])


def all_of(terms: Sequence[Term]) -> Term:
    """False where one is false, null where one is not known, else true."""
    return _folded(terms, pc.and_kleene)


def any_of(terms: Sequence[Term]) -> Term:
    """True where one is true, null where one is not known, else false."""
    return _folded(terms, pc.or_kleene)


def _folded(terms: Sequence[Term], both: Callable[[Any, Any], Any]) -> Term:
    if len(terms) == 1:
        return terms[0]

    def of(table: pa.Table) -> Any:
        value = terms[0].of(table)
        for term in terms[1:]:
            value = both(value, term.of(table))
        return value

    return Term(CONDITION, of, terms[0].at)


def opposite(term: Term) -> Term:
    return Term(CONDITION, lambda table: pc.invert(term.of(table)), term.at)


def arithmetic(terms: Sequence[Term], signs: Sequence[str]) -> Term:
    """Left to right in float64; what is not finite, such as a division by zero, is null."""
    if not signs:
        return terms[0]
    steps = {"+": pc.add, "-": pc.subtract, "*": pc.multiply, "/": pc.divide, "%": _remainder}

    def of(table: pa.Table) -> Any:
        value = terms[0].of(table)
        for sign, term in zip(signs, terms[1:], strict=True):
            value = steps[sign](value, term.of(table))
            value = pc.if_else(pc.is_finite(value), value, pa.scalar(None, pa.float64()))
        return value

    return Term(NUMBER, of, terms[0].at)


def _remainder(a: Any, b: Any) -> Any:
    """With the sign of the divisor, as in Python."""
    given = [np.array(x.as_py(), np.float64) if isinstance(x, pa.Scalar) else x.to_numpy() for x in (a, b)]
    with np.errstate(all="ignore"):
        left = np.mod(*given)
    return pa.scalar(float(left)) if left.ndim == 0 else pa.array(left, from_pandas=True)


def negative(term: Term) -> Term:
    return Term(NUMBER, lambda table: pc.negate(term.of(table)), term.at)


def is_null(term: Term) -> Term:
    return Term(CONDITION, lambda table: pc.is_null(term.of(table)), term.at)


def is_in(term: Term, values: Sequence[Any]) -> Term:
    """Among the values; null for null."""
    among = pa.array(list(values), pa.float64() if term.kind == NUMBER else pa.string())

    def of(table: pa.Table) -> Any:
        given = term.of(table)
        if isinstance(given, pa.Scalar):
            return pa.scalar(given.as_py() in values if given.is_valid else None, pa.bool_())
        return pc.if_else(pc.is_null(given), pa.scalar(None, pa.bool_()), pc.is_in(given, value_set=among))

    return Term(CONDITION, of, term.at)


def contains(flags: Term, test: Callable[[Any], Any], at: int) -> Term:
    """One of the row's flags passes the test; null where the row has no list."""

    def of(table: pa.Table) -> Any:
        lists = flags.of(table)
        lists = lists.combine_chunks() if isinstance(lists, pa.ChunkedArray) else lists
        hits = test(pc.list_flatten(lists).cast(pa.string())).to_numpy(zero_copy_only=False).astype(bool)
        found = np.zeros(len(lists), bool)
        found[pc.list_parent_indices(lists).to_numpy()[hits]] = True
        return pa.array(found, mask=pc.is_null(lists).to_numpy(zero_copy_only=False))

    return Term(CONDITION, of, at)


def like(term: Term, pattern: str) -> Term:
    """SQL's LIKE: `%` is any run of characters, `_` any one. Of flags it asks whether one of them matches."""
    if term.kind == FLAGS:
        return contains(term, lambda flat: pc.match_like(flat, pattern), term.at)
    return Term(CONDITION, lambda table: pc.match_like(term.of(table), pattern), term.at)
