"""Public metadata: which tables there are, who a row belongs to, and what the owner has declared of the columns.

Everything here comes from the policy and from the engine's schema, never from a row. Declarations are hints, not
proofs: the generated scan enforces ranges and domains, and a reference only says how to find the person.
"""

from __future__ import annotations

import datetime
import json
import math
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from fractions import Fraction
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

from dpsql.errors import Refused

DAY = 86_400_000_000  # microseconds
UNITS: dict[str, tuple[str, int]] = {  # months, days or microseconds
    "year": ("months", 12),
    "quarter": ("months", 3),
    "month": ("months", 1),
    "week": ("days", 7),
    "day": ("days", 1),
    "hour": ("microseconds", 3_600_000_000),
    "minute": ("microseconds", 60_000_000),
    "second": ("microseconds", 1_000_000),
    "millisecond": ("microseconds", 1_000),
    "microsecond": ("microseconds", 1),
}
MOST_MONTHS, MOST_DAYS = 120_000, 4_000_000  # of an interval, either way: more than there are from year 1 to 9999


class Interval(NamedTuple):
    """The engine keeps the three apart, and takes a month for 30 days where it compares."""

    months: int = 0
    days: int = 0
    microseconds: int = 0

    @property
    def length(self) -> Fraction:
        """In microseconds."""
        return Fraction(self.months * 30 * DAY + self.days * DAY + self.microseconds)

    @property
    def brief(self) -> bool:
        most = (MOST_MONTHS, MOST_DAYS, MOST_DAYS * DAY)
        return all(abs(amount) <= end for amount, end in zip(self, most, strict=True))

    @property
    def text(self) -> str:
        parts = (f"{amount} {unit}" for amount, unit in zip(self, self._fields, strict=True) if amount)
        return " ".join(parts) or "0 days"


def read_interval(text: str) -> Interval | None:
    """'1 month -3 days', '1 day 02:30:00': whole numbers with their units, and a time at the end, as the engine reads them.

    >>> read_interval("2 weeks 1 hour"), read_interval("-00:00:01.5"), read_interval("soon")
    (Interval(months=0, days=14, microseconds=3600000000), Interval(months=0, days=0, microseconds=-1500000), None)
    """
    found = re.fullmatch(
        r"((?:[+-]?[0-9]{1,18} ?[a-z]+ ?)*)(?:(-?)([0-9]{1,9}):([0-5][0-9])(?::([0-5][0-9])(?:\.([0-9]{1,6}))?)?)?",
        " ".join(text.lower().split()),
    )
    if not found or not found[0]:
        return None
    sums = dict.fromkeys(Interval._fields, 0)
    for amount, word in re.findall(r"([+-]?[0-9]+) ?([a-z]+)", found[1]):
        if (unit := UNITS.get(word.removesuffix("s"))) is None:
            return None
        sums[unit[0]] += int(amount) * unit[1]
    if found[3]:
        seconds = int(found[3]) * 3600 + int(found[4]) * 60 + int(found[5] or 0)
        time = seconds * 1_000_000 + int((found[6] or "").ljust(6, "0"))
        sums["microseconds"] += -time if found[2] else time
    return Interval(**sums)


HOUR = Interval(microseconds=3_600_000_000)
Value = bool | int | Fraction | float | str | datetime.date | datetime.datetime | Interval | None
Kind = Literal[
    "BOOLEAN", "INTEGER", "DECIMAL", "DOUBLE", "VARCHAR", "DATE", "TIMESTAMP", "INTERVAL", "LIST", "NULL", "OTHER"
]

