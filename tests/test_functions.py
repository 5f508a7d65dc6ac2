"""Every function with every pair of adversarial cells: no query raises, and the facts that are claimed are true."""

from __future__ import annotations

import datetime
import itertools
import math
import random
import re
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import Any

import duckdb
import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st
from sqlglot import exp

import dpsql
from dpsql.compiler.parse import parse
from dpsql.compiler.resolve import resolve
from dpsql.errors import Refused
from dpsql.kernel.algebra import Aggregate, Call, Column, Expr, call, constant, plain, total
from dpsql.kernel.functions import FUNCTIONS, Facts, brief, element, some
from dpsql.kernel.functions.dates import FINE, GROWING, PARTS, WINDOW, since
from dpsql.kernel.functions.intervals import LONG
from dpsql.kernel.functions.numbers import REALS
from dpsql.kernel.functions.text import MAX_COMPARED, MAX_SEARCHED, check_pattern
from dpsql.kernel.relations import bounds, select
from dpsql.policy.catalog import INTERVAL, Interval, Type, read_interval

CELLS: dict[str, list[str]] = {
    "TINYINT": ["-128", "-1", "0", "1", "127"],
    "INTEGER": ["-2147483648", "-1", "0", "1", "7", "2147483647"],
    "BIGINT": ["-9223372036854775808", "-1", "0", "1", "9223372036854775807"],
    "UTINYINT": ["0", "255"],
    "UBIGINT": ["0", "1", "18446744073709551615"],
    "HUGEINT": ["-170141183460469231731687303715884105728", "-1", "0", "1", "170141183460469231731687303715884105727"],
    "DECIMAL(4,1)": ["-999.9", "0.0", "0.1", "999.9"],
    "DECIMAL(18,6)": ["-999999999999.999999", "0", "0.000001", "999999999999.999999"],
    "DECIMAL(38,0)": ["-99999999999999999999999999999999999999", "0", "99999999999999999999999999999999999999"],
    "DECIMAL(38,37)": ["-9.9999999999999999999999999999999999999", "0", "9.9999999999999999999999999999999999999"],
    "DOUBLE": ["0", "-0.0", "1.5", "2.5", "0.1", "1e308", "-1e308", "5e-324", "1e18", "'nan'", "'inf'", "'-inf'"],
    "BOOLEAN": ["true", "false"],
    "VARCHAR": [
        *["''", "' '", "'a'", "'A'", "'12'", "' -3.5e2 '", "'1e400'", "'-99999999999999999999999999999999999999999'", "'nan'", "'true'"],
        *["'\u00e9'", "'e\u0301'", "'\U0001f468\u200d\U0001f469\u200d\U0001f467'", "'\u1e9e\u00df\u0130\u0131\u212a\ufb01'", "'%_$\\'", "chr(0)", "chr(10) || 'a'"],
        *["'2020-02-30'", "'2020-02-29'", "'infinity'", "'-infinity'", "'epoch'", "'9999999-01-01'", "'2020-01-01 25:00:00'", "'0044-03-15 (BC)'"],
        *["repeat('a', 5000)", "repeat('\u00e9', 3000)", "repeat('9', 400)"],
        *["'1 month -30 days'", "'2147483647 months'", "'99999999999999999999 days'", "'1e400 hours'", "'-00:00:00.0000005'"],
    ],
    "DATE": [
        *["'infinity'", "'-infinity'", "'1970-01-01'", "'1969-12-31'", "'2020-02-29'", "'2021-01-31'", "'0001-01-01'", "'9999-12-31'"],
        *["'0001-12-31 (BC)'", "'10000-01-01'", "'5877642-06-25 (BC)'", "'5881580-07-10'"],
    ],
    "TIMESTAMP": [
        *["'infinity'", "'-infinity'", "'1970-01-01'", "'1969-12-31 23:59:59.999999'", "'2020-02-29 23:59:59.999999'"],
        *["'0001-01-01'", "'9999-12-31 23:59:59.999999'", "'10000-01-01'", "'0001-12-31 (BC) 23:59:59.999999'"],
        *["'290309-12-22 (BC) 00:00:00'", "'294247-01-10 04:00:54.775806'"],
    ],
    "INTERVAL": [
        *["'0 days'", "'1 month'", "'30 days'", "'29 days 24:00:00'", "'1 month -30 days'", "'-1 day -03:04:05.123456'", "'-00:00:00.000001'"],
        *["'119999 months 4000000 days 95999999:59:59.999999'", "'-119999 months -4000000 days -95999999:59:59.999999'"],
        *["'119999 months -4000000 days -95999999:59:59.999999'", "'-119999 months 4000000 days'", "'120000 months'", "'4000001 days'"],
        *["'2147483647 months'", "to_months(-2147483648)", "'-2147483648 days'", "to_microseconds(9223372036854775807)", "to_microseconds(-9223372036854775808)"],
        *["to_months(2147483647) + to_days(-2147483648) + to_microseconds(-9223372036854775808)"],
        *["to_months(-2147483648) + to_days(-2147483648) + to_microseconds(-9223372036854775808)"],
    ],
}  # fmt: skip
# Lists of these: none, only NULL, the cells themselves, the same a few times, and more than fit into one of the engine's vectors.
CELLS |= {
    f"{sql}[]": [
        *["[]", "[NULL]", "[NULL, NULL]", f"[{', '.join(f'CAST({cell} AS {sql})' for cell in CELLS[sql][:20])}, NULL]"],
        *[f"[CAST({cell} AS {sql})]" for cell in CELLS[sql][-2:]],
        *[f"list_resize([CAST({CELLS[sql][1]} AS {sql})], {n}, CAST({CELLS[sql][0]} AS {sql}))" for n in (3, 2100)],
    ]
    for sql in ("INTEGER", "UBIGINT", "HUGEINT", "DECIMAL(18,6)", "DOUBLE", "BOOLEAN", "VARCHAR", "DATE")
}


def column(name: str, sql: str) -> Column:
    type_ = Type(sql)
    if type_ == INTERVAL:
        return Column(name, some())
    return Column(name, Facts(type_, True, type_.range, stored=True))


Shape = Callable[..., list[Expr]]


def followed(*constants: Any) -> Shape:
    """A column, and constants behind it."""
    return lambda x: [x, *map(constant, constants)]


def led(*constants: Any) -> Shape:
    """Constants, and a column behind them."""
    return lambda x: [*map(constant, constants), x]


def one(x: Expr) -> list[Expr]:
    return [x]


def none() -> list[Expr]:
    return []


def two(x: Expr, y: Expr) -> list[Expr]:
    return [x, y]


TYPES = [
    "TINYINT",
    "SMALLINT",
    "INTEGER",
    "BIGINT",
    "HUGEINT",
    "UTINYINT",
    "UINTEGER",
    "UBIGINT",
    "DECIMAL(4,1)",
    "DECIMAL(18,3)",
]
TYPES += [
    "DECIMAL(38,0)",
    "DECIMAL(38,37)",
    "DECIMAL(3,3)",
    "DOUBLE",
    "BOOLEAN",
    "VARCHAR",
    "DATE",
    "TIMESTAMP",
    "INTERVAL",
]
UNITS = ["year", "QUARTER", "month", "week", "day", "hour", "minute", "second", "millisecond", "microsecond"]
FORMATS = [
    "%Y-%m-%d",
    "%a %A %b %B %p %I",
    "%-d.%-m.%y %-H:%-M:%-S",
    "%j %U %W %w %u",
    "%G-%V-%u",
    "%x %X %c",
    "%f %g",
    "100 %%",
    "%Y",
]
INTERVALS = [
    *[Interval(1), Interval(-1), Interval(120_000), Interval(-120_000), Interval(0, 1), Interval(0, -4_000_000)],
    *[Interval(0, 0, 1_000_000), Interval(0, 0, 90_000_000 * 3_600_000_000), Interval(-7, 3, -5), Interval()],
]
PATTERNS = [
    "",
    "a",
    "^a",
    "a$",
    ".",
    "(a|b)*",
    "[^a-z]+",
    "\\d{1,3}",
    "(?:\\w\\b)?",
    "(.)(.)",
    "\u00e9",
    "x*",
    "[\\d.\\-]+",
]

