"""Expressions: each node becomes a call of the table of functions, or is refused. The same below and above the noise."""

from __future__ import annotations

import datetime
import difflib
import re
from collections.abc import Callable
from fractions import Fraction
from functools import reduce
from typing import Any, NoReturn

from sqlglot import exp

from dpsql.compiler.aggregates import RULES
from dpsql.compiler.parse import describe, position
from dpsql.errors import Refused
from dpsql.kernel import algebra
from dpsql.kernel.algebra import Call, Expr, Free, Literal, call, constant
from dpsql.kernel.functions import NAMES
from dpsql.kernel.functions.dates import SYNONYMS
from dpsql.policy.catalog import BOOLEAN, DAY, MOST_DAYS, UNITS, Interval, Type, Value, fold, read_interval

OPERATORS: dict[type[exp.Expr], str] = {
    exp.Add: "+",
    exp.Sub: "-",
    exp.Mul: "*",
    exp.Div: "/",
    exp.IntDiv: "//",
    exp.Mod: "%",
    exp.EQ: "=",
    exp.NEQ: "!=",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
    exp.And: "AND",
    exp.Or: "OR",
    exp.BitwiseAnd: "&",
    exp.BitwiseOr: "|",
    exp.BitwiseLeftShift: "<<",
    exp.BitwiseRightShift: ">>",
    exp.NullSafeEQ: "IS NOT DISTINCT FROM",
    exp.NullSafeNEQ: "IS DISTINCT FROM",
}
LENGTHS = frozenset(f"to_{unit}s" for unit, (kind, _) in UNITS.items() if kind != "months")
# Aggregates of the engine over persons, which must not be mistaken for functions of released values.
OVER_PERSONS = frozenset(
    "median mode quantile quantile_cont quantile_disc string_agg listagg group_concat list array_agg first last any_value "  # noqa: SIM905
    "arg_max arg_min max_by min_by histogram product entropy kurtosis skewness mad approx_count_distinct approx_quantile "
    "approx_top_k bit_and bit_or bit_xor favg fsum kahan_sum geomean ntile percent_rank cume_dist nth_value".split()
)
SHARE = "Ask which part lies below a value: SELECT count_if({x} <= 20) / count(*) {rows}."
INSTEAD = {
    "mode": "Count each value: SELECT {x}, count(*) AS n {rows} GROUP BY {x} ORDER BY n DESC LIMIT 1.",
    "approx_count_distinct": "Write count(DISTINCT {x}).",
    **dict.fromkeys(("median", "quantile", "quantile_cont", "quantile_disc", "approx_quantile"), SHARE),
}
ON_ANSWERS = "Check its name. Functions of DuckDB apply to answers: SELECT f(n) FROM (SELECT count(*) AS n FROM t)."
# Where a text stands beside a date, a timestamp or an interval it is one.
DATED = {
    "=",
    "!=",
    "<",
    "<=",
    ">",
    ">=",
    "IS DISTINCT FROM",
    "IS NOT DISTINCT FROM",
    "IN",
    "BETWEEN",
    "CASE",
    "coalesce",
    "nullif",
    "least",
    "greatest",
}


def refuse(code: str, message: str, hint: str = "", node: exp.Expr | None = None) -> NoReturn:
    raise Refused(code, message, hint, position(node))


def misplaced(node: exp.Expr) -> NoReturn:
    refuse(
        "aggregate_misplaced",
        f"{describe(node)} stands where a row is needed",
        "Put conditions on aggregates into HAVING; aggregates cannot be nested.",
        node,
    )


def told(node: exp.Expr) -> None:
    """Refuse contribution bounds where nothing is added up over persons."""
    if any(isinstance(part, exp.Kwarg) for part in node.expressions):
        refuse(
            "bounds_misplaced",
            f"{describe(node)} has contribution bounds, and is no aggregate over persons",
            "Write least(greatest(x, 0), 100) there.",
            node,
        )


def take(node: exp.Expr, *names: str) -> list[Any]:
    """The named arguments of a node. Any other that is present is refused: nothing is dropped silently."""
    for name, value in node.args.items():
        if name not in names and value not in (None, False, [], ""):
            refuse(
                "not_supported",
                f"{name.strip('_').upper().replace('_', ' ')} of {describe(node)} is not supported",
                "Leave it out.",
                node,
            )
    return [node.args.get(name) for name in names]


