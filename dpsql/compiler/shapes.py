"""What can be told of a query from its tree alone, and small changes to it, for statements that are taken apart."""

from __future__ import annotations

from typing import TypeVar

from sqlglot import exp

from dpsql.compiler.aggregates import RULES
from dpsql.compiler.bind import spelt as constant
from dpsql.compiler.resolve import has_aggregate
from dpsql.compiler.sets import has_sets
from dpsql.policy.catalog import fold

Q = TypeVar("Q", bound=exp.Query)


def aliased(table: exp.Table, word: str) -> exp.Table:
    table.set("alias", exp.TableAlias(this=exp.to_identifier(word, quoted=True)))
    return table


def named_by_place(query: Q) -> Q:
    """A copy that calls what it reads by its place: one name for one name, so that it means the same."""
    query = query.copy()
    places: dict[str, str] = {}
    for node in query.find_all(exp.Table, exp.Subquery):
        if isinstance(node.parent, exp.From | exp.Join) and node.alias_or_name:
            word = places.setdefault(fold(node.alias_or_name), f"with place {len(places)}")
            columns = node.args["alias"].args.get("columns") if node.args.get("alias") else None
            node.set("alias", exp.TableAlias(this=exp.to_identifier(word, quoted=True), columns=columns))
    for column in query.find_all(exp.Column):
        if fold(column.table) in places:
            column.set("table", exp.to_identifier(places[fold(column.table)], quoted=True))
    return query


def sources(query: exp.Expr) -> list[exp.Expr]:
    """What a SELECT reads in FROM and JOIN."""
    from_ = query.args.get("from_")
    return [from_.this, *(join.this for join in query.args.get("joins") or ())] if from_ is not None else []


def used(query: exp.Query, ctes: list[exp.CTE]) -> list[exp.CTE]:
    """Copies of those that a query reads, and that these read, in their order."""
    found: list[exp.CTE] = []
    names = {fold(table.name) for table in query.find_all(exp.Table)}
    for cte in reversed(ctes):
        if fold(cte.alias) in names:
            found.insert(0, cte.copy())
            names |= {fold(table.name) for table in cte.find_all(exp.Table)}
    return found


def forget_unread(tree: exp.Query) -> None:
    """Leave out what WITH defines and nobody reads; names stand once."""
    while True:
        read = {fold(table.name) for table in tree.find_all(exp.Table)}
        unread = [cte for cte in tree.find_all(exp.CTE) if fold(cte.alias) not in read]
        for cte in unread:
            with_ = cte.parent
            cte.pop()
            if with_ is not None and not with_.expressions:
                with_.pop()
        if not unread:
            return


def tied(query: exp.Query) -> bool:
    """Whether a query names a table of the query around it."""
    own = {fold(source.alias_or_name) for source in query.find_all(exp.Table, exp.Subquery)}
    return any(column.table and fold(column.table) not in own for column in query.find_all(exp.Column))


def conditions(where: exp.Expr) -> list[exp.Expr]:
    where = where.unnest()
    return [*conditions(where.this), *conditions(where.expression)] if isinstance(where, exp.And) else [where]


def plain_rows(query: exp.Query) -> bool:
    """Whether a query selects rows as they are: no groups, and not some of them."""
    clauses = (query.args.get(clause) for clause in ("group", "distinct", "limit", "offset", "qualify"))
    return isinstance(query, exp.Select) and not any(clauses) and not any(map(has_aggregate, query.expressions))


def groups_alone(query: exp.Query) -> bool:
    """Whether a release says only which groups there are, and nothing that was counted decides about them. Then declared ones
    are not all shown either: a list of all groups, whoever has them, would say nothing."""
    clauses = ["having", "qualify", *(["order"] if query.args.get("limit") else [])]
    nodes = [*query.expressions, *(query.args[clause] for clause in clauses if query.args.get(clause) is not None)]
    return not any(map(has_aggregate, nodes))


