"""A statement over several releases: subqueries that aggregate over persons are answered first, and are public from then on.

Each of them is a plan of its own with its share of the statement's budget. What stands around them is the analyst's own SQL,
over their answers and public tables: post-processing.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from fractions import Fraction
from typing import Any

from sqlglot import exp

from dpsql.accountant import CURRENCIES
from dpsql.catalog import DOUBLE, Catalog, Column, Table, Type, fold, quoted
from dpsql.errors import Refused
from dpsql.passes.bind import spelt as constant
from dpsql.passes.free import named, spelt
from dpsql.passes.label import label
from dpsql.passes.lower import interval, refuse
from dpsql.passes.resolve import has_aggregate
from dpsql.plan import Plan, Program, Read

MAX_RELEASES = 16


Names = dict[str, "exp.CTE | Released"]


@dataclass
class Released:
    """A CTE that has been released, or reads only what has: how the SQL over releases defines it."""

    cte: exp.CTE


@dataclass(frozen=True)
class Compiler:
    """What the passes say of a query that is taken out of a statement."""

    local: Callable[[exp.Query, Catalog], bool]  # whether it is one of single persons' rows
    single: Callable[[exp.Query, Catalog], bool]  # whether it could be one release
    whole: Callable[[exp.Query, Catalog], bool]  # whether it could be asked alone
    plan: Callable[[exp.Query, Catalog, Fraction, tuple[str, ...], tuple[Any, ...]], Plan]


@dataclass(frozen=True)
class Release:
    """A release to be: its query, what is computed from earlier ones for it, and the tables of them that it reads."""

    query: exp.Query
    waits: tuple[str, ...]
    reads: tuple[Read, ...]


@dataclass
class Composer:
    """Takes a statement apart.

    Needs:   a tree of allow-listed nodes
    Gives:   releases, and SQL that reads them and public tables only
    Proof:   every table and every query of the tree is visited: a table of the policy is public, or stands inside of a
             release, or is refused. The releases are planned one by one, each for its share, and losses add up; one that
             waits for the values of others takes them as constants, and one that is joined with them as public tables,
             which they are once they are released: nothing in the passes depends on the rows of a public table
    Checked: test_compose, test_tpch, specs/released.md
    """

    catalog: Catalog
    compiler: Compiler
    releases: dict[str, Release] = field(default_factory=dict)
    tables: dict[str, tuple[str, str, str]] = field(default_factory=dict)
    reads: dict[str, Read] = field(default_factory=dict)

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
        waits: list[str] = []
        if not self.compiler.single(query.copy(), self.known):
            for item in list(query.expressions):  # called as they are written, whatever will be released
                if not isinstance(item, exp.Alias | exp.Column | exp.Star):
                    item.replace(exp.alias_(item.copy(), label(item), quoted=True))
            for cte in known:
                self.inside(cte.this, names, waits)
            self.inside(query, names, waits)
        read = {fold(table.name) for table in query.find_all(exp.Table)}
        reads = tuple(one for one in self.reads.values() if one.name in read)
        text = f"{query.sql('duckdb')} {waits}"
        number = list(self.releases).index(text) if text in self.releases else len(self.releases)
        self.releases.setdefault(text, Release(query, tuple(waits), reads))
        if len(self.releases) > MAX_RELEASES:
            refuse("too_many_releases", f"the query needs more than {MAX_RELEASES} releases", "Ask for less at a time.")
        return exp.select("*").from_(exp.Table(this=exp.to_identifier(f"release {number}", quoted=True)))

    def inside(self, query: exp.Query, names: Names, waits: list[str]) -> None:
        """What has to be released before a query over rows of persons: a value or a list of values leaves a parameter
        behind, numbered; a table becomes a public one."""
        for node in nested(query):
            at = node.parent
            if not isinstance(at, exp.Subquery) or isinstance(at.parent, exp.From | exp.Join):
                if isinstance(at, exp.Subquery) and self.released(node, names):
                    made = self.read(defined(self.query(node.copy(), names), names))
                    made.set("alias", at.args.get("alias"))
                    at.replace(made)
                else:
                    self.inside(node, names, waits)
                continue
            if not self.released(node, names):
                self.inside(node, names, waits)
                continue
            if not self.reading(node, names) and not self.compiler.whole(node.copy(), self.known):
                if (untied := self.untied(node, names)) is not None:  # it is tied to the query around it
                    groups, left = untied
                    left.set("from_", exp.From(this=aliased(self.read(self.query(groups, names)), TIED)))
                    node.replace(left)
                continue
            mark = exp.Placeholder(this=f"release {len(waits)}")
            waits.append(defined(self.query(node.copy(), names), names).sql("duckdb", comments=False))
            if isinstance(at.parent, exp.In):
                at.parent.set("expressions", [mark])
                at.parent.set("query", None)
            else:
                at.replace(mark)
        for source in sources(query):
            if isinstance(source, exp.Table) and isinstance(names.get(fold(source.name)), Released):
                made = self.read(defined(exp.select("*").from_(exp.to_identifier(source.name, quoted=True)), names))
                made.set("alias", source.args.get("alias") or exp.TableAlias(this=source.this.copy()))
                source.replace(made)

    def read(self, query: exp.Query) -> exp.Table:
        """A query over releases as a public table for a later one."""
        text = query.sql("duckdb", comments=False)
        if text not in self.reads:
            columns = self.columns(query)
            if columns is None:
                what = "a table that is made from released ones is joined with rows of persons"
                refuse("rows_with_released", what, "Select columns of one release by their names, or SELECT *.", query)
            self.reads[text] = Read(f"released {len(self.reads)}", text, columns)
        return exp.Table(this=exp.to_identifier(self.reads[text].name, quoted=True))

    def columns(self, query: exp.Expr) -> tuple[tuple[str, Type], ...] | None:
        """The columns of a query over releases with their types; what is computed from them is a DOUBLE."""
        if not isinstance(query, exp.Select) or query.args.get("joins") or not query.args.get("from_"):
            return None
        source = query.args["from_"].this
        if isinstance(source, exp.Subquery):
            found = self.columns(source.this)
        else:
            ctes = {fold(cte.alias): cte.this for cte in query.find_all(exp.CTE)}
            if fold(source.name) in ctes:
                whole = ctes[fold(source.name)].copy()
                whole.set("with_", query.args.get("with_"))
                found = self.columns(whole)
            else:
                number = re.fullmatch(r"release (\d+)", source.name)
                found = self.shape(int(number[1])) if number else None
        if found is None:
            return None
        types, shown = {fold(word): type_ for word, type_ in found}, list[tuple[str, Type]]()
        for item in query.expressions:
            if isinstance(item, exp.Star):
                shown += found
            else:
                shown.append((item.output_name or label(item), types.get(fold(item.unalias().name), DOUBLE)))
        return tuple(shown) if len({fold(word) for word, _ in shown}) == len(shown) else None

    def shape(self, number: int) -> tuple[tuple[str, Type], ...]:
        """The columns of a release."""
        made = self.planned(list(self.releases.values())[number], Fraction(1), [])
        return tuple((output.name, output.expression.facts.type) for output in made.outputs)

    def planned(self, release: Release, share: Fraction, before: list[Plan]) -> Plan:
        samples = tuple(sample(wait, before) for wait in release.waits)
        made = self.compiler.plan(release.query, self.known, share, release.waits, samples)
        return replace(made, reads=release.reads)

    @property
    def known(self) -> Catalog:
        """The tables of the policy, and those that have been released."""
        tables = {
            read.name: Table(
                read.name, read.path, {fold(word): Column(word, type_) for word, type_ in read.columns}, None
            )
            for read in self.reads.values()
        }
        return replace(self.catalog, tables={**self.catalog.tables, **tables})

    def around(self, query: exp.Query, names: Names) -> exp.Query:
        """A query over releases and public tables: its parts one by one."""
        for node in nested(query):
            untied = self.untied(node, names) if isinstance(node.parent, exp.Subquery | exp.Exists) else None
            if untied is not None:
                groups, left = untied
                left.set("from_", exp.From(this=self.query(groups, names).subquery(TIED)))
                node.replace(left)
                continue
            inner = node.copy()
            if isinstance(node.parent, exp.Subquery) and isinstance(node.parent.parent, exp.In) and plain_rows(inner):
                inner.set("distinct", exp.Distinct())  # how often a value is in a list does not matter
            node.replace(self.query(inner, names))
        for part in list(query.find_all(exp.Table, exp.Anonymous)):
            if isinstance(part, exp.Table):
                self.table(part, names)
            elif (length := interval(part)) is not None:
                part.replace(spelt(length))
            elif isinstance(part, exp.Anonymous):
                named(part)
        return query

    def untied(self, node: exp.Query, names: Names) -> tuple[exp.Select, exp.Select] | None:
        """SELECT aggregate FROM persons WHERE inner = outer AND ... as groups by the inner sides, for a release, and what
        looks the group up; None for another query, or one that is not tied to the query around it.

        A group that is hidden is one without rows: NULL, or what the aggregates are of nothing.
        """
        if not isinstance(node, exp.Select) or not self.private(node, names):
            return None
        if any(node.args.get(clause) for clause in CLAUSES) or node.args.get("where") is None:
            return None
        mine = self.owner(node)
        ties, rest = list[tuple[exp.Expr, exp.Expr]](), list[exp.Expr]()
        for part in conditions(node.args["where"].this):
            sides = [part.this, part.expression] if isinstance(part, exp.EQ) else [part]
            owned = [{mine(column) for column in side.find_all(exp.Column)} for side in sides]
            if set().union(*owned) <= {True}:
                rest.append(part)
            elif owned in ([{True}, {False}], [{False}, {True}]):
                ties.append((sides[owned.index({True})], sides[owned.index({False})]))
            else:
                return None
        if not ties:
            return None
        exists = isinstance(node.parent, exp.Exists)
        if not exists and (len(node.expressions) != 1 or not has_aggregate(node.expressions[0])):
            return None
        groups = node.copy()
        value = [] if exists else [exp.alias_(node.expressions[0].unalias().copy(), "value", quoted=True)]
        keys = [exp.alias_(inner.copy(), f"key {i}", quoted=True) for i, (inner, _) in enumerate(ties)]
        groups.set("expressions", [*keys, *value])
        groups.set("group", exp.Group(expressions=[inner.copy() for inner, _ in ties]))
        groups.set("where", exp.Where(this=exp.and_(*(part.copy() for part in rest))) if rest else None)
        if not self.compiler.whole(groups.copy(), self.known):
            return None
        found: exp.Expr = exp.Literal.number(1)
        if not exists:
            found = exp.Max(this=exp.column("value", TIED, quoted=True))
            if node.expressions[0].find(exp.Count):
                found = exp.Coalesce(this=found, expressions=[of_nothing(node.expressions[0].unalias().copy())])
        equal = (
            exp.EQ(this=exp.column(f"key {i}", TIED, quoted=True), expression=outer.copy())
            for i, (_, outer) in enumerate(ties)
        )
        return groups, exp.select(found).where(exp.and_(*equal))

    def owner(self, query: exp.Select) -> Callable[[exp.Column], bool]:
        """Whether a column is one of the query's own tables, and not of the query around it."""
        own: dict[str, set[str]] = {}
        for source in sources(query):
            table = self.catalog.table(".".join(part.name for part in source.parts)) if isinstance(source, exp.Table) else None
            own[fold(source.alias_or_name)] = set(table.columns) if table is not None else set()
        return lambda column: (
            fold(column.table) in own if column.table else any(fold(column.name) in names for names in own.values())
        )

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

    def reading(self, query: exp.Expr, names: Names) -> bool:
        """Whether a query reads what has been released."""
        return any(isinstance(names.get(fold(table.name)), Released) for table in query.find_all(exp.Table))

    def released(self, query: exp.Expr, names: Names) -> bool:
        """Whether a query is answered from releases: it reads them, or aggregates over persons."""
        return (self.reading(query, names) or self.private(query, names)) and not self.rows(query, names)

    def of_persons(self, query: exp.Select, names: Names) -> bool:
        """Whether a query reads rows about persons: then it is a release."""
        for source in sources(query):
            if isinstance(source, exp.Subquery):
                if self.private(source, names) and not self.released(source.unnest(), names):
                    return True
            elif self.private(source, names):
                return True
        return False

    def rows(self, query: exp.Expr, names: Names) -> bool:
        """Whether a query is one of single persons' rows."""
        if self.reading(query, names) and not (isinstance(query, exp.Select) and self.of_persons(query, names)):
            return False
        shape = skeleton(unfiltered(query.copy()))
        if shape is None:
            return False
        inner = exp.Subquery(this=shape, alias=exp.TableAlias(this=exp.to_identifier("q")))
        counted = exp.select(exp.Count(this=exp.Star(), big_int=True)).from_(inner)
        known = [cte.copy() for cte in names.values() if isinstance(cte, exp.CTE)]
        counted.set("with_", exp.With(expressions=known) if known else None)
        return self.compiler.local(counted, self.known)