def operator(node: exp.Expr, lower: Any) -> Expr:
    """Operators and constants, which mean the same below and above the noise."""
    match node:
        case exp.Paren():
            result: Expr = lower(take(node, "this")[0])
            return result
        case exp.Literal():
            text, is_string = take(node, "this", "is_string")
            if not isinstance(text, str) or "\0" in text:
                refuse("literal_invalid", "a text with the character 0 in it", "Leave it out.", node)
            return constant(text) if is_string else number(text, node)
        case exp.Boolean():
            return constant(bool(take(node, "this")[0]))
        case exp.Neg():
            (inner,) = take(node, "this")
            if isinstance(inner, exp.Literal) and not inner.is_string:
                return number("-" + take(inner, "this")[0], node)
            return build("negate", [lower(inner)], node)
        case exp.Not():
            return build("NOT", [lower(take(node, "this")[0])], node)
        case exp.Is():
            this, other = take(node, "this", "expression")
            if not isinstance(other, exp.Null):
                refuse("not_supported", "IS is supported only with NULL", "Write x IS NULL or x IS NOT NULL.", node)
            return build("IS NULL", [lower(this)], node)
        case exp.EQ(this=exp.Tuple()) | exp.NEQ(this=exp.Tuple()):
            left, right = take(node, "this", "expression")
            return together(left, [right], isinstance(node, exp.NEQ), lower)
        case exp.In(this=exp.Tuple()) if node.expressions:
            left, options = take(node, "this", "expressions")
            return together(left, options, False, lower)
        case exp.In():
            this, options, field = take(node, "this", "expressions", "field")
            if field is not None and not options:
                return build("list_contains", [lower(field), lower(this)], node)
            if not options or field is not None:
                refuse("not_supported", "IN is supported only with a list", "Write x IN (1, 2, 3).", node)
            return build("IN", [lower(this), *(lower(option) for option in options)], node)
        case exp.Array():
            return build("list_value", [value(part, lower) for part in take(node, "expressions")[0]], node)
        case exp.Bracket():
            return bracket(node, lower)
        case exp.Between():
            return build("BETWEEN", [lower(part) for part in take(node, "this", "low", "high")], node)
        case exp.Cast():
            return converted(node, lower)
        case exp.Anonymous(this="interval"):
            return constant(length_of(interval(node) or "", node))
        case exp.Anonymous():
            return called(node, lower)
        case exp.Count() | exp.Sum() | exp.Avg():
            misplaced(node)
        case exp.Filter():
            misplaced(node.this)
        case exp.Case():
            return case(node, lower)
        case exp.If():
            condition, then, otherwise = take(node, "this", "true", "false")
            if otherwise is None:
                refuse("not_supported", "if needs three arguments", "Write CASE WHEN ... THEN ... END.", node)
            return build("CASE", [lower(condition), value(then, lower), value(otherwise, lower)], node)
        case exp.Like() | exp.ILike() | exp.Escape():
            return like(node, lower)
        case exp.Glob():
            return glob(node, lower)
        case exp.BitwiseNot():
            return build("~", [lower(take(node, "this")[0])], node)
        case exp.NullSafeEQ() | exp.NullSafeNEQ() if isinstance(node.this, exp.Null) != isinstance(
            node.expression, exp.Null
        ):
            sides = take(node, "this", "expression")
            empty = build("IS NULL", [lower(side) for side in sides if not isinstance(side, exp.Null)], node)
            return empty if isinstance(node, exp.NullSafeEQ) else build("NOT", [empty], node)
        case exp.SimilarTo():
            return build("regexp_full_match", [lower(part) for part in take(node, "this", "expression")], node)
        case exp.DPipe():
            left, right, _ = take(node, "this", "expression", "safe")
            return build("||", [lower(left), lower(right)], node)
        case exp.Add() | exp.Sub() if (shifted := moved(node, lower)) is not None:
            return shifted
        case exp.Null():
            refuse("not_supported", "NULL as a value is not supported", "Write x IS NULL.", node)
        case exp.Div():
            left, right, _, _ = take(node, "this", "expression", "typed", "safe")
            return build("/", [lower(left), lower(right)], node)
        case _ if type(node) in OPERATORS:
            return build(OPERATORS[type(node)], [lower(part) for part in take(node, "this", "expression")], node)
        case _:
            refuse("not_supported", f"{describe(node)} is not supported here", "Leave it out.", node)


