"""Statement to algebra: names, types and clauses. The tree is consumed; nothing of it goes further."""

from __future__ import annotations

import datetime
import difflib
import re
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, NoReturn

from sqlglot import exp

from dpsql import algebra
from dpsql.aggregates import AGGREGATES
from dpsql.algebra import Aggregate, Call, Column, Expr, Filter, Join, Literal, Relation, Scan, call, constant
from dpsql.catalog import BOOLEAN, HUGEINT, LARGEST, Catalog, Table, Type, fold
from dpsql.errors import Refused
from dpsql.functions import Facts
from dpsql.passes.bind import bind
from dpsql.passes.parse import Parsed, describe, position
from dpsql.plan import Output

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
}
RULES = {rule.name: rule for rule in AGGREGATES}
MAX_KEYS = 1_000_000
MAX_TABLES = 6  # rows that multiply with every join would let a clock tell who is there


@dataclass(frozen=True)
class Order:
    by: Expr
    descending: bool
    nulls_first: bool


@dataclass(frozen=True)
class Resolved:
    relation: Relation
    keys: tuple[Expr, ...]
    tables: tuple[Table, ...]
    outputs: tuple[Output, ...]
    having: Expr | None
    order: tuple[Order, ...]
    limit: int | None
    offset: int


@dataclass
class Scope:
    """The tables of FROM under their aliases, and which of their columns the query has named so far."""

    tables: dict[str, tuple[str, Table]] = field(default_factory=dict)
    used: dict[str, list[str]] = field(default_factory=dict)
    merged: dict[str, str] = field(default_factory=dict)  # columns of USING, and the table that they are taken from
    constants: dict[str, Literal] = field(default_factory=dict)  # the query's parameters

    def add(self, alias: str, table: Table, node: exp.Expr) -> None:
        if fold(alias) in self.tables:
            refuse("duplicate_alias", f"{alias!r} stands twice in FROM", "Give each table an alias of its own.", node)
        self.tables[fold(alias)] = (alias, table)
        self.used[fold(alias)] = []

    def unknown(self, node: exp.Column) -> bool:
        """Whether a name is no column of FROM, and so may be one of the SELECT list."""
        _, qualifier = take(node, "this", "table")
        return qualifier is None and not any(table.column(node.name) for _, table in self.tables.values())

    def constant(self, node: exp.Placeholder) -> Literal:
        """The constant that was given for a parameter. It has been in the marks since `parse`, so it is there."""
        return self.constants[fold(node.name)]

    def scan(self, alias: str) -> Scan:
        written, table = self.tables[fold(alias)]
        return Scan(table, written, tuple(self.used[fold(alias)]))


def refuse(code: str, message: str, hint: str = "", node: exp.Expr | None = None) -> NoReturn:
    raise Refused(code, message, hint, position(node))


def take(node: exp.Expr, *names: str) -> list[Any]:
    """The named arguments of a node. Any other that is present is refused: nothing is dropped silently."""
    for name, value in node.args.items():
        if name not in names and value not in (None, False, [], ""):
            refuse(
                "not_supported",
                f"{name.strip('_').upper().replace('_', ' ')} of {describe(node)} is not supported",
                "Leave it out, or see the README for what is supported.",
                node,
            )
    return [node.args.get(name) for name in names]