INTEGERS: dict[str, tuple[int, int]] = {
    **{
        name: (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        for name, bits in (("TINYINT", 8), ("SMALLINT", 16), ("INTEGER", 32), ("BIGINT", 64), ("HUGEINT", 128))
    },
    **{
        name: (0, 2**bits - 1) for name, bits in (("UTINYINT", 8), ("USMALLINT", 16), ("UINTEGER", 32), ("UBIGINT", 64))
    },
}


ASCII = str.maketrans({letter: letter.lower() for letter in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"})


def fold(name: str) -> str:
    """Names are compared as the engine compares them: it folds ASCII letters only, so \u00c9 and \u00e9 are two names."""
    return name.translate(ASCII)


def quoted(name: str) -> str:
    """A name in SQL text."""
    return '"' + name.replace('"', '""') + '"'


@cache
def range_of(sql: str) -> tuple[Fraction, Fraction] | None:
    if sql in INTEGERS:
        low, high = INTEGERS[sql]
        return Fraction(low), Fraction(high)
    match = re.fullmatch(r"DECIMAL\(([0-9]{1,2}), ?([0-9]{1,2})\)", sql)
    if match and int(match[2]) <= int(match[1]):
        top = Fraction(10 ** int(match[1]) - 1, 10 ** int(match[2]))
        return -top, top
    return None


@dataclass(frozen=True)
class Type:
    """A column's type: the engine's name for it, and the family that decides what may be done with it."""

    sql: str

    @cached_property
    def kind(self) -> Kind:
        if self.element is not None:
            return "LIST"
        if self.sql in INTEGERS:
            return "INTEGER"
        if self.sql.startswith("DECIMAL(") and range_of(self.sql) is not None:
            return "DECIMAL"
        if self.sql in ("FLOAT", "DOUBLE"):
            return "DOUBLE"
        if self.sql in ("BOOLEAN", "VARCHAR", "DATE", "TIMESTAMP", "INTERVAL", "NULL"):
            return self.sql  # type: ignore[return-value]
        return "OTHER"

    @property
    def element(self) -> Type | None:
        """The type of a list's elements; None for what is not a list of scalars."""
        inner = Type(self.sql[:-2]) if self.sql.endswith("[]") else None
        return inner if inner is not None and inner.kind not in ("LIST", "NULL", "OTHER", "INTERVAL") else None

    @property
    def list(self) -> Type:
        return Type(f"{self.sql}[]")

    @property
    def family(self) -> str:
        """The type's name without what stands in brackets: the values of an ENUM may have been taken from data."""
        match = re.match(r"[A-Z_]+", self.sql)
        return ("a list of " if self.sql.endswith("]") else "") + (match[0] if match else "a user's own")

    @cached_property
    def scale(self) -> int:
        """Digits after the point."""
        match = re.fullmatch(r"DECIMAL\((\d+), ?(\d+)\)", self.sql)
        return int(match[2]) if match else 0

    @cached_property
    def width(self) -> int:
        """All digits of a decimal, or those that a whole number may have."""
        match = re.fullmatch(r"DECIMAL\((\d+), ?(\d+)\)", self.sql)
        return int(match[1]) if match else min(38, len(str(INTEGERS[self.sql][1])))

    @property
    def numeric(self) -> bool:
        return self.kind in ("INTEGER", "DECIMAL", "DOUBLE")

    @cached_property
    def range(self) -> tuple[Fraction, Fraction] | None:
        """Every value that the type can hold, where that is finite and ordered as numbers are."""
        return range_of(self.sql)


BOOLEAN, BIGINT, HUGEINT, DOUBLE, VARCHAR, DATE, TIMESTAMP, INTERVAL, NULL = (
    Type(name)
    for name in ("BOOLEAN", "BIGINT", "HUGEINT", "DOUBLE", "VARCHAR", "DATE", "TIMESTAMP", "INTERVAL", "NULL")
)


class Domain(tuple[Value, ...]):
    """All values of a column. There may be thousands, so the hash by which things are remembered is computed once.

    Equal only if the values have the same types too: True, 1 and Fraction(1) are equal to Python.
    """

    _hash: int

    def __hash__(self) -> int:
        if "_hash" not in self.__dict__:
            self._hash = super().__hash__()
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, Domain)
            and super().__eq__(other)
            and all(type(one) is type(two) for one, two in zip(self, other, strict=True))
        )


@dataclass(frozen=True)
class Column:
    name: str
    type: Type
    nullable: bool = True
    between: tuple[Any, Any] | None = None  # Fractions, dates or intervals
    domain: Domain | None = None
    generated: bool = False


@dataclass(frozen=True)
class Reference:
    """How a row finds its person: through the row of another table."""

    columns: tuple[str, ...]
    table: str
    referenced: tuple[str, ...]


@dataclass(frozen=True)
class Table:
    name: str
    path: tuple[str, str, str]
    columns: Mapping[str, Column]  # by folded name
    person: str | Reference | None  # None: public
    key: tuple[str, ...] = ()
    max_rows_contributed: int | None = None
    # Sets of columns, by folded name, on which no two rows agree: the engine enforces it, or the owner has verified it.
    unique: frozenset[frozenset[str]] = frozenset()
    # The same of data that was looked at as it was loaded. It decides whether a reference may be followed, and shapes no plan.
    checked: frozenset[frozenset[str]] = frozenset()
    shared: bool = False  # rows that reach several persons are a copy for each
    prepared: bool = False  # it has the columns PERSON, CODE and ROWS

    def column(self, name: str) -> Column | None:
        return self.columns.get(fold(name))


@dataclass(frozen=True)
class Budget:
    epsilon: Fraction
    delta: Fraction
    accounting: Literal["pure", "gdp", "zcdp"]
    neighbours: Literal["add-remove", "replace"] = "add-remove"


@dataclass(frozen=True)
class Defaults:
    epsilon: Fraction | None = None
    delta: Fraction | None = None
    max_epsilon: Fraction | None = None
    max_rows_contributed: int | None = None
    max_groups_contributed: int | None = None
    max_seconds: Fraction = Fraction(60)  # of one statement; then it is ended, and stays charged
    max_failures: int = 10  # statements that end without an answer, before others are refused
    clock: Interval = HOUR  # what now() is rounded down to


@dataclass(frozen=True)
class Analyst:
    """Who may do what: a viewer explains, rehearses and sees the budget; an analyst asks too; an owner raises the budget too."""

    epsilon: Fraction | None = None  # of the budget; None: all of it
    role: Literal["owner", "analyst", "viewer"] = "analyst"
    max_epsilon: Fraction | None = None  # of one query
    max_failures: int | None = None  # of this analyst alone, so that one does not stop the others


@dataclass(frozen=True)
class Policy:
    """The owner's declarations, checked for shape but not yet held against a schema."""

    dataset: str | None
    version: str | None
    budget: Budget
    defaults: Defaults
    analysts: Mapping[str, Analyst]
    tables: Mapping[str, Mapping[str, Any]]
    views: Mapping[str, str] = field(default_factory=dict)

    def analyst(self, name: str) -> Analyst:
        """Where the policy names nobody, whoever connects is the owner."""
        return self.analysts.get(name, Analyst(role="viewer" if self.analysts else "owner"))

    def max_epsilon(self, name: str) -> Fraction | None:
        """The most that one query of this analyst may ask for."""
        limits = (self.defaults.max_epsilon, self.analyst(name).max_epsilon)
        return min((limit for limit in limits if limit is not None), default=None)


@dataclass(frozen=True)
class Schema:
    """What an engine says of one table. `columns` are name, type, nullable, generated."""

    path: tuple[str, str, str]
    columns: tuple[tuple[str, str, bool, bool], ...]
    collated: bool = False  # some column may have a collation, which the engine's column list does not show
    unique: tuple[tuple[str, ...], ...] = ()  # columns on which the engine lets no two rows agree
    person: str = ""  # the type of PERSON in a table that `prepare` wrote


@dataclass(frozen=True)
class Described:
    """What an engine's catalogue says of one table that no policy names yet. `columns` are name and type."""

    name: str  # as a policy would name it
    columns: tuple[tuple[str, str], ...]
    key: tuple[str, ...] = ()
    references: tuple[Reference, ...] = ()
    untyped: bool = False  # a CSV file, whose columns are all text


def uncounted(table: Table, columns: frozenset[str], make: Callable[[], object]) -> int:
    """Where nobody has counted, a public table may have so many rows with the same values."""
    return 1 if any(key <= set(map(fold, columns)) for key in table.unique) else 1_000_000


# Counts how often values of columns of a public table stand there; the last argument makes the query for it.
Repeats = Callable[[Table, frozenset[str], Callable[[], Any]], int]


@dataclass(frozen=True)
class Catalog:
    policy: Policy
    tables: Mapping[str, Table]  # by folded name
    # How many rows of a public table have the same values of these columns, at the most.
    repeats: Repeats = field(default=uncounted, compare=False)
    place: str = ""  # of the file, for hints; nothing if it is not one
    loaded: bool = False  # from files or frames, whose keys were looked at then
    now: datetime.datetime | None = None  # the time of the statement, in UTC

    def table(self, name: str) -> Table | None:
        return self.tables.get(fold(name))

    def knowing(self, found: Iterable[tuple[str, frozenset[str]]], how: Literal["unique", "checked"]) -> Catalog:
        """The same with tables and columns of which it was found that no two rows agree on them."""
        tables = dict(self.tables)
        for word, columns in found:
            key = frozenset(map(fold, columns))
            if (table := tables.get(fold(word))) is not None and key <= table.columns.keys():
                old = table.unique if how == "unique" else table.checked
                tables[fold(word)] = replace(table, **{how: old | {key}})  # type: ignore[arg-type]
        return replace(self, tables=tables)

    def limited(self, max_rows: int | None, max_groups: int | None) -> Catalog:
        """The same with the caller's limits in place of the policy's. They set what is kept and the noise, as the policy's do."""
        if max_rows is None and max_groups is None:
            return self
        for name, given in (("max_rows_contributed", max_rows), ("max_groups_contributed", max_groups)):
            if given is not None and (isinstance(given, bool) or not isinstance(given, int) or not 0 < given < 2**31):
                raise Refused("limit_invalid", f"{name} must be a whole number from 1 to 2147483647", "Pass 8.")
        defaults, tables = self.policy.defaults, self.tables
        if max_groups is not None:
            defaults = replace(defaults, max_groups_contributed=max_groups)
        if max_rows is not None:
            defaults = replace(defaults, max_rows_contributed=max_rows)
            tables = {name: replace(table, max_rows_contributed=max_rows) for name, table in tables.items()}
        return replace(self, policy=replace(self.policy, defaults=defaults), tables=tables)


# What tables that `prepare` wrote have besides: each row's person, a number for her, and how many rows she has in the table.
PERSON, CODE, ROWS = HIDDEN = ("dpsql person", "dpsql code", "dpsql rows")
LARGEST = 10**100  # of any number in a policy: products of two still fit a double

# --- reading the policy ---------------------------------------------------------------------------------------------


def wrong(place: str, message: str, hint: str = "") -> Refused:
    return Refused("policy_invalid", f"policy, {place}: {message}", hint)


# The settings that a policy may have, by the kind of table that they stand in.
KNOWN = {
    "top level": "dataset budget defaults analysts tables views",
    "dataset": "id version",
    "budget": "epsilon delta accounting neighbours",
    "defaults": "epsilon delta max_epsilon max_rows_contributed max_groups_contributed max_seconds max_failures clock",
    "analyst": "epsilon role max_epsilon max_failures",
    "table": "person key columns public max_rows_contributed shared",
    "person": "column columns references",
    "column": "between in type",
}


def unknown(place: str, given: Mapping[str, Any], allowed: str) -> Iterator[Refused]:
    """The settings that nobody knows here, each with the nearest name that somebody knows."""
    for name in given:
        if name not in allowed.split():
            begun = [word for word in allowed.split() if word.startswith(str(name))]
            near = begun or get_close_matches(str(name), allowed.split(), 1, 0.5)
            known = f"Did you mean {near[0]}?" if near else f"Known here: {', '.join(allowed.split())}."
            yield wrong(f"{place}.{name}" if place != "top level" else str(name), "unknown setting", known)


def only(place: str, given: Any, allowed: str) -> Mapping[str, Any]:
    """A table of the policy with no key that we would ignore: the unknown is refused, never skipped."""
    if not isinstance(given, Mapping):
        raise wrong(place, "expected a table of settings")
    for problem in unknown(place, given, allowed):
        raise problem
    return given


def number(place: str, given: Any, *, positive: bool = True) -> Fraction:
    """The decimal that the owner wrote: 0.1 is one tenth, not the nearest binary fraction."""
    if isinstance(given, bool) or not isinstance(given, int | float | Fraction):
        raise wrong(place, "expected a number")
    if isinstance(given, float) and not math.isfinite(given):
        raise wrong(place, "must be finite")
    if isinstance(given, int) and abs(given) > LARGEST:
        raise wrong(place, "is too large")
    exact = Fraction(str(given))
    if abs(exact) > LARGEST or 0 < abs(exact) < Fraction(1, LARGEST):
        raise wrong(place, "is too large or too close to zero")
    if positive and exact <= 0:
        raise wrong(place, "must be greater than zero")
    return exact


def within(place: str, value: Fraction, low: str, high: str) -> Fraction:
    if not Fraction(low) <= value <= Fraction(high):
        raise wrong(place, f"must lie between {low} and {high}")
    return value


def whole(place: str, given: Any) -> int:
    if isinstance(given, bool) or not isinstance(given, int) or not 0 < given < 2**31:
        raise wrong(place, "expected a whole number from 1 to 2147483647")
    return given


def read_policy(source: str | Path | Mapping[str, Any]) -> Policy:
    """Parse a policy from a TOML or JSON file or a dict of the same shape.

    >>> read_policy({"budget": {"epsilon": 1.0}, "tables": {}}).budget.accounting
    'pure'
    """
    if not isinstance(source, Mapping | str | Path):
        raise Refused(
            "policy_unreadable",
            f"a {type(source).__name__} is no policy",
            "Pass a path of a TOML or JSON file, or a dict.",
        )
    top = only("top level", read_file(source) if not isinstance(source, Mapping) else source, KNOWN["top level"])
    views = top.get("views") or {}
    if not isinstance(views, Mapping) or not all(isinstance(text, str) for text in views.values()):
        raise wrong("views", "must map names to queries", 'Write big = "SELECT * FROM orders WHERE price > 1000".')
    dataset = only("dataset", top.get("dataset", {}), KNOWN["dataset"])
    for name in dataset:
        if not isinstance(dataset[name], str) or not dataset[name]:
            raise wrong(f"dataset.{name}", "expected a text")
    if "budget" not in top:
        raise wrong("budget", "is missing", "Add [budget] with epsilon = 10.0 and, for gdp, delta = 1e-6.")
    raw = only("budget", top["budget"], KNOWN["budget"])
    if "epsilon" not in raw:
        raise wrong("budget.epsilon", "is missing")
    delta = number("budget.delta", raw.get("delta", 0), positive=False)
    accounting = raw.get("accounting", "gdp" if delta else "pure")
    if accounting not in ("pure", "gdp", "zcdp"):
        raise wrong("budget.accounting", f"{accounting!r} is not known", 'Use "gdp", "zcdp" or "pure".')
    neighbours = raw.get("neighbours", "add-remove")
    if neighbours not in ("add-remove", "replace"):
        raise wrong("budget.neighbours", f"{neighbours!r} is not known", 'Use "add-remove" or "replace".')
    if not 0 <= delta <= Fraction("0.5") or (accounting != "pure" and delta < Fraction("1e-30")):
        raise wrong(
            "budget.delta", "must lie between 0 and 0.5, and for gdp and zcdp above 1e-30", "A usual value is 1e-6."
        )
    epsilon = within("budget.epsilon", number("budget.epsilon", raw["epsilon"]), "1e-6", "1e21")
    budget = Budget(epsilon, delta, accounting, neighbours)
    given = only("defaults", top.get("defaults", {}), KNOWN["defaults"])
    rows, groups, failures = (
        whole(f"defaults.{name}", given[name]) if given.get(name) is not None else None
        for name in ("max_rows_contributed", "max_groups_contributed", "max_failures")
    )
    seconds = within(
        "defaults.max_seconds",
        number("defaults.max_seconds", given.get("max_seconds", Defaults.max_seconds)),
        "0.001",
        "1e6",
    )
    default, least, most = (
        within(f"defaults.{name}", number(f"defaults.{name}", given[name]), low, high) if name in given else None
        for name, low, high in (("epsilon", "1e-9", "1e21"), ("delta", "1e-30", "0.5"), ("max_epsilon", "1e-9", "1e21"))
    )
    clock = read_clock(given.get("clock", "1 hour"))
    defaults = Defaults(default, least, most, rows, groups, seconds, failures or Defaults.max_failures, clock)
    analysts = {
        name: read_analyst(f"analysts.{name}", share)
        for name, share in only_table("analysts", top.get("analysts", {})).items()
    }
    tables = {
        name: only(f"tables.{name}", table, KNOWN["table"])
        for name, table in only_table("tables", top.get("tables", {})).items()
    }
    return Policy(dataset.get("id"), dataset.get("version"), budget, defaults, analysts, tables, dict(views))


def read_clock(given: Any) -> Interval:
    """What the time of a statement is rounded down to."""
    found = read_interval(given) if isinstance(given, str) else None
    if found is None or found.months or not 1_000_000 <= found.length <= 366 * DAY:
        raise wrong("defaults.clock", f"{given!r} is not a second to a year", 'Write clock = "1 hour" or "1 day".')
    return found


def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON, in which as in TOML no name stands twice."""
    if len(found := dict(pairs)) < len(pairs):
        raise ValueError("a name stands twice")
    return found


def read_file(file: str | Path) -> Mapping[str, Any]:
    kind = "JSON" if Path(file).suffix.lower() == ".json" else "TOML"
    try:
        text = Path(file).read_text(encoding="utf-8")
        return (
            only_table("top level", json.loads(text, object_pairs_hook=once)) if kind == "JSON" else tomllib.loads(text)
        )
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise Refused(
            "policy_unreadable",
            f"cannot read the policy {str(file)!r}: {reason}",
            "Pass policy=PATH of a TOML or JSON file, or a dict.",
        ) from None
    except (ValueError, RecursionError) as error:
        hint = 'Look there: texts stand in quotes, person = "id", and tables in square brackets, [tables.orders].'
        hint = hint if kind == "TOML" else "Look there: names and texts stand in double quotes."
        raise Refused("policy_invalid", f"the policy {str(file)!r} is not valid {kind}: {error}", hint) from None


def read_analyst(place: str, given: Any) -> Analyst:
    given = only(place, given, KNOWN["analyst"])
    role = given.get("role", "analyst")
    if role not in ("owner", "analyst", "viewer"):
        raise wrong(f"{place}.role", f"{role!r} is not known", 'Use "owner", "analyst" or "viewer".')
    share, most = (
        within(f"{place}.{name}", number(f"{place}.{name}", given[name]), low, "1e21") if name in given else None
        for name, low in (("epsilon", "1e-6"), ("max_epsilon", "1e-9"))
    )
    if role == "analyst" and share is None:
        raise wrong(f"{place}.epsilon", "is missing")
    if role == "viewer" and share is not None:
        raise wrong(f"{place}.role", "a viewer has no part of the budget", "Leave epsilon out.")
    failures = whole(f"{place}.max_failures", given["max_failures"]) if "max_failures" in given else None
    return Analyst(share, role, most, failures)


def only_table(place: str, given: Any) -> Mapping[str, Any]:
    if not isinstance(given, Mapping):
        raise wrong(place, "expected a table of settings")
    return given


# --- policy and schema together -------------------------------------------------------------------------------------


def build(policy: Policy, schemas: Mapping[str, Schema], repeats: Repeats = uncounted) -> Catalog:
    """Hold the policy against the engine's schema. `schemas` has an entry for each table of the policy that exists."""
    tables: dict[str, Table] = {}
    for name, declared in policy.tables.items():
        if name not in schemas:
            raise Refused(
                "table_missing",
                f"policy, tables.{name}: the database has no such table",
                "Only tables (not views) can be named; check the spelling and the schema.",
            )
        built = build_table(name, declared, schemas[name])
        twin = next((other for other in tables.values() if other.path == built.path), tables.get(fold(name)))
        if twin is not None:  # else it could be private under one name and public under the other
            raise wrong(f"tables.{name}", f"is the same table as tables.{twin.name}", "Declare each table once.")
        tables[fold(name)] = built
    for table in tables.values():
        list(path_to_person(table, tables))
    return Catalog(policy, tables, repeats)


def build_table(name: str, declared: Mapping[str, Any], schema: Schema) -> Table:
    place = f"tables.{name}"
    if schema.collated:
        raise wrong(
            place,
            "has a column with a collation, under which different texts are equal",
            "Ask the owner for a table without COLLATE.",
        )
    columns = {
        fold(column): Column(column, Type(sql), nullable, generated=generated)
        for column, sql, nullable, generated in schema.columns
    }

    def existing(given: Any, where: str) -> str:
        if not isinstance(given, str) or fold(given) not in columns:
            raise Refused(
                "column_missing",
                f"policy, {where}: table {name!r} has no column {given!r}",
                f"It has: {', '.join(c.name for c in columns.values())}.",
            )
        if columns[fold(given)].generated:  # what identifies a person must be a function of the stored row
            raise wrong(where, f"column {given!r} is computed by the database", "Name a stored column.")
        return columns[fold(given)].name

    declared_columns: set[str] = set()
    for column, limits in only_table(f"{place}.columns", declared.get("columns", {})).items():
        if fold(str(column)) in declared_columns:
            raise wrong(f"{place}.columns.{column}", "stands twice")
        declared_columns.add(fold(str(column)))
        known = columns[fold(existing(column, f"{place}.columns.{column}"))]
        columns[fold(column)] = declare(f"{place}.columns.{column}", known, limits)
    listed = declared.get("key", [])
    if not isinstance(listed, list | tuple):
        raise wrong(f"{place}.key", "expected a list of columns", 'Write key = ["id"].')
    key = tuple(existing(column, f"{place}.key") for column in listed)
    public = declared.get("public", False)
    if public is not True and public is not False:
        raise wrong(f"{place}.public", "expected true or false")
    if public == (declared.get("person") is not None):
        raise wrong(
            place,
            "must have either `person` or `public = true`",
            'Write person = "COLUMN" for the column that identifies the person.',
        )
    shared = declared.get("shared", False)
    if shared is not True and shared is not False:
        raise wrong(f"{place}.shared", "expected true or false")
    if shared and not isinstance(declared.get("person"), Mapping):
        raise wrong(
            f"{place}.shared", "only a row that finds its person by a reference can reach several", "Leave it out."
        )
    limit = declared.get("max_rows_contributed")
    limit = whole(f"{place}.max_rows_contributed", limit) if limit is not None else None
    person: str | Reference | None = None
    match declared.get("person"):
        case None:
            pass
        case str(column):
            person = existing(column, f"{place}.person")
            owner = columns[fold(person)].type
            if owner.kind not in ("INTEGER", "VARCHAR") and owner.sql != "UUID":
                raise wrong(
                    f"{place}.person",
                    f"a person cannot be identified by a column of type {owner.sql}",
                    "Use a whole number, a text or a UUID.",
                )
        case given:
            only(f"{place}.person", given, KNOWN["person"])
            person = reference(f"{place}.person", given, existing)
    unique = frozenset(frozenset(map(fold, key)) for key in schema.unique)
    return Table(name, schema.path, columns, person, key, limit, unique, shared=shared, prepared=bool(schema.person))


def reference(place: str, given: Mapping[str, Any], existing: Any) -> Reference:
    if "column" in given and "columns" in given:
        raise wrong(place, "has both `column` and `columns`", "Keep one of them.")
    own = [given["column"]] if "column" in given else given.get("columns")
    target = given.get("references")
    one = re.fullmatch(r"(.+)\.([^.()]+)", target) if isinstance(target, str) else None
    many = re.fullmatch(r"([^()]+)\(([^()]+)\)", target) if isinstance(target, str) else None
    if not isinstance(own, list) or not own or not (one or many):
        raise wrong(
            place,
            "expected a column and what it references",
            'For example { column = "o_custkey", references = "customer.c_custkey" }.',
        )
    table = (many or one)[1].strip()  # type: ignore[index]
    referenced = tuple(c.strip() for c in (many[2].split(",") if many else [one[2]]))  # type: ignore[index]
    if len(referenced) != len(own):
        raise wrong(place, "names a different number of columns on the two sides")
    return Reference(tuple(existing(column, place) for column in own), table, referenced)


def path_to_person(table: Table, tables: Mapping[str, Table]) -> Iterator[tuple[Table, Reference]]:
    """The references to follow from a row of `table` to its person, each checked against the table that it names."""
    seen = {fold(table.name)}
    while isinstance(table.person, Reference):
        link, place = table.person, f"tables.{table.name}.person"
        target = tables.get(fold(link.table))
        if target is None or target.person is None:
            raise wrong(
                place,
                f"references {link.table!r}, which is not a table of persons in this policy",
                f"Declare [tables.{link.table}] with its person.",
            )
        if fold(target.name) in seen:
            raise wrong(place, "the references run in a circle and never reach a person")
        for own, other in zip(link.columns, link.referenced, strict=True):
            column, goal = table.columns[fold(own)], target.column(other)
            if goal is None:
                raise Refused("column_missing", f"policy, {place}: table {target.name!r} has no column {other!r}")
            # An implicit cast could raise on some row. Whole numbers are made the type that they reference; what it cannot
            # hold references nothing (`relations.referring`). So persons have one type everywhere: that of the root's column.
            whole_ = column.type.kind == goal.type.kind == "INTEGER"
            if (column.type != goal.type and not whole_) or column.type.kind in ("DOUBLE", "INTERVAL"):
                raise wrong(
                    place,
                    f"{own} is {column.type.sql} but {target.name}.{other} is {goal.type.sql}",
                    "Both sides of a reference are whole numbers, or have one type that is neither floating nor INTERVAL.",
                )
        yield table, link
        seen.add(fold(target.name))
        table = target


def on_the_way(table: Table, tables: Mapping[str, Table]) -> Iterator[Table]:
    """The tables whose references lead from a row to its person."""
    return (step for step, _ in path_to_person(table, tables))


def several(table: Table, tables: Mapping[str, Table]) -> tuple[Table, Reference] | None:
    """The first reference on the way to the person by which a row may reach several persons; None if each reaches one at most.

    Proof: by induction along the path. A row reaches the persons of the rows that it refers to. If the columns that it refers
    to contain the person's own column, that person is their value. If no two rows agree on them, there is one such row, which
    reaches one person. If they contain those by which that row refers to the next, all such rows refer to the same values.
    A table that `prepare` wrote has one person in each row, which it has counted. Where the owner has declared the table itself
    `shared`, a row of it that reaches several persons is a copy for each of them, and the promise says so. That a table on
    the way is shared says nothing of this one: its rows would be copied with those that they refer to.
    Checked: test_shared
    """
    found = None if table.shared else ambiguous(table, tables)
    return None if found is None else (table, found)


def ambiguous(table: Table, tables: Mapping[str, Table]) -> Reference | None:
    """The first reference on the way to the person that may be to several rows of different persons."""
    if table.prepared or not isinstance(link := table.person, Reference):
        return None
    target, referenced = tables[fold(link.table)], frozenset(map(fold, link.referenced))
    while not any(key <= referenced for key in target.unique | target.checked):
        if isinstance(target.person, str) and fold(target.person) in referenced:
            return None
        if not isinstance(target.person, Reference) or not referenced.issuperset(map(fold, target.person.columns)):
            return link
        referenced = frozenset(
            fold(other) for own, other in zip(target.person.columns, target.person.referenced, strict=True)
        )
        target = tables[fold(target.person.table)]
    return ambiguous(target, tables)


def declare(place: str, column: Column, limits: Any) -> Column:
    """A column with its declared range or domain, given in values of the column's own type."""
    only(place, limits, KNOWN["column"])
    if "type" in limits and (wanted := declared_type(f"{place}.type", limits["type"])) != column.type:
        raise wrong(f"{place}.type", f"{wanted.sql} is declared, but the column is {column.type.sql}", "Leave it out.")
    between: tuple[Any, Any] | None = None
    domain: Domain | None = None
    if "between" in limits:
        pair = limits["between"]
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise wrong(f"{place}.between", "expected [low, high]")
        if not column.type.numeric and column.type.kind not in ("DATE", "TIMESTAMP", "INTERVAL"):
            raise wrong(
                f"{place}.between",
                f"a column of type {column.type.sql} has no range",
                'If it comes from a CSV file, declare its type too: { type = "INTEGER", between = [LOW, HIGH] }.',
            )
        low, high = (literal(f"{place}.between", column.type, value) for value in pair)
        ends = [value.length if isinstance(value, Interval) else value for value in (low, high)]
        if ends[0] > ends[1]:  # type: ignore[operator]
            raise wrong(f"{place}.between", "the low end is above the high end", "Write [low, high].")
        if natural := column.type.range:
            low, high = max(low, natural[0]), min(high, natural[1])  # type: ignore[type-var]
            if low > high:  # type: ignore[operator]
                raise wrong(f"{place}.between", f"lies outside of what {column.type.sql} can hold")
        between = low, high
    if "in" in limits:
        values = limits["in"]
        if not isinstance(values, list | tuple) or not values:
            raise wrong(f"{place}.in", "expected a list of values")
        if column.type.kind not in ("VARCHAR", "INTEGER", "DATE", "BOOLEAN"):
            raise wrong(f"{place}.in", f"a column of type {column.type.sql} cannot have a list of values yet")
        domain = Domain(literal(f"{place}.in", column.type, value) for value in values)
        if len(set(domain)) != len(domain):
            raise wrong(f"{place}.in", "a value stands twice")
        if natural := column.type.range:
            outside = next((v for v in domain if not natural[0] <= v <= natural[1]), None)  # type: ignore[operator]
            if outside is not None:
                raise wrong(f"{place}.in", f"{outside} is not a value of type {column.type.sql}")
    if between and domain:
        raise wrong(place, "has both `between` and `in`", "Keep one of them.")
    return Column(column.name, column.type, column.nullable, between, domain, column.generated)


def declared_type(place: str, given: Any) -> Type:
    """The type that the owner gives to a column of a source whose own types depend on its cells, or do not fit."""
    type_ = Type(given.upper().replace(" ", "")) if isinstance(given, str) else NULL
    width = re.fullmatch(r"DECIMAL\((\d{1,2}),(\d{1,2})\)", type_.sql)
    usable = type_.kind not in ("LIST", "OTHER", "NULL", "DECIMAL") or type_.sql == "UUID"
    if not usable and not (width and int(width[2]) <= int(width[1]) <= 38 and int(width[1]) > 0):
        raise wrong(
            place,
            f"{given!r} is not a type that can be declared",
            "Use BOOLEAN, INTEGER, BIGINT, DOUBLE, DECIMAL(18,2), VARCHAR, DATE, TIMESTAMP, INTERVAL or UUID.",
        )
    return type_


def encodable(text: str) -> bool:
    """Whether a text can be sent to an engine: half of a surrogate pair cannot."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def read_date(text: str, kind: Kind) -> datetime.date | datetime.datetime | None:
    """An ISO date, or for a timestamp an ISO date with a time or without; None for anything else, and for a time zone.

    >>> read_date("2020-01-31", "DATE"), read_date("2020-01-31T10:00", "TIMESTAMP"), read_date("20200131", "DATE")
    (datetime.date(2020, 1, 31), datetime.datetime(2020, 1, 31, 10, 0), None)
    """
    time = r"([T ]\d{2}:\d{2}(:\d{2}(\.\d{1,6})?)?)?" if kind == "TIMESTAMP" else ""
    if not re.fullmatch(rf"\d{{4}}-\d{{2}}-\d{{2}}{time}", text, re.ASCII):
        return None
    try:
        found = datetime.datetime.fromisoformat(text)
    except ValueError:  # there is no 30th of February
        return None
    return found if kind == "TIMESTAMP" else found.date()


def literal(place: str, type_: Type, value: Any) -> Value:
    """A declared value as a value of the column's type; refused where it is not one."""
    match type_.kind:
        case "INTEGER" | "DECIMAL" | "DOUBLE":
            exact = number(place, value, positive=False)
            if type_.kind != "DOUBLE" and (exact * 10**type_.scale).denominator != 1:
                raise wrong(place, f"{value} is not a value of type {type_.sql}")
            return exact
        case "VARCHAR" if isinstance(value, str) and "\0" not in value and encodable(value):
            return value
        case "BOOLEAN" if isinstance(value, bool):
            return value
        case "DATE" | "TIMESTAMP" if isinstance(value, str) and (read := read_date(value, type_.kind)) is not None:
            return read
        case "DATE" if isinstance(value, datetime.date) and not isinstance(value, datetime.datetime):
            return value
        case "TIMESTAMP" if isinstance(value, datetime.datetime) and value.tzinfo is None:
            return value
        case "TIMESTAMP" if isinstance(value, datetime.date) and not isinstance(value, datetime.datetime):
            return datetime.datetime(value.year, value.month, value.day)
        case "INTERVAL" if isinstance(value, str) and (length := read_interval(value)) and length.brief:
            return length
    raise wrong(place, f"{value!r} is not a value of type {type_.sql}")