def build(function: str, arguments: list[Expr], node: exp.Expr) -> Call:
    if function in DATED:
        arguments = dated(arguments, node)
    kinds = [argument.facts.type.kind for argument in arguments]
    if function in ("concat", "||") and "VARCHAR" in kinds:  # the engine reads numbers and dates as texts there
        arguments = [
            a if k == "VARCHAR" else call("CAST", a, constant("VARCHAR")) for a, k in zip(arguments, kinds, strict=True)
        ]
    match function, kinds:
        case (("+" | "-"), ["DATE", "INTEGER"]):
            function = f"DATE {function}"
        case "+", ["INTEGER", "DATE"]:
            function, arguments = "DATE +", arguments[::-1]
        case "-", ["DATE", "DATE"]:
            function = "DATE - DATE"
        case "-", ["DATE" | "TIMESTAMP", "DATE" | "TIMESTAMP"]:
            function, arguments = "MOMENT - MOMENT", dated(arguments, node)
        case (("+" | "-"), ["DATE" | "TIMESTAMP", "INTERVAL"]):
            function = f"{function} INTERVAL"
        case "+", ["INTERVAL", "DATE" | "TIMESTAMP"]:
            function, arguments = "+ INTERVAL", arguments[::-1]
        case (("+" | "-"), ["INTERVAL", "INTERVAL"]) | (("*" | "/"), ["INTERVAL", *_]):
            function = f"INTERVAL {function}"
        case "*", [_, "INTERVAL"]:
            function, arguments = "INTERVAL *", arguments[::-1]
        case "negate", ["INTERVAL"]:
            function = "- INTERVAL x"
        case "||", ["LIST", "LIST"]:
            function = "LIST ||"
        case (("list_extract" | "list_slice"), ["VARCHAR", *_]):
            function = {"list_extract": "TEXT[i]", "list_slice": "TEXT[i:j]"}[function]
        case (("length" | "contains"), ["LIST", *_]):
            function = {"length": "array_length", "contains": "list_contains"}[function]
    try:
        return call(function, *arguments)
    except Refused as error:
        raise Refused(error.code, error.message, error.hint, position(node)) from None


def dated(arguments: list[Expr], node: exp.Expr) -> list[Expr]:
    """Texts that are compared with a date, a timestamp or an interval are read as one, here and not by the engine."""
    kinds = {argument.facts.type.kind for argument in arguments}
    result: list[Expr] = []
    for argument in arguments:
        match argument:
            case Literal(str(text), _) if "TIMESTAMP" in kinds:
                result.append(constant(read_timestamp(text, node)))
            case Literal(str(text), _) if "DATE" in kinds:
                result.append(constant(read_date(text, node)))
            case Literal(str(text), _) if "INTERVAL" in kinds:
                result.append(constant(length_of(text, node)))
            case Literal(datetime.date() as day, _) if "TIMESTAMP" in kinds and not isinstance(day, datetime.datetime):
                result.append(constant(datetime.datetime(day.year, day.month, day.day)))
            case _ if argument.facts.type.kind == "DATE" and "TIMESTAMP" in kinds:  # as the engine does
                result.append(call("CAST", argument, constant("TIMESTAMP")))
            case _:
                result.append(argument)
    return result


def value(node: exp.Expr, lower: Any) -> Expr:
    """A value that may be NULL, where the others say which type it has."""
    if isinstance(node, exp.Null):
        take(node)
        return constant(None)
    result: Expr = lower(node)
    return result


def over_persons(node: exp.Expr) -> NoReturn:
    if isinstance(node, exp.LogicalOr | exp.LogicalAnd) and node.this is not None:
        test = node.this.sql("duckdb", comments=False)
        test = test if isinstance(node, exp.LogicalOr) else f"NOT ({test})"
        what = f"{describe(node)} over persons is not supported: one person would decide"
        refuse("not_supported", what, f"Ask how many: count_if({test}).", node)
    call = node.sql("duckdb", comments=False)
    of = node.expressions[0] if isinstance(node, exp.Anonymous) and node.expressions else node.this
    x = of.sql("duckdb", comments=False) if isinstance(of, exp.Column) else "x"
    source = node.parent_select.find(exp.From) if node.parent_select is not None else None
    rows = source.sql("duckdb", comments=False) if source is not None else "FROM t"
    hint = "COUNT, SUM, AVG, their variances and correlations are. " + INSTEAD.get(
        call.partition("(")[0].lower(), "Or ask how many lie beyond a value: count_if({x} > 20)."
    ).format(x=x, rows=rows)
    refuse("not_supported", f"{describe(node)} over persons is not supported", hint, node)


