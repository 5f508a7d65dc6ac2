"""Texts: functions, LIKE, and regular expressions. Patterns are constants, checked here."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
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
    guarded,
    holds,
    invoke,
    mismatch,
    named,
    paren,
    present,
    when,
)
from dpsql.policy.catalog import BIGINT, BOOLEAN, DOUBLE, HUGEINT, INTERVAL, VARCHAR, Type

LENGTH = Fraction(0), Fraction(2**32)  # the engine's texts are shorter than this
MAX_PATTERN = 500
ONE, TWO, TRIM = (1, 1), (2, 2), (1, 2)
MAX_CONSTANT = 500
# Longer texts are NULL to these. A regular expression replaces all matches in time quadratic in the text; distances and
# normal forms are quadratic by nature.
MAX_SEARCHED = {"regexp_replace": 512, "regexp_extract": 2048}
MAX_COMPARED = 256  # also where all matches of a regular expression are wanted: up to 0.5 ms a cell, as levenshtein
MAX_STEPS = 1_000  # of a regular expression, repetitions written out: the engine may take as many for each character


def grown(arguments: Sequence[Facts], growth: Fraction, nullable: bool | None = None) -> Facts:
    """A text that may be this many times longer than the texts of its row, or than UNIT bytes."""
    if growth > LONGEST:
        raise Refused(
            "may_overflow",
            f"a text may become more than {LONGEST} times as long as the texts in its row",
            "Use shorter replacements, or fewer of them.",
        )
    return Facts(VARCHAR, any_null(arguments) if nullable is None else nullable, size=growth)


def constant_text(name: str, argument: Facts, what: str) -> str:
    if not isinstance(argument.constant, str):
        raise constant_needed(name, f"a constant text for its {what}", f"Write the {what} out: '...'.")
    return argument.constant


# The numbers among constants, and from where to where they may go.
LIMITS = {"length": (0, 100), "count": (0, LONGEST), "radix": (2, 36), "digits": (0, 64), "position": (-1000, 1000)}
COUNTS = {"group", *LIMITS}


def constant_count(name: str, argument: Facts, what: str) -> int:
    low, high = LIMITS[what]
    if type(argument.constant) is not int or not low <= argument.constant <= high:
        raise constant_needed(name, f"a constant {what} from {low} to {high}", f"Write the {what} out.")
    return argument.constant


def function(
    name: str,
    arity: tuple[int, int],
    result: Callable[[Sequence[Facts]], Facts],
    *aliases: str,
    whole: Sequence[int] = (),
    constants: Sequence[str] = (),
) -> Function:
    """A function of texts. `whole` says which arguments are whole numbers, `constants` what those behind the first are."""

    def facts(arguments: Sequence[Facts]) -> Facts:
        for index, argument in enumerate(arguments):
            if argument.type.kind != ("INTEGER" if index in whole else "VARCHAR"):
                raise mismatch(name, arguments)
            if index in whole and argument.range is not None and not holds(Type("INTEGER"), 0, argument.range):
                raise Refused("may_overflow", f"a number in {name} may be too large", "Bound it: least(x, 100).")
        for argument in arguments:
            short(argument)
        for argument, what in zip(arguments[1:], constants, strict=False):
            if what not in COUNTS:
                constant_text(name, argument, what)
            elif what in LIMITS:
                constant_count(name, argument, what)
        return result(arguments)

    def total(sides: Sides, arguments: Sequence[Facts], result: Facts) -> exp.Expr:
        ready = [
            cast(s, a.type, BIGINT) if a.type.numeric and a.constant is None else s
            for s, a in zip(sides, arguments, strict=True)
        ]
        return present(lambda s: invoke(name, *s), ready) if result.type == BOOLEAN else invoke(name, *ready)

    return named(name, arity, facts, total, *aliases)


def capped(row: Function, most: int, count: int = 99) -> Function:
    """The function of texts, but its first arguments are NULL where they have more than `most` bytes."""

    def total(sides: Sides, arguments: Sequence[Facts], result: Facts) -> exp.Expr:
        limit = exp.Literal.number(most)
        ready = [
            when((exp.LTE(this=invoke("strlen", again(side)), expression=limit.copy()), side))
            if index < count and argument.type == VARCHAR
            else side
            for index, (side, argument) in enumerate(zip(sides, arguments, strict=True))
        ]
        return row.total(ready, arguments, result)

    return replace(row, facts=lambda arguments: replace(row.facts(arguments), nullable=True), total=total)


def longer(factor: Fraction) -> Callable[[Sequence[Facts]], Facts]:
    return lambda arguments: grown(arguments, arguments[0].growth * factor)


same = longer(Fraction(1))


def count_of(arguments: Sequence[Facts]) -> Facts:
    """A number of characters: nothing tells how many, but it is not negative."""
    return Facts(BIGINT, any_null(arguments), LENGTH, ends=(True, False))


def test_of(arguments: Sequence[Facts]) -> Facts:
    return Facts(BOOLEAN, any_null(arguments))


def short(argument: Facts) -> None:
    """Constants are long for every row at once, and a row that is not there would not be missed by a clock."""
    if isinstance(argument.constant, str) and len(argument.constant.encode()) > MAX_CONSTANT:
        raise constant_needed("a function of texts", f"constants of at most {MAX_CONSTANT} bytes", "Shorten them.")


def joined(arguments: Sequence[Facts], nullable: bool) -> Facts:
    if any(argument.type != VARCHAR for argument in arguments):
        raise mismatch("||", arguments)
    for argument in arguments:
        short(argument)
    return grown(arguments, sum((a.growth for a in arguments), Fraction(0)), nullable)


def joined_by(arguments: Sequence[Facts]) -> Facts:
    separators = arguments[0].growth * (len(arguments) - 2)
    return grown(arguments, separators + sum((a.growth for a in arguments[1:]), Fraction(0)), arguments[0].nullable)


def padded(arguments: Sequence[Facts]) -> Facts:
    if not arguments[2].constant:
        raise constant_needed("a padding", "at least one character", "Write lpad(x, 5, '0').")
    return grown(arguments, arguments[0].growth + Fraction(4 * int(str(arguments[1].constant)), UNIT))


def repeated(arguments: Sequence[Facts]) -> Facts:
    return grown(arguments, arguments[0].growth * max(1, int(str(arguments[1].constant))))


def letter_of(arguments: Sequence[Facts]) -> Facts:
    return Facts(Type("INTEGER"), any_null(arguments), (Fraction(-1), Fraction(0x10FFFF)), ends=(True, False))


def part_total(sides: Sides, _: Sequence[Facts], __: Facts) -> exp.Expr:
    """Written out: the engine's macro has its argument twice, which would double with every level."""
    parts = invoke("list_extract", invoke("string_split", *sides[:2]), sides[2])
    there = exp.Not(this=paren(exp.Is(this=again(sides[0]), expression=exp.Null())))
    return when((there, exp.Coalesce(this=parts, expressions=[exp.Literal.string("")])))