# The ways to call each function: from one or two columns to its arguments.
SHAPES: dict[str, list[Shape]] = {
    **{name: [one] for name in ("negate", "NOT", "IS NULL", "abs", "floor", "ceil")},
    **{name: [one] for name in (*PARTS, *FINE, *GROWING, "last_day", "dayname", "monthname")},
    **{name: [one] for name in ("length", "lower", "upper", "reverse", "strip_accents", "nfc_normalize", "url_encode", "regexp_escape", "md5", "sha1", "sha256")},
    **{name: [one] for name in ("parse_filename", "parse_dirname", "parse_dirpath", "strlen", "bit_length", "length_grapheme", "ascii", "unicode", "hex", "bin", "chr")},
    **{name: [one] for name in ("format_bytes", "formatreadabledecimalsize", "isnan", "isinf", "isfinite", "signbit", "sign", "bit_count", "factorial", *REALS)},
    "log": [one, two, followed(2), led(10), followed(0.0)],
    "pow": [two, *(followed(n) for n in (0, 1, 2, 3, -1, 0.5, 400)), led(2)],
    "pi": [none],
    "round_even": [followed(n) for n in (0, 1, 2, 30, -1, -2, -3, -18, -30)],
    "trunc": [one, *(followed(n) for n in (0, 1, 2, 30, -1, -2, -3, -18, -30))],
    "hash": [one, two],
    "bar": [followed(0, 10), followed(-1, 1.5, 7), followed(10, 0, 100), followed(3, 3, 1)],
    "to_base": [*(followed(n) for n in (2, 16, 36)), followed(2, 64), followed(10, 0)],
    **{name: [followed(5, "x"), followed(0, "x"), followed(100, "\u00e9\u0301"), followed(99, "abc")] for name in ("lpad", "rpad")},
    "repeat": [followed(0), followed(1), followed(64)],
    "translate": [followed("a\u00e9", "\u00e9b"), followed("", "x"), followed("ab", ""), followed("aa1", "\U0001f468b")],
    "split_part": [followed("a", 1), followed("", 2), followed("-", -1), followed("a", 0), followed("\u0301", 1000)],
    "overlay": [lambda x, y, z: [x, y, z], lambda x, y: [x, constant("\u00e9"), y, y], followed("xyz", 2), followed("xyz", -5, 2**31 - 1), followed("", 2**31 - 1, -(2**31))],
    "concat_ws": [lambda x, y: [x, y, x], led("-"), lambda x: [x, constant("a"), constant("b")]],
    "substring_grapheme": [lambda x, y: [x, y], *(followed(*n) for n in ((1, 2), (0,), (-1, 5), (2**31 - 1, 2**31 - 1), (-(2**31), -(2**31)), (3, -2)))],
    "left_grapheme": [two, followed(2), followed(-(2**31)), followed(2**31 - 1)],
    "right_grapheme": [two, followed(2), followed(-(2**31)), followed(2**31 - 1)],
    "date_sub": [*((lambda x, y, unit=unit: [constant(unit), x, y]) for unit in UNITS)],
    "strftime": [*(followed(f) for f in FORMATS), led("%Y")],
    "strptime": [followed(f) for f in FORMATS],
    "try_strptime": [followed(f) for f in FORMATS],
    "make_date": [one, lambda x, y: [x, y, y], *(lambda x, m=m, d=d: [x, constant(m), constant(d)] for m, d in ((2, 29), (12, 31), (1, 1), (4, 31))), lambda x: [constant(2020), x, constant(31)], lambda x: [constant(2021), constant(2), x]],
    **{name: [one] for name in ("make_timestamp", "make_timestamp_ms", "epoch_ms")},
    "time_bucket": [led(read_interval(text)) for text in ("1 month", "5 months", "100 years", "10000 years", "1 day", "7 days", "4000000 days", "15 minutes", "1 microsecond", "90000000 hours")],
    "IN": [lambda x, y: [x, y, y]],
    **{name: [two, followed(0), followed("a"), lambda x: [call("CASE", call("=", x, constant("q")), constant("r"), constant(None)), x]] for name in ("IS DISTINCT FROM", "IS NOT DISTINCT FROM")},
    **{name: [two, *(followed(n) for n in (0, 1, 7, 63, 64, 127, 1000, -1)), led(1), led(-1)] for name in ("<<", ">>")},
    "~": [one],
    "fmod": [two, followed(0), followed(-2.5)],
    "TEXT[i]": [two, *(followed(n) for n in (1, 0, -1, 2**31 - 1, -(2**31)))],
    "TEXT[i:j]": [lambda x, y: [x, y, y], *(followed(*n) for n in ((1, 2), (0, 3), (-1, 5), (2**31 - 1, 2**31 - 1), (-(2**31), -(2**31)), (-3, -1)))],
    "BETWEEN": [lambda x, y: [x, y, y]],
    "round": [one, *(followed(n) for n in (0, 1, 2, 30, -1, -2, -3, -18, -30))],
    "CASE": [lambda x, y: [call("IS NULL", x), y, call("IS NULL", y), constant(None), x], lambda x: [call("IS NULL", x), constant(2.5), x],
             lambda x: [call("IS NULL", x), constant(300), x], lambda x: [call("IS NULL", x), constant("abc"), x]],
    "coalesce": [two, one, followed(0), followed(-300), followed(Fraction("0.25")), followed("x"), followed(datetime.date(2020, 1, 1))],
    "nullif": [two, followed(0), followed(Fraction("0.1")), followed("a")],
    "least": [two, one, followed(100), followed(1.5), lambda x: [call("greatest", x, constant(0)), constant(100)]],
    "greatest": [two, one, followed(0), followed(-1.5), lambda x: [call("least", x, constant(100)), constant(0)]],
    "substr": [lambda x, y: [x, y], *(followed(*n) for n in ((1, 2), (0,), (-1, 5), (2**31 - 1, 2**31 - 1), (-(2**31), -(2**31)), (3, -2)))],
    "left": [two, followed(2), followed(-(2**31)), followed(2**31 - 1)],
    "right": [two, followed(2), followed(-(2**31)), followed(2**31 - 1)],
    **{name: [one, followed(""), followed("a \u00e9"), followed("\u0301")] for name in ("trim", "ltrim", "rtrim")},
    "replace": [followed("a", "bb"), followed("", "x"), followed("\u00e9", ""), followed("a" * 10, "b" * 400)],
    "concat": [two, one, led("a"), lambda x, y: [x, y, x]],
    **{name: [followed(p) for p in ("", "%", "a%", "%a", "_", "%a_%\u00e9%", "%" * 500, "_%" * 250, "\\", "12")] for name in ("LIKE", "ILIKE")},
    **{name: [*(followed(p) for p in PATTERNS), *(followed(p, "is") for p in PATTERNS)] for name in ("regexp_matches", "regexp_full_match")},
    "regexp_extract": [*(followed(p) for p in PATTERNS), followed("(.)(.)", 2), followed("(.)(.)", 0, "i")],
    "regexp_replace": [*(followed(p, "xy") for p in PATTERNS), *(followed(p, r"\0x\0", "i") for p in PATTERNS), followed("(.)(.)|x", r"\2\1"), *(followed(p, "x", "g") for p in PATTERNS)],
    "date_part": [*(led(unit) for unit in (*PARTS, *list(GROWING)[:6], "dow", "doy", "years"))],
    "date_trunc": [led(unit) for unit in UNITS],
    "date_diff": [*((lambda x, y, unit=unit: [constant(unit), x, y]) for unit in UNITS)],
    "DATE +": [two, *(followed(n) for n in (0, 5, -5, 4_000_000, 4_000_001, 2**31 - 1, -(2**31)))],
    "DATE -": [two, *(followed(n) for n in (0, 5, -5, 4_000_000, 4_000_001, 2**31 - 1, -(2**31)))],
    "DATE - DATE": [two, followed(datetime.date(2020, 1, 1)), led(datetime.date(9999, 12, 31))],
    **{name: [two, *(followed(length) for length in INTERVALS)] for name in ("+ INTERVAL", "- INTERVAL", "INTERVAL +", "INTERVAL -")},
    **{name: [two, *(followed(n) for n in (0, 1, -3, 1000, 0.5, -1.5)), *(led(length) for length in INTERVALS)] for name in ("INTERVAL *", "INTERVAL /")},
    **{name: [one] for name in ("- INTERVAL x", "normalized_interval", "INTERVAL OF", *(f"to_{unit}" for unit in LONG))},
    "CAST": [followed(type_) for type_ in TYPES],
    "TRY_CAST": [followed(type_) for type_ in TYPES],
    **{name: [one] for name in ("array_length", "list_reverse", "list_unique", "list_count", "list_min", "list_max", "list_sum", "list_avg", "list_distinct")},
    **{name: [one] for name in ("list_reverse_sort", "list_first", "list_last", "list_any_value", "list_mode", "list_bool_and", "list_bool_or", "list_bit_and", "list_bit_or", "list_bit_xor", "list_median", "cardinality", "array_pop_back", "array_pop_front", "parse_path", "url_decode")},
    "list_sort": [one, followed("DESC"), followed("ASC", "NULLS FIRST")],
    **{name: [two, followed(2**40), followed("a"), followed(None)] for name in ("list_append", "array_push_front")},
    "list_prepend": [two, led(2**40), led("a"), led(None)],
    "list_concat": [two, lambda x: [x, x, x]],
    "regexp_extract_all": [*(followed(p) for p in PATTERNS), followed("(.)(.)", 2), followed("(.)(.)", 0, "i")],
    "string_split_regex": [*(followed(p) for p in PATTERNS), followed("A", "i")],
    "printf": [led("%s"), led("a%d%%"), led("%05d"), led("%.3f"), lambda x, y: [constant("%s: %d"), x, y]],
    "format": [led("{}"), led("{{{}}}"), led("{:.3f}"), lambda x, y: [constant("{} {}"), x, y]],
    "list_extract": [two, *(followed(n) for n in (1, 0, -1, 5000, 2**63 - 1, -(2**63)))],
    "list_slice": [lambda x, y: [x, y, y], *(followed(*n) for n in ((1, 2), (-2, -1), (0, 2**63 - 1), (-(2**63), 2**63 - 1), (2**63 - 1, -(2**63)), (3, 2)))],
    **{name: [two, followed(1), followed(2**40), followed(Fraction("0.1")), followed(1.5), followed("a")] for name in ("list_contains", "list_position")},
    "list_has_any": [two, lambda x: [x, call("list_value", x if x.facts.type == Type("VARCHAR") else constant("a"))]],
    "string_split": [followed(","), followed(""), followed("a"), followed("\u0301")],
    "array_to_string": [followed(","), followed(""), followed("\u00e9" * 30)],
    "list_value": [one, two, followed(1.5), lambda x, y: [x, constant(None), y, x]],
}  # fmt: skip
SHAPES["LIKE"] += [followed("a$%", "$"), followed("\\%\\_\\\\%", "\\"), followed("", "x")]
SHAPES["ILIKE"] += [followed("A$%", "$")]
# Of a constant list the engine makes a comparison, and its statistics may find that there is nothing to compare.
SHAPES["list_contains"] += [lambda x: [call("list_value", constant("a")), call("CASE", call("=", x, constant("q")), constant("r"), constant(None))]]  # fmt: skip


