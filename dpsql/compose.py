"""A statement over several releases: subqueries that aggregate over persons are answered first, and are public from then on.

Each of them is a plan of its own with its share of the statement's budget. What stands around them is the analyst's own SQL,
over their answers and public tables: post-processing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from sqlglot import exp

from dpsql.accountant import CURRENCIES
from dpsql.catalog import Catalog, fold, quoted
from dpsql.errors import Refused
from dpsql.passes.free import spelt
from dpsql.passes.lower import interval, refuse
from dpsql.passes.resolve import has_aggregate
from dpsql.plan import Plan, Program

MAX_RELEASES = 16
RELEASED = None  # what a CTE is, by name, if it is not one of single persons' rows


@dataclass
class Composer:
    """Takes a statement apart.

    Needs:   a tree of allow-listed nodes; `local` says whether a query is one of single persons' rows
    Gives:   releases, and SQL that reads them and public tables only
    Proof:   every table and every query of the tree is visited: a table of the policy is public, or stands inside of a
             release, or is refused. The releases are planned one by one, each for its share, and losses add up
    Checked: test_compose, specs/released.md
    """

    catalog: Catalog
    local: Callable[[exp.Query], bool]
    releases: dict[str, exp.Query] = field(default_factory=dict)
    tables: dict[str, tuple[str, str, str]] = field(default_factory=dict)

    def query(self, query: exp.Query, ctes: dict[str, Any]) -> exp.Query:
        """What stands for a query in the SQL over releases."""
        if self.private(query, ctes) and isinstance(query, exp.Select) and not self.mixed(query, ctes):
            return self.release(query, ctes)
        return self.around(query, ctes)

    def release(self, query: exp.Select, ctes: dict[str, Any]) -> exp.Query:
        known = [cte.copy() for cte in ctes.values() if cte is not RELEASED]
        own = query.args.get("with_")
        if known or own:
            query.set("with_", exp.With(expressions=[*known, *(own.expressions if own else [])]))
        text = query.sql("duckdb")
        number = list(self.releases).index(text) if text in self.releases else len(self.releases)
        self.releases.setdefault(text, query)
        if len(self.releases) > MAX_RELEASES:
            refuse("too_many_releases", f"the query needs more than {MAX_RELEASES} releases", "Ask for less at a time.")
        return exp.select("*").from_(exp.Table(this=exp.to_identifier(f"release {number}", quoted=True)))

    def around(self, query: exp.Query, ctes: dict[str, Any]) -> exp.Query:
        """A query over releases and public tables: its parts one by one."""
        ctes = dict(ctes)
        with_ = query.args.get("with_")
        if with_ is not None:
            if with_.args.get("recursive"):
                refuse("not_supported", "WITH RECURSIVE is not supported", "Write the steps out.", query)
            kept = []
            for cte in with_.expressions:
                if self.private(cte.this, ctes) and self.rows(cte.this, ctes):
                    ctes[fold(cte.alias)] = cte
                else:
                    cte.set("this", self.query(cte.this, ctes))
                    ctes[fold(cte.alias)] = RELEASED
                    kept.append(cte)
            query.set("with_", exp.With(expressions=kept) if kept else None)
        inner = (exp.Select, exp.SetOperation, exp.With)
        for node in list(query.walk(prune=lambda n: n is not query and isinstance(n, inner))):
            if node is query or isinstance(node, exp.With):
                continue
            if isinstance(node, exp.Select | exp.SetOperation):
                node.replace(self.query(node.copy(), ctes))
            elif isinstance(node, exp.Table):
                self.table(node, ctes)
            elif isinstance(node, exp.Anonymous) and (length := interval(node)) is not None:
                node.replace(spelt(length))
        return query

    def table(self, node: exp.Table, ctes: dict[str, Any]) -> None:
        if not isinstance(node.this, exp.Identifier):
            return  # a table function: the backend knows which are harmless
        name = ".".join(part.name for part in node.parts)
        if not node.args.get("db") and fold(name) in ctes:
            if ctes[fold(name)] is not RELEASED:
                refuse(
                    "rows_with_released",
                    f"{name!r} has rows about persons, and is joined with what was released",
                    "Aggregate it first.",
                    node,
                )
            return
        if len(node.parts) == 1 and name.startswith("release "):
            return
        found = self.catalog.tables.get(fold(name))
        if found is None or found.person is not None:
            what = (
                "is not a table of the policy"
                if found is None
                else "has rows about persons, and is joined with what was released"
            )
            refuse(
                "table_unknown" if found is None else "rows_with_released",
                f"{name!r} {what}",
                "Aggregate it first.",
                node,
            )
        self.tables[found.name] = found.path
        alias = node.args.get("alias") or exp.TableAlias(this=node.this.copy())
        for part in ("db", "catalog"):
            node.set(part, None)
        node.set("this", exp.to_identifier(f"public {found.name}", quoted=True))
        node.set("alias", alias)

    def private(self, query: exp.Expr, ctes: dict[str, Any]) -> bool:
        """Whether a query reads rows about persons anywhere below it."""
        own = {fold(cte.alias) for cte in query.find_all(exp.CTE)}
        for table in query.find_all(exp.Table):
            word = fold(".".join(part.name for part in table.parts)) if isinstance(table.this, exp.Identifier) else ""
            found = self.catalog.tables.get(word)
            if ctes.get(word, RELEASED) is not RELEASED or (
                word not in own and word not in ctes and found is not None and found.person is not None
            ):
                return True
            if word in {fold(view) for view in self.catalog.policy.views}:
                return True
        return False

    def mixed(self, query: exp.Select, ctes: dict[str, Any]) -> bool:
        """Whether what a query reads has been released, or is public: then it is no release itself."""
        own = dict(ctes)
        for cte in query.args["with_"].expressions if query.args.get("with_") else ():
            own[fold(cte.alias)] = cte if self.private(cte.this, own) and self.rows(cte.this, own) else RELEASED
        from_ = query.args.get("from_")
        if from_ is None:
            return True
        for source in (from_.this, *(join.this for join in query.args.get("joins") or ())):
            if isinstance(source, exp.Subquery) and self.private(source, own) and not self.rows(source.unnest(), own):
                return True
            if isinstance(source, exp.Table) and own.get(fold(source.name), source) is RELEASED:
                return True
        return not any(self.private(s, own) for s in (from_.this, *(j.this for j in query.args.get("joins") or ())))

    def rows(self, query: exp.Expr, ctes: dict[str, Any]) -> bool:
        """Whether a query is one of single persons' rows."""
        known = [cte.copy() for cte in ctes.values() if cte is not RELEASED]
        if any(fold(t.name) in ctes and ctes[fold(t.name)] is RELEASED for t in query.find_all(exp.Table)):
            return False
        shape = skeleton(query.copy())
        if shape is None:
            return False
        inner = exp.Subquery(this=shape, alias=exp.TableAlias(this=exp.to_identifier("q")))
        counted = exp.select(exp.Count(this=exp.Star(), big_int=True)).from_(inner)
        if known:
            counted.set("with_", exp.With(expressions=known))
        return self.local(counted)