def overlaid(arguments: Sequence[Facts]) -> Facts:
    return grown(arguments, arguments[0].growth + arguments[1].growth)


# --- numbers as texts -------------------------------------------------------------------------------------------------


def spelled(
    name: str, *aliases: str, factor: int = 0, most: Type = BIGINT, low: int | None = None, behind: Sequence[str] = ()
) -> Function:
    """A whole number as a text of at most UNIT bytes, from `low` on; or a text that becomes `factor` times as long."""

    def facts(arguments: Sequence[Facts]) -> Facts:
        a = arguments[0]
        if factor and a.type == VARCHAR:
            return grown(arguments, a.growth * factor)
        if a.type.kind != "INTEGER" or (a.type.range and not holds(most, 0, a.type.range)):
            raise mismatch(name, arguments)
        for argument, what in zip(arguments[1:], behind, strict=False):
            constant_count(name, argument, what)
        return Facts(VARCHAR, any_null(arguments) or low is not None)

    def total(sides: Sides, arguments: Sequence[Facts], _: Facts) -> exp.Expr:
        if low is None:
            return invoke(name, *sides)
        first = when((exp.GTE(this=sides[0], expression=exp.Literal.number(low)), again(sides[0])))
        return invoke(name, first, *sides[1:])

    return named(name, (1 + len(behind[:1]), 1 + len(behind)), facts, total, *aliases)