def resolve(parsed: Parsed, catalog: Catalog, parameters: object = None) -> Resolved:
    """Lower the statement to a relation, its keys, and expressions over aggregates.

    Needs:   nodes of the allow-listed classes
    Gives:   a relation of the closed algebra with row-wise total predicates; keys that are expressions of one row;
             outputs, HAVING, ORDER BY and LIMIT that mention rows only inside aggregates; a constant for each parameter
    Proof:   every node is taken apart by `take`, which refuses an argument that no case consumes; every name is looked
             up in the catalogue; every operator is a row of `functions.FUNCTIONS`, which refuses what is not total;
             a parameter is a literal of the algebra like those of the text
    Checked: test_parse (nothing is dropped), test_parameters, specs/*.md
    """
    tree = parsed.tree
    for word in tree.find_all(exp.Identifier):
        take(word, "this", "quoted")
    items, from_, joins, where, group, having, order, limit, offset = take(
        tree, "expressions", "from_", "joins", "where", "group", "having", "order", "limit", "offset"
    )
    if from_ is None:
        refuse("no_table", "the query has no FROM", "Name a table of the policy: SELECT count(*) FROM orders.")
    scope = Scope(constants=bind(parsed.marks, parameters))
    (source,) = take(from_, "this")
    aliases = [table(source, scope, catalog)]
    conditions = []
    for join in joins or []:
        joined, on, kind, using, side, method = take(join, "this", "on", "kind", "using", "side", "method")
        natural = method == "NATURAL"
        if (
            side
            or kind not in (None, "", "INNER")
            or (method and not natural)
            or [bool(on), bool(using), natural].count(True) != 1
        ):
            words = " ".join(word for word in (method, side, kind, "JOIN") if word)
            refuse(
                "join_not_supported",
                f"{words} is not supported" if words != "JOIN" else "a join without ON is not supported",
                "Write FROM orders JOIN customer ON orders.customer = customer.id.",
                joined,
            )
        aliases.append(table(joined, scope, catalog))
        if len(aliases) > MAX_TABLES:
            refuse("too_many_tables", f"more than {MAX_TABLES} tables are joined", "Join fewer tables.", joined)
        if on is not None:
            conditions.append(boolean(rows(on, scope), "JOIN ... ON", on))
        else:
            conditions.append(shared(using, aliases, scope, joined))
    predicate = boolean(rows(take(where, "this")[0], scope), "WHERE", where) if where else None

    selected = [(take(item, "this", "alias") if isinstance(item, exp.Alias) else [item, None]) for item in items]
    keys = group_keys(group, selected, scope)
    above = Above(scope, keys)
    outputs = tuple(
        Output(alias.name if alias else label(node, top=True), above.lower(node)) for node, alias in selected
    )
    # In HAVING and ORDER BY the names of the SELECT list come before those of the tables' columns, as in DuckDB.
    above.names = {
        fold(alias.name): output.expression for (_, alias), output in zip(selected, outputs, strict=True) if alias
    }
    condition = boolean(above.lower(take(having, "this")[0]), "HAVING", having) if having else None
    ordering = tuple(ordered(item, above, outputs) for item in take(order, "expressions")[0]) if order else ()
    everything = [*(o.expression for o in outputs), *([condition] if condition else []), *(o.by for o in ordering)]
    if not any(aggregates(expression) for expression in everything):
        refuse(
            "no_aggregate",
            "the query has no aggregate over persons",
            "Rows about persons are never shown. Use COUNT(*), SUM(x) or AVG(x), with GROUP BY if you like.",
            tree,
        )

    relation: Relation = scope.scan(aliases[0])
    for alias, on in zip(aliases[1:], conditions, strict=True):
        relation = Join(relation, scope.scan(alias), on)
    if predicate is not None:
        relation = Filter(relation, predicate)
    tables = tuple(found for _, found in scope.tables.values())
    return Resolved(
        relation,
        keys,
        tables,
        outputs,
        condition,
        ordering,
        whole(limit, "LIMIT", scope),
        whole(offset, "OFFSET", scope) or 0,
    )


def aggregates(expression: Expr) -> set[Aggregate]:
    match expression:
        case Aggregate():
            return {expression}
        case Call(_, arguments, _):
            return set().union(*(aggregates(argument) for argument in arguments))
        case Column() | Literal():
            return set()


# --- FROM -----------------------------------------------------------------------------------------------------------


