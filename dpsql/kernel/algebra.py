"""The closed set of expressions. Relations, which are made of them, are in `relations`."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import assert_never

from sqlglot import exp

from dpsql.kernel.functions import FUNCTIONS, Facts, Range, paren, since, some, to_type
from dpsql.policy.catalog import BOOLEAN, DATE, DOUBLE, INTERVAL, NULL, TIMESTAMP, VARCHAR, Interval, Type, Value

ANY = Facts(Type("ANY"))

# --- expressions ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Column:
    """A column of the relation below, by its unique name.

    Its cells are not known as those of a literal are, also where they were computed from one: a key that is an INTERVAL of months
    may be there in days.
    """

    name: str
    facts: Facts

    def __post_init__(self) -> None:
        if self.facts.constant is not None:
            object.__setattr__(self, "facts", replace(self.facts, constant=None))


@dataclass(frozen=True)
class Literal:
    """A constant, re-emitted from its value and never from the analyst's text."""

    value: Value
    facts: Facts


@dataclass(frozen=True)
class Call:
    """A function of the allow-list. A function of the row alone, and total."""

    function: str
    arguments: tuple[Expr, ...]
    facts: Facts


@dataclass(frozen=True)
class Aggregate:
    """An aggregate over persons. It stands only above the noise, where `split` replaces it by released columns."""

    name: str
    arguments: tuple[Expr, ...]
    facts: Facts
    distinct: bool = False
    clip: Range | None = None  # of each row's value, if the query says so
    each: Range | None = None  # of what one person's rows come to in a group; `bound` makes rows of these


@dataclass(frozen=True)
class Free:
    """SQL over released values: a tree whose parameters $0, $1, ... are the arguments. It stands only above the noise."""

    tree: exp.Expr
    arguments: tuple[Expr, ...]
    window: bool = False
    facts: Facts = ANY


Expr = Column | Literal | Call | Aggregate | Free


def call(function: str, *arguments: Expr) -> Call:
    facts = FUNCTIONS[function].facts([argument.facts for argument in arguments])
    return Call(function, arguments, facts)


def typed(value: Value, type_: Type) -> Literal:
    """A literal of this type. Numbers, dates and timestamps are their own range."""
    exact: Fraction | None = None
    match value:
        case Interval():
            return Literal(value, replace(some(False, (value.length, value.length), True), constant=value))
        case datetime.date():
            exact = since(value)
        case int() | float() | Fraction() if not isinstance(value, bool):
            exact = Fraction(value)
    return Literal(value, Facts(type_, False, None if exact is None else (exact, exact), True, constant=value))


def constant(value: Value) -> Literal:
    """A literal with the type that the engine would give it."""
    match value:
        case None:
            return Literal(None, Facts(NULL))
        case bool():
            return typed(value, BOOLEAN)
        case float():
            return typed(value, DOUBLE)
        case int():
            return typed(value, next(t for t in map(Type, ("INTEGER", "BIGINT", "HUGEINT")) if fits(value, t)))
        case Fraction():
            scale = next(s for s in range(39) if (value * 10**s).denominator == 1)
            width = max(len(str(abs(int(value * 10**scale)))), scale, 1)
            return typed(value, Type(f"DECIMAL({width},{scale})"))
        case str():
            return typed(value, VARCHAR)
        case datetime.datetime():
            return typed(value, TIMESTAMP)
        case datetime.date():
            return typed(value, DATE)
        case Interval():
            return typed(value, INTERVAL)
        case _:
            assert_never(value)


def fits(value: int, type_: Type) -> bool:
    return type_.range is not None and type_.range[0] <= value <= type_.range[1]


def text_of(value: Value, type_: Type) -> str:
    """What the engine makes exactly this value of the type of."""
    match value:
        case bool():
            return str(value).lower()
        case float() | int() | Fraction() if type_.kind == "DOUBLE":
            return repr(float(Fraction(value)))  # repr round-trips
        case float():
            raise AssertionError("a float of a type that is not DOUBLE")
        case int() | Fraction():
            assert type_.range is not None and type_.range[0] <= value <= type_.range[1]
            if not type_.scale:
                return str(int(value))
            digits = str(abs(int(value * 10**type_.scale))).rjust(type_.scale + 1, "0")
            point = len(digits) - type_.scale
            return ("-" if value < 0 else "") + digits[:point] + "." + digits[point:]
        case str():
            return value
        case datetime.datetime():
            return value.isoformat(sep=" ")
        case datetime.date():
            return value.isoformat()
        case Interval():
            return value.text
        case None:
            raise AssertionError("NULL has no text")
        case _:
            assert_never(value)


def literal(value: Value, type_: Type) -> exp.Expr:
    """SQL for a value of this type. Numbers are text with the sign inside: -128 is a TINYINT, but -(128) is not."""
    match value:
        case None:
            return exp.Null()
        case bool():
            return exp.Boolean(this=value)
        case str():
            return exp.Literal.string(value)
        case int() | Fraction() if type_.sql == "INTEGER" and value >= 0:
            return exp.Literal.number(text_of(value, type_))
        case _:
            return to_type(exp.Literal.string(text_of(value, type_)), type_.sql)


def identifier(word: str) -> exp.Identifier:
    return exp.to_identifier(word, quoted=True)


def name(column: str, table: str | None = None) -> exp.Column:
    return exp.column(identifier(column), table and identifier(table))


def total(expression: Expr) -> exp.Expr:
    """SQL for an expression below the noise: total for every row."""
    match expression:
        case Column(column, facts):
            # A text that a subquery computes may turn out to be constant; the brackets say so to `functions.present`.
            return name(column) if facts.stored or facts.type != VARCHAR else paren(name(column))
        case Literal(value, facts):
            return literal(value, facts.type)
        case Call(function, arguments, facts):
            rendered = [total(argument) for argument in arguments]
            return FUNCTIONS[function].total(rendered, [argument.facts for argument in arguments], facts)
        case Aggregate() | Free():
            raise AssertionError("an aggregate below the noise")
        case _:
            assert_never(expression)


def plain(expression: Expr, released: Callable[[Aggregate | Free], exp.Expr | None]) -> exp.Expr:
    """SQL for an expression over released values: the engine's own operators and types.

    `released` says under which name an aggregate is known there, and a window that has been computed already.
    """
    match expression:
        case Column(column, _):
            return name(column)
        case Literal(value, facts):
            return literal(value, facts.type)
        case Call(function, arguments, _):
            return FUNCTIONS[function].plain([plain(argument, released) for argument in arguments])
        case Aggregate():
            found = released(expression)
            assert found is not None
            return found
        case Free(tree, arguments):
            if (known := released(expression)) is not None:
                return known
            parts = [plain(argument, released) for argument in arguments]
            parts = [part if isinstance(part, exp.Column | exp.Literal | exp.Func) else paren(part) for part in parts]
            return tree.transform(lambda node: parts[int(node.name)] if isinstance(node, exp.Placeholder) else node)
        case _:
            assert_never(expression)


def conjuncts(predicate: Expr) -> Iterator[Expr]:
    match predicate:
        case Call("AND", (left, right), _):
            yield from conjuncts(left)
            yield from conjuncts(right)
        case _:
            yield predicate


def columns_in(expression: Expr) -> Iterator[Column]:
    match expression:
        case Column():
            yield expression
        case Call(_, arguments, _):
            for argument in arguments:
                yield from columns_in(argument)
        case _:
            pass