def chr_total(sides: Sides, arguments: Sequence[Facts], _: Facts) -> exp.Expr:
    """Numbers of characters: surrogates are none."""
    numbers = [exp.Literal.number(n) for n in (0, 0x10FFFF, 0xD800, 0xDFFF)]
    code = guarded(sides[0], numbers[0], numbers[1])
    surrogate = exp.Between(this=again(code), low=numbers[2], high=numbers[3])
    return invoke("chr", cast(when((exp.Not(this=paren(surrogate)), code)), arguments[0].type, Type("INTEGER")))


def bar_facts(arguments: Sequence[Facts]) -> Facts:
    width = arguments[3].constant if len(arguments) > 3 else 80
    if not all(b.type.numeric for b in arguments):
        raise mismatch("bar", arguments)
    if None in [b.constant for b in arguments[1:]] or type(width) is not int or not 1 <= width <= 100:
        raise constant_needed("bar", "two constant ends and a constant width from 1 to 100", "Write bar(x, 0, 9, 20).")
    return grown(arguments, Fraction(1) + Fraction(3 * width, UNIT))


DISTANCES = {"levenshtein": ("editdist3",), "damerau_levenshtein": ()}


def similar(arguments: Sequence[Facts]) -> Facts:
    return Facts(DOUBLE, any_null(arguments), (Fraction(0), Fraction(1)), True)


def alike(name: str, result: Callable[[Sequence[Facts]], Facts], equal: bool, *aliases: str) -> Function:
    """Functions of two texts that are not empty, and where it has to be of equal length; others give NULL."""

    def total(sides: Sides, _: Sequence[Facts], __: Facts) -> exp.Expr:
        sizes = [invoke("strlen", again(side)) for side in sides]
        if equal:
            sizes[1] = when((exp.EQ(this=sizes[0].copy(), expression=sizes[1].copy()), sizes[1]))
        tests = [exp.GT(this=size, expression=exp.Literal.number(0)) for size in sizes]
        return invoke(name, sides[0], when((exp.And(this=tests[0], expression=tests[1]), sides[1])))

    return replace(function(name, TWO, lambda a: replace(result(a), nullable=True), *aliases), total=total)


def hash_facts(arguments: Sequence[Facts]) -> Facts:
    """Of values in the types that the engine would give them: a sum of ours may be in a wider one."""
    if any(
        a.type.kind in ("NULL", "OTHER", "LIST") or (a.size is not None and a.type not in (VARCHAR, INTERVAL))
        for a in arguments
    ):
        raise mismatch("hash", arguments)
    return Facts(Type("UBIGINT"), False, Type("UBIGINT").range)


def replaced(arguments: Sequence[Facts]) -> Facts:
    before, after = (len(str(argument.constant).encode()) for argument in arguments[1:3])
    return grown(arguments, arguments[0].growth * max(Fraction(1), Fraction(after, before) if before else Fraction(1)))


# --- LIKE -------------------------------------------------------------------------------------------------------------


def like(name: str, node: type[exp.Binary]) -> Function:
    def facts(arguments: Sequence[Facts]) -> Facts:
        if any(argument.type != VARCHAR for argument in arguments):
            raise mismatch(name, arguments)
        pattern = constant_text(name, arguments[1], "pattern")
        escape = constant_text(name, arguments[2], "ESCAPE") if len(arguments) > 2 else None
        if len(pattern) > MAX_PATTERN:
            raise constant_needed(name, f"a pattern of at most {MAX_PATTERN} characters", "Shorten it.")
        if escape is not None and (len(escape) != 1 or not escape.isascii() or escape in "%_"):
            raise constant_needed(name, "one ASCII character behind ESCAPE", "Write ESCAPE '$'.")
        # An escape character is to stand before what it escapes; the engine raises where it is the last one.
        if escape is not None and not re.fullmatch(rf"(?s:[^{re.escape(escape)}]|{re.escape(escape)}.)*", pattern):
            raise constant_needed(name, "a pattern that does not end with its escape character", "Double it.")
        return test_of(arguments)

    def build(sides: Sides) -> exp.Expr:
        test: exp.Expr = node(this=sides[0], expression=sides[1])
        return paren(exp.Escape(this=test, expression=sides[2]) if len(sides) > 2 else test)

    return Function(name, facts, lambda s, *_: present(build, s), build)


