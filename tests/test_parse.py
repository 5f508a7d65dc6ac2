"""Hostile text: it is refused or compiled, and nothing in it is dropped silently."""

from __future__ import annotations

import cProfile
import re
from fractions import Fraction

import pytest
import shop
import spec
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlglot import exp
from test_lemmas import catalog

import dpsql
from dpsql.compiler.compile import compile
from dpsql.compiler.parse import MAX_BYTES, MAX_DEPTH, MAX_TOKENS, Parsed, parse
from dpsql.compiler.resolve import resolve
from dpsql.errors import Refused

ACCEPTED = [one for one in spec.every("shop") if not one.refused]
WORDS = [
    *["SELECT", "FROM", "WHERE", "GROUP", "BY", "HAVING", "ORDER", "LIMIT", "OFFSET", "JOIN", "ON", "AND", "OR", "NOT", "IN", "BETWEEN", "IS", "NULL", "AS", "DISTINCT", "UNION", "ALL", "CASE", "WHEN", "THEN"],
    *["ELSE", "END", "WITH", "OVER", "FILTER", "USING", "LEFT", "VALUES", "EXISTS", "CAST", "DATE", "INTERVAL", "LIKE", "ILIKE", "QUALIFY", "SAMPLE", "LATERAL", "DESC", "NULLS", "FIRST"],
    *["(", ")", ",", ".", ";", "*", "+", "-", "/", "//", "%", "=", "<>", "<", "<=", ">", ">=", "::", "[", "]", "{", "}", "?", "$1", ":", "->", "||", "~", "^", "&", "|", "!", "@", "#"],
    *["count", "sum", "avg", "min", "error", "now", "customer", "orders", "item", "country", "id", "segment", "age", "balance", "status", "amount", "quantity", "c", "o"],
    *["1", "0", "-1", "2.5", "1e3", "1e1+1e1", "0x1F", "1_000", "'a'", "'a''b'", "'2020-01-01'", '"id"', '"a.b"', "$$x$$", "E'\\\\n'", "true", "false", "--x", "/*y*/", "é", "99999999999999999999999"],
    "SELECT count(*) FROM customer", "SELECT sum(age) FROM customer WHERE", "GROUP BY segment", "ORDER BY 1", "ON orders.customer = customer.id",
]  # fmt: skip


def attempt(text: str, name: str = "shop") -> bool:
    try:
        compile(text, catalog("gdp", name), Fraction(1), Fraction(1, 10**8))
    except Refused as refusal:
        assert refusal.code and refusal.message
        assert refusal.position is None or 0 <= refusal.position <= len(text)
        return False
    return True


@settings(max_examples=3000, deadline=None)
@given(st.lists(st.sampled_from(WORDS), max_size=25).map(" ".join))
def test_any_words(text: str) -> None:
    attempt(text)


@settings(max_examples=1500, deadline=None)
@given(st.sampled_from(spec.every()), st.data())
def test_any_edit(one: spec.Spec, data: st.DataObject) -> None:
    """A piece of a spec query replaced by something else."""
    query = one.query
    start = data.draw(st.integers(0, len(query)))
    end = data.draw(st.integers(start, min(len(query), start + 12)))
    attempt(query[:start] + data.draw(st.sampled_from([*WORDS, "", " "])) + query[end:], one.database.name)


@settings(max_examples=1500, deadline=None)
@given(st.sampled_from(spec.every()), st.data())
def test_any_word_left_out(one: spec.Spec, data: st.DataObject) -> None:
    """Words of a spec query left out, doubled or exchanged."""
    words = re.findall(r"\w+|'[^']*'|\s+|.", one.query)
    for _ in range(data.draw(st.integers(1, 3))):
        i, j = (data.draw(st.integers(0, len(words) - 1)) for _ in range(2))
        words[i] = data.draw(st.sampled_from(["", words[i] + " " + words[i], words[j]]))
    attempt("".join(words), one.database.name)


@settings(max_examples=500, deadline=None)
@given(st.text(max_size=60))
def test_any_text(text: str) -> None:
    attempt(text)


# What stands around releases is the engine's to read, and nobody's secret.
SINGLE = [
    one
    for one in ACCEPTED
    if "FROM" in one.query.upper() and not any(text.startswith("release ") for _, text in one.expected)
]


SOME = [one if i % 6 == 0 else pytest.param(one, marks=pytest.mark.long) for i, one in enumerate(SINGLE)]


