"""Everything that can be said against a policy before there is a database: all of it at once, not only the first."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

from sqlglot import exp

from dpsql.compiler.parse import parse
from dpsql.errors import Refused
from dpsql.policy.catalog import (
    BOOLEAN,
    DATE,
    DOUBLE,
    HUGEINT,
    INTERVAL,
    KNOWN,
    TIMESTAMP,
    VARCHAR,
    Column,
    Reference,
    Type,
    declare,
    declared_type,
    fold,
    read_date,
    read_file,
    read_interval,
    read_policy,
    reference,
    unknown,
    whole,
    wrong,
)

SOUND: dict[str, Mapping[str, Any]] = {"budget": {"epsilon": 1, "delta": 1e-6}, "analyst": {"epsilon": 1}}
LARGE_DELTA, LARGE_EPSILON = Fraction(1, 1000), 20


def problems(source: str | Path | Mapping[str, Any]) -> list[Refused]:
    """What `connect` would refuse whatever the database is, in the order of the policy; each once."""
    try:
        top = source if isinstance(source, Mapping) else read_file(source)
    except Refused as error:
        return [error]
    return list({error.message: error for error in found(top)}.values())


def warnings(source: str | Path | Mapping[str, Any]) -> list[str]:
    """What is allowed, and promises little. For a policy without problems."""
    policy = read_policy(source)
    told = []
    if policy.budget.delta > LARGE_DELTA:
        told.append(
            f"budget.delta is {float(policy.budget.delta):g}: with that probability the promise does not hold; "
            "take less than one divided by the number of persons, for example 1e-6"
        )
    if policy.budget.epsilon > LARGE_EPSILON:
        told.append(
            f"budget.epsilon is {float(policy.budget.epsilon):g}: all answers together may tell nearly everything about "
            f"a person; {LARGE_EPSILON} is a lot already"
        )
    return told


def found(top: Mapping[str, Any]) -> Iterator[Refused]:
    yield from unknown("top level", top, KNOWN["top level"])
    if "budget" not in top:
        yield from refused(lambda: read_policy({}))
    for word in ("dataset", "budget", "defaults"):
        if word in top:
            yield from section(word, top[word], (word,))
    for name, given in parts(top, "analysts"):
        yield from section("analyst", given, ("analysts", name))
    yield from refused(lambda: read_policy(whole_of({"views": top.get("views", {})})))
    yield from in_views(top)
    yield from refused(lambda: read_policy(whole_of({"analysts": top.get("analysts", {})})))
    if not isinstance(top.get("tables", {}), Mapping):
        yield wrong("tables", "expected a table of settings")
    tables = dict(parts(top, "tables"))
    for name, table in tables.items():
        if isinstance(table, Mapping):
            yield from in_table(name, table, tables)
        else:
            yield wrong(f"tables.{name}", "expected a table of settings")
    if not any(isinstance(table, Mapping) and table.get("person") is not None for table in tables.values()):
        what = "none of them is about persons" if tables else "there are none"
        yield wrong("tables", what, 'Say whose the rows of a table are: [tables.orders] person = "customer".')


def in_views(top: Mapping[str, Any]) -> Iterator[Refused]:
    """Views that no query could read: they are no SELECT, or read something that the policy does not have."""
    named = {word: text for word, text in parts(top, "views") if isinstance(text, str)}
    known = {fold(word).split(".")[-1]: word for word in (*dict(parts(top, "tables")), *named)}
    for view, text in named.items():
        try:
            tree = parse(text).tree
        except Refused as error:
            error.locate(text)
            yield wrong(f"views.{view}", str(error).partition("\n")[0].partition(": ")[2], error.hint)
            continue
        own = {fold(cte.alias) for cte in tree.find_all(exp.CTE)}
        for table in tree.find_all(exp.Table):
            if isinstance(table.this, exp.Identifier) and (word := fold(table.name)) not in own | known.keys():
                near = get_close_matches(word, known, 1)
                hint = f"Did you mean {known[near[0]]}?" if near else f"Declare [tables.{table.name}]."
                yield wrong(f"views.{view}", f"reads {table.name!r}, which is no table or view of this policy", hint)


def parts(top: Mapping[str, Any], word: str) -> Iterator[tuple[str, Any]]:
    given = top.get(word, {})
    return iter(given.items() if isinstance(given, Mapping) else ())


def whole_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """A policy of which all else is sound."""
    return {"budget": SOUND["budget"], **given}


def section(kind: str, given: Any, path: tuple[str, ...]) -> Iterator[Refused]:
    """The problems of one table of settings: of each setting beside sound ones, else of all of them together."""
    place = ".".join(path)
    if not isinstance(given, Mapping):
        yield wrong(place, "expected a table of settings")
        return

    def read(settings: Mapping[str, Any]) -> Iterator[Refused]:
        placed: Mapping[str, Any] = settings
        for word in reversed(path):
            placed = {word: placed}
        return refused(lambda: read_policy(whole_of(placed)))

    yield from unknown(place, given, KNOWN[kind])
    known = {name: value for name, value in given.items() if name in KNOWN[kind].split()}
    alone = [pair for pair in known.items() if pair != ("role", "viewer")]  # who has no part of the budget
    yield from [error for name, value in alone for error in read({**SOUND.get(kind, {}), name: value})] or read(known)


def refused(read: Callable[[], object]) -> Iterator[Refused]:
    try:
        read()
    except Refused as error:
        yield error


# --- tables -----------------------------------------------------------------------------------------------------------


def in_table(name: str, table: Mapping[str, Any], tables: Mapping[str, Any]) -> Iterator[Refused]:
    place = f"tables.{name}"
    yield from unknown(place, table, KNOWN["table"])
    if any(fold(other) == fold(name) for other in tables if other is not name and other < name):
        yield wrong(place, "is the same table as another one", "Names are compared without case: declare it once.")
    public, person, key = table.get("public", False), table.get("person"), table.get("key", [])
    if not isinstance(public, bool):
        yield wrong(f"{place}.public", "expected true or false")
    elif public == (person is not None):
        hint = 'Write person = "COLUMN" for the column that identifies the person.'
        yield wrong(place, "must have either `person` or `public = true`", hint)
    if (
        not isinstance(key, list | tuple)
        or not all(isinstance(word, str) for word in key)
        or ("key" in table and not key)
    ):
        yield wrong(f"{place}.key", "expected a list of columns", 'Write key = ["id"].')
    if table.get("max_rows_contributed") is not None:
        yield from refused(lambda: whole(f"{place}.max_rows_contributed", table["max_rows_contributed"]))
    if isinstance(person, Mapping):
        yield from unknown(f"{place}.person", person, KNOWN["person"])
        yield from refused(lambda: follow(name, person, tables))
    elif person is not None and (not isinstance(person, str) or not person):
        yield wrong(f"{place}.person", "expected a column", 'Write person = "COLUMN".')
    columns = table.get("columns", {})
    if not isinstance(columns, Mapping):
        yield wrong(f"{place}.columns", "expected a table of settings")
        return
    for column, limits in columns.items():
        yield from in_column(f"{place}.columns.{column}", str(column), limits)
        if any(fold(str(other)) == fold(str(column)) and str(other) < str(column) for other in columns):
            yield wrong(f"{place}.columns.{column}", "stands twice")


def follow(name: str, person: Mapping[str, Any], tables: Mapping[str, Any]) -> None:
    """Refuse a reference that leads to no table of persons, to a column that its table does not mention, or in a circle."""
    place, seen = f"tables.{name}.person", {fold(name)}
    link = read_link(place, person)
    by_name = {fold(other): (other, table) for other, table in tables.items() if isinstance(table, Mapping)}
    target, table = by_name.get(fold(link.table), (link.table, None))
    if table is None or table.get("person") is None:
        near = get_close_matches(link.table, [other for other, t in by_name.values() if t.get("person") is not None], 1)
        what = f"references {link.table!r}, which is not a table of persons in this policy"
        hint = f"Did you mean {near[0]}?" if near else f"Declare [tables.{link.table}] with its person."
        raise wrong(place, what, hint)
    if known := mentioned(table):
        for column in link.referenced:
            if fold(column) not in map(fold, known):
                near = get_close_matches(column, known, 1)
                mention = f"[tables.{target}.columns] {column} = {{}}"
                hint = f"Did you mean {near[0]}? If not, mention it: {mention}." if near else f"Mention it: {mention}."
                raise wrong(place, f"references a column {column!r}, which tables.{target} does not mention", hint)
    while isinstance(table, Mapping) and isinstance(table.get("person"), Mapping):
        if fold(target) in seen:
            raise wrong(place, "the references run in a circle and never reach a person")
        seen.add(fold(target))
        try:
            onwards = read_link("", table["person"])
        except Refused:  # that table's own problem
            return
        target, table = by_name.get(fold(onwards.table), ("", None))


def read_link(place: str, person: Mapping[str, Any]) -> Reference:
    return reference(place, person, lambda column, where: str(column))


def mentioned(table: Mapping[str, Any]) -> list[str]:
    """The columns of which a policy speaks, if it says what identifies a row; else it need not have named what is referenced."""
    person, key, columns = table.get("person"), table.get("key") or (), table.get("columns") or {}
    identity = [*([person] if isinstance(person, str) else []), *(key if isinstance(key, list | tuple) else ())]
    return [str(word) for word in (*identity, *(columns if isinstance(columns, Mapping) else ()))] if identity else []


# --- columns ----------------------------------------------------------------------------------------------------------


def in_column(place: str, name: str, limits: Any) -> Iterator[Refused]:
    if not isinstance(limits, Mapping):
        yield wrong(place, "expected a table of settings", "Write { between = [LOW, HIGH] }.")
        return
    yield from unknown(place, limits, KNOWN["column"])
    given: Type | None = None
    if "type" in limits:
        try:
            given = declared_type(f"{place}.type", limits["type"])
        except Refused as error:
            yield error
    for word in ("between", "in"):
        if word in limits:
            values = limits[word]
            type_ = given or (likely(values, word) if isinstance(values, list | tuple) and values else VARCHAR)
            if type_ is None:
                yield wrong(f"{place}.{word}", "its values are not of one type", "Write numbers, dates or texts.")
            elif (
                given is None and type_ == VARCHAR and word == "between" and isinstance(values, list | tuple) and values
            ):
                what = "a text that is neither a date, a timestamp nor an interval"
                yield wrong(f"{place}.{word}", what, 'Write numbers, or dates as "2020-01-31".')
            elif given is None and word == "between" and not (isinstance(values, list | tuple) and len(values) == 2):
                yield wrong(f"{place}.between", "expected [low, high]")
            else:
                yield from refused(partial(declare, place, Column(name, type_), {word: values}))
    if "between" in limits and "in" in limits:
        yield wrong(place, "has both `between` and `in`", "Keep one of them.")


def likely(values: list[Any] | tuple[Any, ...], word: str) -> Type | None:
    """A type that can hold these values, where the policy does not say which; None if none can."""
    first = values[0]

    def every(*types: type) -> bool:
        return all(isinstance(value, types) for value in values)

    if any(isinstance(value, bool) for value in values):
        return BOOLEAN if every(bool) else None
    if every(int):
        return HUGEINT
    if every(int, float, Fraction):
        return DOUBLE
    if every(str):
        if word == "in":
            return VARCHAR
        if all(read_date(value, "TIMESTAMP") for value in values):
            return TIMESTAMP
        return INTERVAL if all(read_interval(value) for value in values) else VARCHAR
    texts = [value for value in values if isinstance(value, str)]
    if every(str, datetime.date) and all(read_date(text, "TIMESTAMP") for text in texts):
        return DATE if word == "in" and not isinstance(first, datetime.datetime) else TIMESTAMP
    return None
