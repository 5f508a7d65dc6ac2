"""Which groups a release has: all values that are public, or those that enough persons have."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import date
from fractions import Fraction
from functools import lru_cache

from sqlglot import exp

from dpsql.errors import Refused
from dpsql.kernel import algebra
from dpsql.kernel.algebra import Call, Column, Expr, Literal, conjuncts
from dpsql.kernel.functions import PARTS, Facts
from dpsql.kernel.relations import Relation, filters, origin
from dpsql.policy import catalog
from dpsql.policy.catalog import BIGINT, BOOLEAN, DOUBLE, VARCHAR, Domain, Interval, Type, quoted

MAX_KEYS = 1_000_000
LONGEST = 1024  # bytes of a text that is a private key
DATE_PARTS = {*PARTS, "year", "date_part"}


@dataclass(frozen=True)
class PrivateKeys:
    """The groups are in the data, and shown if enough persons have them: each column's name and type."""

    columns: tuple[tuple[str, Type], ...]


@dataclass(frozen=True)
class PublicKeys:
    """The groups: each column's name, type and all the values that are shown. Their product is known beforehand."""

    columns: tuple[tuple[str, Type, Domain], ...]

    @property
    def count(self) -> int:
        return math.prod(len(values) for _, _, values in self.columns)

    def table(self) -> exp.Subquery:
        """The table of all keys with their number `row`, under the name `keys`."""
        return exp.Subquery(this=exp.Var(this=self.text), alias=exp.TableAlias(this=algebra.identifier("keys")))

    @property
    def text(self) -> str:
        return text_of_keys(self.columns)


@lru_cache(maxsize=256)
def text_of_keys(columns: tuple[tuple[str, Type, Domain], ...], numbers: bool = False) -> str:
    """SQL for all keys and `row`; with `numbers` texts are 1, 2, 3 ... in the order of their domain."""
    shown, tables, row = [], [], ""
    for index, (column, type_, values) in enumerate(columns):
        cell = f'"d{index}"."i" + 1 AS INTEGER' if numbers and type_ == VARCHAR else f'"d{index}"."v" AS {type_.sql}'
        tables.append(f'({numbered(type_, values)}) AS "d{index}"')
        shown.append(f"CAST({cell}) AS {quoted(column)}")
        row = f'({row}) * {len(values)} + "d{index}"."i"' if row else f'"d{index}"."i"'
    return f'SELECT {", ".join(shown)}, {row} AS "row" FROM {" CROSS JOIN ".join(tables)}'


@lru_cache(maxsize=256)
def numbered(type_: Type, values: Domain) -> str:
    """SQL for values as texts "v" and their numbers "i". They are one constant: VALUES of a thousand rows takes 26 ms to parse."""
    texts = json.dumps([None if value is None else algebra.text_of(value, type_) for value in values])
    listed = f"CAST(CAST({algebra.literal(texts, VARCHAR).sql('duckdb')} AS JSON) AS VARCHAR[])"
    return f'SELECT unnest({listed}) AS "v", unnest(range({len(values)})) AS "i"'


Keys = PublicKeys | PrivateKeys


def domain_of(key: Expr, relation: Relation) -> Domain | None:
    """All values of a key, if they are public: those that are declared, or that follow from the text."""
    values = values_of(key, relation)
    if values is None:
        return None
    for part in required(relation):  # rows with other values are left out whatever they are
        match part:
            case Call("=" | "IN", (first, *listed), _) if first == key and all(
                isinstance(one, Literal) and one.facts.type.kind == key.facts.type.kind for one in listed
            ):
                kept = {one.value for one in listed if isinstance(one, Literal)}
                values = Domain(value for value in values if value in kept) or values
    declared = column_of(key, relation)
    nullable = declared.nullable if declared is not None else key.facts.nullable
    return with_null(values) if nullable and not rejects_null(relation, key) else values


@lru_cache(maxsize=256)
def with_null(values: Domain) -> Domain:
    return Domain((*values, None))


def values_of(key: Expr, relation: Relation) -> Domain | None:
    """The values of an expression other than NULL, if the policy and the text say which there are."""
    declared = column_of(key, relation)
    if declared is not None and declared.domain is not None:
        return declared.domain
    if key.facts.type == BOOLEAN:
        return Domain((False, True))
    match key:
        case Literal(value, _):
            return Domain(() if value is None else (value,))
        case Call("CASE", arguments, _):
            parts: tuple[Expr, ...] = (*arguments[1::2], arguments[-1])
        case Call("coalesce", arguments, _):
            parts = arguments
        case Call("nullif", (first, _), _):
            parts = (first,)
        case Call(name, _, Facts(type=type_, range=(low, high), declared=True)) if (
            name in DATE_PARTS and type_ == BIGINT
        ):
            return Domain(range(int(low), int(high) + 1))
        case _:
            return None
    found = [values_of(part, relation) for part in parts]
    return None if None in found else Domain(dict.fromkeys(value for values in found for value in values or ()))


def column_of(key: Expr, relation: Relation) -> catalog.Column | None:
    if not isinstance(key, Column):
        return None
    found = origin(relation, key.name)
    if found is None:
        return None
    declared, optional = found
    return replace(declared, nullable=declared.nullable or optional)


@lru_cache(maxsize=256)
def once(values: Domain, type_: Type) -> Domain:
    if type_ == DOUBLE:
        doubles = (
            None if v is None else float(Fraction(v)) + 0.0 for v in values if not isinstance(v, str | date | Interval)
        )
        return Domain(dict.fromkeys(doubles))
    return Domain({None if v is None else algebra.text_of(v, type_): v for v in values}.values())


def find_keys(relation: Relation, by: tuple[Expr, ...], hidden: bool = False) -> Keys:
    """Public keys where all values are known; `hidden` ones are shown only if enough persons have them all the same."""
    domains = [(f"k{i}", key.facts.type, domain_of(key, relation)) for i, key in enumerate(by)]
    # One key for one value of the key's type: 0.1 and 1e-1 are the same DOUBLE, and a key that stands twice counts twice.
    keys = PublicKeys(
        tuple((name, type_, once(values, type_)) for name, type_, values in domains if values is not None)
    )
    if len(keys.columns) < len(domains) or (hidden and domains):  # one private column makes the whole key private
        return PrivateKeys(tuple((name, type_) for name, type_, _ in domains))
    if keys.count > MAX_KEYS:
        raise Refused(
            "too_many_keys",
            f"the GROUP BY has {keys.count} possible keys, more than {MAX_KEYS}",
            "Group by fewer columns, or declare smaller domains.",
        )
    return keys


def rejects_null(relation: Relation, key: Expr) -> bool:
    """Whether WHERE visibly keeps NULL out of a key: a comparison of the key itself is never true of NULL."""
    return any(
        part == Call("NOT", (algebra.call("IS NULL", key),), part.facts)
        or (
            isinstance(part, Call)
            and part.function in ("=", "!=", "<", "<=", ">", ">=", "IN", "BETWEEN")
            and part.arguments[0] == key
        )
        for part in required(relation)
    )


def required(relation: Relation) -> Iterator[Expr]:
    """The conditions that every row meets."""
    return (part for predicate in filters(relation) for part in conjuncts(predicate))
