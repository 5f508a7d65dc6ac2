"""Statement to algebra: names, types and clauses. The tree is consumed; nothing of it goes further."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from sqlglot import exp

from dpsql.compiler.aggregates import RULES
from dpsql.compiler.bind import bind
from dpsql.compiler.free import free, frees
from dpsql.compiler.label import label
from dpsql.compiler.lower import boolean, number, operator, refuse, size, take
from dpsql.compiler.parse import BOUNDS, Parsed, position
from dpsql.compiler.pivot import unpivot
from dpsql.compiler.program import Output, Rule
from dpsql.compiler.rows import add_where, read_from, rows
from dpsql.compiler.scope import Context, Scope, column, with_ctes
from dpsql.errors import Refused
from dpsql.kernel import algebra
from dpsql.kernel.algebra import Aggregate, Call, Column, Expr, Free, Literal
from dpsql.kernel.functions import Facts, Range
from dpsql.kernel.relations import Relation, scans
from dpsql.policy.catalog import BIGINT, BOOLEAN, DOUBLE, HUGEINT, INTERVAL, LARGEST, Catalog, Table, Type, fold

MAX_COPIED = 5_000


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
    qualify: Expr | None
    order: tuple[Order, ...]
    limit: int | None
    offset: int


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
    for word in parsed.tree.find_all(exp.Identifier):
        take(word, "this", "quoted")
    tree = unpivot(parsed.tree)
    names = "expressions from_ joins where group having qualify order limit offset distinct with_".split()  # noqa: SIM905
    items, from_, joins, where, group, having, qualify, order, limit, offset, distinct, _ = take(tree, *names)
    if from_ is None:
        refuse("no_table", "the query has no FROM", "Name a table of the policy.")
    context = Context(catalog, bind(parsed.marks, parameters))
    scope = Scope(context, with_ctes(tree, {}))
    read_from(from_, joins or [], scope)
    if where is not None:
        add_where(take(where, "this")[0], scope)

    selected = [(take(item, "this", "alias") if isinstance(item, exp.Alias) else [item, None]) for item in items]
    keys = group_keys(one_of_each(distinct, group, selected), selected, scope)
    above = Above(scope, keys)
    outputs: tuple[Output, ...] = ()
    for node, alias in selected:
        outputs += (Output(alias.name if alias else label(node, top=True), above.lower(node)),)
        if alias:  # as in DuckDB, what follows may call it by this name
            above.earlier[fold(alias.name)] = outputs[-1].expression
    above.lowered = {}
    condition = boolean(above.lower(take(having, "this")[0]), "HAVING", having) if having else None
    if condition is not None and any(found.window for found in frees(condition)):
        refuse("not_supported", "HAVING comes before windows", "Write QUALIFY.", having)
    chosen = boolean(above.lower(take(qualify, "this")[0]), "QUALIFY", qualify) if qualify else None
    if qualify and not any(found.window for e in (chosen, *(o.expression for o in outputs)) for found in frees(e)):
        refuse("no_window", "QUALIFY needs a window", "Write HAVING for a condition on groups.", qualify)
    # In ORDER BY, and only there, the names of the SELECT list come before those of the tables' columns, as in DuckDB.
    above.lowered, above.names = {}, above.earlier
    ordering = tuple(ordered(item, above, outputs) for item in take(order, "expressions")[0]) if order else ()
    everything = [e for e in (*(o.expression for o in outputs), condition, chosen, *(o.by for o in ordering)) if e]
    if not keys and not any(aggregates(expression) for expression in everything):
        refuse(
            "no_aggregate",
            "the query has no aggregate over persons",
            "Rows about persons are never shown. Use COUNT(*), SUM(x) or AVG(x), or SELECT DISTINCT for groups.",
            tree,
        )

    relation = scope.relation()
    tables = tuple(dict.fromkeys(scan.table.name for scan in scans(relation)))
    return Resolved(
        relation,
        keys,
        tuple(catalog.tables[fold(name)] for name in tables),
        outputs,
        condition,
        chosen,
        ordering,
        whole(limit, "LIMIT", scope),
        whole(offset, "OFFSET", scope) or 0,
    )


def aggregates(expression: Expr) -> set[Aggregate]:
    match expression:
        case Aggregate():
            return {expression}
        case Call(_, arguments, _) | Free(_, arguments):
            return set().union(*(aggregates(argument) for argument in arguments))
        case Column() | Literal():
            return set()


def asked_of(resolved: Resolved) -> list[Aggregate]:
    """All aggregates of a statement, in an order that is the same in every process: limits are numbered by it."""
    shown = (o.expression for o in resolved.outputs)
    wanted = [e for e in (*shown, resolved.having, resolved.qualify, *(o.by for o in resolved.order)) if e]
    return sorted(set().union(*map(aggregates, wanted)), key=repr)


# --- above the noise: keys and aggregates ---------------------------------------------------------------------------


def one_of_each(distinct: exp.Expr | None, group: exp.Expr | None, selected: list[list[Any]]) -> exp.Expr | None:
    """SELECT DISTINCT of columns is a GROUP BY all of them."""
    if distinct is None:
        return group
    take(distinct)
    if group is not None or any(has_aggregate(node, deep=False) for node, _ in selected):
        refuse("not_supported", "SELECT DISTINCT of groups is not supported", "Leave DISTINCT out.", distinct)
    return exp.Group(all=True)


def has_aggregate(node: exp.Expr, deep: bool = True) -> bool:
    """Whether an item has an aggregate in it; not `deep`: what a subquery aggregates is a value of the row."""
    return any(
        isinstance(part, exp.Count | exp.Sum | exp.Avg | exp.Window)
        or (isinstance(part, exp.Anonymous) and fold(part.name) in RULES)
        for part in node.walk(prune=lambda part: not deep and isinstance(part, exp.Subquery))
    )


def group_keys(group: exp.Expr | None, selected: list[list[Any]], scope: Scope) -> tuple[Expr, ...]:
    if group is None:
        return ()
    keys: list[Expr] = []
    listed, everything = take(group, "expressions", "all")
    if everything and listed:
        refuse("not_supported", "GROUP BY ALL takes no columns", "Leave one of them out.", group)
    if everything:
        listed = [
            node for node, _ in selected if not has_aggregate(node, deep=False) and not isinstance(node, exp.Literal)
        ]
    for item in listed:
        while isinstance(item, exp.Paren):
            (item,) = take(item, "this")
        if isinstance(item, exp.Literal) and not item.is_string:
            place = number(item.this, item).value
            if not isinstance(place, int) or not 1 <= place <= len(selected):
                refuse("position_invalid", f"GROUP BY {item.this} is not a column of the SELECT list", "", item)
            item = selected[place - 1][0]
        elif isinstance(item, exp.Column) and scope.unknown(item):
            item = next((n for n, alias in selected if alias and fold(alias.name) == fold(item.name)), item)
        if isinstance(item, exp.Star):
            refuse("select_star", "* selects rows, which are never shown", "Use COUNT(*), SUM(x) or AVG(x).", item)
        key = rows(item, scope)
        if isinstance(key, Literal) and len(listed) > 1:  # which makes no groups
            continue
        if isinstance(key, Literal) or key.facts.type == HUGEINT:
            what = "a constant" if isinstance(key, Literal) else "HUGEINT"
            hint = "Group by a column or an expression." if isinstance(key, Literal) else "Write CAST(x AS BIGINT)."
            refuse("key_not_supported", f"GROUP BY {what} is not supported", hint, item)
        key = length(key)
        if key not in keys:
            keys.append(key)
    return tuple(keys)


def length(value: Expr) -> Expr:
    """An interval as a number: one for all that are equal, and one that can be streamed."""
    return algebra.call("epoch_us", value) if value.facts.type == INTERVAL else value


@dataclass
class Above:
    """Lowering of expressions over groups: keys, aggregates, and operators on them."""

    scope: Scope
    keys: tuple[Expr, ...]
    names: dict[str, Expr] = field(default_factory=dict)
    earlier: dict[str, Expr] = field(default_factory=dict)
    copied: int = 0
    lowered: dict[int, tuple[exp.Expr, Expr | Refused]] = field(default_factory=dict)

    def lower(self, node: exp.Expr) -> Expr:
        if (
            id(node) not in self.lowered
        ):  # the node is kept, so that no other gets its id; refusals too, or each level asks twice
            found: Expr | Refused
            try:
                found = self.lower_anew(node)
            except Refused as error:
                found = error
            self.lowered[id(node)] = (node, found)
        result = self.lowered[id(node)][1]
        if isinstance(result, Refused):
            raise result
        return result

    def lower_anew(self, node: exp.Expr) -> Expr:
        if isinstance(node, exp.Column) and node.name and fold(node.name) in self.names and not node.args.get("table"):
            take(node, "this", "table")
            return self.again(self.names[fold(node.name)], node)
        if (key := self.key(node)) is not None:
            return key
        match node:
            case exp.Column() if isinstance(node.this, exp.Star):
                refuse("select_star", "* selects rows, which are never shown", "Use COUNT(*), SUM(x) or AVG(x).", node)
            case exp.Star():
                refuse("select_star", "* selects rows, which are never shown", "Use COUNT(*), SUM(x) or AVG(x).", node)
            case exp.Column() if self.scope.unknown(node) and fold(node.name) in self.earlier:
                return self.again(self.earlier[fold(node.name)], node)
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
            case exp.Filter():
                inner, where = take(node, "this", "expression")
                return self.aggregate(inner, boolean(rows(take(where, "this")[0], self.scope), "FILTER", node))
            case exp.Count() | exp.Sum() | exp.Avg():
                return self.aggregate(node)
            case exp.Anonymous() if fold(node.name) in RULES:
                return self.aggregate(node)
            case exp.Window() | exp.Array() | exp.Bracket():
                return free(node, self.lower)
            case _:
                return self.computed(node)

    def again(self, expression: Expr, node: exp.Expr) -> Expr:
        """What a name stands for is written out each time: names of names would double with every step."""
        self.copied += size(expression)
        if self.copied > MAX_COPIED:
            refuse("too_deep", "names of the SELECT list are used in each other too often", "Use a subquery.", node)
        return expression

    def computed(self, node: exp.Expr) -> Expr:
        """Released values may do what they like: what the table of functions does not have is written as it is."""
        try:
            return operator(node, self.lower)
        except Refused as error:
            if error.code not in ("not_supported", "function_unknown", "type_mismatch", "may_overflow"):
                raise
            try:
                found = free(node, self.lower)
            except Refused:
                if error.code == "function_unknown" and "mean" in error.hint:  # avgg(x), where x is not grouped
                    raise error from None
                raise
            known = not any(isinstance(argument, Free) for argument in found.arguments)
            if error.code in ("type_mismatch", "may_overflow") and known and not isinstance(node, exp.Anonymous):
                raise
            return found

    def key(self, node: exp.Expr) -> Expr | None:
        """The key that an expression is, under the name that it has above the noise; an interval in days and time."""
        if not self.keys or isinstance(node, exp.Literal):
            return None
        try:
            lowered = rows(node, self.scope)
        except Refused:  # then it is something else, or will be refused in its own words
            return None
        number_ = length(lowered)
        found = next((Column(f"k{i}", k.facts) for i, k in enumerate(self.keys) if k == number_), None)
        return found if found is None or number_ is lowered else algebra.call("INTERVAL OF", found)

    def aggregate(self, node: exp.Expr, condition: Expr | None = None) -> Expr:
        """An aggregate of values of rows. FILTER is CASE: where it is not true the value is NULL, and so left out."""
        rule, given, distinct, told = called(node)
        arguments = [rows(argument, self.scope) for argument in given]
        ranges = {argument.name: bounds(argument, self.scope, node) for argument in told}
        clip, each = (ranges.get(word) for word in BOUNDS)
        try:
            facts = rule.facts(tuple(arguments))
            check(rule, arguments, clip, each)
            if condition is not None:
                kept = arguments[0] if arguments else algebra.constant(True)
                arguments[:1] = [algebra.call("CASE", condition, kept, algebra.constant(None))]
        except Refused as error:
            raise Refused(error.code, error.message, error.hint, position(node)) from None
        for i, (degree, argument) in enumerate(zip(rule.degrees, arguments, strict=False)):
            arguments[i] = argument = length(argument)
            if given and argument.facts.type == BOOLEAN:  # also where it is counted: one block for both
                arguments[i] = algebra.call("CAST", argument, algebra.constant("INTEGER"))
            if degree and argument.facts.declared and argument.facts.range:
                low, high = argument.facts.range
                if max(-low, high) > LARGEST:
                    refuse("may_overflow", f"the values of {label(node)} may be too large", "Divide by more.", node)
        if facts.type == INTERVAL:  # of avg, whose microseconds are a number
            mean = Aggregate(rule.name, tuple(arguments), Facts(DOUBLE), distinct)
            return algebra.call("INTERVAL OF", algebra.call("CAST", mean, algebra.constant("BIGINT")))
        return Aggregate(rule.name, tuple(arguments), facts, distinct, clip, each)


def bounds(told: exp.Kwarg, scope: Scope, node: exp.Expr) -> Range:
    """The range of a named argument: two numbers, the low one first."""
    ends = [rows(end, scope) for end in take(take(told, "this", "expression")[1], "expressions")[0]]
    values = [end.value for end in ends if isinstance(end, Literal)]
    numbers = [Fraction(str(v)) for v in values if isinstance(v, int | float | Fraction) and not isinstance(v, bool)]
    if len(numbers) < 2 or not numbers[0] < numbers[1]:
        what = f"{told.name} needs two numbers, the low one first"
        refuse("bounds_invalid", what, f"Write {told.name} => (0, 100).", node)
    if any(abs(end) > LARGEST or 0 < abs(end) < Fraction(1, LARGEST) for end in numbers):
        refuse("bounds_invalid", f"{told.name} has numbers that are too large or too small", "Scale the values.", node)
    return numbers[0], numbers[1]


def check(rule: Rule, arguments: list[Expr], clip: Range | None, each: Range | None) -> None:
    """Refuse bounds that mean nothing for an aggregate."""
    type_ = arguments[0].facts.type if arguments else BIGINT
    if type_ == INTERVAL and rule.name == "avg" and (clip or each):
        raise Refused("bounds_invalid", "contribution bounds are numbers", "Write avg(epoch(x), …), in seconds.")
    if each is not None:
        if rule.name not in ("count", "count_if", "sum", "avg"):
            hint = f"Write {BOUNDS[0]} => (0, 100)."
            raise Refused("bounds_invalid", f"{rule.name} is not made of what each person adds to a group", hint)
        on_steps(each, {"sum": type_, "avg": DOUBLE}.get(rule.name, BIGINT))
    if clip is not None:
        if rule.degrees not in ((1,), (2,)) or not type_.numeric:
            hint = "Write least(greatest(x, 0), 100) for what is to be clipped."
            raise Refused("bounds_invalid", f"{rule.name} is not made of one number of each row", hint)
        on_steps(clip, type_)


def on_steps(ends: Range, type_: Type) -> None:
    """Exact numbers are clipped to numbers that they can be."""
    scaled = [end * 10**type_.scale for end in ends]
    if type_ != DOUBLE and any(end.denominator > 1 or abs(end) >= 10**18 for end in scaled):
        digits = f"have at most {type_.scale} digits after the point" if type_.scale else "are whole numbers"
        what = f"contribution bounds of values of type {type_.sql} {digits}, and not too large"
        raise Refused("bounds_invalid", what, "Round them, or write CAST(x AS DOUBLE).")


def called(node: exp.Expr) -> tuple[Rule, list[exp.Expr], bool, list[exp.Kwarg]]:
    """The rule of an aggregate, its arguments, whether it is over distinct values, and the arguments that have names."""
    told: list[exp.Kwarg] = []
    match node:
        case exp.Count():
            this, more, _ = take(node, "this", "expressions", "big_int")
            if more:
                refuse("arguments_invalid", "count takes 1 argument", "Count them, or write count(DISTINCT x).", node)
            rule, given = RULES["count"], [] if this is None else [this]
            if isinstance(this, exp.Star):
                take(this)
                given = []
        case exp.Sum() | exp.Avg():
            rule, given = RULES["sum" if isinstance(node, exp.Sum) else "avg"], take(node, "this")
        case exp.Anonymous() if fold(node.name) in RULES:
            rule, given = RULES[fold(node.name)], take(node, "this", "expressions")[1]
            told = [argument for argument in given if isinstance(argument, exp.Kwarg)]
            given = [argument for argument in given if not isinstance(argument, exp.Kwarg)]
            if len({argument.name for argument in told}) < len(told):
                refuse("bounds_invalid", "contribution bounds of one kind stand there twice", "Leave one out.", node)
            if rule.name == "count" and len(given) == 1 and isinstance(given[0], exp.Star):
                take(given.pop())
        case _:
            refuse("not_supported", "FILTER stands behind no aggregate", "Write sum(x) FILTER (WHERE y > 0).", node)
    distinct = len(given) == 1 and isinstance(given[0], exp.Distinct)
    if distinct:
        (given,) = take(given[0], "expressions")
        if not rule.distinct:
            refuse("not_supported", f"DISTINCT in {rule.name} is not supported", "Leave it out.", node)
    if len(given) != len(rule.degrees) and (given or rule.name != "count" or distinct):
        many = f"{len(rule.degrees)} argument{'s' * (len(rule.degrees) > 1)}"
        refuse("arguments_invalid", f"{rule.name} takes {many}", "Count them.", node)
    return rule, given, distinct, told


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
