"""Rules over a table's columns: Python and DuckDB are the oracles, and everything else is refused with its place."""

import pickle
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from noisegate.pipeline.errors import ConfigError, TableError
from noisegate.pipeline.runs.table import table_from
from noisegate.pipeline.runs.where import parse_where
from tests.errors import refused

RNG = np.random.default_rng(3)
ROWS = 40
NUMBERS = ("similarity", "osa_weight", "label", "index")
WORDS = ("ok", "bad_image", "it's", "")


def _holes(values: Any) -> list[Any]:
    return [None if hole else value for value, hole in zip(values, RNG.random(ROWS) < 0.2, strict=True)]


FLAGS = [None if i == 7 else [w for w in ("indegree0", "duplicate_of:a") if RNG.random() < 0.4] for i in range(ROWS)]
TABLE = table_from(
    {
        "key": [f"{i:03d}" for i in range(ROWS)],
        "index": np.arange(ROWS),
        "status": RNG.choice(WORDS, ROWS).tolist(),
        "error": _holes(RNG.choice(WORDS, ROWS).tolist()),
        "image_sha256": [bytes([i]) * 32 for i in range(ROWS)],
        "similarity": _holes((RNG.integers(-4, 5, ROWS) / 4).tolist()),
        "osa_weight": _holes(RNG.random(ROWS).tolist()),
        "label": _holes(RNG.integers(0, 4, ROWS).tolist()),
        "clean": _holes((RNG.random(ROWS) < 0.5).tolist()),
        "flags": FLAGS,
    },
    {"table_version": 1},
)
ROW_VALUES = TABLE.to_pylist()


def held(rule: str) -> list[int]:
    return np.flatnonzero(parse_where(rule).mask(TABLE)).tolist()


# --- expressions of the grammar, in the words of both languages -------------------------------------------------------------
Pair = tuple[str, str]  # the same in Python and in SQL


def _both(template: str, *parts: Pair) -> Pair:
    return template.format(*(p for p, _ in parts)), template.format(*(s for _, s in parts))


def numbers() -> st.SearchStrategy[Pair]:
    columns = st.sampled_from(NUMBERS).map(lambda name: (name, f"{name}::DOUBLE"))
    literals = st.sampled_from(["0", "1", "2.5", "0.25", ".5", "1e-1"]).map(lambda text: (text, f"{text}::DOUBLE"))
    return st.recursive(
        columns | literals,
        lambda inner: st.one_of(
            st.tuples(inner, st.sampled_from("+-*"), inner).map(lambda t: _both(f"({{}} {t[1]} {{}})", t[0], t[2])),
            inner.map(lambda a: _both("({} / 4)", a)),
            inner.map(lambda a: _both("(-{})", a)),
        ),
        max_leaves=4,
    )