def table(node: exp.Expr, scope: Scope, catalog: Catalog) -> str:
    if not isinstance(node, exp.Table):
        refuse("not_supported", f"{describe(node)} in FROM is not supported", "Name a table.", node)
    name, schema, database, alias = take(node, "this", "db", "catalog", "alias")
    if not isinstance(name, exp.Identifier):
        refuse("not_supported", f"{describe(name)} in FROM is not supported", "Name a table.", node)
    written = ".".join(part.name for part in (database, schema, name) if part)
    parts = tuple(fold(part.name) for part in (database, schema, name) if part)
    found = catalog.table(written) or next(
        (
            t
            for t in catalog.tables.values()
            if len(parts) > 1 and tuple(fold(p) for p in t.path)[-len(parts) :] == parts
        ),
        None,
    )
    if found is None:
        near = difflib.get_close_matches(fold(written), catalog.tables, n=1)
        known = ", ".join(t.name for t in catalog.tables.values())
        refuse(
            "table_unknown",
            f"the policy has no table {written!r}",
            f"Did you mean {catalog.tables[near[0]].name}?" if near else f"It has: {known}.",
            node,
        )
    short = take(alias, "this")[0].name if alias else name.name
    if "." in short or ":" in short:  # these separate the parts of a generated name
        refuse("alias_invalid", f"{short!r} cannot be the name of a table in FROM", "Give it a plain alias.", node)
    scope.add(short, found, node)
    return short


def shared(using: list[exp.Identifier] | None, aliases: list[str], scope: Scope, node: exp.Expr) -> Expr:
    """JOIN ... USING and NATURAL JOIN: the named columns, or all that both sides have, are equal and become one."""
    right = scope.tables[fold(aliases[-1])][1]
    before = {fold(alias): scope.tables[fold(alias)][1] for alias in aliases[:-1]}
    if using:
        names = [word.name for word in using]
    else:
        names = [c.name for c in right.columns.values() if any(left.column(c.name) for left in before.values())]
    if not names:
        refuse("join_not_supported", "the tables of NATURAL JOIN have no column in common", "Write JOIN ... ON.", node)
    condition: Expr | None = None
    for name in names:
        places = [place for place, left in before.items() if left.column(name)]
        if fold(name) in scope.merged:
            places = [scope.merged[fold(name)]]
        if len(places) != 1:
            what = "is a column of several tables" if places else "is no column of the tables before"
            refuse("column_ambiguous" if places else "column_unknown", f"{name!r} {what}", "Write JOIN ... ON.", node)
        sides = [column(exp.column(name, place, quoted=True), scope) for place in (places[0], fold(aliases[-1]))]
        equal = build("=", list(sides), node)
        condition = equal if condition is None else build("AND", [condition, equal], node)
        scope.merged[fold(name)] = places[0]
    assert condition is not None
    return condition


# --- below the noise: expressions of one row ------------------------------------------------------------------------


def rows(node: exp.Expr, scope: Scope) -> Expr:
    """An expression of one row."""
    match node:
        case exp.Column():
            return column(node, scope)
        case exp.Placeholder():
            return scope.constant(node)
        case exp.Count() | exp.Sum() | exp.Avg():
            refuse(
                "aggregate_misplaced",
                f"{describe(node)} stands where a row is needed",
                "Put conditions on aggregates into HAVING; aggregates cannot be nested.",
                node,
            )
        case _:
            return operator(node, lambda child: rows(child, scope))


def column(node: exp.Column, scope: Scope) -> Column:
    name, qualifier = take(node, "this", "table")
    if not isinstance(name, exp.Identifier):
        refuse("select_star", "* selects rows, which are never shown", "Use COUNT(*), SUM(x) or AVG(x).", node)
    if qualifier is not None and fold(qualifier.name) not in scope.tables:
        refuse("table_unknown", f"{qualifier.name!r} is not a table of FROM", "Use the alias that stands there.", node)
    places = [fold(qualifier.name)] if qualifier is not None else list(scope.tables)
    found = [(place, known) for place in places if (known := scope.tables[place][1].column(name.name)) is not None]
    if not found:
        names = [c.name for place in places for c in scope.tables[place][1].columns.values()]
        near = difflib.get_close_matches(name.name, names, n=1)
        refuse(
            "column_unknown",
            f"no table of FROM has a column {name.name!r}",
            f"Did you mean {near[0]}?" if near else f"There are: {', '.join(names)}.",
            node,
        )
    if len(found) > 1 and fold(name.name) in scope.merged:
        found = [(place, known) for place, known in found if place == scope.merged[fold(name.name)]]
    if len(found) > 1:
        refuse("column_ambiguous", f"{name.name!r} is a column of several tables", "Write table.column.", node)
    ((place, known),) = found
    if known.type.kind == "OTHER" or known.generated:
        what = "is computed by the database" if known.generated else f"has type {known.type.family}"
        refuse(
            "column_not_supported",
            f"column {known.name!r} {what}, which is not supported yet",
            "Use another column.",
            node,
        )
    alias, owner = scope.tables[place]
    if known.name not in scope.used[place]:
        scope.used[place].append(known.name)
    return Column(f"{alias}.{known.name}", algebra.enforce(owner, known.name))


