"""Lists of scalars. An element may be NULL; a list of texts has a `size` too: its bytes and its elements are counted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction

from sqlglot import exp

from dpsql.errors import Refused
from dpsql.kernel.functions.facts import (
    LONGEST,
    UNIT,
    Facts,
    Function,
    Sides,
    again,
    any_null,
    binary,
    cast,
    constant_needed,
    holds,
    invoke,
    mismatch,
    named,
    overflow,
    present,
    to_type,
    when,
)
from dpsql.kernel.functions.logic import choice, converted, meeting, same_family
from dpsql.kernel.functions.text import MAX_COMPARED, capped, constant_text, extracted, function, grown, regexp, short
from dpsql.policy.catalog import BIGINT, BOOLEAN, DOUBLE, HUGEINT, VARCHAR, Type

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


# --- lists that are sorted, or joined ---------------------------------------------------------------------------------

ORDERS = ({"ASC", "DESC"}, {"NULLS FIRST", "NULLS LAST"})


def sorting(name: str, alias: str, most: int) -> Function:
    """Not of doubles: 0.0 and -0.0 are equal, and which of them comes first would be the engine's choice."""

    def result(arguments: Sequence[Facts]) -> Facts:
        if element(arguments[0]).type == DOUBLE:
            raise mismatch(name, arguments)
        for argument, words in zip(arguments[1:], ORDERS[3 - most :], strict=False):
            if argument.constant not in words:
                raise constant_needed(name, f"one of {', '.join(sorted(words))}", "Write list_sort(x, 'DESC').")
        return same(arguments)

    return on_list(name, (1, most), result, alias, total=lambda s, *_: invoke(name, *s))


def longer(name: str, parts: Sequence[Facts], nullable: bool) -> Facts:
    """The elements of all these, with as many copies of a row's lists as they have together."""
    found = choice(name, [element(a) if a.type.element else a for a in parts], True)
    copies = sum(a.copies for a in parts)
    if copies > LONGEST:
        what = f"a list may become more than {LONGEST} times as long as the lists in its row"
        raise Refused("may_overflow", what, "Join fewer of them.")
    if found.type == VARCHAR:
        found = grown(parts, sum((a.growth for a in parts), Fraction(0)))
    for a in parts:
        short(a)
    return replace(found, type=found.type.list, nullable=nullable, copies=copies)


def joined(sides: Sides, arguments: Sequence[Facts], type_: Type) -> list[exp.Expr]:
    """All in the type of the elements of the result."""
    met = type_.element
    assert met is not None
    return [
        cast(s, a.type, met.list if a.type.element else met) if a.type.kind != "NULL" else s
        for s, a in zip(sides, arguments, strict=True)
    ]


def joining(name: str, arity: tuple[int, int], lists: Sequence[int], *aliases: str) -> Function:
    """list_concat, list_append and list_prepend: a list that is NULL is one without elements."""

    def facts(arguments: Sequence[Facts]) -> Facts:
        places = range(len(arguments)) if arity[1] > 2 else lists
        if any((a.type.element is not None) != (i in places) for i, a in enumerate(arguments)):
            raise mismatch(name, arguments)
        return longer(name, arguments, False)

    return named(name, arity, facts, lambda s, a, r: invoke(name, *joined(s, a, r.type)), *aliases)


def piped(arguments: Sequence[Facts]) -> Facts:
    if any(a.type.element is None for a in arguments):
        raise mismatch("||", arguments)
    return longer("||", arguments, any_null(arguments))


def common_to(sides: Sides, arguments: Sequence[Facts], _: Facts) -> exp.Expr:
    met = elements("list_intersect", arguments)
    found = invoke("list_intersect", *(cast(s, a.type, met.list) for s, a in zip(sides, arguments, strict=True)))
    return in_order(found)


def common_facts(arguments: Sequence[Facts]) -> Facts:
    if arguments[1].type.element is None:
        raise mismatch("list_intersect", arguments)
    return replace(same(arguments), type=elements("list_intersect", arguments).list)