def skeleton(query: exp.Expr) -> exp.Expr | None:
    """The groups of a query without what is computed of them, which may be possible only over many persons; None if it has
    one group, of everybody."""
    if not isinstance(query, exp.Select) or not (query.args.get("group") or any(map(has_aggregate, query.expressions))):
        return query
    group = query.args.get("group")
    if group is None:
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


def compose(
    tree: exp.Query,
    catalog: Catalog,
    local: Callable[[exp.Query], bool],
    plan: Callable[[exp.Query, Fraction], Plan],
    refusal: Refused,
) -> Program:
    """The program of a statement that is not one release; `refusal` says why it is not."""
    composer = Composer(catalog, local)
    if composer.private(tree, {}) and isinstance(tree, exp.Select) and not composer.mixed(tree, {}):
        raise refusal
    outer = composer.around(tree, {})
    share = Fraction(1, max(len(composer.releases), 1))
    plans = tuple(plan(query, share) for query in composer.releases.values())
    tables = tuple((name, ".".join(map(quoted, path))) for name, path in composer.tables.items())
    if not plans and not tables:
        raise Refused("no_table", "the query reads no table", "Name a table of the policy.")
    return Program(plans, outer.sql("duckdb", comments=False), tables, CURRENCIES[catalog.policy.budget.accounting])