# --- regular expressions ----------------------------------------------------------------------------------------------


def check_pattern(name: str, pattern: str) -> int:
    """The engine compiles a constant pattern when it binds, and so refuses an invalid one on the empty tables.

    Left to check: that it is short with its repetitions written out, and that it matches whole characters (\\C is a byte).
    One match takes time linear in the text, whatever the pattern; texts are cut off at MAX_SEARCHED. Gives the number of
    its groups.
    """
    counts = re.findall(r"\{0*(\d{1,4})(?:,0*(\d{0,4}))?\}", pattern)  # the engine takes up to 1,000
    repeats = math.prod(max(int(low), int(high or 1), 1) for low, high in counts)
    if len(pattern) > MAX_PATTERN or len(pattern) * repeats > MAX_STEPS:
        raise constant_needed(name, "a shorter pattern", "Use fewer characters, and smaller numbers in {...}.")
    plain = re.fullmatch(r"(?s:[^\\]|\\[dDwWsSbBtnr]|\\[!-/:-@\[-`{-~])*", pattern) and not re.search(
        r"\(\?(?!:)", pattern
    )
    with (
        suppress(re.error, OverflowError),
        warnings.catch_warnings(action="ignore"),
    ):  # Python's own reading, for the sake of the hint
        if plain:
            return re.compile(pattern).groups
    raise constant_needed(
        name,
        "a plain regular expression",
        r"Write . [a-z] \d \w \s \b ^ $ | ( ) (?: ) * + ? {2,3}, and \ before other signs.",
    )


def regexp(
    name: str,
    arity: tuple[int, int],
    result: Callable[[Sequence[Facts]], Facts],
    *behind: str,
    allowed: str = "cis",
    aliases: Sequence[str] = (),
    most: int | None = None,
) -> Function:
    """A function of a text and a constant pattern; `behind` are the arguments after it."""

    def facts(arguments: Sequence[Facts]) -> Facts:
        check_pattern(name, str(arguments[1].constant))
        given = str(arguments[arity[1] - 1].constant) if len(arguments) == arity[1] else ""
        if set(given) - set(allowed):
            raise constant_needed(
                name, f"options out of {', '.join(allowed)}", "Write 'i' for any case, 's' for . over lines."
            )
        return result(arguments)

    whole = [2] if "group" in behind else []
    row = function(name, arity, facts, *aliases, whole=whole, constants=("pattern", *behind, "options"))
    once = capped(row, most or MAX_SEARCHED.get(name, 4096), 1)
    if "g" not in allowed:
        return once
    every = capped(row, MAX_COMPARED, 1)

    def total(sides: Sides, arguments: Sequence[Facts], found: Facts) -> exp.Expr:
        options = arguments[-1].constant if len(arguments) == arity[1] else ""
        return (every if "g" in str(options) else once).total(sides, arguments, found)

    return replace(once, total=total)


def extracted(arguments: Sequence[Facts]) -> Facts:
    groups = min(check_pattern("regexp_extract", str(arguments[1].constant)), 9)
    if len(arguments) > 2 and arguments[2].constant not in range(groups + 1):
        raise constant_needed("regexp_extract", "a group of its pattern", "Write regexp_extract(x, 'a(b)', 1).")
    return same(arguments)