@pytest.fixture(scope="module")
def connection() -> duckdb.DuckDBPyConnection:
    """Each type's cells in a table, and each cell in one of its own: the engine plans with what it knows of a table."""
    con = duckdb.connect()
    con.execute("SET threads = 1")
    for sql, cells in CELLS.items():
        con.execute(f'CREATE TABLE "{sql}" (x {sql})')
        con.execute(f'INSERT INTO "{sql}" VALUES (NULL), ' + ", ".join(f"(CAST({cell} AS {sql}))" for cell in cells))
        for index, cell in enumerate(cells):
            con.execute(f'CREATE TABLE "{sql} {index}" AS SELECT CAST({cell} AS {sql}) AS x')
    return con


def shown(sql: str, type_: Type) -> str:
    """A value that Python can take: dates beyond its own as the number that they are."""
    if type_.kind == "LIST":
        return f"CAST({sql} AS VARCHAR)"
    if type_.kind == "DATE":
        return f"({sql} - DATE '1970-01-01')"
    if type_.kind == "TIMESTAMP":  # of infinity the engine says NULL
        return f"CASE WHEN {sql} IS NOT NULL THEN coalesce(CAST(epoch_us({sql}) AS HUGEINT), 100000000000000000000) END"
    return f"epoch_us({sql})" if type_.kind == "INTERVAL" else sql


def scanned(cell: str, table: str) -> str:
    """What a scan leaves of a cell."""
    return brief(exp.column(cell)).sql("duckdb") if table.startswith("INTERVAL") else cell


def source(tables: Sequence[str]) -> str:
    cells = (f'(SELECT {scanned("x", table)} AS x{i} FROM "{table}") AS t{i}' for i, table in enumerate(tables))
    return ", ".join(cells) or "(SELECT 1)"


def evaluate(con: duckdb.DuckDBPyConnection, expression: Expr, types: Sequence[str]) -> list[Any]:
    """The expression on every combination of adversarial cells, NULL among them."""
    sql = shown(f"({total(expression).sql('duckdb')})", expression.facts.type)
    return [value for (value,) in con.execute(f"SELECT {sql} FROM {source(types)}").fetchall()]


def calls(function: str) -> Iterator[tuple[Expr, tuple[str, ...]]]:
    """Every call that is accepted, over columns of every type; a refusal has one of these codes."""
    for shape in SHAPES.get(function, [two]):
        for types in itertools.product(CELLS, repeat=shape.__code__.co_argcount - len(shape.__defaults__ or ())):
            try:
                yield call(function, *shape(*(column(f"x{i}", sql) for i, sql in enumerate(types)))), types
            except Refused as refusal:
                assert refusal.code in ("type_mismatch", "may_overflow")


@pytest.mark.parametrize("function", FUNCTIONS)
def test_total(function: str, connection: duckdb.DuckDBPyConnection) -> None:
    """What is accepted does not raise for any cells and stays within its range; what is not is a refusal."""
    accepted = 0
    for expression, types in calls(function):
        accepted += 1
        facts, sql = expression.facts, total(expression).sql("duckdb")
        values = evaluate(connection, expression, types)
        assert facts.nullable or None not in values
        for value in values:
            if value is not None and facts.range is not None and facts.type.kind not in ("DOUBLE", "LIST"):
                assert facts.range[0] <= Fraction(value) <= facts.range[1]
        found = connection.execute(f"SELECT typeof({sql}) FROM {source(types)} LIMIT 1").fetchone()
        assert found == (facts.type.sql.replace(", ", ","),)
        # The engine's statistics change the plan, so each cell is tried alone too, as a value and in a condition.
        cells = list(itertools.product(*(range(len(CELLS[sql])) for sql in types)))
        for indexes in cells if len(types) == 1 else random.Random(0).sample(cells, min(6, len(cells))):
            alone = source([f"{sql} {index}" for sql, index in zip(types, indexes, strict=True)])
            connection.execute(
                f"SELECT count(*) FROM (SELECT ({sql}) AS y FROM {alone}) WHERE y IS NOT NULL"
            ).fetchall()
    assert accepted