def moment(arguments: list[Expr], node: exp.Expr) -> Expr:
    """make_timestamp(year, month, day, hour, minute, seconds): microseconds after the day, if they are in their ranges."""
    *date, hour, minute, seconds = arguments
    seconds = build("CAST", [seconds, constant("DOUBLE")], node)
    found: Expr = build("epoch_us", [build("make_date", date, node)], node)
    tests: list[Expr] = []
    for value_, most, each in ((hour, 23, 3_600_000_000), (minute, 59, 60_000_000), (seconds, 60, 1_000_000)):
        ends = [constant(0), constant(most)]
        tests.append(build("BETWEEN", [value_, *ends], node))
        part = build("least", [build("greatest", [value_, ends[0]], node), ends[1]], node)
        part = build("*", [part, constant(each)], node)
        if value_ is seconds:
            part = build("CAST", [build("round_even", [part, constant(0)], node), constant("BIGINT")], node)
        found = build("+", [found, part], node)
    fits = reduce(lambda a, b: build("AND", [a, b], node), tests)
    return build("CASE", [fits, build("make_timestamp", [found], node), constant(None)], node)


def unknown(node: exp.Anonymous) -> NoReturn:
    """A name that is no function of ours, with the nearest one that is."""
    if fold(node.name) in OVER_PERSONS:
        over_persons(node)
    words = {*NAMES, *RULES, "count", "sum", "avg", "min", "max"}
    near = difflib.get_close_matches(fold(node.name), sorted(words), n=1, cutoff=0.8)
    hint = f"Did you mean {near[0]}()?" if near else ON_ANSWERS
    refuse("function_unknown", f"there is no function {node.name}() that may be used here", hint, node)


def called(node: exp.Anonymous, lower: Any) -> Expr:
    """A function of the table, by one of its names."""
    arguments = take(node, "this", "expressions")[1]
    if fold(node.name) in RULES:
        misplaced(node)
    row = NAMES.get(fold(node.name))
    if row is None or row.arguments is None:
        unknown(node)
    if row.name == "make_timestamp" and len(arguments) == 6:
        return moment([lower(argument) for argument in arguments], node)
    if len(arguments) not in row.arguments:
        if row.name == "age" and len(arguments) == 1:
            hint = f"Write age(now(), {arguments[0].sql('duckdb', comments=False)})."
            refuse("arguments_invalid", "age(x) would ask the clock", hint, node)
        many = f"{row.arguments[0]} to {row.arguments[-1]}" if len(row.arguments) > 1 else f"{row.arguments[0]}"
        refuse("arguments_invalid", f"{describe(node)} takes {many} argument{'s' * (many != '1')}", "Count them.", node)
    if row.name in (*WITHIN, "epoch", "date_part") and (difference := passed(arguments[-1], lower)) is not None:
        unit = arguments[0].name.lower() if row.name == "date_part" else row.name
        unit = SYNONYMS.get(unit, unit)
        if unit == "epoch" or unit in WITHIN:
            return part_of(unit, difference, node)
    return build(row.name, [value(argument, lower) for argument in arguments], node)


def bracket(node: exp.Bracket, lower: Any) -> Expr:
    """list[i], and list[i:j] with or without its ends."""
    this, places, _ = take(node, "this", "expressions", "offset")
    if len(places) == 1 and isinstance(places[0], exp.Slice):
        start, end = take(places[0], "this", "expression")
        ends = [lower(start) if start is not None else constant(1), lower(end) if end is not None else constant(-1)]
        return build("list_slice", [lower(this), *ends], node)
    if len(places) != 1:
        refuse("not_supported", "several places in brackets are not supported", "Write list[1].", node)
    return build("list_extract", [lower(this), lower(places[0])], node)


