"""A statement over several releases: subqueries that aggregate over persons are answered first, and are public from then on.

Each of them is a plan of its own with its share of the statement's budget. What stands around them is the analyst's own SQL,
over their answers and public tables: post-processing.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date, datetime
from fractions import Fraction
from typing import Any

from sqlglot import exp

from dpsql.accountant import CURRENCIES
from dpsql.catalog import Catalog, fold, quoted
from dpsql.errors import Refused
from dpsql.passes.bind import spelt as constant
from dpsql.passes.free import named, spelt
from dpsql.passes.label import label
from dpsql.passes.lower import interval, refuse
from dpsql.passes.resolve import has_aggregate
from dpsql.plan import Plan, Program

MAX_RELEASES = 16


Names = dict[str, "exp.CTE | Released"]


@dataclass
class Released:
    """A CTE that has been released, or reads only what has: how the SQL over releases defines it."""

    cte: exp.CTE


@dataclass
class Composer:
    """Takes a statement apart.

    Needs:   a tree of allow-listed nodes; `local` says whether a query is one of single persons' rows, `single` whether
             it could be one release, `whole` whether it could be asked alone
    Gives:   releases, and SQL that reads them and public tables only
    Proof:   every table and every query of the tree is visited: a table of the policy is public, or stands inside of a
             release, or is refused. The releases are planned one by one, each for its share, and losses add up; one that
             waits for the values of others takes them as constants, which they are once they are released
    Checked: test_compose, specs/released.md
    """

    catalog: Catalog
    local: Callable[[exp.Query], bool]
    single: Callable[[exp.Query], bool]
    whole: Callable[[exp.Query], bool]
    releases: dict[str, tuple[exp.Query, tuple[str, ...]]] = field(default_factory=dict)
    tables: dict[str, tuple[str, str, str]] = field(default_factory=dict)

    def query(self, query: exp.Query, names: Names) -> exp.Query:
        """What stands for a query in the SQL over releases."""
        names = self.define(query, names)
        if isinstance(query, exp.Select) and self.of_persons(query, names):
            return self.release(query, names)
        return self.around(query, names)

    def define(self, query: exp.Query, names: Names) -> Names:
        """What WITH defines. It is taken off: rows of persons go into the releases, the others around them."""
        names = dict(names)
        with_ = query.args.get("with_")
        if with_ is not None and with_.args.get("recursive"):
            refuse("not_supported", "WITH RECURSIVE is not supported", "Write the steps out.", query)
        for cte in with_.expressions if with_ is not None else ():
            if self.private(cte.this, names) and self.rows(cte.this, names):
                names[fold(cte.alias)] = cte
            else:
                cte.set("this", self.query(cte.this, names))
                names[fold(cte.alias)] = Released(cte)
        query.set("with_", None)
        return names

    def release(self, query: exp.Select, names: Names) -> exp.Query:
        known = [cte.copy() for cte in names.values() if isinstance(cte, exp.CTE)]
        query.set("with_", exp.With(expressions=known) if known else None)
        waits = self.waits(query, names)
        text = f"{query.sql('duckdb')} {waits}"
        number = list(self.releases).index(text) if text in self.releases else len(self.releases)
        self.releases.setdefault(text, (query, waits))
        if len(self.releases) > MAX_RELEASES:
            refuse("too_many_releases", f"the query needs more than {MAX_RELEASES} releases", "Ask for less at a time.")
        return exp.select("*").from_(exp.Table(this=exp.to_identifier(f"release {number}", quoted=True)))

    def waits(self, query: exp.Select, names: Names) -> tuple[str, ...]:
        """Subqueries of a release that have to be released before it: each leaves a parameter behind, numbered."""
        if self.single(query.copy()):
            return ()
        for item in list(query.expressions):  # called as they are written, whatever will be released
            if not isinstance(item, exp.Alias | exp.Column | exp.Star):
                item.replace(exp.alias_(item.copy(), label(item), quoted=True))
        found: list[str] = []
        for node in nested(query):
            at = node.parent
            if not isinstance(at, exp.Subquery) or isinstance(at.parent, exp.From | exp.Join):
                continue
            read = any(isinstance(names.get(fold(table.name)), Released) for table in node.find_all(exp.Table))
            if not read and (not self.private(node, names) or self.rows(node, names)):
                continue
            if not read and not self.whole(node.copy()):  # it is tied to the query around it
                continue
            mark = exp.Placeholder(this=f"release {len(found)}")
            found.append(defined(self.query(node.copy(), names), names).sql("duckdb", comments=False))
            if isinstance(at.parent, exp.In):
                at.parent.set("expressions", [mark])
                at.parent.set("query", None)
            else:
                at.replace(mark)
        return tuple(found)

    def around(self, query: exp.Query, names: Names) -> exp.Query:
        """A query over releases and public tables: its parts one by one."""
        for node in nested(query):
            node.replace(self.query(node.copy(), names))
        for part in list(query.find_all(exp.Table, exp.Anonymous)):
            if isinstance(part, exp.Table):
                self.table(part, names)
            elif (length := interval(part)) is not None:
                part.replace(spelt(length))
            elif isinstance(part, exp.Anonymous):
                named(part)
        return query

    def table(self, node: exp.Table, names: Names) -> None:
        if not isinstance(node.this, exp.Identifier) or node.name.startswith(("release ", "public ")):
            return  # a function, of which the backend knows whether it is harmless; or what was put there before
        name = ".".join(part.name for part in node.parts)
        if isinstance(names.get(fold(name)), Released):
            return
        found = self.catalog.tables.get(fold(name))
        if fold(name) in names or found is None or found.person is not None:
            if fold(name) not in names and found is None:
                refuse("table_unknown", f"the policy has no table {name!r}", "Check its name.", node)
            what = f"{name!r} has rows about persons, and is joined with what was released"
            refuse("rows_with_released", what, "Aggregate it first.", node)
        self.tables[found.name] = found.path
        node.set("alias", node.args.get("alias") or exp.TableAlias(this=node.this.copy()))
        node.set("this", exp.to_identifier(f"public {found.name}", quoted=True))
        for part in ("db", "catalog"):
            node.set(part, None)

    def private(self, query: exp.Expr, names: Names) -> bool:
        """Whether a query reads rows about persons anywhere below it."""
        own = {fold(cte.alias) for cte in query.find_all(exp.CTE)}
        views = {fold(view) for view in self.catalog.policy.views}
        for table in query.find_all(exp.Table):
            word = fold(".".join(part.name for part in table.parts)) if isinstance(table.this, exp.Identifier) else ""
            found = self.catalog.tables.get(word)
            if word in names:
                if isinstance(names[word], exp.CTE):
                    return True
            elif word not in own and (word in views or (found is not None and found.person is not None)):
                return True
        return False

    def of_persons(self, query: exp.Select, names: Names) -> bool:
        """Whether a query reads rows about persons, and nothing that has been released: then it is a release."""
        from_ = query.args.get("from_")
        sources = [from_.this, *(join.this for join in query.args.get("joins") or ())] if from_ is not None else []
        for source in sources:
            if isinstance(source, exp.Table) and isinstance(names.get(fold(source.name)), Released):
                return False
            if (
                isinstance(source, exp.Subquery)
                and self.private(source, names)
                and not self.rows(source.unnest(), names)
            ):
                return False
        return any(self.private(source, names) for source in sources)

    def rows(self, query: exp.Expr, names: Names) -> bool:
        """Whether a query is one of single persons' rows."""
        if any(isinstance(names.get(fold(table.name)), Released) for table in query.find_all(exp.Table)):
            return False
        shape = skeleton(query.copy())
        if shape is None:
            return False
        inner = exp.Subquery(this=shape, alias=exp.TableAlias(this=exp.to_identifier("q")))
        counted = exp.select(exp.Count(this=exp.Star(), big_int=True)).from_(inner)
        known = [cte.copy() for cte in names.values() if isinstance(cte, exp.CTE)]
        counted.set("with_", exp.With(expressions=known) if known else None)
        return self.local(counted)