# Texts with more bytes are NULL to these, which would take long.
CAPS = {
    "url_decode": 4096,
    "split_part": 4096,
    "parse_path": 4096,
    "string_split": 4096,
    "regexp_matches": 4096,
    "regexp_full_match": 4096,
    **MAX_SEARCHED,
    "regexp_replace": 256,
}
CAPS |= dict.fromkeys(
    (
        "levenshtein",
        "damerau_levenshtein",
        "regexp_extract_all",
        "string_split_regex",
        "jaro_similarity",
        "jaro_winkler_similarity",
        "nfc_normalize",
    ),
    MAX_COMPARED,
)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_same_as_the_engine(function: str, connection: duckdb.DuckDBPyConnection) -> None:
    """Where DuckDB's own function has a value ours has the same; but for dates beyond the years 1 to 9999 it is NULL."""
    for expression, types in calls(function):
        if function in ("least", "greatest") and "INTERVAL" in types:  # test_the_lesser_of_two_intervals
            continue
        if function in ("list_contains", "list_position") and [Type(types[0]).element] != [*map(Type, types[1:])]:
            continue  # the engine compares in a type that does not hold them
        mine, type_ = total(expression).sql("duckdb"), expression.facts.type
        theirs = plain(expression, lambda _: exp.Null()).sql("duckdb")
        if function in ("DATE +", "DATE -"):
            theirs = theirs.replace('"x1"', 'TRY_CAST("x1" AS INTEGER)')
        if function in ("list_distinct", "list_intersect"):  # of which the engine says that the order is any
            theirs = f"list_sort({theirs}, 'ASC', 'NULLS LAST')"
        # A common subexpression is computed outside of TRY, and raises there: it may stand in it only once.
        once = f"epoch_us({theirs})" if type_.kind == "TIMESTAMP" else shown(f"({theirs})", type_)
        query = f"SELECT {shown(f'({mine})', type_)}, TRY({once}), "
        if type_ == INTERVAL:  # in its own representation
            query = f"SELECT CAST({mine} AS VARCHAR), TRY(CAST({theirs} AS VARCHAR)), "
        query += ", ".join(f"CAST(x{i} AS VARCHAR)" for i in range(len(types))) + f" FROM {source(types)}"
        try:
            rows = connection.execute(query).fetchall()
        except duckdb.ConversionException:  # even TRY does not keep the engine's own casts from raising
            assert function in ("IN", "BETWEEN")
            continue
        for ours, engines, *cells in rows:
            both_nan = (
                isinstance(ours, float) and isinstance(engines, float) and math.isnan(ours) and math.isnan(engines)
            )
            if engines is not None and ours != engines and function in ("make_date", "make_timestamp"):
                low, high = map(since, WINDOW[type_.sql])
                assert ours is None and not low <= engines <= high
            elif engines is not None and ours != engines and not both_nan:
                if ours is None and max(len(str(c).encode()) for c in cells) > CAPS.get(function, 10**9):
                    continue
                if function == "strptime" and cells == ["epoch"]:  # the engine's two ways of reading differ
                    continue
                if ours is None and type_ == INTERVAL and (function == "INTERVAL OF" or long(engines, cells)):
                    continue
                assert ours is None and {"DATE", "TIMESTAMP"} & set(types), (theirs, cells, ours, engines)
                days = [abs(int(c)) for sql, c in zip(types, cells, strict=True) if Type(sql).kind == "INTEGER"]
                beyond = any(re.search(r"inf|BC|\d{5,}-", cell) for cell in cells)
                assert beyond or (function in ("DATE +", "DATE -") and max(days, default=2**31) > 4_000_000), (
                    theirs,
                    cells,
                )


@pytest.mark.parametrize(("function", "sign"), [("least", "<="), ("greatest", ">=")])
def test_the_lesser_of_two_intervals(function: str, sign: str, connection: duckdb.DuckDBPyConnection) -> None:
    """It is one of both, and none is less; the engine's own LEAST compares months before days, and does not agree with `<`."""
    columns = [Column(name, some()) for name in ("a", "b")]
    rows = "SELECT a, b FROM (SELECT unnest($1) AS a), (SELECT unnest($1) AS b)"
    cells = [None, "400000 days", "-400000 days", "1 month", "30 days", "31 days", "-1 month 2 days", "0 days"]
    found = total(call(function, *columns)).sql("duckdb")
    table = f"(SELECT CAST(a AS INTERVAL) AS a, CAST(b AS INTERVAL) AS b FROM ({rows}))"
    right = f"x {sign} a AND x {sign} b AND (x = a OR x = b)"
    question = f"SELECT CASE WHEN a IS NULL OR b IS NULL THEN x IS NOT DISTINCT FROM coalesce(a, b) ELSE {right} END FROM (SELECT *, {found} AS x FROM {table})"
    assert set(connection.execute(question, [cells]).fetchall()) == {(True,)}


def long(interval: str, cells: Sequence[str]) -> bool:
    """Whether an interval is beyond what a scan leaves, or a number is by which one is multiplied or divided."""
    test = brief(exp.column("x")).sql("duckdb")
    found = ENGINE.execute(
        f"SELECT ({test}) IS NULL FROM (SELECT CAST($x AS INTERVAL) AS x)", {"x": interval}
    ).fetchone()
    numbers = [abs(float(cell)) for cell in cells if re.fullmatch(r"-?([.0-9]+(e[-+]?[0-9]+)?|inf)", cell)]
    return found == (True,) or any(n > 90_000_000 for n in numbers)


@settings(max_examples=3000, deadline=None)
@given(st.lists(st.sampled_from([*"ab1\u00e9 .^$|?*+()[]{}-\\,:\"'&~", "a", "(", ")", "(?:", "[^", "]", "{2}", "{2,}", "{1,3}", "\\d", "\\w", "\\b", "a-z", "*", "|", "\\."]), max_size=12).map("".join))  # fmt: skip
def test_patterns(pattern: str) -> None:
    """A regular expression that is accepted, by us and on an empty table, is one for the engine on any text."""
    query = (
        "SELECT regexp_matches(x, $p), regexp_matches(x, $p, 'ics'), regexp_full_match(x, $p), regexp_extract(x, $p), "
        "regexp_extract(x, $p, 9), regexp_replace(x, $p, 'y', 'g') FROM (VALUES (''), ('a'), ('ab1 \u00e9'), "
        "('e\u0301' || chr(10) || 'b'), (repeat('a', 300))) AS t(x)"
    )
    try:
        check_pattern("regexp_matches", pattern)
        ENGINE.execute(f"{query} LIMIT 0", {"p": pattern}).fetchall()
    except Refused as refusal:
        assert refusal.code == "constant_invalid"
    except duckdb.InvalidInputException:
        pass
    else:
        ENGINE.execute(query, {"p": pattern}).fetchall()


@pytest.mark.parametrize(
    "pattern",
    ["(?i)a", "(?P<n>a)", "a{1000}", "a{1000,}", "a{99999999999}", "a{100}b{100}", "(a{50}){50}", "\\", "\\1", "\\C", "\\pL", "\\Qa\\E", "\\x41", "a" * 501],
)  # fmt: skip
def test_odd_patterns_are_refused(pattern: str) -> None:
    with pytest.raises(Refused):
        check_pattern("regexp_matches", pattern)


def test_texts_cannot_explode() -> None:
    """Texts grow by a bounded factor, however functions are nested."""
    text: Expr = column("x", "VARCHAR")
    for function, rest in (("||", None), ("concat", None), ("replace", ("a", "aa")), ("upper", ())):
        grown = text
        with pytest.raises(Refused, match="may_overflow"):
            for _ in range(30):
                grown = call(function, *([grown, grown] if rest is None else [grown, *map(constant, rest)]))


def test_lists_cannot_explode() -> None:
    """Nor do lists, also where they go through columns of subqueries."""
    grown: Expr = column("x", "INTEGER[]")
    with pytest.raises(Refused, match="may_overflow"):
        for _ in range(30):
            grown = Column("x", call("list_concat", grown, grown).facts)


