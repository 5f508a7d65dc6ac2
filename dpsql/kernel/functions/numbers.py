"""Numbers: arithmetic, the functions that round them, and those of doubles and of bits."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction

from sqlglot import exp

from dpsql.kernel.functions.facts import (
    Facts,
    Function,
    Range,
    Sides,
    again,
    any_null,
    binary,
    cast,
    constant_needed,
    fitting,
    guarded,
    holds,
    invoke,
    mismatch,
    named,
    numbers,
    overflow,
    paren,
    to_type,
    when,
)
from dpsql.kernel.functions.logic import common, converted
from dpsql.policy.catalog import BIGINT, BOOLEAN, DOUBLE, HUGEINT, Type

# --- arithmetic -----------------------------------------------------------------------------------------------------


def combine(operation: Callable[[Fraction, Fraction], Fraction], a: Facts, b: Facts) -> Range | None:
    """The range of a monotone-in-each-argument operation: its values at the corners."""
    if a.range is None or b.range is None:
        return None
    corners = [operation(x, y) for x in a.range for y in b.range]
    return min(corners), max(corners)


def arithmetic(
    name: str, node: type[exp.Binary], operation: Callable[[Fraction, Fraction], Fraction], alias: str
) -> Function:
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

    def total(sides: Sides, arguments: Sequence[Facts], result: Facts) -> exp.Expr:
        targets = [result.type, result.type]
        if name == "*" and result.type.kind == "DECIMAL":  # scales add, so each side keeps its own
            targets = [Type(f"DECIMAL(38,{a.type.scale})") for a in arguments]
        return binary(node)([cast(s, a.type, t) for s, a, t in zip(sides, arguments, targets, strict=True)])

    return Function(name, facts, total, binary(node), range(2, 3), (alias,))


def widest(a: Facts, b: Facts) -> Type:
    return HUGEINT if HUGEINT in (a.type, b.type) else BIGINT


def divide_facts(arguments: Sequence[Facts]) -> Facts:
    numbers("/", arguments)
    a, b = arguments
    range_ = None if has_zero(b) else combine(lambda x, y: x / y, a, b)
    return Facts(DOUBLE, a.nullable or b.nullable, range_, a.declared and b.declared)


def divide(sides: Sides) -> exp.Expr:
    return paren(exp.Div(this=sides[0], expression=sides[1], typed=False, safe=False))


def whole(name: str, node: type[exp.Binary], alias: str) -> Function:
    """Integer quotient and remainder: NULL where the divisor is zero. The remainder of doubles is NaN there.

    The quotient of doubles is not whole in DuckDB 2.0.0: only its zero divisor differs from /.
    """

    def facts(arguments: Sequence[Facts]) -> Facts:
        kinds = {argument.type.kind for argument in arguments}
        if "DOUBLE" in kinds or (name == "//" and "DECIMAL" in kinds):
            numbers(name, arguments)
            return (
                replace(divide_facts(arguments), nullable=True) if name == "//" else Facts(DOUBLE, any_null(arguments))
            )
        integers(name, arguments)
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
        range_ = quotient if name == "//" else remainder
        size = a.bulk + b.bulk
        type_ = fitting(name, 0, range_, [a.type, b.type, fitting(name, 0, (-size, size), [a.type, b.type])])
        return Facts(type_, a.nullable or b.nullable or has_zero(b), range_, a.declared and b.declared, size)

    def total(sides: Sides, arguments: Sequence[Facts], result: Facts) -> exp.Expr:
        # The engine's remainder raises where the quotient overflows (-128 % -1), so it is computed where both fit.
        types = [argument.type for argument in arguments]
        double = result.type == DOUBLE
        wide = DOUBLE if double else fitting(name, 0, (-result.bulk, result.bulk), types)
        left, right = (cast(s, t, wide) for s, t in zip(sides, types, strict=True))
        if name == "//" if double else has_zero(arguments[1]):
            right = when((exp.NEQ(this=right, expression=exp.Literal.number(0)), again(right)))
        return cast(binary(node)((left, right)), wide, result.type)

    return Function(name, facts, total, binary(node), range(2, 3), (alias,))


def integers(name: str, arguments: Sequence[Facts], most: Type = HUGEINT) -> None:
    """All are whole numbers, of types that `most` holds."""
    kinds = [a.type.range for a in arguments if a.type.kind == "INTEGER"]
    if len(kinds) < len(arguments) or not all(r and holds(most, 0, r) for r in kinds):
        raise mismatch(name, arguments)


def has_zero(value: Facts) -> bool:
    return value.range is None or value.range[0] <= 0 <= value.range[1]


def negate_facts(arguments: Sequence[Facts]) -> Facts:
    numbers("-", arguments)
    (a,) = arguments
    if a.range is None or a.type == DOUBLE:
        return Facts(a.type, a.nullable, a.range and (-a.range[1], -a.range[0]), a.declared)
    type_ = fitting("-", a.type.scale, (-a.bulk, a.bulk), [a.type])
    return Facts(type_, a.nullable, (-a.range[1], -a.range[0]), a.declared, a.bulk)


def negate(sides: Sides) -> exp.Expr:
    return paren(exp.Neg(this=sides[0]))


# --- rounding ---------------------------------------------------------------------------------------------------------


def absolute(arguments: Sequence[Facts]) -> Facts:
    """The engine raises on the smallest integer, so the type is one that holds its opposite."""
    numbers("abs", arguments)
    (a,) = arguments
    if a.range is None:
        return Facts(a.type, a.nullable)
    top = max(map(abs, a.range))
    range_ = (Fraction(0) if has_zero(a) else min(map(abs, a.range))), top
    if a.type == DOUBLE:
        return Facts(DOUBLE, a.nullable, range_, a.declared)
    # Where the cells are not negative the engine leaves `abs` out.
    type_ = fitting("abs", a.type.scale, (a.range[0], top), [a.type])
    return Facts(type_, a.nullable, range_, a.declared, a.size)


def to_whole(name: str, towards: Callable[[Fraction], int], *aliases: str) -> Function:
    """floor and ceil: of whole numbers they are doubles, as in DuckDB."""

    def facts(arguments: Sequence[Facts]) -> Facts:
        numbers(name, arguments)
        (a,) = arguments
        range_ = a.range and (Fraction(towards(a.range[0])), Fraction(towards(a.range[1])))
        if a.type.kind != "DECIMAL":
            return Facts(DOUBLE, a.nullable, range_, a.declared)
        # A digit behind the point makes room for the carry; without one there is nothing to round.
        return Facts(Type(f"DECIMAL({a.type.width},0)"), a.nullable, range_, a.declared, a.size)

    def total(sides: Sides, arguments: Sequence[Facts], _: Facts) -> exp.Expr:
        (a,) = arguments
        return invoke(name, cast(sides[0], a.type, DOUBLE) if a.type.kind == "INTEGER" else sides[0])

    return named(name, (1, 1), facts, total, *aliases)


def rounded(value: Fraction, digits: int, name: str = "round") -> Fraction:
    """As the engine rounds: half away from zero, half to the even digit, or towards zero."""
    scaled = value * Fraction(10) ** digits
    if name == "round":
        scaled = abs(scaled) + Fraction(1, 2)
        return (int(scaled) if value >= 0 else -int(scaled)) / Fraction(10) ** digits
    return (round(scaled) if name == "round_even" else int(scaled)) / Fraction(10) ** digits


def digits_of(name: str, arguments: Sequence[Facts]) -> int:
    digits = arguments[1].constant if len(arguments) > 1 else 0
    if isinstance(digits, bool) or not isinstance(digits, int) or abs(digits) > 30:
        raise constant_needed(name, "a constant number of digits from -30 to 30", f"Write {name}(x, 2).")
    return digits


def rounding(name: str, least: int, *aliases: str) -> Function:
    """round, round_even and trunc. Only the last keeps every type: what is rounded up may not fit."""

    def facts(arguments: Sequence[Facts]) -> Facts:
        numbers(name, arguments)
        a, digits = arguments[0], digits_of(name, arguments)
        if a.type != DOUBLE and digits >= a.type.scale:  # as it is
            return Facts(a.type, a.nullable, a.range, a.declared, a.size)
        range_: Range | None = a.range and (rounded(a.range[0], digits, name), rounded(a.range[1], digits, name))
        type_ = a.type
        if a.type.kind == "DECIMAL":
            room = max(a.type.width, a.type.width - a.type.scale + 1)
            type_ = Type(f"DECIMAL({min(38, room)},{max(digits, 0)})")
            if range_ is not None and not holds(type_, max(digits, 0), range_):
                raise overflow(name)
        elif a.type.kind == "INTEGER" and name != "trunc" and range_ is not None and a.range is not None:
            both = min(range_[0], a.range[0]), max(range_[1], a.range[1])
            type_ = fitting(name, 0, both, [t for t in (a.type, BIGINT) if t.range and t.range[0] < 0])
        return Facts(type_, a.nullable, range_, a.declared)

    def total(sides: Sides, arguments: Sequence[Facts], result: Facts) -> exp.Expr:
        a, digits = arguments[0], digits_of(name, arguments)
        if a.type != DOUBLE and digits >= a.type.scale:
            return sides[0]
        side = cast(sides[0], a.type, result.type) if a.type.kind == "INTEGER" else sides[0]
        return invoke(name, side, *sides[1:])

    return named(name, (least, 2), facts, total, *aliases)


# --- doubles ----------------------------------------------------------------------------------------------------------

Image = Callable[..., float]


def values(image: Image, *points: Fraction) -> Fraction | None:
    """A value of a function of doubles; None where there is no finite one."""
    try:
        return Fraction(image(*map(float, points)))
    except (ValueError, OverflowError):
        return None


def real(name: str, image: Image | Range | None = None, *aliases: str, arity: tuple[int, int] = (1, 1)) -> Function:
    """A function of doubles. None of them raises (`ieee_floating_point_ops`): what has no value is NaN or infinite.

    `image` is a function that takes its least and greatest value at the ends, or the range whatever the argument.
    """

    def facts(arguments: Sequence[Facts]) -> Facts:
        numbers(name, arguments)
        nullable = any_null(arguments)
        if isinstance(image, tuple):
            return Facts(DOUBLE, nullable, image, True)
        if image is None or len(arguments) > 1:
            return Facts(DOUBLE, nullable)
        (a,) = arguments
        ends = [values(image, end) for end in a.range or ()]
        if not ends or ends[0] is None or ends[1] is None:
            return Facts(DOUBLE, nullable)
        return Facts(DOUBLE, nullable, (ends[0], ends[1]), a.declared)

    return named(name, arity, facts, doubles(name), *aliases)


def doubles(name: str) -> Callable[[Sides, Sequence[Facts], Facts], exp.Expr]:
    return lambda s, a, _: invoke(name, *converted(s, a, DOUBLE))


def power(arguments: Sequence[Facts]) -> Facts:
    """Between its corners where the base is not negative; else if the exponent is a constant whole number."""
    numbers("pow", arguments)
    a, b = arguments
    range_: Range | None = None
    if a.range is not None and b.range is not None:
        sides = [values(math.pow, x, y) for x in a.range for y in b.range]
        found = [side for side in sides if side is not None]
        whole_ = b.range[0] == b.range[1] and b.range[0].denominator == 1 and b.range[0] >= 0
        if len(found) == 4 and (a.range[0] >= 0 or whole_):
            even = whole_ and b.range[0] % 2 == 0 and has_zero(a)
            range_ = min(Fraction(0), *found) if even else min(found), max(found)
    return Facts(DOUBLE, any_null(arguments), range_, a.declared and b.declared)


def test_of(name: str, *kinds: str) -> Function:
    """A test of doubles, or of what has one of these kinds."""

    def facts(arguments: Sequence[Facts]) -> Facts:
        if arguments[0].type.kind not in kinds:
            numbers(name, arguments)
        return Facts(BOOLEAN, arguments[0].nullable)

    return named(name, (1, 1), facts, lambda s, a, r: doubles(name)(s, a, r) if a[0].type.numeric else invoke(name, *s))


# --- whole numbers ----------------------------------------------------------------------------------------------------


def small(name: str, low: int, high: int, most: Type | None = None) -> Function:
    """A TINYINT within these ends."""

    def facts(arguments: Sequence[Facts]) -> Facts:
        numbers(name, arguments)
        if most is not None:
            integers(name, arguments, most)
        return Facts(Type("TINYINT"), arguments[0].nullable, (Fraction(low), Fraction(high)), True)

    return named(name, (1, 1), facts)


def multiple(name: str, alias: str) -> Function:
    """gcd and lcm, which take the absolute value first."""

    def facts(arguments: Sequence[Facts]) -> Facts:
        integers(name, arguments)
        a, b = arguments
        if a.range is None or b.range is None:  # above the noise
            return Facts(widest(a, b))
        top = max(a.bulk, b.bulk) if name == "gcd" else a.bulk * b.bulk
        type_ = fitting(name, 0, (-top, top), [BIGINT])
        return Facts(type_, any_null(arguments), (Fraction(0), top), a.declared and b.declared)

    return named(name, (2, 2), facts, lambda s, a, r: invoke(name, *converted(s, a, r.type)), alias)


MOST_FACTORIAL = 33


def factorial_facts(arguments: Sequence[Facts]) -> Facts:
    integers("factorial", arguments, Type("INTEGER"))
    (a,) = arguments
    if a.range is None:
        return Facts(HUGEINT)
    low, high = (math.factorial(int(min(max(end, Fraction(0)), Fraction(MOST_FACTORIAL)))) for end in a.range)
    return Facts(HUGEINT, True, (Fraction(low), Fraction(high)), a.declared)


def factorial_total(sides: Sides, arguments: Sequence[Facts], _: Facts) -> exp.Expr:
    zero, most = exp.Literal.number(0), exp.Literal.number(MOST_FACTORIAL)
    return invoke("factorial", cast(guarded(sides[0], zero, most), arguments[0].type, Type("INTEGER")))


def bits(name: str, build: Callable[[Sides], exp.Expr], arguments: range | None = None) -> Function:
    """Functions of the bits of two whole numbers in one type, which holds whatever they give."""

    def facts(arguments: Sequence[Facts]) -> Facts:
        integers(name, arguments)
        a, b = arguments
        if a.range is None or b.range is None:  # above the noise
            return Facts(widest(a, b))
        type_ = common(name, arguments)
        assert type_.range is not None
        range_, declared = type_.range, a.declared and b.declared
        if a.range[0] >= 0 and b.range[0] >= 0:
            most = int(min(a.range[1], b.range[1]) if name == "&" else max(a.range[1], b.range[1]))
            range_ = Fraction(0), Fraction(most if name == "&" else 2 ** most.bit_length() - 1)
        return Facts(type_, any_null((a, b)), range_, declared)

    return Function(name, facts, lambda s, a, r: build(converted(s, a, r.type)), build, arguments)


def shift(name: str, node: type[exp.Binary]) -> Function:
    """<< and >>. To the left: NULL where the engine raises, for negative numbers and for bits that fall off."""

    def facts(arguments: Sequence[Facts]) -> Facts:
        integers(name, arguments)
        a, b = arguments
        if a.range is None or b.range is None:  # above the noise
            return Facts(widest(a, b))
        type_, zero = common(name, arguments), Fraction(0)
        assert type_.range is not None
        if name == ">>":
            return Facts(type_, any_null(arguments), (min(a.range[0], zero), max(a.range[1], zero)), a.declared)
        most = max(a.range[1], zero) * 2 ** int(min(max(b.range[1], zero), Fraction(128)))
        return Facts(type_, True, (zero, min(most, type_.range[1])), a.declared and b.declared)

    def total(sides: Sides, arguments: Sequence[Facts], result: Facts) -> exp.Expr:
        left, right = converted(sides, arguments, result.type)
        if name == "<<":
            assert result.type.range is not None
            zero, most = (to_type(exp.Literal.string(str(n)), result.type.sql) for n in (0, int(result.type.range[1])))
            room = paren(exp.BitwiseRightShift(this=most, expression=again(right)))
            left = guarded(left, zero, room)
            right = when((exp.GTE(this=right, expression=zero.copy()), again(right)))
        return binary(node)((left, right))

    return Function(name, facts, total, binary(node))


def inverted(arguments: Sequence[Facts]) -> Facts:
    integers("~", arguments)
    (a,) = arguments
    if a.range is None or a.type.range is None:
        return Facts(a.type, a.nullable)
    top = a.type.range[0] + a.type.range[1]  # -1, or the largest of an unsigned type
    return Facts(a.type, a.nullable, (top - a.range[1], top - a.range[0]), a.declared)


def complement(sides: Sides) -> exp.Expr:
    return paren(exp.BitwiseNot(this=paren(sides[0])))


def modulo_facts(arguments: Sequence[Facts]) -> Facts:
    numbers("fmod", arguments)
    b = arguments[1].range
    range_ = (Fraction(0), b[1]) if b is not None and b[0] > 0 else None
    return Facts(DOUBLE, any_null(arguments), range_, arguments[1].declared and range_ is not None)


def modulo(sides: Sides, arguments: Sequence[Facts], _: Facts) -> exp.Expr:
    """Written out: the engine's macro has its arguments twice, which would double with every level."""
    a, b = converted(sides, arguments, DOUBLE)
    times = exp.Mul(this=again(b), expression=invoke("floor", divide((again(a), b))))
    return binary(exp.Sub)((a, paren(times)))