def nested(query: exp.Query) -> list[exp.Query]:
    """The queries directly inside of a query."""
    inner = (exp.Select, exp.SetOperation)
    found = query.walk(prune=lambda node: node is not query and isinstance(node, (*inner, exp.With)))
    return [node for node in found if node is not query and isinstance(node, inner)]


def defined(query: exp.Query, names: Names) -> exp.Query:
    """SQL over releases with the CTEs that it may use."""
    known = [name.cte.copy() for name in names.values() if isinstance(name, Released)]
    if known:
        query.set("with_", exp.With(expressions=known))
    return query


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


def filled(query: exp.Query, values: tuple[tuple[Any, ...], ...]) -> exp.Query:
    """A release with what it waited for: values of one column each."""
    for node in list(query.find_all(exp.Placeholder)):
        found = values[int(node.name.removeprefix("release "))]
        if isinstance(node.parent, exp.In):
            known = [constant(value) for value in found if value is not None]
            if known:
                node.parent.set("expressions", known)
            else:
                node.parent.replace(exp.Boolean(this=False))
        else:
            node.replace(constant(found[0] if len(found) == 1 else None))
    return query


SAMPLES: dict[str, Any] = {"VARCHAR": "", "BOOLEAN": True, "DATE": date(2000, 1, 1), "TIMESTAMP": datetime(2000, 1, 1)}


def sample(query: str, plans: list[Plan]) -> Any:
    """A value of the kind that a query over releases gives, as far as that is known beforehand."""
    found = re.search(r'SELECT \* FROM "release (\d+)"$', query)
    kind = plans[int(found[1])].outputs[0].expression.facts.type.kind if found else "DOUBLE"
    return SAMPLES.get(kind, 1)


def compose(
    tree: exp.Query,
    catalog: Catalog,
    local: Callable[[exp.Query], bool],
    single: Callable[[exp.Query], bool],
    whole: Callable[[exp.Query], bool],
    plan: Callable[[exp.Query, Fraction, tuple[str, ...], tuple[Any, ...]], Plan],
    refusal: Refused,
) -> Program:
    """The program of a statement that is not one release; `refusal` says why it is not."""
    composer = Composer(catalog, local, single, whole)
    names = composer.define(tree, {})
    outer = defined(composer.query(tree, names), names)
    if len(composer.releases) == 1 and outer.sql("duckdb") == 'SELECT * FROM "release 0"':
        raise refusal
    share = Fraction(1, max(len(composer.releases), 1))
    plans: list[Plan] = []
    for query, waits in composer.releases.values():
        plans.append(plan(query, share, waits, tuple(sample(wait, plans) for wait in waits)))
    tables = tuple((name, ".".join(map(quoted, path))) for name, path in composer.tables.items())
    if not plans and not tables:
        raise Refused("no_table", "the query reads no table", "Name a table of the policy.")
    return Program(
        tuple(plans), outer.sql("duckdb", comments=False), tables, CURRENCIES[catalog.policy.budget.accounting]
    )
