"""What is known of an expression, the shape of a row of `FUNCTIONS`, and the types that hold everything."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, reduce

from sqlglot import exp

from dpsql.errors import Refused
from dpsql.policy.catalog import INTERVAL, Type, Value

Range = tuple[Fraction, Fraction]
Sides = Sequence[exp.Expr]
LONGEST = 64  # how many times longer than the texts of its row a text may be
UNIT = 256  # bytes that a text may have in any case
LARGE = 400  # nodes of an expression that is written twice
LENGTHS = 6  # the largest size of an interval


@dataclass(frozen=True)
class Facts:
    """What is known of every value of an expression.

    `range` bounds it: numbers as they are, dates in days and timestamps in microseconds since 1970, intervals in microseconds, a
    month having 30 days. For integers and decimals there always is one and it is a proof; for dates and intervals, if there
    is one, it is a proof; for doubles it is a hint.
    `declared` says that the range comes from the owner's declarations and constants, and so may set a clip; `ends` says
    it of each end where only one is. `size` is set for arithmetic (see the proof in `functions`), and for texts: then it
    says how many times longer they may be than the longest text of the row, or than 256 bytes; for intervals see `intervals`. `constant` is the value of a literal.
    `copies` says as many lists of the row a list may be as long as.
    """

    type: Type
    nullable: bool = True
    range: Range | None = None
    declared: bool = False
    size: Fraction | None = None
    constant: Value = None
    ends: tuple[bool, bool] | None = None
    stored: bool = False  # a column of a table, which is no constant
    copies: int = 1

    @property
    def bulk(self) -> Fraction:
        """The size of an exact number: of arithmetic as computed, of a leaf its largest value."""
        if self.size is not None:
            return self.size
        assert self.range is not None, "an exact number below the noise without a range"
        return max(Fraction(1), *map(abs, self.range))

    @property
    def bounded(self) -> tuple[bool, bool]:
        """Whether the low and the high end are declared."""
        return self.ends if self.ends is not None else (self.declared, self.declared)

    @property
    def growth(self) -> Fraction:
        return self.size if self.size is not None else Fraction(1)

    @property
    def stretch(self) -> Fraction:
        """The size of an interval: where it was not kept, the largest that there is."""
        return self.size if self.size is not None else Fraction(LENGTHS)


@dataclass(frozen=True)
class Function:
    """A row of the table. `arguments` is how many it takes when called by its name or an alias; None: an operator."""

    name: str
    facts: Callable[[Sequence[Facts]], Facts]
    total: Callable[[Sides, Sequence[Facts], Facts], exp.Expr]
    plain: Callable[[Sides], exp.Expr]
    arguments: range | None = None
    aliases: tuple[str, ...] = ()


def named(
    name: str,
    arguments: tuple[int, int],
    facts: Callable[[Sequence[Facts]], Facts],
    total: Callable[[Sides, Sequence[Facts], Facts], exp.Expr] | None = None,
    *aliases: str,
) -> Function:
    """A function that has its name in the engine too: total as it is, or on arguments that `total` prepares."""

    def build(sides: Sides) -> exp.Expr:
        return invoke(name, *sides)

    arity = range(arguments[0], arguments[1] + 1)
    return Function(name, facts, total or (lambda sides, *_: build(sides)), build, arity, aliases)


def mismatch(name: str, arguments: Sequence[Facts]) -> Refused:
    types = " and ".join(argument.type.sql for argument in arguments)
    hint = "Compare and combine values of one type; write dates as DATE '2024-01-31'."
    if any(argument.type == INTERVAL for argument in arguments):
        hint = "Write intervals as INTERVAL '2 hours', or take epoch(x), which is a number of seconds."
    return Refused("type_mismatch", f"{name} does not apply to {types}", hint)


def overflow(name: str) -> Refused:
    return Refused(
        "may_overflow",
        f"the result of {name} may not fit into any exact type",
        "Declare the range of the columns with `between`, or compare smaller numbers.",
    )


def constant_needed(name: str, what: str, hint: str) -> Refused:
    return Refused("constant_invalid", f"{name} needs {what}", hint)


def any_null(arguments: Sequence[Facts]) -> bool:
    return any(argument.nullable for argument in arguments)


# --- SQL --------------------------------------------------------------------------------------------------------------


def cast(expression: exp.Expr, source: Type, target: Type) -> exp.Expr:
    return expression if source == target else to_type(expression, target.sql)


def to_type(expression: exp.Expr, target: str, node: type[exp.Cast] = exp.Cast) -> exp.Expr:
    return node(this=expression, to=data_type(target).copy())


@cache
def data_type(name: str) -> exp.DataType:
    return exp.DataType.build(name, dialect="duckdb")  # which calls the parser


def paren(expression: exp.Expr) -> exp.Expr:
    return exp.Paren(this=expression)


def binary(node: type[exp.Binary]) -> Callable[[Sides], exp.Expr]:
    return lambda sides: paren(node(this=sides[0], expression=sides[1]))


def invoke(name: str, *arguments: exp.Expr) -> exp.Expr:
    return exp.Anonymous(this=name, expressions=list(arguments))


def when(*arms: tuple[exp.Expr, exp.Expr], default: exp.Expr | None = None) -> exp.Expr:
    return exp.Case(ifs=[exp.If(this=test, true=value) for test, value in arms], default=default)


def again(expression: exp.Expr) -> exp.Expr:
    """A second copy of an expression. Only small ones: nested copies of copies would double with every level."""
    if sum(1 for _ in expression.walk()) > LARGE:
        raise Refused(
            "too_deep", "an expression that has to be computed twice is too long", "Use fewer functions in each other."
        )
    return expression.copy()


def guarded(expression: exp.Expr, low: exp.Expr, high: exp.Expr) -> exp.Expr:
    """The value within these ends, else NULL. What is computed from it never sees another value."""
    return when((exp.Between(this=expression, low=low, high=high), again(expression)))


def between(side: exp.Expr, low: int, high: int) -> exp.Expr:
    """A whole number within these ends, else NULL."""
    return guarded(side, *(to_type(exp.Literal.string(str(end)), "BIGINT") for end in (low, high)))


def plain_text(expression: exp.Expr) -> bool:
    return isinstance(expression, exp.Column | exp.Literal)


def present(build: Callable[[Sides], exp.Expr], sides: Sides) -> exp.Expr:
    """A test of texts, NULL where one is NULL; what it tests is never a constant NULL.

    DuckDB 2.0.0 raises when its statistics turn one side of a comparison of texts into a constant NULL, as in
    `x < CASE WHEN x = 'q' THEN 'r' END` where no cell can be 'q': an error that tells about cells. A column, having
    cells, is not a constant.
    """
    computed = [side for side in sides if not plain_text(side)]
    if not computed:
        return build(sides)
    tests: list[exp.Expr] = [exp.Not(this=paren(exp.Is(this=again(side), expression=exp.Null()))) for side in computed]
    empty = exp.Literal.string("")
    texts = [side if plain_text(side) else exp.Coalesce(this=side, expressions=[empty.copy()]) for side in sides]
    return when((reduce(lambda left, right: exp.And(this=left, expression=right), tests), build(texts)))


# --- types that hold everything -------------------------------------------------------------------------------------


def holds(target: Type, scale: int, range_: Range) -> bool:
    """Whether every such value fits: then a cast to `target` is exact and cannot raise."""
    room = target.range
    return room is not None and target.scale >= scale and room[0] <= range_[0] and range_[1] <= room[1]


def fitting(name: str, scale: int, range_: Range, preferred: Sequence[Type]) -> Type:
    """An exact type that holds the range: a preferred one if possible, else the smallest wider one."""
    wider = ["INTEGER", "BIGINT", "HUGEINT"] if scale == 0 else []
    wider += [f"DECIMAL({width},{scale})" for width in (18, 38) if scale <= width]
    for candidate in [*preferred, *map(Type, wider)]:
        if holds(candidate, scale, range_):
            return candidate
    raise overflow(name)


def numbers(name: str, arguments: Sequence[Facts]) -> None:
    if not all(argument.type.numeric for argument in arguments):
        raise mismatch(name, arguments)


def hull(ranges: Sequence[Range | None]) -> Range | None:
    known = [r for r in ranges if r is not None]
    if not known or len(known) < len(ranges):
        return None
    return min(r[0] for r in known), max(r[1] for r in known)