def substituted(arguments: Sequence[Facts]) -> Facts:
    """Matches do not overlap, so all that a group matched is no longer than the text: it grows by one text for each `\\1`."""
    new, groups = str(arguments[2].constant), check_pattern("regexp_replace", str(arguments[1].constant))
    found = [int(digit) for digit in re.findall(r"\\([0-9])", new)]
    if new.count("\\") > len(found) or any(group > groups for group in found):
        raise constant_needed("regexp_replace", "a replacement with groups of its pattern", r"Write \1 for the first.")
    everywhere = len(arguments) > 3 and "g" in str(arguments[3].constant)
    return grown(arguments, (arguments[0].growth + 1) * (1 + len(found) + len(new.encode()) * everywhere))


# --- texts that have to be read, or are written by a format ------------------------------------------------------------

HEX, REST = "[0-9A-Fa-f]", "%[89ABab][0-9A-Fa-f]"
# What the engine decodes: signs, a % with fewer than two digits behind it, and whole characters of UTF-8.
CHARACTERS = (
    f"[0-7]{HEX}|[Cc][2-9A-Fa-f]{REST}|[Dd]{HEX}{REST}|[Ee]0%[AaBb]{HEX}{REST}|[Ee][1-9A-Ca-cE-Fe-f]{REST}{REST}"
    f"|[Ee][Dd]%[89]{HEX}{REST}|[Ff]0%[9ABab]{HEX}{REST}{REST}|[Ff][1-3]{REST}{REST}{REST}|[Ff]4%8{HEX}{REST}{REST}"
)
DECODED = f"(?:[^%]|(?:%{HEX}?)*%(?:{CHARACTERS})|(?:%{HEX}?)+[^%0-9A-Fa-f])*(?:%{HEX}?)*"


def decode(sides: Sides, _: Sequence[Facts], __: Facts) -> exp.Expr:
    """Of what is UTF-8 once it is decoded; else NULL."""
    pattern = exp.Literal.string(DECODED), exp.Literal.string("s")
    whole = present(lambda s: invoke("regexp_full_match", *s, *pattern), sides[:1])
    return invoke("url_decode", when((whole, again(sides[0]))))


def printed(name: str, sign: str, kinds: dict[str, Sequence[str]]) -> Function:
    """printf and format: a constant text in which each sign has a value of its kind, and no other sign stands."""

    def facts(arguments: Sequence[Facts]) -> Facts:
        text = constant_text(name, arguments[0], "format")
        short(arguments[0])
        wanted = [part for part in re.findall(sign, text) if part not in ("%%", "{{", "}}")]
        if re.search(r"[%{}]", re.sub(sign, "", text)) or len(wanted) != len(arguments) - 1:
            raise constant_needed(name, "one %s, %d, %.2f or {} for each value", "Write printf('%s: %d', x, y).")
        growth = Fraction(len(text.encode()), UNIT)
        for part, a in zip(wanted, arguments[1:], strict=True):
            short(a)
            if a.type.kind not in next(known for end, known in kinds.items() if part.endswith(end)):
                raise mismatch(name, arguments[1:])
            growth += a.growth if a.type == VARCHAR else Fraction(320 if a.type == DOUBLE else 64, UNIT)  # 1e308
        return grown(arguments, max(Fraction(1), growth))

    return named(name, (1, 99), facts)