CLAUSES = ("group", "having", "order", "limit", "offset", "distinct", "qualify", "with_", "laterals", "pivots")
TIED = "tied"  # what a query that is tied to the one around it is called, once it is released


def aliased(table: exp.Table, word: str) -> exp.Table:
    table.set("alias", exp.TableAlias(this=exp.to_identifier(word)))
    return table


def sources(query: exp.Expr) -> list[exp.Expr]:
    """What a SELECT reads in FROM and JOIN."""
    from_ = query.args.get("from_")
    return [from_.this, *(join.this for join in query.args.get("joins") or ())] if from_ is not None else []


def conditions(where: exp.Expr) -> list[exp.Expr]:
    where = where.unnest()
    return [*conditions(where.this), *conditions(where.expression)] if isinstance(where, exp.And) else [where]


def plain_rows(query: exp.Query) -> bool:
    """Whether a query selects rows as they are: no groups, and not some of them."""
    clauses = (query.args.get(clause) for clause in ("group", "distinct", "limit", "offset", "qualify"))
    return isinstance(query, exp.Select) and not any(clauses) and not any(map(has_aggregate, query.expressions))


def of_nothing(expression: exp.Expr) -> exp.Expr:
    """What an expression of aggregates is where there are no rows."""
    whole = exp.Paren(this=expression)
    for part in list(whole.find_all(exp.AggFunc)):
        part.replace(exp.Literal.number(0) if isinstance(part, exp.Count) else exp.Null())
    return whole