def case(node: exp.Case, lower: Any) -> Expr:
    """CASE WHEN condition THEN value ..., and CASE x WHEN constant THEN value ... as comparisons with x."""
    operand, arms, default = take(node, "this", "ifs", "default")
    arguments: list[Expr] = []
    compared = lower(operand) if operand is not None else None
    if compared is not None and len(arms) > 1 and size(compared) > 20:  # it is written once for each arm
        refuse("too_deep", "what CASE compares is too long", "Write CASE WHEN x = 1 THEN ... with a shorter x.", node)
    for arm in arms:
        test, then = take(arm, "this", "true")
        condition = lower(test) if compared is None else build("=", [compared, lower(test)], test)
        arguments += [condition, value(then, lower)]
    arguments.append(value(default, lower) if default is not None else constant(None))
    return build("CASE", arguments, node)


def size(expression: Expr) -> int:
    return 1 + sum(map(size, expression.arguments)) if isinstance(expression, Call | Free) else 1


def like(node: exp.Expr, lower: Any) -> Expr:
    escape: list[Expr] = []
    inner = node
    if isinstance(node, exp.Escape):
        inner, sign = take(node, "this", "expression")
        escape = [lower(sign)]
    if not isinstance(inner, exp.Like | exp.ILike):
        refuse("not_supported", "ESCAPE is supported only behind LIKE and ILIKE", "Leave it out.", node)
    this, pattern, negate = take(inner, "this", "expression", "negate")
    name = "LIKE" if isinstance(inner, exp.Like) else "ILIKE"
    found = build(name, [lower(this), lower(pattern), *escape], node)
    return build("NOT", [found], node) if negate else found


def glob(node: exp.Glob, lower: Any) -> Expr:
    """As LIKE, which takes linear time: the engine's own tries every place for every *. Its ? and [] are of bytes."""
    this, pattern = take(node, "this", "expression")
    text = pattern.this if isinstance(pattern, exp.Literal) and pattern.is_string else None
    if text is None or re.search(r"[?\[\\]", text):
        hint = "Write x GLOB 'a*', or regexp_full_match(x, 'a[bc].*')."
        refuse("constant_invalid", "GLOB needs a constant pattern with no other sign than *", hint, node)
    escaped = re.sub(r"[%_$]", r"$\g<0>", text)
    escape = [constant("$")] if escaped != text else []
    return build("LIKE", [lower(this), constant(escaped.replace("*", "%")), *escape], node)


def together(left: exp.Expr, options: list[exp.Expr], negate: bool, lower: Any) -> Expr:
    """(a, b) = (1, 2), and IN of such rows. As in the engine, NULL is equal to NULL there."""
    values = [lower(side) for side in take(left, "expressions")[0] or ()]
    if not values:
        refuse("type_mismatch", "a row of no values is compared", "Write (a, b) = (1, 2).", left)
    tests: list[Expr] = []
    for option in options:
        if not isinstance(option, exp.Tuple) or len(option.expressions) != len(values):
            refuse("type_mismatch", "rows of several values are compared with rows of as many", "Count them.", option)
        sides = zip(values, take(option, "expressions")[0], strict=True)
        equal: list[Expr] = [build("IS NOT DISTINCT FROM", [a, lower(b)], option) for a, b in sides]
        tests.append(reduce(lambda a, b: build("AND", [a, b], option), equal))
    found = reduce(lambda a, b: build("OR", [a, b], left), tests)
    return build("NOT", [found], left) if negate else found


def interval(node: exp.Expr | None) -> str | None:
    """The text of a constant interval, such as '3 month'; None where it is not one."""
    match node:
        case exp.Cast() if (
            isinstance(node.args["to"], exp.DataType) and node.args["to"].this == exp.DataType.Type.INTERVAL
        ):
            if not isinstance(node.this, exp.Literal) or not node.this.is_string or isinstance(node, exp.TryCast):
                return None
            this, to, _ = take(node, "this", "to", "_type")
            take(to, "this", "nested")
            text = take(this, "this", "is_string")[0]
        case exp.Anonymous(this="interval"):
            _, parts = take(node, "this", "expressions")
            text = " ".join(written(part) for part in parts)
        case _:
            return None
    text = " ".join(text.lower().split())
    number_ = re.fullmatch(r"([+-]?[0-9]{1,18}) ([a-z]+)", text)
    return f"{int(number_[1])} {number_[2]}" if number_ else text


def length_of(text: str, node: exp.Expr) -> Interval:
    found = read_interval(text)
    if found is None:
        hint = "Write INTERVAL 3 MONTH, or INTERVAL '1 day 02:30:00'."
        refuse("constant_invalid", "INTERVAL needs whole numbers and their units", hint, node)
    if not found.brief:
        refuse("constant_invalid", "INTERVAL needs at most 10,000 years", "Write a shorter one.", node)
    return found