def decided(trees: list[exp.Expr], counts: set[str]) -> bool:
    """Whether a condition of these queries, or the column that the first of them shows, is about what was counted."""
    known: set[str] = set()
    while known != counts:  # what is computed from it has other names
        known = set(counts)
        for tree in trees:
            counts |= {fold(one.alias) for one in tree.find_all(exp.Alias) if names(one) & counts}
            for alias in tree.find_all(exp.TableAlias):
                counts |= {fold(column.name) for column in alias.args.get("columns") or ()}
    shown = [] if isinstance(trees[0].parent, exp.Exists) else trees[0].expressions
    tests = [node for tree in trees for node in tree.find_all(exp.Where, exp.Having, exp.Qualify)]
    tests += [on for tree in trees for join in tree.find_all(exp.Join) if (on := join.args.get("on")) is not None]
    first = [
        node for tree in trees for node in tree.find_all(exp.Order) if node.parent and node.parent.args.get("limit")
    ]
    return any(names(node) & counts for node in (*shown, *tests, *first))


def names(node: exp.Expr) -> set[str]:
    return {fold(column.name) for column in node.find_all(exp.Column)}


def of_nothing(expression: exp.Expr) -> exp.Expr:
    """What an expression of aggregates is where there are no rows."""
    whole = exp.Paren(this=expression)
    found = whole.walk(prune=lambda node: isinstance(node, exp.Filter) or is_aggregate(node))
    for part in [node for node in found if isinstance(node, exp.Filter) or is_aggregate(node)]:
        one = part.this if isinstance(part, exp.Filter) else part
        word = fold(one.name) if isinstance(one, exp.Anonymous) else ""
        counts = isinstance(one, exp.Count) or word in ("count", "count_if", "countif", "regr_count")
        part.replace(exp.Literal.number(0) if counts else constant(None))
    return whole


def summary(node: exp.Expr) -> bool:
    """Whether something is computed over several rows, by whichever aggregate or window."""
    return has_aggregate(node) or node.find(exp.AggFunc) is not None


def is_aggregate(node: exp.Expr) -> bool:
    return isinstance(node, exp.AggFunc) or (isinstance(node, exp.Anonymous) and fold(node.name) in RULES)


def unfiltered(query: exp.Expr) -> exp.Expr:
    """A query without the conditions that have queries in them: whose rows it reads does not depend on these."""
    for where in list(query.find_all(exp.Where)):
        kept = [part for part in conditions(where.this) if part.find(exp.Select, exp.SetOperation) is None]
        if kept:
            where.set("this", exp.and_(*kept))
        elif isinstance(where.parent, exp.Filter):
            where.parent.replace(where.parent.this)
        else:
            where.pop()
    return query


def nested(query: exp.Query) -> list[exp.Query]:
    """The queries directly inside of a query; those of a chain of set operations at once, since there may be hundreds."""

    def apart(node: exp.Expr) -> bool:
        chained = isinstance(node, exp.SetOperation) and isinstance(node.parent, exp.SetOperation)
        inner = isinstance(node, exp.Select | exp.SetOperation | exp.With)
        return inner and node is not query and not (chained and not node.args.get("with_"))

    found = query.walk(bfs=not isinstance(query, exp.SetOperation), prune=apart)  # arms in the order of the text
    return [node for node in found if isinstance(node, exp.Query) and apart(node)]


def skeleton(query: exp.Expr) -> exp.Expr | None:
    """The groups of a query without what is computed of them, which may be possible only over many persons; None if it has
    one group, of everybody."""
    if not isinstance(query, exp.Select) or not (query.args.get("group") or any(map(has_aggregate, query.expressions))):
        for clause in ("order", "limit", "offset"):
            query.set(clause, None)
        return query
    group = query.args.get("group")
    if group is None or has_sets(query):
        return None
    keys = [item.unalias() for item in query.expressions if not has_aggregate(item)] if group.args.get("all") else []
    for item in group.expressions:
        place = int(item.this) - 1 if isinstance(item, exp.Literal) and str(item.this).isdigit() else None
        named = next((i.this for i in query.expressions if i.alias and fold(i.alias) == fold(item.name)), None)
        if place is not None and place < len(query.expressions):
            item = query.expressions[place].unalias()
        keys.append(named if isinstance(item, exp.Column) and named is not None else item)
    query.set("expressions", [exp.alias_(key.copy(), f"k{i}") for i, key in enumerate(keys)] or [exp.Literal.number(1)])
    query.set("group", exp.Group(expressions=[key.copy() for key in keys]))
    for clause in ("having", "order", "limit", "offset", "qualify"):
        query.set(clause, None)
    return query