def operator(node: exp.Expr, lower: Any) -> Expr:
    """Operators and constants, which mean the same below and above the noise."""
    match node:
        case exp.Paren():
            result: Expr = lower(take(node, "this")[0])
            return result
        case exp.Literal():
            text, is_string = take(node, "this", "is_string")
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
        case exp.In():
            this, options = take(node, "this", "expressions")
            if not options:
                refuse("not_supported", "IN is supported only with a list", "Write x IN (1, 2, 3).", node)
            return build("IN", [lower(this), *(lower(option) for option in options)], node)
        case exp.Between():
            return build("BETWEEN", [lower(part) for part in take(node, "this", "low", "high")], node)
        case exp.Cast():
            return moment(node)
        case exp.Null():
            refuse("not_supported", "NULL as a value is not supported", "Write x IS NULL.", node)
        case exp.Div():
            left, right, _, _ = take(node, "this", "expression", "typed", "safe")
            return build("/", [lower(left), lower(right)], node)
        case _ if type(node) in OPERATORS:
            return build(OPERATORS[type(node)], [lower(part) for part in take(node, "this", "expression")], node)
        case _:
            refuse(
                "not_supported",
                f"{describe(node)} is not supported here",
                "See the README for what is supported.",
                node,
            )


def build(function: str, arguments: list[Expr], node: exp.Expr) -> Call:
    if function not in ("+", "-", "*", "/", "AND", "OR", "NOT", "IS NULL", "negate"):
        arguments = dated(arguments, node)
    try:
        return call(function, *arguments)
    except Refused as error:
        raise Refused(error.code, error.message, error.hint, position(node)) from None


def dated(arguments: list[Expr], node: exp.Expr) -> list[Expr]:
    """Texts that are compared with a date or a timestamp are read as one, here and not by the engine."""
    kinds = {argument.facts.type.kind for argument in arguments}
    result: list[Expr] = []
    for argument in arguments:
        match argument:
            case Literal(str(text), _) if "TIMESTAMP" in kinds:
                result.append(constant(read_timestamp(text, node)))
            case Literal(str(text), _) if "DATE" in kinds:
                result.append(constant(read_date(text, node)))
            case Literal(datetime.date() as day, _) if "TIMESTAMP" in kinds and not isinstance(day, datetime.datetime):
                result.append(constant(datetime.datetime(day.year, day.month, day.day)))
            case _:
                result.append(argument)
    return result


def moment(node: exp.Cast) -> Literal:
    """DATE '...' and TIMESTAMP '...'. Other casts are not supported yet."""
    this, to, _ = take(node, "this", "to", "_type")
    if isinstance(this, exp.Literal) and this.is_string and isinstance(to, exp.DataType):
        text = take(this, "this", "is_string")[0]
        name = take(to, "this", "nested")[0]
        if name == exp.DataType.Type.DATE:
            return constant(read_date(text, node))
        if name in (exp.DataType.Type.TIMESTAMP, exp.DataType.Type.TIMESTAMPNTZ):
            return constant(read_timestamp(text, node))
    refuse("not_supported", "CAST is supported only in DATE '...' and TIMESTAMP '...'", "Compare without a cast.", node)


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
            facts = Facts(Type(f"DECIMAL({width},{digits})"), False, (exact, exact), True)
            return Literal(exact, facts) if digits else constant(exact)
        elif "." not in text and abs(int(text)) < 2**127:
            return constant(int(text))
    except ValueError:
        pass
    refuse("literal_invalid", f"cannot use the number {text}", "It is too large for the engine's exact types.", node)


def boolean(expression: Expr, clause: str, node: exp.Expr) -> Expr:
    if expression.facts.type != BOOLEAN:
        refuse(
            "type_mismatch",
            f"{clause} needs a condition, not a value of type {expression.facts.type.sql}",
            "Write a comparison.",
            node,
        )
    return expression