def _sql_text(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def texts() -> st.SearchStrategy[Pair]:
    literals = st.sampled_from(WORDS).map(lambda word: (f'"{word}"', _sql_text(word)))
    return st.sampled_from([("status", "status::VARCHAR"), ("error", "error"), ("key", "key")]) | literals


def comparisons() -> st.SearchStrategy[Pair]:
    def chain(t: tuple[Pair, str, Pair, str, Pair]) -> Pair:
        a, first, b, second, c = t
        return f"{a[0]} {first} {b[0]} {second} {c[0]}", f"({a[1]} {first} {b[1]} AND {b[1]} {second} {c[1]})"

    signs = st.sampled_from(["<", "<=", ">", ">=", "==", "!="])
    single = st.one_of(*(st.tuples(side, signs, side) for side in (numbers(), texts())))
    few = st.lists(st.sampled_from(WORDS), min_size=1, max_size=3)
    flag = st.sampled_from(["indegree0", "duplicate_of:a", "absent"])
    return st.one_of(
        single.map(lambda t: _both(f"{{}} {t[1]} {{}}", t[0], t[2])),
        st.tuples(numbers(), signs, numbers(), signs, numbers()).map(chain),
        few.map(lambda ws: (f"error in {ws}", f"error IN ({', '.join(map(_sql_text, ws))})")),
        few.map(lambda ws: (f"status not in {ws}", f"status NOT IN ({', '.join(map(_sql_text, ws))})")),
        st.lists(st.integers(-1, 4), min_size=1, max_size=3).map(
            lambda ns: (f"label in {ns}", f"label IN ({', '.join(map(str, ns))})")
        ),
        flag.map(lambda f: (f"'{f}' in flags", f"list_contains(flags, '{f}')")),
        st.just(("clean", "clean")),
        st.just(("clean == False", "clean = FALSE")),
    )


def conditions() -> st.SearchStrategy[Pair]:
    return st.recursive(
        comparisons(),
        lambda inner: st.one_of(
            st.tuples(inner, st.sampled_from(["and", "or"]), inner).map(
                lambda t: _both(f"({{}}) {t[1]} ({{}})", t[0], t[2])
            ),
            inner.map(lambda a: _both("not ({})", a)),
        ),
        max_leaves=5,
    )


@given(conditions())
@settings(max_examples=150)
def test_rows_without_holes_hold_as_python_says(rule: Pair) -> None:
    where = parse_where(rule[0])
    mask = where.mask(TABLE)
    whole = [i for i, row in enumerate(ROW_VALUES) if all(row[name] is not None for name in where.columns)]
    code = compile(rule[0], "rule", "eval")
    wanted = {i: bool(eval(code, {"__builtins__": {}}, ROW_VALUES[i])) for i in whole}
    assert {i: bool(mask[i]) for i in whole} == wanted


@given(conditions())
@settings(max_examples=60)
def test_rows_with_holes_hold_as_duckdb_says(rule: Pair) -> None:
    with duckdb.connect() as connection:
        connection.register("t", TABLE)
        found = connection.execute(f"SELECT coalesce(({rule[1]}), FALSE) FROM t ORDER BY index").fetchall()
    assert parse_where(rule[0]).mask(TABLE).tolist() == [held for (held,) in found]


@pytest.mark.parametrize(
    ("ours", "sql"),
    [
        ("similarity is null", "similarity IS NULL"),
        ("isnull(similarity) OR label IS NOT NULL", "similarity IS NULL OR label IS NOT NULL"),
        ("error is not None", "error IS NOT NULL"),
        ("label = 1 And not clean", "label = 1 AND NOT clean"),
        ("label <> 1", "label <> 1"),
        ("label between 1 and 2 and clean", "label BETWEEN 1 AND 2 AND clean"),
        ("label not between 1 and 2", "label NOT BETWEEN 1 AND 2"),
        ("not label in (1, 2)", "NOT label IN (1, 2)"),
        ("status = 'it''s'", "status = 'it''s'"),
        ("key like '00_' or key like '%9'", "key LIKE '00_' OR key LIKE '%9'"),
        ("error not like '%image'", "error NOT LIKE '%image'"),
        ("index % 3 = 1", "index % 3 = 1"),
        ("flags like 'duplicate_of:%'", "list_bool_or(list_transform(flags, lambda f: f LIKE 'duplicate_of:%'))"),
        ("true", "TRUE"),
        ("label > 0 or true", "TRUE"),
        ("2 in (1, 2) and clean", "clean"),
    ],
)
def test_words_of_sql(ours: str, sql: str) -> None:
    with duckdb.connect() as connection:
        connection.register("t", TABLE)
        found = connection.execute(f"SELECT index FROM t WHERE {sql} ORDER BY index").fetchall()
    assert held(ours) == [row for (row,) in found]
    assert 0 < len(found) <= ROWS


def test_float32_columns_are_compared_exactly() -> None:
    table = pa.table({"similarity": pa.array([0.9, 0.25], pa.float32())})
    assert parse_where("similarity < 0.9").mask(table).tolist() == [True, True]  # float32's 0.9 is 0.89999998
    assert parse_where("similarity = 0.25").mask(table).tolist() == [False, True]


def test_digests_compare_as_hex() -> None:
    assert held(f"image_sha256 = '{'05' * 32}'") == [5]


def test_a_division_by_zero_has_no_answer() -> None:
    assert held("index / (index - index) > 0") == held("not index / 0 > 0") == held("index % 0 = index % 0") == []
    assert held("isnull(1 / 0)") == list(range(ROWS))


def test_slices_chunks_and_empty_tables() -> None:
    rule = parse_where("'indegree0' in flags and label >= 0 and index % 2 = 0")
    whole = rule.mask(TABLE)
    assert rule.mask(TABLE.slice(11, 20)).tolist() == whole[11:31].tolist()
    chunked = pa.concat_tables([TABLE.slice(0, 13), TABLE.slice(13)])
    assert rule.mask(chunked).tolist() == whole.tolist()
    assert rule.mask(TABLE.slice(0, 0)).shape == (0,)


def test_a_rule_knows_its_columns_and_travels_to_workers() -> None:
    rule = parse_where("clean and shard = 'x-00' and similarity + osa_weight > 0")
    assert rule.columns == ("clean", "osa_weight", "shard", "similarity")
    assert pickle.loads(pickle.dumps(rule)) == rule
    with refused("where", rule.text, TableError):
        rule.mask(TABLE)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("clean_probabilty > 0.9", r"unknown column 'clean_probabilty'; did you mean clean_probability.*character 1\)"),
        ("status = ok", r"unknown column 'ok'.*Text stands in quotes.*character 10\)"),
        ("similarity > 'a'", r"> compares a number with a text \(character 12\)"),
        ("similarity", "a number is not a condition; write similarity > 0.5"),
        ("clean and label", "a number is not a condition"),
        ("status + 1 > 2", "'?\\+'? needs a number, and this is a text"),
        ("clean > true", "does not compare true and false"),
        ("label = null", "write is null or is not null"),
        ("flags = 'x'", "compares a list of flags with a text"),
        ("key in flags", "stands a text"),
        ("1 in flags", "stands a text"),
        ("'a' in key", "in needs a list of flags"),
        ("label in (1, 'a')", "this list needs a number"),
        ("label in (1, similarity)", "plain numbers or texts"),
        ("label in 3", "a list such as"),
        ("label in (1 2)", "found '2' where"),
        ("similarity >", r"found the end where a column.*character 13\)"),
        ("similarity > > 1", r"found '>'.*character 14\)"),
        ("(clean", r"found the end where '\)'"),
        ("clean)", r"found '\)'"),
        ("clean clean", "found 'clean' where and, or"),
        ("clean not", "in, between or like"),
        ("label is 3", "found '3' where null"),
        ("label between 1 or 2", "'and'"),
        ("similarity like 'a'", "like needs a text"),
        ("key like status", "pattern in quotes"),
        ("status = 'ok", "a quote is never closed"),
        ("", "the rule is empty"),
        ("   ", "the rule is empty"),
        # constructs of languages that this one is not
        ("open('x')", "'open' cannot be called"),
        ("__import__('os')", "'__import__' cannot be called"),
        ("__import__('os').system('x')", "attributes"),
        ("isnull.__class__", "attributes"),
        ("key.upper() = 'A'", "attributes"),
        ("flags[0] = 'x'", "a column has no parts"),
        ("lambda: 1", "no meaning here|unknown column"),
        ("9 ** 9 ** 9 > 1", "powers are not known"),
        ("9 // 2 > 1", "whole division"),
        ("clean & clean", "write and"),
        ("clean || clean", "write or"),
        ("~clean", "write not"),
        ("clean; drop table t", "';' has no meaning"),
        ("clean -- clean", "- needs a number, and this is true or false"),
        ("1e999 > 0", "too large"),
        ("(" * 60 + "clean" + ")" * 60, "nested deeper"),
        ("not " * 60 + "clean", "nested deeper"),
        ("-" * 60 + "1 > 0", "nested deeper"),
        ("clean or " * 2000 + "clean", "too many"),
        ("key = '\udcff'", "no UTF-8"),
        ("label > ١", "no meaning here"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(rule: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_where(rule)


@given(st.text(alphabet="abcles_ ()[]'\"<>=!+-*/%.,01&|~notrdi", max_size=30))
@settings(max_examples=300)
def test_any_text_is_a_rule_or_a_config_error(text: str) -> None:
    try:
        where = parse_where(text)
    except ConfigError:
        return
    assert where.mask(TABLE).shape == (ROWS,)


def test_long_chains_do_not_recurse() -> None:
    assert held(" or ".join(["index = 3"] * 700)) == [3]
    assert held(" + ".join(["1"] * 2000) + " = 2000 and index = 4") == [4]
