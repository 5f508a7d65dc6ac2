"""Lists of scalars. An element may be NULL; a list of texts has a `size` too: its bytes and its elements are counted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction

from sqlglot import exp

from dpsql.catalog import BIGINT, BOOLEAN, DOUBLE, HUGEINT, VARCHAR, Type
from dpsql.errors import Refused
from dpsql.functions.facts import (
    UNIT,
    Facts,
    Function,
    Sides,
    again,
    any_null,
    cast,
    holds,
    invoke,
    mismatch,
    named,
    overflow,
    present,
    when,
)
from dpsql.functions.logic import choice, converted, meeting, same_family
from dpsql.functions.text import capped, constant_text, function, grown, short

MOST = Fraction(2**37)  # elements that a list may have: the engine's vectors are smaller
ONE, TWO = (1, 1), (2, 2)


def element(a: Facts) -> Facts:
    """What is known of the elements of a list; its own range and size are theirs."""
    assert a.type.element is not None
    if a.range is not None:
        return replace(a, type=a.type.element, nullable=True, stored=False)
    range_ = a.type.element.range
    return Facts(a.type.element, True, range_, size=a.size, ends=(range_ is not None and range_[0] == 0, False))


def on_list(
    name: str,
    arity: tuple[int, int],
    result: Callable[[Sequence[Facts]], Facts],
    *aliases: str,
    total: Callable[[Sides, Sequence[Facts], Facts], exp.Expr] | None = None,
) -> Function:
    """A function of a list, and of whole numbers behind it unless `total` says what to do with them."""

    def facts(arguments: Sequence[Facts]) -> Facts:
        rest = () if total else arguments[1:]
        if arguments[0].type.element is None or any(a.type.kind != "INTEGER" for a in rest):
            raise mismatch(name, arguments)
        if any(a.range is not None and not holds(BIGINT, 0, a.range) for a in rest):
            raise Refused("may_overflow", f"a number in {name} may be too large", "Bound it: least(x, 100).")
        return result(arguments)

    def whole(sides: Sides, arguments: Sequence[Facts], _: Facts) -> exp.Expr:
        rest = (cast(s, a.type, BIGINT) for s, a in zip(sides[1:], arguments[1:], strict=True))
        return invoke(name, sides[0], *rest)

    return named(name, arity, facts, total or whole, *aliases)


def number_of(arguments: Sequence[Facts]) -> Facts:
    return Facts(BIGINT, any_null(arguments), (Fraction(0), MOST), ends=(True, False))


def same(arguments: Sequence[Facts]) -> Facts:
    return replace(arguments[0], nullable=True, stored=False)


def summed(arguments: Sequence[Facts]) -> Facts:
    """Only exact numbers, of which any number adds up; a sum of doubles would depend on how the engine adds them."""
    a = element(arguments[0])
    if a.type.kind not in ("INTEGER", "DECIMAL") or a.range is None:
        raise mismatch("list_sum", arguments)
    low, high = min(a.range[0], a.range[0] * MOST), max(a.range[1], a.range[1] * MOST)
    type_ = Type(f"DECIMAL(38,{a.type.scale})") if a.type.kind == "DECIMAL" else HUGEINT
    if not holds(type_, a.type.scale, (-a.bulk * MOST, a.bulk * MOST)):
        raise overflow("list_sum")
    return Facts(type_, True, (low, high), size=a.bulk * MOST)


def averaged(arguments: Sequence[Facts]) -> Facts:
    summed(arguments)
    a = element(arguments[0])
    return Facts(DOUBLE, True, a.range, a.declared)


# --- an element, or another list, beside a list -----------------------------------------------------------------------


def elements(name: str, arguments: Sequence[Facts]) -> Type:
    """The type in which the elements of a list are compared with a value, or with the elements of another list."""
    sides = [element(a) if a.type.element else a for a in arguments]
    same_family(name, sides)
    return meeting(name, sides)


def compared(name: str, both: bool, type_: Type, *aliases: str, range_: tuple[int, int] | None = None) -> Function:
    """A function of a list and a value, or of two lists, with elements in one type."""

    def result(arguments: Sequence[Facts]) -> Facts:
        if (arguments[1].type.element is not None) != both:
            raise mismatch(name, arguments)
        elements(name, arguments)
        short(arguments[1])
        known = (Fraction(range_[0]), Fraction(range_[1])) if range_ else None
        return Facts(type_, True, known, ends=(True, False) if range_ else None)

    def total(sides: Sides, arguments: Sequence[Facts], _: Facts) -> exp.Expr:
        met = elements(name, arguments)
        first, second = (
            cast(s, a.type, met.list if a.type.element else met) for s, a in zip(sides, arguments, strict=True)
        )
        if name == "list_contains" and met == VARCHAR:  # of a constant list the engine makes a comparison
            return present(lambda texts: invoke(name, first, *texts), [second])
        return invoke(name, first, second)

    return on_list(name, TWO, result, *aliases, total=total)


# --- texts and values to lists, and back ------------------------------------------------------------------------------


def parts_of(arguments: Sequence[Facts]) -> Facts:
    """As many bytes as the text has, and one element more than that at the most."""
    return replace(grown(arguments, 3 * arguments[0].growth), type=VARCHAR.list)


def glued(arguments: Sequence[Facts]) -> Facts:
    separator = constant_text("array_to_string", arguments[1], "separator")
    if arguments[0].type != VARCHAR.list:
        raise mismatch("array_to_string", arguments)
    return grown(arguments, arguments[0].growth * (1 + len(separator.encode())), True)


def glue(sides: Sides, _: Sequence[Facts], __: Facts) -> exp.Expr:
    """Written out: the engine's macro has its argument twice, which would double with every level."""
    empty = exp.EQ(this=invoke("array_length", again(sides[0])), expression=exp.Literal.number(0))
    every = invoke("list_aggregate", sides[0], exp.Literal.string("string_agg"), sides[1])
    return when((empty, exp.Literal.string("")), default=every)


