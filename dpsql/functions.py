"""The allow-list of scalar functions. What is not a row of `FUNCTIONS` does not exist.

Each row says when a call is well typed, what is known of its result, how it is written below the noise (`total`: it
cannot raise, whatever the cells hold) and how it is written above it (`plain`: released values may do what they like).

Needs:   the facts of the arguments are true of every cell
Gives:   `total` evaluates to a value for every row, and the facts of the result are true of it
Proof:   integers and decimals: the engine may reassociate and move constants across a comparison, so that each step
         fits proves nothing. Every expression has a `size` that bounds every partial result of every rearrangement: sizes
         of leaves are at least 1 and add up under + and -, and multiply under *. Both sides are cast to a type that holds
         the size of the result, hence their own. Doubles follow IEEE 754 and never raise. Division and remainder by zero
         are kept out by CASE, which evaluates a branch only for the rows that reach it. Ranges come from enclosing
         expressions and never from a filter, which the engine may move
Checked: test_functions (every function, and random expressions of them, on adversarial cells), test_lemmas
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction

from sqlglot import exp

from dpsql.catalog import BIGINT, BOOLEAN, DOUBLE, HUGEINT, Type
from dpsql.errors import Refused

Range = tuple[Fraction, Fraction]


@dataclass(frozen=True)
class Facts:
    """What is known of every value of an expression.

    `range` bounds it (for integers and decimals always, and then it is a proof; for doubles it is a hint). `declared`
    says that the range comes from the owner's declarations and constants, and so may set a clip. `size` is set for
    arithmetic on integers and decimals: see the proof above.
    """

    type: Type
    nullable: bool = True
    range: Range | None = None
    declared: bool = False
    size: Fraction | None = None

    @property
    def bulk(self) -> Fraction:
        """The size of an exact number: of arithmetic as computed, of a leaf its largest value."""
        if self.size is not None:
            return self.size
        assert self.range is not None, "an exact number below the noise without a range"
        return max(Fraction(1), *map(abs, self.range))


@dataclass(frozen=True)
class Function:
    name: str
    facts: Callable[[Sequence[Facts]], Facts]
    total: Callable[[Sequence[exp.Expr], Sequence[Facts], Facts], exp.Expr]
    plain: Callable[[Sequence[exp.Expr]], exp.Expr]


def mismatch(name: str, arguments: Sequence[Facts]) -> Refused:
    types = " and ".join(argument.type.sql for argument in arguments)
    return Refused(
        "type_mismatch",
        f"{name} does not apply to {types}",
        "Compare and combine values of one type; write dates as DATE '2024-01-31'.",
    )


def cast(expression: exp.Expr, source: Type, target: Type) -> exp.Expr:
    if source == target:
        return expression
    return exp.Cast(this=expression, to=exp.DataType.build(target.sql, dialect="duckdb"))


def paren(expression: exp.Expr) -> exp.Expr:
    return exp.Paren(this=expression)


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
    raise Refused(
        "may_overflow",
        f"the result of {name} may not fit into any exact type",
        "Declare the range of the columns with `between`, or compare smaller numbers.",
    )


def numbers(name: str, arguments: Sequence[Facts]) -> None:
    if not all(argument.type.numeric for argument in arguments):
        raise mismatch(name, arguments)


# --- arithmetic -----------------------------------------------------------------------------------------------------


def combine(operation: Callable[[Fraction, Fraction], Fraction], a: Facts, b: Facts) -> Range | None:
    """The range of a monotone-in-each-argument operation: its values at the corners."""
    if a.range is None or b.range is None:
        return None
    corners = [operation(x, y) for x in a.range for y in b.range]
    return min(corners), max(corners)


def arithmetic(name: str, node: type[exp.Binary], operation: Callable[[Fraction, Fraction], Fraction]) -> Function:
    def facts(arguments: Sequence[Facts]) -> Facts:
        numbers(name, arguments)
        a, b = arguments
        range_ = combine(operation, a, b)
        nullable, declared = a.nullable or b.nullable, a.declared and b.declared
        if "DOUBLE" in (a.type.kind, b.type.kind):
            return Facts(DOUBLE, nullable, range_, declared)
        scale = a.type.scale + b.type.scale if name == "*" else max(a.type.scale, b.type.scale)
        if range_ is None:  # above the noise, where the engine may overflow
            return Facts(Type(f"DECIMAL(38,{scale})") if scale else widest(a, b), nullable)
        size = a.bulk * b.bulk if name == "*" else a.bulk + b.bulk
        # The engine's sum of decimals is one digit wider than its sides, but for the widest.
        preferred = [Type(f"DECIMAL(38,{scale})")] if scale else [a.type, b.type]
        type_ = fitting(name, scale, (-size, size), preferred)
        return Facts(type_, nullable, range_, declared, size)

    def total(sides: Sequence[exp.Expr], arguments: Sequence[Facts], result: Facts) -> exp.Expr:
        targets = [result.type, result.type]
        if name == "*" and result.type.kind == "DECIMAL":  # scales add, so each side keeps its own
            targets = [Type(f"DECIMAL(38,{a.type.scale})") for a in arguments]
        left, right = (cast(s, a.type, t) for s, a, t in zip(sides, arguments, targets, strict=True))
        return paren(node(this=left, expression=right))

    return Function(name, facts, total, lambda sides: paren(node(this=sides[0], expression=sides[1])))


def widest(a: Facts, b: Facts) -> Type:
    return HUGEINT if HUGEINT in (a.type, b.type) else BIGINT


def divide_facts(arguments: Sequence[Facts]) -> Facts:
    numbers("/", arguments)
    a, b = arguments
    range_ = None if has_zero(b) else combine(lambda x, y: x / y, a, b)
    return Facts(DOUBLE, a.nullable or b.nullable, range_, a.declared and b.declared)


def divide_total(sides: Sequence[exp.Expr], arguments: Sequence[Facts], _: Facts) -> exp.Expr:
    left, right = (cast(s, a.type, DOUBLE) for s, a in zip(sides, arguments, strict=True))
    return paren(exp.Div(this=left, expression=right, typed=False, safe=False))


def whole(name: str, node: type[exp.Binary]) -> Function:
    """Integer quotient and remainder: NULL where the divisor is zero."""

    def facts(arguments: Sequence[Facts]) -> Facts:
        if not all(argument.type.kind == "INTEGER" for argument in arguments):
            raise mismatch(name, arguments)
        a, b = arguments
        if a.range is None or b.range is None:  # above the noise
            return Facts(widest(a, b))
        # Both truncate toward zero: a quotient is no larger than a, and a remainder has the sign of a.
        if a.range[0] >= 0 and b.range[0] > 0:
            quotient = Fraction(a.range[0] // b.range[1]), Fraction(a.range[1] // b.range[0])
            remainder = Fraction(0), min(a.range[1], b.range[1] - 1)
        else:
            size, least = max(map(abs, a.range)), min(max(map(abs, a.range)), max(map(abs, b.range)))
            quotient, remainder = (-size, size), (-least, least)
        # The engine's remainder raises where the quotient overflows (-128 % -1), so the type has to hold both.
        size = a.bulk + b.bulk
        type_ = fitting(name, 0, (-size, size), [a.type, b.type])
        range_ = quotient if name == "//" else remainder
        return Facts(type_, a.nullable or b.nullable or has_zero(b), range_, a.declared and b.declared, size)

    def total(sides: Sequence[exp.Expr], arguments: Sequence[Facts], result: Facts) -> exp.Expr:
        left, right = (cast(s, a.type, result.type) for s, a in zip(sides, arguments, strict=True))
        operation = paren(node(this=left, expression=right))
        if not has_zero(arguments[1]):
            return operation
        zero = exp.EQ(this=again(right), expression=exp.Literal.number(0))
        return exp.Case(ifs=[exp.If(this=zero, true=exp.Null())], default=operation)

    return Function(name, facts, total, lambda sides: paren(node(this=sides[0], expression=sides[1])))


def again(expression: exp.Expr) -> exp.Expr:
    """A second copy of an expression. Only small ones: nested copies of copies would double with every level."""
    if sum(1 for _ in expression.walk()) > 200:
        raise Refused("too_deep", "a divisor that may be zero is too long", "Divide by something simpler.")
    return expression.copy()


def has_zero(value: Facts) -> bool:
    return value.range is None or value.range[0] <= 0 <= value.range[1]


def negate_facts(arguments: Sequence[Facts]) -> Facts:
    numbers("-", arguments)
    (a,) = arguments
    if a.range is None or a.type == DOUBLE:
        return Facts(a.type, a.nullable, a.range and (-a.range[1], -a.range[0]), a.declared)
    type_ = fitting("-", a.type.scale, (-a.bulk, a.bulk), [a.type])
    return Facts(type_, a.nullable, (-a.range[1], -a.range[0]), a.declared, a.bulk)


# --- predicates -----------------------------------------------------------------------------------------------------


def same_family(name: str, arguments: Sequence[Facts]) -> None:
    kinds = {argument.type.kind for argument in arguments}
    if "OTHER" in kinds or "NULL" in kinds or (len(kinds) > 1 and not all(a.type.numeric for a in arguments)):
        raise mismatch(name, arguments)


def aligned(name: str, sides: Sequence[exp.Expr], arguments: Sequence[Facts]) -> list[exp.Expr]:
    """All sides in one type. Numbers that no exact type holds are compared as doubles, which cannot raise."""
    if not arguments[0].type.numeric:
        return list(sides)
    target = DOUBLE
    if all(argument.type != DOUBLE for argument in arguments):
        ranges = [argument.range for argument in arguments if argument.range is not None]
        low, high = min(r[0] for r in ranges), max(r[1] for r in ranges)
        if any(argument.size is not None for argument in arguments):  # then constants may be moved across
            high = sum((argument.bulk for argument in arguments), Fraction(0))
            low = -high
        with suppress(Refused):
            scale = max(argument.type.scale for argument in arguments)
            target = fitting(name, scale, (low, high), [argument.type for argument in arguments])
    return [cast(s, a.type, target) for s, a in zip(sides, arguments, strict=True)]


def truth(arguments: Sequence[Facts]) -> Facts:
    return Facts(BOOLEAN, any(argument.nullable for argument in arguments))


def predicate(name: str, build: Callable[[Sequence[exp.Expr]], exp.Expr]) -> Function:
    def facts(arguments: Sequence[Facts]) -> Facts:
        same_family(name, arguments)
        return truth(arguments)

    return Function(name, facts, lambda sides, arguments, _: build(aligned(name, sides, arguments)), build)


def logical(name: str, build: Callable[[Sequence[exp.Expr]], exp.Expr]) -> Function:
    def facts(arguments: Sequence[Facts]) -> Facts:
        if any(argument.type != BOOLEAN for argument in arguments):
            raise mismatch(name, arguments)
        return truth(arguments)

    return Function(name, facts, lambda sides, *_: build(sides), build)


def is_null_facts(arguments: Sequence[Facts]) -> Facts:
    return Facts(BOOLEAN, nullable=False)


def is_null(sides: Sequence[exp.Expr]) -> exp.Expr:
    return paren(exp.Is(this=sides[0], expression=exp.Null()))


def binary(node: type[exp.Binary]) -> Callable[[Sequence[exp.Expr]], exp.Expr]:
    return lambda sides: paren(node(this=sides[0], expression=sides[1]))


def chain(node: type[exp.Binary]) -> Callable[[Sequence[exp.Expr]], exp.Expr]:
    """A long chain of AND or OR without a bracket for each link: the engine's parser has a limit on depth."""

    def build(sides: Sequence[exp.Expr]) -> exp.Expr:
        left = sides[0]
        if isinstance(left, exp.Paren) and type(left.this) is node:
            left = left.this
        return paren(node(this=left, expression=sides[1]))

    return build