TEXT = (
    function("length", ONE, count_of, "len", "char_length", "character_length"),
    # A letter of the other case may take one byte more.
    function("lower", ONE, longer(Fraction(3, 2)), "lcase"),
    function("upper", ONE, longer(Fraction(3, 2)), "ucase"),
    function("substr", (2, 3), same, "substring", whole=(1, 2)),
    replace(function("array_extract", TWO, same, whole=(1,)), name="TEXT[i]", arguments=None),
    replace(function("array_slice", (3, 3), same, whole=(1, 2)), name="TEXT[i:j]", arguments=None),
    function("left", TWO, same, whole=(1,)),
    function("right", TWO, same, whole=(1,)),
    *(function(name, TRIM, same, constants=("characters",)) for name in ("trim", "ltrim", "rtrim")),
    function("replace", (3, 3), replaced, constants=("search text", "replacement")),
    function("concat", (1, 99), lambda a: joined(a, False)),
    Function("||", lambda a: joined(a, any_null(a)), lambda s, *_: binary(exp.DPipe)(s), binary(exp.DPipe)),
    function("strpos", TWO, count_of, "position", "instr"),
    function("starts_with", TWO, test_of, "prefix"),
    function("ends_with", TWO, test_of, "suffix"),
    function("contains", TWO, test_of),
    function("reverse", ONE, same),
    function("strip_accents", ONE, longer(Fraction(3, 2))),
    function("url_encode", ONE, longer(Fraction(3))),
    function("regexp_escape", ONE, longer(Fraction(4))),
    *(function(name, ONE, lambda a: grown(a, Fraction(1))) for name in ("md5", "sha1", "sha256")),
    *(function(name, ONE, same) for name in ("parse_filename", "parse_dirname", "parse_dirpath")),
    function("strlen", ONE, count_of),
    function("bit_length", ONE, lambda a: replace(count_of(a), range=(LENGTH[0], 8 * LENGTH[1]))),
    function("length_grapheme", ONE, count_of),
    function("substring_grapheme", (2, 3), same, whole=(1, 2)),
    function("left_grapheme", TWO, same, whole=(1,)),
    function("right_grapheme", TWO, same, whole=(1,)),
    function("ascii", ONE, letter_of),
    function("unicode", ONE, letter_of, "ord"),
    function("translate", (3, 3), longer(Fraction(4)), constants=("characters", "replacements")),
    function("lpad", (3, 3), padded, whole=(1,), constants=("length", "padding")),
    function("rpad", (3, 3), padded, whole=(1,), constants=("length", "padding")),
    function("repeat", TWO, repeated, whole=(1,), constants=("count",)),
    capped(
        replace(
            function("split_part", (3, 3), same, whole=(2,), constants=("separator", "position")), total=part_total
        ),
        4096,
        1,
    ),
    function("overlay", (3, 4), overlaid, whole=(2, 3)),
    function("concat_ws", (2, 99), joined_by),
    spelled("hex", "to_hex", factor=2, most=HUGEINT),
    spelled("bin", "to_binary", factor=8, most=HUGEINT),
    spelled("to_base", low=0, behind=("radix", "digits")),
    spelled("format_bytes", "formatreadablesize", "pg_size_pretty"),
    spelled("formatreadabledecimalsize"),
    named("chr", ONE, spelled("chr", most=Type("INTEGER"), low=0).facts, chr_total),
    named("bar", (3, 4), bar_facts, lambda s, a, _: invoke("bar", cast(s[0], a[0].type, DOUBLE), *s[1:])),
    named("hash", (1, 99), hash_facts),
    *(capped(function(name, TWO, count_of, *other), MAX_COMPARED) for name, other in DISTANCES.items()),
    *(capped(function(name, TWO, similar), MAX_COMPARED) for name in ("jaro_similarity", "jaro_winkler_similarity")),
    capped(function("nfc_normalize", ONE, longer(Fraction(3))), MAX_COMPARED),
    alike("hamming", count_of, True, "mismatches"),
    alike("jaccard", similar, False),
    like("LIKE", exp.Like),
    like("ILIKE", exp.ILike),
    regexp("regexp_matches", (2, 3), test_of),
    regexp("regexp_full_match", (2, 3), test_of),
    regexp("regexp_extract", (2, 4), extracted, "group"),
    regexp("regexp_replace", (3, 4), substituted, "replacement", allowed="cgis"),
    capped(named("url_decode", ONE, function("url_decode", ONE, same).facts, decode), 4096),
    printed(
        "printf", r"%(?:%|s|0?[1-9]?d|\.[0-9]f)", {"s": ("VARCHAR",), "d": ("INTEGER",), "f": ("DOUBLE", "DECIMAL")}
    ),
    printed("format", r"\{(?:\{|\}|:\.[0-9]f\})|\}\}", {"{}": ("VARCHAR", "INTEGER"), "f}": ("DOUBLE", "DECIMAL")}),
)