def written(node: exp.Expr) -> str:
    if isinstance(node, exp.Neg):
        return "-" + written(take(node, "this")[0])
    return str(take(node, "this", "is_string")[0])


def moved(node: exp.Expr, lower: Any) -> Expr | None:
    """A date or a timestamp plus or minus a number of days, or less, by which its range moves; None for anything else."""
    left, right = take(node, "this", "expression")
    sign = "+" if isinstance(node, exp.Add) else "-"
    if spanned(right) is None and sign == "+":
        left, right = right, left
    if (length := spanned(right)) is None:
        return None
    amount, each = length
    at, number_ = lower(left), lower(amount)
    if at.facts.type.kind not in ("DATE", "TIMESTAMP") or number_.facts.type.kind != "INTEGER":
        return None
    # As microseconds since 1970. What is cut off would lead out of the years 1 to 9999, where it is NULL.
    most = constant(MOST_DAYS * DAY // each)
    few = build("least", [build("greatest", [number_, build("negate", [most], node)], node), most], node)
    moved_ = build("*", [few, constant(each)], node)
    return build("make_timestamp", [build(sign, [build("epoch_us", [at], node), moved_], node)], node)


def spanned(node: exp.Expr | None) -> tuple[exp.Expr, int] | None:
    """A number and its unit in microseconds: to_days(x), as which the parser also reads INTERVAL (x) DAY."""
    if isinstance(node, exp.Anonymous) and fold(node.name) in LENGTHS and len(node.expressions) == 1:
        kind, size_ = UNITS[fold(node.name).removeprefix("to_").removesuffix("s")]
        return take(node, "this", "expressions")[1][0], size_ * (DAY if kind == "days" else 1)
    return None


def passed(node: exp.Expr, lower: Any) -> Expr | None:
    """The microseconds between two timestamps that are subtracted; None for anything else."""
    while isinstance(node, exp.Paren):
        node = node.this
    if not isinstance(node, exp.Sub):
        return None
    sides = [lower(side) for side in take(node, "this", "expression")]
    kinds = {side.facts.type.kind for side in sides}
    if "TIMESTAMP" not in kinds or not kinds <= {"DATE", "TIMESTAMP"}:
        return None
    return build("-", [build("epoch_us", [side], node) for side in sides], node)


# Of the difference of two timestamps: what a unit is divided by, and what is taken off first.
WITHIN = {"day": (DAY, 0), "hour": (3_600_000_000, DAY), "minute": (60_000_000, 3_600_000_000)}
WITHIN |= {"second": (1_000_000, 60_000_000), "epoch_us": (1, 0), "epoch_ms": (1000, 0)}


def part_of(name: str, difference: Expr, node: exp.Expr) -> Expr:
    """epoch(ts - ts), and the days, hours, ... that it has."""
    if name == "epoch":
        return build("/", [difference, constant(1_000_000)], node)
    divisor, whole = WITHIN[name]
    rest = build("%", [difference, constant(whole)], node) if whole else difference
    return build("//", [rest, constant(divisor)], node) if divisor > 1 else rest


TYPES = {
    exp.DataType.Type.TINYINT: "TINYINT",
    exp.DataType.Type.SMALLINT: "SMALLINT",
    exp.DataType.Type.INT: "INTEGER",
    exp.DataType.Type.BIGINT: "BIGINT",
    exp.DataType.Type.INT128: "HUGEINT",
    exp.DataType.Type.UTINYINT: "UTINYINT",
    exp.DataType.Type.USMALLINT: "USMALLINT",
    exp.DataType.Type.UINT: "UINTEGER",
    exp.DataType.Type.UBIGINT: "UBIGINT",
    exp.DataType.Type.DECIMAL: "DECIMAL",
    exp.DataType.Type.DOUBLE: "DOUBLE",
    exp.DataType.Type.BOOLEAN: "BOOLEAN",
    exp.DataType.Type.TEXT: "VARCHAR",
    exp.DataType.Type.VARCHAR: "VARCHAR",
    exp.DataType.Type.DATE: "DATE",
    exp.DataType.Type.TIMESTAMP: "TIMESTAMP",
    exp.DataType.Type.TIMESTAMPNTZ: "TIMESTAMP",
    exp.DataType.Type.INTERVAL: "INTERVAL",
}


def target(to: exp.Expr, node: exp.Expr) -> str:
    """The engine's name of the type that is cast to."""
    if isinstance(to, exp.DataType):
        name, parameters, _ = take(to, "this", "expressions", "nested")
        known = TYPES.get(name)
        if not all(isinstance(p, exp.DataTypeParam) and isinstance(p.this, exp.Literal) for p in parameters or []):
            refuse(
                "not_supported", "a type of this kind is not supported", "Cast to INTEGER, DOUBLE, VARCHAR, DATE.", node
            )
        sizes = [take(parameter, "this")[0] for parameter in parameters or []]
        if known == "DECIMAL" and 1 <= len(sizes) <= 2 and all(s.this.isdigit() for s in sizes):
            width, scale = int(sizes[0].this), int(sizes[1].this) if len(sizes) > 1 else 0
            if 1 <= width <= 38 and scale <= width:
                return f"DECIMAL({width},{scale})"
        elif known is not None and known != "DECIMAL" and not sizes:
            return known
    times = isinstance(to, exp.DataType) and to.this == exp.DataType.Type.TIME
    hint = "Compare hour(x), or strftime(x, '%H:%M')." if times else "Cast to INTEGER, DOUBLE, VARCHAR, DATE, ..."
    refuse("not_supported", f"CAST to {to.sql('duckdb')} is not supported", hint, node)


def converted(node: exp.Cast, lower: Any) -> Expr:
    """CAST, TRY_CAST and ::, and with them DATE '...' and TIMESTAMP '...', which are read here."""
    this, to, _, _ = take(node, "this", "to", "_type", "safe")
    name = target(to, node)
    if isinstance(this, exp.Literal) and this.is_string and name in READERS and not isinstance(node, exp.TryCast):
        text = take(this, "this", "is_string")[0]
        return constant(READERS[name](text, node))
    return build("TRY_CAST" if isinstance(node, exp.TryCast) else "CAST", [lower(this), constant(name)], node)


def read_date(text: str, node: exp.Expr) -> datetime.date:
    try:
        if re.fullmatch(r"\d{4}-\d{2}-\d{2}", text):
            return datetime.date.fromisoformat(text)
    except ValueError:
        pass
    refuse("literal_invalid", f"{text!r} is not a date", "Write it as '2024-01-31'.", node)


def read_timestamp(text: str, node: exp.Expr) -> datetime.datetime:
    try:
        if re.fullmatch(r"\d{4}-\d{2}-\d{2}([ T]\d{2}:\d{2}(:\d{2}(\.\d{1,6})?)?)?", text):
            return datetime.datetime.fromisoformat(text)
    except ValueError:
        pass
    refuse("literal_invalid", f"{text!r} is not a timestamp", "Write it as '2024-01-31 12:30:00'.", node)


READERS: dict[str, Callable[[str, exp.Expr], Value]] = {
    "DATE": read_date,
    "TIMESTAMP": read_timestamp,
    "INTERVAL": length_of,
}


def number(text: str, node: exp.Expr) -> Literal:
    """A number as the engine types it: whole numbers, decimals with a point, doubles with an exponent."""
    try:
        if "e" in text.lower():
            value = float(text)
            if value - value == 0:
                return constant(value)
        elif "." in text and len(text.strip("-").replace(".", "")) <= 38:
            whole_part, digits = text.strip("-").split(".")[0].lstrip("0"), len(text.split(".")[1])
            sign, width = (-1 if text[0] == "-" else 1), max(len(whole_part), 1) + digits
            if width > 38:
                raise ValueError
            exact = sign * abs(Fraction(text))
            return algebra.typed(exact, Type(f"DECIMAL({width},{digits})")) if digits else constant(exact)
        elif "." not in text and abs(int(text)) < 2**127:
            return constant(int(text))
    except ValueError:
        pass
    refuse("literal_invalid", f"cannot use the number {text}", "It is too large for the engine's exact types.", node)


def boolean(expression: Expr, clause: str, node: exp.Expr) -> Expr:
    if expression.facts.type != BOOLEAN and not isinstance(expression, Free):  # of which the engine decides
        refuse(
            "type_mismatch",
            f"{clause} needs a condition, not a value of type {expression.facts.type.sql}",
            "Write a comparison.",
            node,
        )
    return expression
