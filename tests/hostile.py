"""A hostile compiler: requests at random, of all that the algebra has. The kernel itself says what it accepts below each node."""

from __future__ import annotations

import datetime
import random
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, TypeVar

from dpsql.errors import Refused
from dpsql.kernel import request as ask
from dpsql.kernel.derive import AGGREGATES, COMBINATIONS, KINDS, Derivation
from dpsql.kernel.functions import FUNCTIONS, Facts
from dpsql.kernel.relations import PLACES, RANKS
from dpsql.policy.catalog import Catalog, Interval

T = TypeVar("T")
CONSTANTS: list[tuple[Any, str]] = [
    *[(value, "INTEGER") for value in (0, 1, -1, 2, 7, 100, 2**31 - 1)],
    *[(value, "BIGINT") for value in (2**62, -(2**63), 5)],
    *[(value, "DOUBLE") for value in (0.0, -0.0, 0.5, 1e300, -1e-300)],
    *[(Fraction(n, 100), "DECIMAL(8,2)") for n in (0, 150, -99)],
    *[(value, "VARCHAR") for value in ("", "a", "open", "de", "month", "day", "%Y", "%", "_x", "[a-z]+", "x" * 200)],
    *[(value, "BOOLEAN") for value in (True, False)],
    (datetime.date(2020, 2, 29), "DATE"),
    (datetime.datetime(2021, 5, 1, 12), "TIMESTAMP"),
    (Interval(1, -3, 5_000_000), "INTERVAL"),
    *[(name, "VARCHAR") for name in ("INTEGER", "DOUBLE", "VARCHAR", "DATE", "BIGINT", "BOOLEAN", "DECIMAL(9,3)")],
    (None, "NULL"),
]
LINKS = [
    ("customer", "id", "orders", "customer"),
    ("orders", "id", "item", "order_id"),
    ("orders", "country", "country", "name"),
]
WINDOWS = [*RANKS, *PLACES, "count", "sum", "avg", "min", "max", "bool_or", "var_samp", "first"]