@pytest.mark.parametrize("one", SOME, ids=str)
def test_no_argument_is_dropped(one: spec.Spec) -> None:
    """Each argument that a node could have and has not is set: that must be refused, or change the meaning."""
    known = catalog("gdp")
    tree = parse(one.query, spec.NOW).tree
    original = resolve(Parsed(tree), known)
    for index, node in enumerate(tree.walk()):
        for argument in node.arg_types:
            # `_type` and `big_int` are notes of the parser to itself; a Literal's text is not optional.
            if node.args.get(argument) or argument in (
                "_type",
                "big_int",
                "typed",
                "safe",
                "quoted",
                "nested",
                "is_string",
            ):
                continue
            if isinstance(node, exp.Union) and argument == "by_name":  # the same where the names are in order
                continue
            for value in (True, exp.Literal.string("x"), [exp.Literal.number(3)], exp.to_identifier("x")):
                copy = tree.copy()
                list(copy.walk())[index].set(argument, value)
                try:
                    changed = resolve(Parsed(copy), known)
                except (Refused, AttributeError, TypeError, KeyError, ValueError):
                    continue  # a tree that the parser would not build may also be cut short by an error
                assert changed != original, f"{type(node).__name__}.{argument} = {value!r} was dropped"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("SELECT count(*) FROM customer WHERE " + "(" * 200 + "true" + ")" * 200, "too_deep"),
        ("SELECT count(*) FROM customer WHERE " + "NOT " * 200 + "member", "too_deep"),
        ("SELECT count(*) FROM customer WHERE age = " + "- " * 200 + "1", "too_deep"),
        ("SELECT count(*) FROM customer WHERE " + "age = 1 OR " * 2000 + "true", "too_long"),
        ("SELECT count(*) FROM customer -- " + "x" * MAX_BYTES, "too_long"),
        ("SELECT count(*) FROM customer WHERE " + "(7 % " * 60 + "age" + ")" * 60 + " > 0", "too_deep"),
        ("SELECT segment, count(*) FROM customer GROUP BY ORDER BY segment", "syntax"),
        (
            "SELECT count(*) FROM customer WHERE id IN (SELECT customer FROM orders GROUP BY HAVING count(*) > 1)",
            "syntax",
        ),
        ("SELECT count(*) FROM (SELECT sum(age) OVER (PARTITION BY ORDER BY age) FROM customer)", "syntax"),
        ("SELECT count(*) FROM customer GROUP BY", "syntax"),
        ("SELECT segment, count(*) FROM customer GROUP BY DISTINCT ORDER BY segment", "syntax"),
        ("SELECT count(*) FROM " + "(SELECT * FROM " * 95 + "customer" + ")" * 95, "too_many_tables"),
        ("", "one_statement"),
        (";", "one_statement"),
        ("SELECT count(*) FROM customer; DROP TABLE customer", "one_statement"),
    ],
)
def test_size(text: str, code: str) -> None:
    with pytest.raises(Refused) as refusal:
        compile(text, catalog("gdp"), Fraction(1), Fraction(1, 10**8))
    assert refusal.value.code == code


def test_too_many_operators_for_the_engine(clean: dpsql.Session) -> None:
    with pytest.raises(Refused) as refusal:
        clean.explain("SELECT count(*) FROM customer WHERE age > " + " + ".join(["1"] * 2_400))
    assert refusal.value.code == "too_deep"


def test_planning_grows_with_the_query() -> None:
    """Four times as many aggregates take about four times as many calls, counted and not timed."""

    def calls(many: int) -> int:
        counted = cProfile.Profile()
        text = "SELECT " + ", ".join(f"sum(age + {i})" for i in range(many)) + " FROM customer"
        counted.runcall(lambda: compile(text, catalog("gdp"), Fraction(1), Fraction(1, 10**8)).parts[0].release.text)
        return sum(entry.callcount for entry in counted.getstats())

    calls(2)
    assert calls(80) < 5 * calls(20)


def test_long_but_allowed() -> None:
    """A thousand conditions and a hundred brackets are within the limits and compile."""
    assert attempt("SELECT count(*) FROM customer WHERE " + " OR ".join(["age = 1"] * (MAX_TOKENS // 4 - 10)))
    assert attempt("SELECT count(*) FROM customer WHERE " + "(" * (MAX_DEPTH - 5) + "member" + ")" * (MAX_DEPTH - 5))
    assert attempt("SELECT sum(" + " + ".join(["age"] * 1000) + ") FROM customer")


def test_policy_of_these_tests_is_the_shops() -> None:
    assert set(catalog("gdp").tables) == set(shop.TABLES)