FUNCTIONS: dict[str, Function] = {
    function.name: function
    for function in (
        arithmetic("+", exp.Add, lambda x, y: x + y),
        arithmetic("-", exp.Sub, lambda x, y: x - y),
        arithmetic("*", exp.Mul, lambda x, y: x * y),
        Function(
            "/",
            divide_facts,
            divide_total,
            lambda s: paren(exp.Div(this=s[0], expression=s[1], typed=False, safe=False)),
        ),
        whole("//", exp.IntDiv),
        whole("%", exp.Mod),
        Function(
            "negate",
            negate_facts,
            lambda s, a, r: paren(exp.Neg(this=cast(s[0], a[0].type, r.type))),
            lambda s: paren(exp.Neg(this=s[0])),
        ),
        *(
            predicate(name, binary(node))
            for name, node in (
                ("=", exp.EQ),
                ("!=", exp.NEQ),
                ("<", exp.LT),
                ("<=", exp.LTE),
                (">", exp.GT),
                (">=", exp.GTE),
            )
        ),
        predicate("IN", lambda s: paren(exp.In(this=s[0], expressions=list(s[1:])))),
        predicate("BETWEEN", lambda s: paren(exp.Between(this=s[0], low=s[1], high=s[2]))),
        logical("AND", chain(exp.And)),
        logical("OR", chain(exp.Or)),
        logical("NOT", lambda s: paren(exp.Not(this=s[0]))),
        Function("IS NULL", is_null_facts, lambda s, *_: is_null(s), is_null),
    )
}