class Hostile:
    """Draws requests. What the kernel refuses is drawn again a few times, so that much of what is drawn is deep and accepted."""

    def __init__(self, catalog: Catalog, seed: int) -> None:
        self.random, self.catalog, self.number = random.Random(seed), catalog, 0

    def name(self) -> str:
        self.number += 1
        return f"{self.random.choice('abc')}{self.number}"

    def one_of(self, *makers: Callable[[], T]) -> T:
        return self.random.choice(makers)()

    def derived(self, relation: ask.Relation) -> Mapping[str, Facts]:
        return Derivation(self.catalog.tables).relation(relation)[1]

    def accepted(self, make: Callable[[], T], check: Callable[[T], object], tries: int = 12) -> T:
        for _ in range(tries):
            made = make()
            try:
                check(made)
            except Refused:
                continue
            return made
        raise Refused("request_invalid", "nothing was found", "")

    # --- expressions --------------------------------------------------------------------------------------------------

    def constant(self) -> ask.Expression:
        return ask.Constant(*self.random.choice(CONSTANTS))

    def column(self, known: Mapping[str, Facts], kind: str | None = None) -> ask.Expression:
        fitting = [word for word, facts in known.items() if kind in (None, facts.type.kind)]
        return ask.Name(self.random.choice(fitting)) if fitting else self.constant()

    def expression(self, known: Mapping[str, Facts], depth: int = 3, kind: str | None = None) -> ask.Expression:
        """Of a kind, if one is wanted; often just a column."""

        def fits(made: ask.Expression) -> None:
            found = Derivation(self.catalog.tables).expression(made, known).facts.type.kind
            if kind is not None and found != kind:
                raise Refused("request_invalid", "another kind", "")

        def make() -> ask.Expression:
            if depth == 0 or self.random.random() < 0.35:
                return self.column(known, kind) if self.random.random() < 0.8 else self.constant()
            function = self.random.choice(list(FUNCTIONS))
            if kind == "BOOLEAN" and self.random.random() < 0.8:
                function = self.random.choice(
                    ["=", "<", ">=", "!=", "BETWEEN", "IN", "IS NULL", "AND", "OR", "NOT", "LIKE"]
                )
            count = self.random.choice([1, 1, 2, 2, 2, 3, 3, 4])
            sides = [self.expression(known, depth - 1) for _ in range(count)]
            if self.random.random() < 0.4 and count > 1:  # patterns, units, formats and types are constants
                sides[1:] = [self.constant() for _ in sides[1:]]
            return ask.Apply(function, tuple(sides))

        try:
            return self.accepted(make, fits, 25)
        except Refused:
            if kind == "BOOLEAN":
                return ask.Apply("IS NULL", (self.column(known),))
            raise

    # --- relations ----------------------------------------------------------------------------------------------------

    def relation(self, depth: int) -> ask.Relation:
        if depth == 0:
            return self.rows()
        makers = (self.kept, self.selected, self.joined, self.grouped, self.windows, self.combined, self.elements)
        return self.accepted(lambda: self.random.choice(makers)(depth - 1), self.derived)

    def rows(self) -> ask.Relation:
        if self.random.random() < 0.06:
            kinds = [self.random.choice([c for c in CONSTANTS if c[1] != "NULL"]) for _ in range(2)]
            cells = [
                tuple(self.random.choice([c[0] for c in CONSTANTS if c[1] == kind]) for _, kind in kinds)
                for _ in range(3)
            ]
            alias = self.name()
            return ask.Listed(tuple((f"{alias}.c{i}", kind) for i, (_, kind) in enumerate(kinds)), tuple(cells))
        table = self.catalog.tables[self.random.choice(["customer", "orders", "orders", "item", "country", "rate"])]
        return ask.Rows(table.name, self.name(), self.columns(table.name))

    def columns(self, name: str) -> tuple[str, ...]:
        table = self.catalog.tables[name]
        return tuple(c.name for c in table.columns.values() if not c.generated and c.type.kind != "OTHER")

    def kept(self, depth: int) -> ask.Relation:
        source = self.relation(depth)
        return ask.Kept(source, self.expression(self.derived(source), 2, "BOOLEAN"))

    def selected(self, depth: int) -> ask.Selected:
        source, alias = self.relation(depth), self.name()
        known = self.derived(source)
        kept = [word for word in known if self.random.random() < 0.7]
        columns = [(f"{alias}.{word.split('.')[-1]}{i}", ask.Name(word)) for i, word in enumerate(kept)]
        more = [(f"{alias}.new{i}", self.expression(known)) for i in range(self.random.randrange(3))]
        return ask.Selected(source, alias, (*columns, *more))

    def linked(self, left: Mapping[str, Facts], right: Mapping[str, Facts]) -> list[ask.Expression]:
        """Equalities of columns that have the names of a reference, and some that have not."""
        found: list[ask.Expression] = []
        for a in left:
            for b in right:
                words = (a.split(".")[-1].rstrip("0123456789"), b.split(".")[-1].rstrip("0123456789"))
                pairs = [(one, two) for _, one, _, two in LINKS]
                if words in pairs or words[::-1] in pairs or (words[0] == words[1] == "id"):
                    found.append(ask.Apply("=", (ask.Name(a), ask.Name(b))))
        return found

    def joined(self, depth: int) -> ask.Relation:
        left, right = self.relation(depth), self.relation(self.random.randrange(depth + 1))
        mine, theirs = self.derived(left), self.derived(right)
        conditions = self.linked(mine, theirs)
        on = self.random.choice(conditions) if conditions and self.random.random() < 0.9 else None
        if on is None or self.random.random() < 0.2:
            more = self.expression({**mine, **theirs}, 2, "BOOLEAN")
            on = more if on is None else ask.Apply("AND", (on, more))
        kind: Any = self.random.choice([*KINDS, "inner", "inner", "inner"])
        return ask.Joined(left, right, on, kind)

    def order(self, known: Mapping[str, Facts]) -> ask.Order:
        terms = (self.expression(known, 1) for _ in range(self.random.randrange(3)))
        return tuple((e, self.random.random() < 0.5, self.random.random() < 0.5) for e in terms)

    def persons(self, known: Mapping[str, Facts]) -> list[ask.Expression]:
        words = ("id", "customer", "order_id")
        return [ask.Name(word) for word in known if word.split(".")[-1].rstrip("0123456789") in words]

    def keys(self, known: Mapping[str, Facts], most: int) -> list[ask.Expression]:
        return [self.expression(known, 2) for _ in range(self.random.randrange(most + 1))]

    def grouped(self, depth: int) -> ask.Relation:
        source = self.relation(depth)
        known = self.derived(source)
        keys, each = self.keys(known, 2), self.random.random() < 0.15
        keys += [] if each else self.random.sample(there := self.persons(known), min(len(there), 1))
        measures = [(f"m{i}", self.measured(known)) for i in range(self.random.randrange(3))]
        return ask.Grouped(source, tuple((f"g{i}", e) for i, e in enumerate(keys)), tuple(measures), each)

    def measured(self, known: Mapping[str, Facts]) -> ask.Measured:
        function = self.random.choice(sorted(AGGREGATES))
        argument = None if function == "count" and self.random.random() < 0.5 else self.expression(known, 2)
        where = self.expression(known, 1, "BOOLEAN") if self.random.random() < 0.2 else None
        order = self.order(known) if function in ("first", "last") else ()
        return ask.Measured(function, argument, self.random.random() < 0.2, where, order)

    def windows(self, depth: int) -> ask.Relation:
        source = self.relation(depth)
        known = self.derived(source)
        made = self.accepted(lambda: self.window(known), lambda one: Derivation(self.catalog.tables).window(one, known))
        return ask.Windows(source, ((f"w{self.name()}", made),))

    def window(self, known: Mapping[str, Facts]) -> ask.Window:
        function = self.random.choice(WINDOWS)
        arguments = [] if function in (*RANKS, "row_number", "ntile") else [self.expression(known, 1)]
        if function in ("lag", "lead", "nth_value", "ntile"):
            arguments.append(ask.Constant(self.random.choice([1, 2, 3]), "INTEGER"))
        ends: list[Any] = [self.random.choice(["unbounded", 0, -2, 1]), self.random.choice(["unbounded", 0, 3])]
        frame: Any = (self.random.choice(["ROWS", "RANGE"]), *ends) if self.random.random() < 0.3 else None
        partition = (*self.persons(known)[:1], *self.keys(known, 1))
        return ask.Window(function, tuple(arguments), partition, self.order(known), frame)

    def combined(self, depth: int) -> ask.Relation:
        left = self.selected(depth)
        if self.random.random() < 0.7:
            condition = self.expression(self.derived(left.source), 1, "BOOLEAN")
            right = ask.Selected(ask.Kept(left.source, condition), left.alias, left.columns)
        else:
            right = self.selected(depth)
        kind: Any = self.random.choice(COMBINATIONS)
        return ask.Combined(left, right, kind)

    def elements(self, depth: int) -> ask.Relation:
        source = self.relation(depth)
        return ask.Elements(
            source, self.expression(self.derived(source), 2, "LIST"), self.name(), self.random.random() < 0.5
        )

    # --- requests -----------------------------------------------------------------------------------------------------

    def block(self, known: Mapping[str, Facts]) -> ask.Block:
        kind: Any = self.random.choice(["rows", "rows", "rows", "persons", "values"])
        if kind == "values":
            return ask.Block((self.asked(known, self.random.choice([1, 1, 2])),), kind)
        if kind == "persons":
            return ask.Block(tuple(self.asked(known, 0) for _ in range(self.random.randrange(2))), kind)
        degrees = self.random.choice([(), (1,), (1,), (2,), (0,), (1, 1), (2, 2), (1, 0), (2, 1)])
        return ask.Block(tuple(self.asked(known, degree) for degree in degrees), kind)

    def asked(self, known: Mapping[str, Facts], degree: int) -> ask.Asked:
        kinds = ["INTEGER", "DOUBLE", "DECIMAL"] if degree else [None]
        value = self.expression(known, 2, self.random.choice(kinds))
        low = Fraction(self.random.choice([-100, -1, 0, 3]))
        high = low + self.random.choice([0, 1, 50, 10**6])
        return ask.Asked(value, degree, (low, high) if degree and self.random.random() < 0.3 else None)

    def request(self) -> ask.Request:
        relation = self.relation(self.random.choice([0, 1, 1, 2, 2, 3]))
        known = self.derived(relation)
        keys = tuple(self.keys(known, 2))
        if isinstance(relation, ask.Grouped) and relation.each:
            keys = tuple(ask.Name(word) for word, _ in relation.keys)
        pure = self.catalog.policy.budget.accounting == "pure"
        noise: Any = self.random.choice(["laplace", "gaussian"]) if pure else "gaussian"
        return ask.Request(
            relation,
            keys,
            tuple(self.block(known) for _ in range(self.random.choice([0, 1, 1, 1, 2, 3]))),
            Fraction(self.random.choice([1, 1, 10]), self.random.choice([1, 10])),
            Fraction(1, 10**8),
            noise,
            hidden=self.random.random() < 0.2,
            counted=self.random.random() < 0.5,
            part=Fraction(1, self.random.choice([1, 1, 2, 3])),
            waiting=self.random.random() < 0.2,
            even=self.random.random() < 0.2,
            max_rows=self.random.choice([None, None, 1, 3]),
            max_groups=self.random.choice([None, None, 1, 2]),
        )