def test_expressions_cannot_explode() -> None:
    """Functions that write their argument twice do not make the text exponential."""
    grown: Expr = column("x", "DATE")
    with pytest.raises(Refused, match="too_deep"):
        for _ in range(100):
            grown = call("DATE +", grown, constant(1))
            total(grown)


SMALL = {"small": (0, 100), "steep": (-3, 3), "year": (1900, 2100)}
CONSTANTS = [
    0,
    1,
    -1,
    2,
    3,
    7,
    50,
    -200,
    500,
    2**31 - 1,
    -(2**31),
    2**31,
    10**10,
    2**63 - 1,
    -(2**63),
    2**64 - 1,
    2**127 - 1,
]
DECIMALS = ["0.0", "0.5", "-1.25", "99999999.99", "0.000001", "12345678901234567890.5"]


INTEGER = Type("INTEGER")
NEAR = datetime.date(2000, 1, 1), datetime.date(2030, 12, 31)
LEAVES: dict[str, list[Expr]] = {
    "number": [
        *(Column(n, Facts(INTEGER, True, (Fraction(a), Fraction(b)), True)) for n, (a, b) in SMALL.items()),
        *(Column(n, Facts(INTEGER, True, (Fraction(a), Fraction(b)), True)) for n, (a, b) in SMALL.items()),
        *(column(f"c{i}", sql) for i, sql in enumerate(CELLS) if Type(sql).numeric),
        *(constant(c) for c in CONSTANTS),
        *(constant(Fraction(d)) for d in DECIMALS),
        constant(1.5),
        constant(1e300),
    ],
    "date": [
        *[Column("near", Facts(Type("DATE"), True, bounds(NEAR), True))] * 3,
        column(f"c{list(CELLS).index('DATE')}", "DATE"),
        *(constant(day) for day in (datetime.date.min, datetime.date(1969, 12, 31), datetime.date.max)),
    ],
    "moment": [
        column(f"c{list(CELLS).index('TIMESTAMP')}", "TIMESTAMP"),
        *(constant(at) for at in (datetime.datetime.min, datetime.datetime(2020, 1, 31, 12), datetime.datetime.max)),
    ],
    "text": [column(f"c{list(CELLS).index('VARCHAR')}", "VARCHAR"), constant(""), constant("12"), constant("a\u00e9")],
    "truth": [column(f"c{list(CELLS).index('BOOLEAN')}", "BOOLEAN"), constant(True)],
    "span": [*[column(f"c{list(CELLS).index('INTERVAL')}", "INTERVAL")] * 5, *map(constant, INTERVALS)],
    "texts": [
        column(f"c{list(CELLS).index('VARCHAR[]')}", "VARCHAR[]"),
        call("list_value", constant("a"), constant(None)),
    ],
    "numbers": [column(f"c{i}", sql) for i, sql in enumerate(CELLS) if (e := Type(sql).element) and e.numeric],
}
EXACT = [type_ for type_ in TYPES if Type(type_).numeric]
# How to make a value of a kind: the function, and the kinds of its arguments; what is no kind is a list of constants.
GROWTH: dict[str, list[tuple[str, list[Any]]]] = {
    "number": [
        *((f, ["number", "number"]) for f in ("+", "-", "*", "+", "-", "*", "+", "-", "//", "%", "/")),
        *((f, ["number"]) for f in ("negate", "abs", "round", "floor", "ceil", "trunc", "sign", "ln", "sqrt", "exp", "factorial", "bit_count")),
        *((f, ["number", "number"]) for f in ("gcd", "lcm", "xor", "&", "|", "pow", "atan2", "<<", ">>", "fmod")),
        ("~", ["number"]),
        *((f, ["number", [-3, -1, 1, 2]]) for f in ("round_even", "trunc")),
        *((f, ["number", "number"]) for f in ("least", "greatest", "coalesce", "nullif")),
        ("round", ["number", [-3, -1, 1, 2]]),
        ("CASE", ["truth", "number", "number"]),
        ("CASE", ["truth", "number", [None]]),
        *((f, ["number", EXACT]) for f in ("CAST", "CAST", "TRY_CAST")),
        ("CAST", ["text", EXACT]),
        ("CAST", ["truth", EXACT]),
        ("DATE - DATE", ["date", "date"]),
        *((f, ["span"]) for f in ("epoch", "epoch_us", "epoch_ms", "epoch_ns", "year", "day", "hour", "microsecond")),
        *((f, [kind]) for f in ("year", "day", "epoch", "week", "yearweek", "julian", "epoch_us", "microsecond") for kind in ("date", "moment")),
        ("date_diff", [UNITS, "date", "date"]),
        ("date_diff", [UNITS, "moment", "moment"]),
        *((f, ["text"]) for f in ("length", "strlen", "ascii", "unicode", "bit_length")),
        *(("date_sub", [UNITS, kind, kind]) for kind in ("date", "moment")),
        ("strpos", ["text", "text"]),
        *((f, ["numbers"]) for f in ("list_min", "list_max", "list_sum", "list_avg", "list_median", "list_mode", "list_bit_xor")),
        *((f, [kind]) for f in ("array_length", "list_unique", "list_count") for kind in ("texts", "numbers")),
        *((f, ["numbers", "number"]) for f in ("list_extract", "list_position")),
        ("list_position", ["texts", "text"]),
    ],
    "date": [
        *((f, ["date", "number"]) for f in ("DATE +", "DATE -", "DATE +", "DATE -", "DATE +", "DATE -")),
        *((f, ["date", "date"]) for f in ("least", "greatest", "coalesce", "nullif")),
        ("CASE", ["truth", "date", "date"]),
        ("CAST", ["moment", ["DATE"]]),
        *(("last_day", [kind]) for kind in ("date", "moment")),
        ("make_date", ["number"]),
        ("make_date", ["number", "number", "number"]),
        ("time_bucket", [[Interval(5), Interval(0, 3)], "date"]),
        ("CAST", ["text", ["DATE"]]),
    ],
    "moment": [
        *((f, [kind, INTERVALS]) for f in ("+ INTERVAL", "- INTERVAL") for kind in ("date", "moment", "moment")),
        *(("date_trunc", [UNITS, kind]) for kind in ("date", "moment")),
        ("coalesce", ["moment", "moment"]),
        *((f, ["number"]) for f in ("make_timestamp", "make_timestamp_ms", "epoch_ms")),
        *((f, [kind, "span"]) for f in ("+ INTERVAL", "- INTERVAL") for kind in ("date", "moment")),
        ("time_bucket", [[Interval(5), Interval(0, 0, 900_000_000)], "moment"]),
        ("strptime", ["text", FORMATS]),
        *(("CAST", [kind, ["TIMESTAMP"]]) for kind in ("date", "text")),
    ],
    "span": [
        *((f, ["span", "span"]) for f in ("INTERVAL +", "INTERVAL -", "INTERVAL +", "INTERVAL -", "least", "coalesce", "nullif")),
        *((f, ["span", "number"]) for f in ("INTERVAL *", "INTERVAL /")),
        *((f, ["span"]) for f in ("- INTERVAL x", "normalized_interval")),
        *((f"to_{unit}", ["number"]) for unit in LONG),
        *((f, ["moment", "moment"]) for f in ("MOMENT - MOMENT", "age")),
        ("CASE", ["truth", "span", "span"]),
        ("date_trunc", [UNITS, "span"]),
        ("CAST", ["text", ["INTERVAL"]]),
    ],
    "text": [
        *((f, ["text"]) for f in ("lower", "upper", "trim", "reverse", "strip_accents", "md5", "hex", "url_encode")),
        *((f, ["number"]) for f in ("chr", "hex", "format_bytes")),
        ("to_base", ["number", [2, 16]]),
        ("lpad", ["text", [3], ["0"]]),
        ("repeat", ["text", [0, 3]]),
        ("split_part", ["text", ["a", ""], [1, -1]]),
        ("overlay", ["text", "text", "number"]),
        *(("strftime", [kind, FORMATS]) for kind in ("date", "moment")),
        *((f, [kind]) for f in ("dayname", "monthname") for kind in ("date", "moment")),
        *((f, ["text", "text"]) for f in ("||", "concat", "coalesce", "nullif")),
        *((f, ["text", "number"]) for f in ("substr", "left", "right", "TEXT[i]")),
        *(("CASE", ["truth", *values]) for values in (["text", "text"], ["text", [None]], [[None], "text"])),
        *(("CAST", [kind, ["VARCHAR"]]) for kind in ("number", "date", "moment", "truth", "span")),
        ("replace", ["text", ["a", "\u00e9"], ["", "bbb"]]),
        ("regexp_replace", ["text", PATTERNS, ["", "x"], ["s", "ig"]]),
        ("url_decode", ["text"]),
        ("printf", [["%s%s"], "text", "text"]),
        *((f, ["texts"]) for f in ("list_first", "list_mode")),
        ("regexp_extract", ["text", PATTERNS]),
        *((f, ["texts"]) for f in ("list_min", "list_max")),
        ("list_extract", ["texts", "number"]),
        ("array_to_string", ["texts", [",", ""]]),
    ],
    **{
        kind: [
            *((f, [kind]) for f in ("list_reverse", "list_distinct")),
            ("list_slice", [kind, "number", "number"]),
            *((f, [kind, kind]) for f in ("list_concat", "LIST ||", "list_intersect")),
            ("list_append", [kind, kind[:-1]]),
            ("list_sort", [kind]),
            ("list_value", [kind[:-1], kind[:-1]]),
            ("list_value", [kind[:-1], [None]]),
        ]
        for kind in ("texts", "numbers")
    },
    "truth": [
        *((f, [kind, kind]) for f in ("=", "<", ">=", "!=", "IS DISTINCT FROM") for kind in ("number", "number", "number", "date", "moment", "text", "span")),
        ("BETWEEN", ["number", "number", "number"]),
        ("IN", ["number", "number", "number"]),
        *((f, ["truth", "truth"]) for f in ("AND", "OR")),
        *((f, ["text", ["a%", "%_\u00e9%", ""]]) for f in ("LIKE", "ILIKE")),
        ("regexp_matches", ["text", PATTERNS]),
        ("starts_with", ["text", "text"]),
        ("list_contains", ["texts", "text"]),
        ("list_contains", ["numbers", "number"]),
        *((f, [kind, kind]) for f in ("list_has_any", "list_has_all") for kind in ("texts", "numbers")),
        *(("IS NULL", [kind]) for kind in ("texts", "numbers")),
        *(("CAST", [kind, ["BOOLEAN"]]) for kind in ("number", "text")),
        ("IS NULL", ["date"]),
    ],
}  # fmt: skip