def in_order(found: exp.Expr) -> exp.Expr:
    """Different elements, of which the engine's order is its own."""
    return invoke("list_sort", found, exp.Literal.string("ASC"), exp.Literal.string("NULLS LAST"))


def places(*numbers: int) -> list[exp.Expr]:
    return [to_type(exp.Literal.string(str(number)), "BIGINT") for number in numbers]


def of_kind(name: str, kind: str, *aliases: str) -> Function:
    """An aggregate of a list that gives one of its elements, or all their bits together."""

    def result(arguments: Sequence[Facts]) -> Facts:
        a = element(arguments[0])
        if a.type.kind != kind:
            raise mismatch(name, arguments)
        return Facts(a.type, True, a.type.range)

    return on_list(name, ONE, result, *aliases)


def middle(arguments: Sequence[Facts]) -> Facts:
    a = element(arguments[0])
    if a.type.kind != "INTEGER":
        raise mismatch("list_median", arguments)
    return Facts(DOUBLE, True, a.range, a.declared)


# --- texts and values to lists, and back ------------------------------------------------------------------------------


def parts_of(arguments: Sequence[Facts]) -> Facts:
    """As many bytes as the text has, and one element more than that at the most."""
    return replace(grown(arguments, 3 * arguments[0].growth), type=VARCHAR.list)


def matches(arguments: Sequence[Facts]) -> Facts:
    extracted(arguments)
    return parts_of(arguments)


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
    if found.type.list.element is None:  # of intervals: what is equal would have several representations
        raise mismatch("a list", arguments)
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
    on_list("list_distinct", ONE, same, "array_distinct", total=lambda s, *_: in_order(invoke("list_distinct", *s))),
    sorting("list_sort", "array_sort", 3),
    sorting("list_reverse_sort", "array_reverse_sort", 2),
    joining("list_concat", (2, 99), (), "list_cat", "array_concat", "array_cat"),
    joining("list_append", TWO, (0,), "array_append", "array_push_back"),
    joining("list_prepend", TWO, (1,), "array_prepend"),
    replace(
        joining("array_push_front", TWO, (0,)),
        total=lambda s, a, r: invoke("list_prepend", *joined(s, a, r.type)[::-1]),
    ),
    Function("LIST ||", piped, lambda s, a, r: binary(exp.DPipe)(joined(s, a, r.type)), binary(exp.DPipe)),
    on_list("list_intersect", TWO, common_facts, "array_intersect", total=common_to),
    *(
        on_list(name, ONE, lambda a: element(a[0]))
        for name in ("list_first", "list_last", "list_any_value", "list_mode")
    ),
    *(of_kind(name, "BOOLEAN") for name in ("list_bool_and", "list_bool_or")),
    *(of_kind(name, "INTEGER") for name in ("list_bit_and", "list_bit_or", "list_bit_xor")),
    on_list("list_median", ONE, middle),
    on_list("cardinality", ONE, lambda a: replace(number_of(a), type=Type("UBIGINT"))),
    # Macros of the engine that have their argument twice.
    on_list("array_pop_back", ONE, same, total=lambda s, *_: invoke("list_slice", s[0], *places(1, -2))),
    on_list("array_pop_front", ONE, same, total=lambda s, *_: invoke("list_slice", s[0], *places(2, -1))),
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
    capped(function("parse_path", ONE, parts_of), 4096, 1),
    *(
        regexp(name, arity, found, *behind, aliases=other, most=MAX_COMPARED)
        for name, arity, found, behind, other in (
            ("regexp_extract_all", (2, 4), matches, ("group",), ()),
            ("string_split_regex", (2, 3), parts_of, (), ("str_split_regex", "regexp_split_to_array")),
        )
    ),
    capped(
        function("string_split", TWO, parts_of, "str_split", "string_to_array", "split", constants=("separator",)),
        4096,
        1,
    ),
    on_list("array_to_string", TWO, glued, total=glue),
    named("list_value", (1, 99), made, make, "list_pack"),
)