def made(arguments: Sequence[Facts]) -> Facts:
    found = choice("a list", arguments, True)
    for a in arguments:
        short(a)
    if found.type == VARCHAR:
        texts = (Fraction(len(str(a.constant).encode()) + 1, UNIT) if a.constant else a.growth for a in arguments)
        found = grown(arguments, max(Fraction(1), sum(texts, Fraction(0))))
    return replace(found, type=found.type.list, nullable=False)


def make(sides: Sides, arguments: Sequence[Facts], result: Facts) -> exp.Expr:
    assert result.type.element is not None
    return invoke("list_value", *converted(sides, arguments, result.type.element))


LISTS = (
    on_list("array_length", ONE, number_of),  # and len, length: see `lower`
    on_list("list_extract", TWO, lambda a: element(a[0]), "list_element", "array_extract"),
    on_list("list_slice", (3, 3), same, "array_slice"),
    on_list("list_reverse", ONE, same, "array_reverse"),
    on_list("list_unique", ONE, lambda a: replace(number_of(a), type=Type("UBIGINT")), "array_unique"),
    on_list("list_count", ONE, number_of),
    on_list("list_min", ONE, lambda a: element(a[0])),
    on_list("list_max", ONE, lambda a: element(a[0])),
    on_list("list_sum", ONE, summed),
    on_list("list_avg", ONE, averaged),
    # The engine's order of distinct values is its own, so they are sorted.
    on_list(
        "list_distinct",
        ONE,
        same,
        "array_distinct",
        total=lambda s, *_: invoke(
            "list_sort", invoke("list_distinct", *s), exp.Literal.string("ASC"), exp.Literal.string("NULLS LAST")
        ),
    ),
    compared("list_contains", False, BOOLEAN, "list_has", "array_contains", "array_has"),
    compared(
        "list_position",
        False,
        Type("INTEGER"),
        "list_indexof",
        "array_position",
        "array_indexof",
        range_=(0, 2**31 - 1),
    ),
    compared("list_has_any", True, BOOLEAN, "array_has_any"),
    compared("list_has_all", True, BOOLEAN, "array_has_all"),
    capped(
        function("string_split", TWO, parts_of, "str_split", "string_to_array", "split", constants=("separator",)),
        4096,
        1,
    ),
    on_list("array_to_string", TWO, glued, total=glue),
    named("list_value", (1, 99), made, make, "list_pack"),
)