@st.composite
def trees(draw: st.DrawFn, kind: str, depth: int = 4) -> Expr:
    """Random expressions over columns of every type, narrow ones, and constants at the edges of types."""
    if depth == 0 or draw(st.integers(0, 3)) == 0:
        return draw(st.sampled_from(LEAVES[kind]))
    function, kinds = draw(st.sampled_from(GROWTH[kind]))
    arguments = [draw(trees(k, depth - 1)) if isinstance(k, str) else constant(draw(st.sampled_from(k))) for k in kinds]
    try:
        return call(function, *arguments)
    except Refused:
        return draw(st.sampled_from(LEAVES[kind]))


@pytest.fixture(scope="module")
def worlds(connection: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyConnection:
    """A table with many combinations of adversarial cells, and tables with one each, of which the engine knows more."""
    chance = random.Random(3)
    cells = [("NULL", f"{a}", f"{b}", f"{(a + b) // 2}") for a, b in SMALL.values()] + [
        ("NULL", *(f"'{d}'" for d in NEAR))
    ]
    names = [*SMALL, "near", *(f"c{i}" for i in range(len(CELLS)))]
    types = ["INTEGER"] * len(SMALL) + ["DATE", *CELLS]
    cells += [("NULL", *(f"CAST({cell} AS {sql})" for cell in found)) for sql, found in CELLS.items()]
    lengths = list(CELLS).index("INTERVAL")
    for table, rows in [("world", 800), *((f"world {i}", 1) for i in range(12))]:
        connection.execute(
            f'CREATE TABLE "{table}" ({", ".join(f"{n} {t}" for n, t in zip(names, types, strict=True))})'
        )
        values = ", ".join("(" + ", ".join(chance.choice(found) for found in cells) + ")" for _ in range(rows))
        connection.execute(f'INSERT INTO "{table}" VALUES {values}')
        connection.execute(f'UPDATE "{table}" SET c{lengths} = {scanned(f"c{lengths}", "INTERVAL")}')
    return connection


CHAINS = given(
    truth=trees("truth", 5),
    left=st.sampled_from(list(LEAVES)).flatmap(trees),
    alone=st.sets(st.integers(0, 11), min_size=3, max_size=3),
)


def chains(truth: Expr, left: Expr, alone: set[int], worlds: duckdb.DuckDBPyConnection) -> None:
    """The engine reassociates constants and moves them across comparisons: nothing raises, whatever it does with them."""
    try:
        condition, value = total(truth).sql("duckdb"), total(left).sql("duckdb")
    except Refused as error:
        assert error.code == "too_deep"
        reject()
    for table in ("world", *(f"world {i}" for i in alone)):
        worlds.execute(f'SELECT count(*) FROM "{table}" WHERE {condition}').fetchall()
        worlds.execute(f'SELECT count(x), count(*) FROM (SELECT {value} AS x FROM "{table}")').fetchall()
        if left.facts.type.element is not None:
            part = total(call("IN", *[Column("y", element(left.facts))] * 2)).sql("duckdb")
            rows = f'SELECT *, unnest({value}) AS y FROM (SELECT * FROM "{table}" WHERE {condition})'
            worlds.execute(f"SELECT count(*) FROM ({rows}) WHERE {condition} OR {part}").fetchall()
    low, high = left.facts.range or (Fraction(0), Fraction(0))
    for (x,) in worlds.execute(
        f'SELECT {shown(f"({value})", left.facts.type)} FROM "world" WHERE {condition}'
    ).fetchall():
        if x is not None and left.facts.range is not None and left.facts.type.kind not in ("DOUBLE", "LIST"):
            assert low <= Fraction(x) <= high
        assert x is not None or left.facts.nullable


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@CHAINS
def test_chains(truth: Expr, left: Expr, alone: set[int], worlds: duckdb.DuckDBPyConnection) -> None:
    chains(truth, left, alone, worlds)


@pytest.mark.long
@settings(max_examples=3000, deadline=None, suppress_health_check=list(HealthCheck))
@CHAINS
def test_more_chains(truth: Expr, left: Expr, alone: set[int], worlds: duckdb.DuckDBPyConnection) -> None:
    chains(truth, left, alone, worlds)


ENGINE = duckdb.connect(config={"threads": 1})


ORDINARY = [
    *["lower(s)", "upper(s)", "length(s)", "len(s)", "substr(s, 2)", "substring(s, 1, 2)", "SUBSTRING(s FROM 2 FOR 3)", "left(s, 2)", "right(s, 1)"],
    *["trim(s)", "ltrim(s)", "rtrim(s)", "trim(s, 'ab')", "TRIM(BOTH 'a' FROM s)", "replace(s, 'a', 'xyz')", "concat(s, '-', s)", "s || '!'"],
    *["position('c' IN s)", "strpos(s, 'b')", "instr(s, 'b')", "starts_with(s, 'a')", "ends_with(s, 'c')", "contains(s, 'b')"],
    *["s LIKE 'a%'", "s NOT LIKE '_b%'", "s ILIKE 'A%'", "s LIKE 'a$%' ESCAPE '$'", "regexp_matches(s, '[ab]+')", "regexp_full_match(s, '.*c', 's')"],
    *["regexp_extract(s, '(a)(.)', 2)", "regexp_replace(s, '[aeiou]', '*')", "s < 'b'", "s IN ('abc', 'x')", "lower(s) BETWEEN 'a' AND 'b'"],
    *["CASE WHEN i > 0 THEN 'up' WHEN i < 0 THEN 'down' ELSE 'zero' END", "CASE i WHEN 1 THEN 2.5 ELSE i END", "if(b, 1, 0)", "CASE WHEN b THEN n END"],
    *["coalesce(s, 'none')", "ifnull(n, 0)", "coalesce(n, i, 1)", "coalesce(d, 0.125)", "nullif(s, 'abc')", "nullif(i, 1)", "nullif(n, 2.5)"],
    *["least(i, 2)", "greatest(i, n, 1)", "least(greatest(f, -2), 2)", "greatest(born, DATE '2021-01-01')", "least(s, 'b')"],
    *["abs(i)", "abs(f)", "abs(d)", "round(f)", "round(f, 1)", "round(d, 1)", "round(d)", "round(i, -1)", "floor(f)", "ceil(f)", "ceiling(d)", "floor(i)"],
    *["CAST(s AS INTEGER)", "CAST(s AS DOUBLE)", "TRY_CAST(s AS DATE)", "CAST(f AS INTEGER)", "d::INTEGER", "CAST(f AS DECIMAL(8,2))", "CAST(i AS VARCHAR)"],
    *["CAST(b AS INTEGER)", "CAST(i AS BOOLEAN)", "CAST(born AS TIMESTAMP)", "w::DATE", "CAST(born AS VARCHAR)", "CAST(d AS DOUBLE)", "CAST(n AS BIGINT)"],
    *["year(born)", "month(w)", "day(born)", "hour(w)", "minute(w)", "second(w)", "quarter(born)", "week(born)", "dayofweek(born)", "isodow(born)", "dayofyear(w)"],
    *["epoch(w)", "extract(year FROM born)", "EXTRACT(dow FROM w)", "date_part('month', born)", "weekday(born)", "dayofmonth(born)"],
    *[f"date_trunc('{unit}', {x})" for unit in UNITS for x in ("born", "w")],
    *[f"date_diff('{unit}', w, TIMESTAMP '2021-03-04 05:06:07')" for unit in UNITS],
    *["born + 5", "born - 5", "5 + born", "born - DATE '2020-01-01'", "born + INTERVAL 1 MONTH", "w - INTERVAL '2 hours'", "w + INTERVAL 10 DAY", "born + i"],
    *[f"{f}(f)" for f in (*REALS, "log", "trunc", "sign", "isnan", "isinf", "isfinite", "signbit")],
    *["ln(i)", "sqrt(n)", "exp(d)", "pow(f, 2)", "power(i, 2)", "log(2, n)", "atan2(f, 2)", "nextafter(f, 1)", "fdiv(i, 2)", "pi()", "trunc(d, 1)", "trunc(i, -1)"],
    *["round_even(d, 1)", "roundbankers(f, 0)", "mod(i, 3)", "f % 3", "mod(f, 0)", "add(i, n)", "subtract(i, 1)", "multiply(i, 2)", "divide(i, 2)", "add(born, 3)"],
    *["sign(i)", "sign(d)", "bit_count(i)", "gcd(i, 4)", "lcm(n, 4)", "greatest_common_divisor(i, n)", "factorial(n)", "xor(n, i)", "n & 3", "n | 8", "i & 3", "i | n"],
    *[f"{f}(s)" for f in ("reverse", "strip_accents", "nfc_normalize", "url_encode", "regexp_escape", "md5", "sha1", "sha256", "parse_filename", "parse_dirname", "parse_dirpath", "hash")],
    *[f"{f}(s)" for f in ("strlen", "bit_length", "length_grapheme", "ascii", "unicode", "ord", "hex", "to_hex", "bin", "to_binary")],
    *["hex(i)", "bin(n)", "to_base(n, 16)", "to_base(n, 2, 8)", "chr(n + 65)", "format_bytes(n)", "formatReadableSize(i)", "formatReadableDecimalSize(i)", "pg_size_pretty(i)", "bar(f, -5, 5, 10)"],
    *["lpad(s, 5, '*')", "rpad(s, 2, 'xy')", "repeat(s, 3)", "translate(s, 'abc', 'xy')", "split_part(s, '-', 2)", "overlay(s, 'xyz', 2)", "overlay(s, '', 1, 1)", "concat_ws('-', s, s, 'x')"],
    *["left_grapheme(s, 2)", "right_grapheme(s, 1)", "substring_grapheme(s, 2, 1)", "levenshtein(s, 'abd')", "editdist3(s, 'x')", "damerau_levenshtein(s, 'acb')", "jaro_similarity(s, 'abcd')", "jaro_winkler_similarity(s, 'abcd')", "jaccard(nullif(s, ''), 'abc')", "hamming(nullif(left(s, 1), ''), 'a')", "hash(i)", "hash(n, s)", "hash(w, f, d)"],
    *[f"{f}({x})" for f in (*GROWING, *FINE, "last_day", "dayname", "monthname", "isinf", "isfinite") for x in ("born", "w")],
    *["extract(decade FROM born)", "extract(isoyear FROM w)", "date_part('century', w)", "strftime(w, '%d.%m.%Y %H:%M')", "strftime('%B', born)", "try_strptime(s, '%Y-%m-%d')"],
    *[f"date_sub('{unit}', w, TIMESTAMP '2021-03-04 05:06:07')" for unit in UNITS],
    *["make_date(n + 2000, n + 1, n + 1)", "make_date(i)", "make_timestamp(epoch_us(w))", "make_timestamp_ms(epoch_ms(w))", "epoch_ms(i)", "date_add(born, INTERVAL 1 MONTH)", "datesub('day', born, born)"],
    *["time_bucket(INTERVAL 15 MINUTE, w)", "time_bucket(INTERVAL '2 weeks', born)", "time_bucket(INTERVAL 1 MONTH, w)", "w + INTERVAL 5 MILLISECOND", "w - INTERVAL 7 MICROSECONDS"],
    *["len(l)", "length(m)", "array_length(l)", "l[1]", "l[-1]", "m[n]", "l[2:]", "l[:1]", "m[n:n + 1]", "list_slice(l, 1, 2)", "list_extract(m, 2)", "list_reverse(l)", "'a' IN l", "2 NOT IN m"],
    *["contains(l, 'b')", "list_has(m, 2)", "array_contains(m, 1.5)", "list_position(l, 'b')", "list_has_any(l, ['a', s])", "array_has_all(m, [1, 2])", "list_unique(l)", "list_count(l)", "[i, n, 3]", "['a', NULL, s]"],
    *["list_min(l)", "list_max(m)", "list_sum(m)", "list_avg(m)", "len(list_distinct(m[1:2]))", "string_split(s, 'a')", "str_split(s, '')", "array_to_string(l, '-')", "array_to_string(string_split(s, 'a'), '')"],
    *["i IS DISTINCT FROM n", "s IS NOT DISTINCT FROM 'abc'", "s IS DISTINCT FROM NULL", "upper(s) IS NOT DISTINCT FROM s", "born IS DISTINCT FROM '2020-02-29'", "i ** 2", "i ^ 2", "-i ** 2", "2 ** i ** 2", "@i", "@(i - 5)", "@i + 1"],
    *["n << 2", "n >> 1", "i >> 1", "n << 1 + 1", "~i", "~i + 1", "- ~i", "~n & 3", "fmod(i, 3)", "fmod(f, n)", "f // 2", "d // 4", "epoch(w) // 86400"],
    *["s ~ '[ab]'", "s !~ 'b'", "s ~~ 'a%'", "s !~~ 'a%'", "s ~~* 'A%'", "s !~~* 'A%'", "s ^@ 'a'", "s GLOB 'a*c'", "s NOT GLOB '*b*'", "s GLOB 'a%*'", "s ~~~ 'a*'"],
    *["s[1]", "s[-2]", "s[1:2]", "s[:2]", "s[2:]", "array_extract(s, 2)", "array_slice(s, 1, n)", "(i, n) IN ((1, 0), (2, 1))", "(i, s) = (1, 'abc')", "(i, n) != (1, 0)"],
    *["born.month()", "t.born.year()", "s.upper().length()", "s.left(2)", "l && ['a']", "l @> ['a']", "['a'] <@ l"],
    *["list_sort(l)", "list_sort(m, 'DESC', 'NULLS FIRST')", "list_reverse_sort(l)", "list_concat(l, ['x'])", "l || ['x', s]", "m || [n]", "list_append(l, s)", "list_prepend(1, m)", "array_push_front(m, 7)", "array_cat(m, m)", "len(list_intersect(l, ['a', 'z']))"],
    *["list_first(l)", "list_last(m)", "list_any_value(l)", "list_mode(m)", "list_median(m)", "list_bool_or([b, i > 0])", "list_bit_or(m)", "cardinality(l)", "array_pop_back(l)", "array_pop_front(m)"],
    *["regexp_replace(s, '[0-9]', '#', 'g')", "regexp_extract_all(s, '[a-z0-9]')", "string_split_regex(s, '[-%]')", "regexp_split_to_array(s, 'b')", "url_decode(s)", "url_decode(s || '%20%C3%A9%')", "printf('%s-%d', s, i)", "printf('%.2f', f)", "format('{}: {}', s, n)", "parse_path(s)"],
    *["w - TIMESTAMP '2020-03-01' > INTERVAL 10 DAY", "INTERVAL '2 months' <= w - born", "epoch(w - TIMESTAMP '2020-03-01')", "extract(day FROM w - born)", "date_part('hours', born - w)", "minute(w - born)", "epoch_ms(w - born)", "epoch_ns(w)", "epoch_ns(born)"],
    *["born + INTERVAL (n) DAY", "w - INTERVAL (n + 1) HOURS", "born + to_days(i)", "to_weeks(i) + w", "w + to_microseconds(n)"],
    *["v", "-v", "v + v", "v - INTERVAL 3 HOUR", "v * 2", "n * v", "v / 2", "v * 1.5", "w - v", "born + v", "v + w", "w - born", "age(w, born)", "normalized_interval(v)", "abs(n) * INTERVAL '1 day 01:00:00'"],
    *["v > INTERVAL 1 DAY", "v = '30 days'", "v <> INTERVAL '1 month'", "v BETWEEN '0 days' AND INTERVAL 1 MONTH", "v IN ('30 days', INTERVAL 2 HOUR)", "v IS DISTINCT FROM INTERVAL 1 MONTH", "v IS NULL", "v < v + v"],
    *[f"{f}(v)" for f in ("year", "month", "day", "hour", "minute", "second", "millisecond", "microsecond", "nanosecond", "quarter", "decade", "century", "millennium", "epoch", "epoch_ms", "epoch_us", "epoch_ns", "hash")],
    *[f"date_trunc('{unit}', v)" for unit in UNITS],
    *["extract(day FROM v)", "date_part('hours', v)", "coalesce(v, INTERVAL 1 DAY)", "CASE WHEN b THEN v ELSE INTERVAL '-2 days' END", "nullif(v, '1 month')", "least(v, INTERVAL 1 HOUR)"],
    *["CAST(v AS VARCHAR)", "v || '!'", "concat(v, s)", "TRY_CAST(s || ' days' AS INTERVAL)", "TRY_CAST(s AS INTERVAL)", "CAST('3 hours' AS INTERVAL) + v", "INTERVAL '1 year 2 months -3 days 04:05:06.5'", "w + INTERVAL (n) MONTH", "w + INTERVAL (f) SECOND"],
    *[f"to_{unit}(n)" for unit in LONG],
    *["CAST(epoch(INTERVAL '2 years') AS BIGINT)", "CAST(epoch(v) AS INTEGER)"],
    *["b IS TRUE", "b IS NOT TRUE", "make_timestamp(2020, n + 1, 1, n, 30, 1.5)", "make_timestamp(year(born), 2, 3, 4, n, f + 6)"],
    *["i + n * 2", "i // 2", "i % 3", "f / 3", "-d", "i IS NULL", "NOT b", "(i > 0 AND b) OR s = 'abc'"],
]  # fmt: skip


@pytest.fixture(scope="module")
def ordinary() -> dpsql.Session:
    con = duckdb.connect()
    con.execute(
        "CREATE TABLE t (id INTEGER, s VARCHAR, i INTEGER, n SMALLINT, f DOUBLE, d DECIMAL(8,2), b BOOLEAN, born DATE, w TIMESTAMP, l VARCHAR[], m INTEGER[], v INTERVAL)"
    )
    con.execute(
        "INSERT INTO t SELECT k, ['abc', ' B\u00e9a ', '12', '-3.7', '2020-02-29', '', 'a%c', NULL][1 + k % 8], k % 23 - 11, k % 7, (k % 41 - 20) / 4, "
        "(k % 91 - 45) / 8, [true, false, NULL][1 + k % 3], DATE '2019-12-25' + CAST(k AS INTEGER), TIMESTAMP '2020-02-27 21:59:58.5' + INTERVAL 7 HOUR * k, "
        "[['a', NULL, 'b'], [], ['a'], NULL, ['b', 'b']][1 + k % 5], [[1, 2, 1], NULL, [], [NULL], [5]][1 + k % 5], "
        "[INTERVAL '1 month', INTERVAL '30 days', INTERVAL '-3 hours', NULL, INTERVAL '13 months -2 days 25:00:01.5'][1 + k % 5] FROM range(300) AS r(k)"
    )  # fmt: skip
    columns = {"i": {"between": [-11, 11]}}
    tables = {"t": {"person": "id", "max_rows_contributed": 1, "columns": columns}}
    policy = {"dataset": {"id": "t"}, "budget": {"epsilon": 1, "delta": 1e-6, "accounting": "gdp"}, "tables": tables}
    return dpsql.connect(con, policy=policy, ledger=":memory:")


@pytest.mark.parametrize("text", ORDINARY)
def test_ordinary_cells(text: str, ordinary: dpsql.Session) -> None:
    """The value, the type and the name are those of DuckDB; where it would raise the value is NULL."""
    query = f"SELECT count({text}) FROM t"
    resolved = resolve(parse(query), ordinary._catalog)
    (output,) = resolved.outputs
    assert isinstance(output.expression, Aggregate) and output.expression.arguments
    expression = output.expression.arguments[0]
    match expression:
        case Call("CAST", (condition, _)) if condition.facts.type.sql == "BOOLEAN" and "CAST(b" not in text:
            expression = condition  # aggregates take conditions as numbers
        case Call("epoch_us", (length,)) if length.facts.type == INTERVAL and "epoch" not in text:
            expression = length  # and intervals too
    connection = ordinary._backend._owner
    mine = f"SELECT {total(expression).sql('duckdb')} AS x FROM ({select(resolved.relation).sql('duckdb')})"
    exact = re.sub(r"\bCAST\(s AS", "TRY_CAST(s AS", text)
    theirs = connection.sql(f"SELECT {exact} FROM t")
    found = connection.sql(mine)
    ours, engines = (
        rows.project("CAST(#1 AS VARCHAR)" if expression.facts.type == INTERVAL else "*") for rows in (found, theirs)
    )
    assert [str(v) for (v,) in ours.fetchall()] == [str(v) for (v,) in engines.fetchall()]
    assert output.name == connection.sql(query).columns[0]
    assert found.types == theirs.types
    assert str(found.types[0]).replace(" ", "") == expression.facts.type.sql