PI = Fraction(math.pi)
UNITY = Fraction(-1), Fraction(1)
REALS: dict[str, Image | Range | None] = {
    "ln": math.log,
    "log2": math.log2,
    "log10": math.log10,
    "sqrt": lambda x: math.sqrt(max(x, 0)),
    "cbrt": lambda x: math.copysign(abs(x) ** (1 / 3), x),
    "exp": math.exp,
    "degrees": math.degrees,
    "radians": math.radians,
    "sin": UNITY,
    "cos": UNITY,
    "tanh": UNITY,
    "asin": (-PI / 2, PI / 2),
    "acos": (Fraction(0), PI),
    "atan": (-PI / 2, PI / 2),
    "sinh": math.sinh,
    "asinh": math.asinh,
    "acosh": math.acosh,
    "atanh": math.atanh,
    **dict.fromkeys(("tan", "cot", "cosh", "gamma", "lgamma", "even")),
}
NUMBERS = (
    arithmetic("+", exp.Add, lambda x, y: x + y, "add"),
    arithmetic("-", exp.Sub, lambda x, y: x - y, "subtract"),
    arithmetic("*", exp.Mul, lambda x, y: x * y, "multiply"),
    Function("/", divide_facts, lambda s, a, _: divide(converted(s, a, DOUBLE)), divide),
    whole("//", exp.IntDiv, "divide"),
    whole("%", exp.Mod, "mod"),
    Function("negate", negate_facts, lambda s, a, r: negate([cast(s[0], a[0].type, r.type)]), negate),
    named("abs", (1, 1), absolute, lambda s, a, r: invoke("abs", cast(s[0], a[0].type, r.type))),
    rounding("round", 1),
    rounding("round_even", 2, "roundbankers"),
    rounding("trunc", 1),
    to_whole("floor", math.floor),
    to_whole("ceil", math.ceil, "ceiling"),
    *(real(name, image) for name, image in REALS.items()),
    real("log", math.log10, arity=(1, 2)),
    real("atan2", (-PI, PI), arity=(2, 2)),
    real("nextafter", arity=(2, 2)),
    real("fdiv", arity=(2, 2)),
    named("pow", (2, 2), power, doubles("pow"), "power"),
    named("pi", (0, 0), lambda _: Facts(DOUBLE, False, (PI, PI), True)),
    test_of("isnan"),
    test_of("isinf", "DATE", "TIMESTAMP"),
    test_of("isfinite", "DATE", "TIMESTAMP"),
    test_of("signbit"),
    small("sign", -1, 1),
    small("bit_count", 0, 64, BIGINT),
    multiple("gcd", "greatest_common_divisor"),
    multiple("lcm", "least_common_multiple"),
    named("factorial", (1, 1), factorial_facts, factorial_total),
    bits("xor", lambda s: invoke("xor", *s), range(2, 3)),
    bits("&", binary(exp.BitwiseAnd)),
    bits("|", binary(exp.BitwiseOr)),
    shift("<<", exp.BitwiseLeftShift),
    shift(">>", exp.BitwiseRightShift),
    Function("~", inverted, lambda s, *_: complement(s), complement),
    named("fmod", (2, 2), modulo_facts, modulo),
)