def unfiltered(query: exp.Expr) -> exp.Expr:
    """A query without the conditions that have queries in them: whose rows it reads does not depend on these."""
    for where in list(query.find_all(exp.Where)):
        kept = [part for part in conditions(where.this) if part.find(exp.Select, exp.SetOperation) is None]
        if kept:
            where.set("this", exp.and_(*kept))
        else:
            where.pop()
    return query


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


def compose(tree: exp.Query, catalog: Catalog, compiler: Compiler, refusal: Refused) -> Program:
    """The program of a statement that is not one release; `refusal` says why it is not."""
    composer = Composer(catalog, compiler)
    names = composer.define(tree, {})
    outer = defined(composer.query(tree, names), names)
    if len(composer.releases) == 1 and outer.sql("duckdb") == 'SELECT * FROM "release 0"':
        raise refusal
    share = Fraction(1, max(len(composer.releases), 1))
    plans: list[Plan] = []
    for release in composer.releases.values():
        plans.append(composer.planned(release, share, plans))
    tables = tuple((name, ".".join(map(quoted, path))) for name, path in composer.tables.items())
    if not plans and not tables:
        raise Refused("no_table", "the query reads no table", "Name a table of the policy.")
    return Program(
        tuple(plans), outer.sql("duckdb", comments=False), tables, CURRENCIES[catalog.policy.budget.accounting]
    )