# --- above the noise: keys and aggregates ---------------------------------------------------------------------------


def group_keys(group: exp.Expr | None, selected: list[list[Any]], scope: Scope) -> tuple[Expr, ...]:
    if group is None:
        return ()
    keys: list[Expr] = []
    for item in take(group, "expressions")[0]:
        while isinstance(item, exp.Paren):
            (item,) = take(item, "this")
        if isinstance(item, exp.Literal) and not item.is_string:
            place = number(item.this, item).value
            if not isinstance(place, int) or not 1 <= place <= len(selected):
                refuse("position_invalid", f"GROUP BY {item.this} is not a column of the SELECT list", "", item)
            item = selected[place - 1][0]
        elif isinstance(item, exp.Column) and scope.unknown(item):
            item = next((n for n, alias in selected if alias and fold(alias.name) == fold(item.name)), item)
        key = rows(item, scope)
        if isinstance(key, Literal) or key.facts.type == HUGEINT:
            what = "a constant" if isinstance(key, Literal) else "HUGEINT"
            refuse(
                "key_not_supported", f"GROUP BY {what} is not supported", "Group by a column or an expression.", item
            )
        if key not in keys:
            keys.append(key)
    return tuple(keys)


@dataclass
class Above:
    """Lowering of expressions over groups: keys, aggregates, and operators on them."""

    scope: Scope
    keys: tuple[Expr, ...]
    names: dict[str, Expr] = field(default_factory=dict)

    def lower(self, node: exp.Expr) -> Expr:
        if isinstance(node, exp.Column) and node.name and fold(node.name) in self.names and not node.args.get("table"):
            take(node, "this", "table")
            return self.names[fold(node.name)]
        if (key := self.key(node)) is not None:
            return key
        match node:
            case exp.Column() if isinstance(node.this, exp.Star):
                refuse("select_star", "* selects rows, which are never shown", "Use COUNT(*), SUM(x) or AVG(x).", node)
            case exp.Star():
                refuse("select_star", "* selects rows, which are never shown", "Use COUNT(*), SUM(x) or AVG(x).", node)
            case exp.Column():
                column(node, self.scope)
                refuse(
                    "not_grouped",
                    f"{node.name!r} stands neither in GROUP BY nor in an aggregate",
                    "Rows about persons are never shown: group by it or aggregate it.",
                    node,
                )
            case exp.Placeholder():
                return self.scope.constant(node)
            case exp.Count():
                this, _ = take(node, "this", "big_int")
                if this is None or isinstance(this, exp.Star):
                    if this is not None:
                        take(this)
                    return self.aggregate("count", None, node)
                return self.aggregate("count", this, node)
            case exp.Sum() | exp.Avg():
                return self.aggregate("sum" if isinstance(node, exp.Sum) else "avg", take(node, "this")[0], node)
            case _:
                return operator(node, self.lower)

    def key(self, node: exp.Expr) -> Column | None:
        """The key that an expression is, under the name that it has above the noise."""
        if not self.keys or isinstance(node, exp.Literal) or node.find(exp.Count, exp.Sum, exp.Avg, exp.Star):
            return None
        try:
            lowered = rows(node, self.scope)
        except Refused:  # then it is something else, or will be refused in its own words
            return None
        return next((Column(f"k{i}", k.facts) for i, k in enumerate(self.keys) if k == lowered), None)

    def aggregate(self, name: str, argument: exp.Expr | None, node: exp.Expr) -> Aggregate:
        lowered = rows(argument, self.scope) if argument is not None else None
        try:
            facts = RULES[name].facts(lowered)
        except Refused as error:
            raise Refused(error.code, error.message, error.hint, position(node)) from None
        if name != "count" and lowered is not None and not (lowered.facts.declared and lowered.facts.range):
            refuse(
                "limit_missing",
                f"{name}({label(node.this)}) has no declared range to clip to",
                range_hint(lowered),
                node,
            )
        if name != "count" and lowered is not None and lowered.facts.range:
            low, high = lowered.facts.range
            if max(-low, high) > LARGEST:
                refuse(
                    "may_overflow",
                    f"the values of {name}({label(node.this)}) may be too large",
                    "Divide by more.",
                    node,
                )
        return Aggregate(name, lowered, facts)


def range_hint(expression: Expr) -> str:
    match expression:
        case Column(name, facts) if not facts.declared:
            alias, _, bare = name.partition(".")
            return f"Ask the owner to add {bare} = {{ between = [LOW, HIGH] }} to the columns of {alias} in the policy."
        case Call("/", (_, Literal() | Column() as divisor), _) if divisor.facts.declared:
            return "Keep the divisor away from zero: its declared range must not contain 0."
        case Call(_, arguments, _):
            return next(
                (range_hint(a) for a in arguments if not a.facts.declared), "Divide by something that cannot be 0."
            )
        case _:
            return "Sum a column with a declared range."


def ordered(item: exp.Expr, above: Above, outputs: tuple[Output, ...]) -> Order:
    this, descending, nulls_first = take(item, "this", "desc", "nulls_first")
    if isinstance(this, exp.Literal | exp.Placeholder):
        plain = isinstance(this, exp.Literal) and not this.is_string
        place = number(this.this, this).value if plain else None
        if not isinstance(place, int) or not 1 <= place <= len(outputs):
            refuse(
                "position_invalid", "ORDER BY names no column of the SELECT list", "Use its number or its name.", this
            )
        return Order(outputs[place - 1].expression, bool(descending), bool(nulls_first))
    return Order(above.lower(this), bool(descending), bool(nulls_first))


def whole(node: exp.Expr | None, clause: str, scope: Scope) -> int | None:
    if node is None:
        return None
    (value,) = take(node, "expression")
    if isinstance(value, exp.Placeholder):
        given = scope.constant(value).value
        if isinstance(given, bool) or not isinstance(given, int) or not 0 <= given < 2**63:
            refuse("parameter_invalid", f"{clause} needs a whole number", f"Pass 10 for ${value.name}.", node)
        return given
    if not isinstance(value, exp.Literal) or value.is_string or not value.this.isdigit() or int(value.this) >= 2**63:
        refuse("not_supported", f"{clause} needs a whole number", f"Write {clause} 10.", node)
    return int(value.this)


# --- the names that DuckDB gives to columns without an alias -----------------------------------------------------------


def label(node: exp.Expr, top: bool = False) -> str:
    """DuckDB's name for an expression: count_star(), (sum(x) / 2), ..."""
    match node:
        case exp.Column():
            parts = [part for part in (node.args.get("table"), node.this) if part is not None]
            return parts[-1].name if top else ".".join(quoted(part.name) for part in parts)
        case exp.Count() if node.this is None or isinstance(node.this, exp.Star):
            return "count_star()"
        case exp.Count() | exp.Sum() | exp.Avg():
            return f"{type(node).__name__.lower()}({label(node.this)})"
        case exp.Paren():
            return label(node.this)
        case exp.Literal():
            return "'" + node.this.replace("'", "''") + "'" if node.is_string else str(node.this)
        case exp.Boolean():
            return "true" if node.this else "false"
        case exp.Placeholder():
            return f"${node.name}"
        case exp.Neg():
            return f"-{node.this.this}" if isinstance(node.this, exp.Literal) else f"(-({label(node.this)}))"
        case exp.Not() if isinstance(node.this, exp.Is):
            return f"({label(node.this.this)} IS NOT NULL)"
        case exp.Not():
            return f"(NOT {label(node.this)})"
        case exp.Is():
            return f"({label(node.this)} IS NULL)"
        case exp.In():
            return f"({label(node.this)} IN ({', '.join(label(option) for option in node.expressions)}))"
        case exp.Between():
            return f"({label(node.this)} BETWEEN {label(node.args['low'])} AND {label(node.args['high'])})"
        case exp.And() | exp.Or():
            parts = list(node.flatten(unnest=False))
            return "(" + f" {OPERATORS[type(node)]} ".join(label(part) for part in parts) + ")"
        case _ if type(node) in OPERATORS:
            return f"({label(node.this)} {OPERATORS[type(node)]} {label(node.expression)})"
        case _:
            return node.sql("duckdb")


def quoted(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) else '"' + name.replace('"', '""') + '"'
