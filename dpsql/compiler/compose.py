"""A statement over several releases: subqueries that aggregate over persons are answered first, and are public from then on.

Each of them is a plan of its own with its share of the statement's budget. What stands around them is the analyst's own SQL,
over their answers and public tables: post-processing.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, TypeVar

from sqlglot import exp

from dpsql.compiler.free import named, spelt
from dpsql.compiler.given import SAMPLES
from dpsql.compiler.label import label
from dpsql.compiler.lower import interval, refuse
from dpsql.compiler.names import RESERVED
from dpsql.compiler.program import Family, Plan, Program, Read
from dpsql.compiler.sets import has_sets, sets_of
from dpsql.compiler.shapes import (
    aliased,
    conditions,
    decided,
    forget_unread,
    named_by_place,
    nested,
    of_nothing,
    plain_rows,
    skeleton,
    sources,
    summary,
    tied,
    unfiltered,
    used,
)
from dpsql.compiler.shares import shares
from dpsql.errors import Refused
from dpsql.kernel.accountant import CURRENCIES
from dpsql.kernel.algebra import Aggregate, Expr
from dpsql.kernel.algebra import Column as AlgebraColumn
from dpsql.kernel.keys import PublicKeys
from dpsql.policy.catalog import BOOLEAN, DOUBLE, VARCHAR, Catalog, Column, Table, Type, fold

MAX_RELEASES = 16
SERIES = ("range", "generate_series", "unnest")  # functions in FROM that read nothing


TIED = "tied groups"  # what a query that is tied to the one around it is called, once it is released

# What WITH has defined, under names that stand once: rows of persons, or a query over releases.
Names = dict[str, exp.CTE | str]
Columns = tuple[tuple[str, Type], ...]
Q = TypeVar("Q", bound=exp.Query)


@dataclass(frozen=True)
class Compiler:
    """What the passes say of a query that is taken out of a statement."""

    local: Callable[[exp.Query, Catalog], bool]  # whether it is one of single persons' rows
    single: Callable[[exp.Query, Catalog], bool]  # whether it could be one release
    whole: Callable[[exp.Query, Catalog], bool]  # whether it could be asked alone
    plan: Callable[[exp.Query, Catalog, Fraction, tuple[Read, ...], tuple[Any, ...]], Plan]


@dataclass(frozen=True)
class Release:
    """A release to be: its query, what is computed from earlier ones for it, and the tables of them that it reads."""

    query: exp.Query
    waits: tuple[Read, ...]
    reads: tuple[Read, ...]


@dataclass
class Composer:
    """Takes a statement apart.

    Needs:   a tree of allow-listed nodes, named apart
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
    made: dict[str, exp.Query] = field(default_factory=dict)  # what is read under a name
    ctes: dict[str, exp.CTE] = field(default_factory=dict)
    families: list[Family] = field(default_factory=list)
    shaped: dict[str, Columns | None] = field(default_factory=dict)
    keys: dict[str, tuple[str, ...]] = field(default_factory=dict)  # of a release with one key

    def query(self, query: exp.Query, names: Names) -> exp.Query:
        """What stands for a query in the SQL over releases."""
        names = self.define(query, names)
        if isinstance(query, exp.Select) and self.of_persons(query, names):
            return self.by_sets(query, names) if has_sets(query) else self.release(query, names)
        return self.around(query, names)

    def by_sets(self, query: exp.Select, names: Names) -> exp.Query:
        """One release for each set of keys.

        Where all keys are declared, rows that have other values are left out at all levels, as they are where they would be
        groups: so all levels are about the same rows, and can be made to agree.
        """
        sets = sets_of(query.copy(), self.owner(query, names))
        lacking = {axis for held, one in sets.sets for axis in self.without_null(held, self.taken(one.copy(), names))}
        if lacking:
            sets = sets_of(query, self.owner(query, names), tuple(sorted(lacking)))
        levels = [(self.taken(one, names), held) for held, one in sets.sets]
        # They change together once all of them are released: nobody else may have read one of them before.
        together = " ".join(sorted(self.meaning(release) for release, _ in levels))
        numbers = [self.number(release, together) for release, _ in levels]
        family = tuple(dict(zip(numbers, (held for _, held in levels), strict=True)).items())
        if family not in self.families:
            self.families.append(family)
        return self.around(sets.stacked(list(map(released, numbers))), names)

    def without_null(self, held: tuple[int, ...], release: Release) -> list[int]:
        """Which of the keys of a set are declared, without a group for what is none of their values."""
        keys = self.planned(release, Fraction(1)).release.keys
        if not isinstance(keys, PublicKeys):
            return []
        return [axis for axis, (_, _, values) in zip(held, keys.columns, strict=False) if None not in values]

    def beside(self, query: Q, names: Names) -> Q:
        """A query with the rows of persons that WITH has defined for it."""
        known = used(query, [cte for cte in names.values() if isinstance(cte, exp.CTE)])
        query.set("with_", exp.With(expressions=known) if known else None)
        return query

    def define(self, query: exp.Query, names: Names) -> Names:
        """What WITH defines. It is taken off: rows of persons go into the releases, the others around them."""
        names = dict(names)
        with_ = query.args.get("with_")
        if with_ is not None and with_.args.get("recursive"):
            refuse("not_supported", "WITH RECURSIVE is not supported", "Write the steps out.", query)
        for cte in with_.expressions if with_ is not None else ():
            if self.private(cte.this, names) and self.rows(cte.this, names):
                names[cte.alias] = cte
            else:
                made = self.query(cte.this, names)
                self.shaped[cte.alias] = self.columns_of_cte(cte, made)
                names[cte.alias], self.ctes[cte.alias] = cte.alias, exp.CTE(this=made, alias=cte.args["alias"])
        query.set("with_", None)
        return names

    def release(self, query: exp.Select, names: Names) -> exp.Query:
        """What reads the release of a query; the same query again is the same release."""
        release = self.taken(query, names)
        number = self.number(release)
        first, own = (self.planned(one, Fraction(1)).outputs for one in (list(self.releases.values())[number], release))
        renamed = [
            exp.alias_(exp.column(a.name, quoted=True), b.name, quoted=True) for a, b in zip(first, own, strict=True)
        ]
        shown = released(number)
        return shown if [o.name for o in first] == [o.name for o in own] else shown.select(*renamed, append=False)

    def number(self, release: Release, together: str = "") -> int:
        """The number of a release, which may be new. Two that ask the same are one, whatever the names in them."""
        text = f"{self.meaning(release)} {together}"
        number = list(self.releases).index(text) if text in self.releases else len(self.releases)
        self.releases.setdefault(text, release)
        if len(self.releases) > MAX_RELEASES:
            refuse("too_many_releases", f"the query needs more than {MAX_RELEASES} releases", "Ask for less at a time.")
        return number

    def meaning(self, release: Release) -> str:
        """All that a release asks, which has the names of neither tables nor columns of the statement."""
        try:
            made = self.planned(replace(release, query=named_by_place(release.query)), Fraction(1))
        except Refused:
            made = self.planned(release, Fraction(1))  # refused with its own names in the text
        words = [fold(output.name) for output in made.outputs]
        apart = words if len(set(words)) < len(words) else []  # they could not be told apart under other names
        return repr((made.release.text, made.outer, made.release.climb, made.waits, made.reads, apart))

    def taken(self, query: exp.Select, names: Names) -> Release:
        """A query over rows of persons, with all that has to be released before it taken out of it."""
        with_ = self.beside(query, names).args.get("with_")
        waits: list[Read] = []
        if self.reading(query, names) or not self.compiler.single(query.copy(), self.known):
            for item in list(query.expressions):  # called as they are written, whatever will be released
                if not isinstance(item, exp.Alias | exp.Column | exp.Star):
                    item.replace(exp.alias_(item.copy(), label(item), quoted=True))
            for cte in with_.expressions if with_ is not None else ():
                self.inside(cte.this, names, waits)
            self.inside(query, names, waits)
        if self.reading(query, names):
            what = "what was released stands in a place of this query where it cannot be read"
            refuse("rows_with_released", what, "Give it another name, or join it in FROM.", query)
        read = {fold(table.name) for table in query.find_all(exp.Table)}
        reads = tuple(one for one in self.reads.values() if one.name in read)
        return Release(query, tuple(waits), reads)

    def inside(self, query: exp.Query, names: Names, waits: list[Read]) -> None:
        """What has to be released before a query over rows of persons: a value or a list of values leaves a parameter
        behind, numbered; a table becomes a public one."""
        for node in nested(query):
            at = node.parent
            if not isinstance(at, exp.Subquery) or isinstance(at.parent, exp.From | exp.Join):
                if isinstance(at, exp.Subquery) and (self.released(node, names) or self.computed(node, names)):
                    made = self.read(self.query(node.copy(), names))
                    made.set("alias", at.args.get("alias"))
                    at.replace(made)
                else:
                    self.inside(node, names, waits)
                    if isinstance(at, exp.Exists):
                        self.telling(node)
                continue
            public = self.computed(node, names)
            if not (public or self.released(node, names)) or (self.reading(node, names) and tied(node)):
                self.inside(node, names, waits)
                continue
            if tied(node) if public else not (self.reading(node, names) or self.whole(node, names)):
                if isinstance(node.find_ancestor(exp.Having, exp.Select), exp.Having) and tied(node):
                    what = "a subquery in HAVING is tied to the query around it"
                    refuse("rows_with_released", what, "Join both in FROM, as subqueries with GROUP BY.", node)
                if (untied := self.untied(node, names)) is not None:  # it is tied to the query around it
                    groups, left = untied
                    left.set("from_", exp.From(this=aliased(self.read(self.query(groups, names)), TIED)))
                    node.replace(left)
                continue
            if isinstance(at.parent, exp.Ordered | exp.Group):  # as a number it would be the place of a column
                refuse("not_supported", "one value orders and groups nothing", "Leave it out.", node)
            test = at.parent
            listed = isinstance(test, exp.In) and test.args.get("query") is at
            if listed and public:  # there may be many
                table = self.read(listing := self.query(node.copy(), names))
                shown = (exp.column(word, quoted=True) for word, _ in self.reads[self.text(listing)].columns)
                at.set("this", exp.select(*shown).from_(table))
                continue
            if listed and test is not None and isinstance(test.this, exp.Tuple):
                what = "(a, b) IN (SELECT ...) of what is released first is not supported"
                hint = "Join with it: FROM t SEMI JOIN (SELECT a, b FROM t GROUP BY a, b) AS g USING (a, b)."
                refuse("not_supported", what, hint, test)
            mark = exp.Placeholder(this=f"release {len(waits)}{' all' * listed}")
            value = self.query(node.copy(), names)
            if listed:
                self.telling(value)
            types = self.columns(value) or (("value", DOUBLE),)
            waits.append(Read(f"release {len(waits)}", self.text(value), types))
            if listed and test is not None:
                test.set("expressions", [mark])
                test.set("query", None)
            else:
                at.replace(mark)
        for source in sources(query):
            word = names.get(fold(source.name)) if isinstance(source, exp.Table) else None
            if isinstance(word, str):
                made = self.read(exp.select("*").from_(exp.to_identifier(word, quoted=True)))
                made.set("alias", source.args.get("alias") or exp.TableAlias(this=source.this.copy()))
                source.replace(made)

    def read(self, query: exp.Query) -> exp.Table:
        """A query over releases as a public table for a later one."""
        text = self.text(query)
        if text not in self.reads:
            columns = self.columns(query)
            if columns is None:
                what = "a table that is made from released ones is joined with rows of persons"
                refuse("rows_with_released", what, "Select columns of one release by their names, or SELECT *.", query)
            whole = re.fullmatch(r'SELECT \* FROM "(.*)"', query.sql("duckdb"))
            while whole and (cte := self.ctes.get(whole[1])) and not cte.args["alias"].args.get("columns"):
                whole = re.fullmatch(r'SELECT \* FROM "(.*)"', cte.this.sql("duckdb"))
            key = self.keys.get(whole[1], ()) if whole else ()
            self.reads[text] = Read(f"released {len(self.reads)}", text, columns, key)
            self.made[self.reads[text].name] = query
        return exp.Table(this=exp.to_identifier(self.reads[text].name, quoted=True))

    def text(self, query: exp.Query) -> str:
        """SQL over releases, with the CTEs that it may use."""
        query = query.copy()
        if self.ctes:
            query.set("with_", exp.With(expressions=[cte.copy() for cte in self.ctes.values()]))
        return query.sql("duckdb", comments=False)

    def columns(self, query: exp.Expr) -> Columns | None:
        """The columns of a query over releases with their types, as far as the text tells; None: not known. A guess is
        compared with what the engine says before anything is charged (`finish.fits`)."""
        if isinstance(query, exp.SetOperation):
            left, right = self.columns(query.this.unnest()), self.columns(query.expression.unnest())
            return left if left and right and [t for _, t in left] == [t for _, t in right] else None
        parts = {fold(source.alias_or_name): self.columns_of(source) for source in sources(query)}
        if not parts or None in parts.values() or not isinstance(query, exp.Select):
            return None
        types: dict[tuple[str, str], set[Type]] = {}
        for table, part in parts.items():
            for word, type_ in part or ():
                for key in ((table, fold(word)), ("", fold(word))):
                    types.setdefault(key, set()).add(type_)
        shown: list[tuple[str, Type]] = []
        for item in query.expressions:
            if item.is_star:  # of all tables, or of one
                only = fold(item.table) if isinstance(item, exp.Column) else ""
                shown += [column for table, part in parts.items() if only in ("", table) for column in part or ()]
                continue
            found = guessed(item.unalias(), types)
            if len(found) > 1:
                return None
            shown.append((item.output_name or label(item), found.pop()))
        return tuple(shown) if len({fold(word) for word, _ in shown}) == len(shown) else None

    def columns_of(self, source: exp.Expr) -> Columns | None:
        if isinstance(source, exp.Subquery):
            return self.columns(source.this)
        if source.name in self.shaped:
            return self.shaped[source.name]
        if release := re.fullmatch(r"release (\d+)", source.name):
            return self.shape(int(release[1]))
        table = self.catalog.table(source.name.removeprefix("public "))
        return tuple((column.name, column.type) for column in table.columns.values()) if table is not None else None

    def columns_of_cte(self, cte: exp.CTE, made: exp.Query) -> Columns | None:
        found, listed = self.columns(made), cte.args["alias"].args.get("columns")
        if found is None or not listed:
            return found
        return tuple((new.name, type_) for new, (_, type_) in zip(listed, found, strict=False))

    def shape(self, number: int) -> Columns:
        """The columns of a release."""
        word = f"release {number}"
        if word not in self.shaped:
            made = self.planned(list(self.releases.values())[number], Fraction(1))
            self.shaped[word] = tuple((output.name, type_of(output.expression)) for output in made.outputs)
            keys = [o.name for o in made.outputs if isinstance(o.expression, AlgebraColumn)]
            self.keys[word] = tuple(keys) if len(keys) == len(made.release.keys.columns) == 1 else ()
        return self.shaped[word] or ()

    def planned(self, release: Release, share: Fraction) -> Plan:
        samples = tuple(SAMPLES.get(wait.columns[0][1].kind, 1) for wait in release.waits)
        made = self.compiler.plan(release.query, self.known, share, release.waits, samples)
        return replace(made, reads=release.reads)

    @property
    def known(self) -> Catalog:
        """The tables of the policy, and those that have been released."""
        tables = {
            read.name: Table(
                read.name, read.path, {fold(word): Column(word, type_) for word, type_ in read.columns}, None, read.key
            )
            for read in self.reads.values()
        }
        return replace(self.catalog, tables={**self.catalog.tables, **tables})

    def around(self, query: exp.Query, names: Names) -> exp.Query:
        """A query over releases and public tables: its parts one by one."""
        for node in nested(query):
            one = isinstance(node.parent, exp.Subquery | exp.Exists) and self.private(node, names)
            untied = self.untied(node, names) if one else None
            if untied is not None:
                groups, left = untied
                left.set(
                    "from_", exp.From(this=self.query(groups, names).subquery(exp.to_identifier(TIED, quoted=True)))
                )
                node.replace(left)
                continue
            inner = node.copy()
            at = node.parent
            exists = isinstance(at, exp.Exists)
            listed = exists or (isinstance(at, exp.Subquery) and isinstance(at.parent, exp.In))
            if listed and isinstance(inner, exp.Select) and plain_rows(inner):
                if exists and self.of_persons(inner, names):
                    what = (
                        "EXISTS asks about rows of persons, and is tied to the query around it by no equality of groups"
                    )
                    refuse("rows_with_released", what, "Say how many: (SELECT count(*) FROM orders) > 100.", node)
                inner.set("distinct", exp.Distinct())  # how often a value is in a list does not matter
            node.replace(made := self.query(inner, names))
            if listed:
                self.telling(made)
        for part in list(query.find_all(exp.Table, exp.Anonymous)):
            if isinstance(part, exp.Table):
                self.table(part, names)
            elif (length := interval(part)) is not None:
                part.replace(spelt(length))
            elif isinstance(part, exp.Anonymous) and not isinstance(part.parent, exp.Table):
                named(part)
        return query

    def untied(self, node: exp.Query, names: Names) -> tuple[exp.Select, exp.Select] | None:
        """SELECT aggregate FROM persons WHERE inner = outer AND ... as groups by the inner sides, for a release, and what
        looks the group up; None for another query, or one that is not tied to the query around it.

        A group that is hidden is one without rows: NULL, or what the aggregates are of nothing.
        """
        if not isinstance(node, exp.Select):
            return None
        if any(node.args.get(clause) for clause in CLAUSES) or node.args.get("where") is None:
            return None
        mine = self.owner(node, names)
        if mine is None:
            return None
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
        if not exists and (len(node.expressions) != 1 or not summary(node.expressions[0])):
            return None
        groups = node.copy()
        value = [] if exists else [exp.alias_(node.expressions[0].unalias().copy(), "value", quoted=True)]
        inner = [one.copy() for one, _ in ties]
        keys = [exp.alias_(one, f"key {i}", quoted=True) for i, one in enumerate(inner)]
        groups.set("expressions", [*keys, *value])
        groups.set("group", exp.Group(expressions=[one.copy() for one in inner]))
        groups.set("where", exp.Where(this=exp.and_(*(part.copy() for part in rest))) if rest else None)
        if self.private(node, names) and not self.whole(groups, names):
            return None
        found: exp.Expr = exp.Literal.number(1)
        if not exists:
            found = exp.Max(this=exp.column("value", TIED, quoted=True))
            if not isinstance(node.expressions[0].unalias(), exp.Sum | exp.Avg):
                empty = of_nothing(node.expressions[0].unalias().copy())
                found = exp.Anonymous(this="coalesce", expressions=[found, empty])
        equal = (
            exp.EQ(this=exp.column(f"key {i}", TIED, quoted=True), expression=outer.copy())
            for i, (_, outer) in enumerate(ties)
        )
        return groups, exp.select(found).where(exp.and_(*equal))

    def telling(self, query: exp.Query) -> None:
        """Refuse a list, or EXISTS, of groups that are all shown, whoever has them: it would not be about anyone."""
        trees, seen, counts, all_shown = list[exp.Expr]([query]), set[str](), set[str](), False
        for tree in trees:
            for word in {table.name for table in tree.find_all(exp.Table)} - seen:
                seen.add(word)
                if found := self.ctes.get(word) or self.made.get(word):
                    trees.append(found)
                elif release := re.fullmatch(r"release (\d+)", word):
                    one = list(self.releases.values())[int(release[1])]
                    made = self.planned(one, Fraction(1))
                    counts |= {fold(o.name) for o in made.outputs if not isinstance(o.expression, AlgebraColumn)}
                    some = any(one.query.args.get(clause) for clause in ("having", "qualify", "limit"))
                    all_shown |= (
                        isinstance(made.release.keys, PublicKeys) and bool(made.release.keys.columns) and not some
                    )
        if all_shown and not decided(trees, counts):
            what = "this asks which groups there are, of groups that are all shown, whoever has them"
            refuse("groups_all_shown", what, "Say how many it takes: HAVING count(*) > 100.")

    def owner(self, query: exp.Select, names: Names) -> Callable[[exp.Column], bool] | None:
        """Whether a column is one of the query's own tables, and not of the query around it; None if that is not known."""
        own: dict[str, set[str]] = {}
        for source in sources(query):
            words = self.words(source, names)
            if words is None and not all(column.table for column in query.find_all(exp.Column)):
                return None  # its columns are not known, and some say not whose they are
            own[fold(source.alias_or_name)] = words or set()
        for inner in query.find_all(exp.Select):  # what a query further in reads is not of the query around this one
            for source in sources(inner):
                own.setdefault(fold(source.alias_or_name), self.words(source, names) or set())
        return lambda column: (
            fold(column.table) in own if column.table else any(fold(column.name) in names for names in own.values())
        )

    def words(self, source: exp.Expr, names: Names) -> set[str] | None:
        """The columns of a table, a subquery or what WITH has defined; None if they are not known."""
        alias = source.args.get("alias")
        if alias is not None and alias.args.get("columns"):
            return {fold(column.name) for column in alias.args["columns"]}
        if isinstance(source, exp.Table):
            known = names.get(fold(source.name)) if not source.args.get("db") else None
            if isinstance(known, exp.CTE):
                return self.words(exp.Subquery(this=known.this.copy(), alias=known.args["alias"].copy()), names)
            if known is not None:
                return {fold(word) for word, _ in self.shaped.get(known) or ()} or None
            table = self.catalog.table(".".join(part.name for part in source.parts))
            return set(table.columns) if table is not None else None
        if not isinstance(source, exp.Subquery) or not isinstance(source.this, exp.Select):
            return None
        found: set[str] = set()
        for item in source.this.expressions:
            parts = (
                [self.words(one, names) for one in sources(source.this)] if item.is_star else [{fold(item.output_name)}]
            )
            for part in parts:
                if part is None:
                    return None
                found |= part
        return found

    def table(self, node: exp.Table, names: Names) -> None:
        if not isinstance(node.this, exp.Identifier) or (node.name.startswith(RESERVED) and node.name not in names):
            return  # a function, of which the backend knows whether it is harmless; or what was put there before
        name = ".".join(part.name for part in node.parts)
        if isinstance(names.get(name), str):
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

    def whole(self, query: exp.Query, names: Names) -> bool:
        """Whether a query over rows of persons could be asked alone."""
        return self.compiler.whole(self.beside(query.copy(), names), self.known)

    def computed(self, query: exp.Query, names: Names) -> bool:
        """Whether a query over public tables is more than a selection of their rows: it is computed like what is made from
        releases, for free, and its rows are a public table or its value a constant."""
        if self.private(query, names) or self.reading(query, names) or query.find(exp.Table) is None:
            return False
        selected = query.find(exp.SetOperation) is None and all(map(plain_rows, query.find_all(exp.Select)))
        return not selected or any(map(summary, query.find_all(exp.Select)))

    def reading(self, query: exp.Expr, names: Names) -> bool:
        """Whether a query reads what has been released."""
        return any(isinstance(names.get(fold(table.name)), str) for table in query.find_all(exp.Table))

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
        arms = nested(query) if isinstance(query, exp.SetOperation) else [query]
        persons = all(isinstance(arm, exp.Select) and self.of_persons(arm, names) for arm in arms)
        if self.reading(query, names) and not persons:
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


def type_of(expression: Expr) -> Type:
    """The type of a column of a release. The engine makes decimals of its own where it computes with numbers, and of most
    windows only it knows the type."""
    type_ = expression.facts.type
    plain = isinstance(expression, AlgebraColumn | Aggregate) or not (type_.numeric or type_.kind == "OTHER")
    return type_ if plain else DOUBLE


def guessed(node: exp.Expr, types: dict[tuple[str, str], set[Type]]) -> set[Type]:
    """The type of an expression over columns of these types; most are numbers."""
    match node:
        case exp.Column():
            return set(types.get((fold(node.table), fold(node.name)), {DOUBLE}))
        case exp.Paren() | exp.Window() | exp.Max() | exp.Min() | exp.Lag() | exp.Lead():
            return guessed(node.this, types)
        case exp.FirstValue() | exp.LastValue():
            return guessed(node.this, types)
        case exp.Case():
            return guessed(node.args["ifs"][0].args["true"], types)
        case exp.Literal() if node.is_string:
            return {VARCHAR}
        case exp.DPipe():
            return {VARCHAR}
        case exp.Predicate() | exp.Not() | exp.And() | exp.Or() | exp.Boolean():
            return {BOOLEAN}
        case _:
            return {DOUBLE}


def released(number: int) -> exp.Select:
    return exp.select("*").from_(exp.Table(this=exp.to_identifier(f"release {number}", quoted=True)))


def not_one_for_each(releases: int, shares: tuple[Fraction, ...]) -> Refused:
    what = f"there are {len(shares)} weights for {releases} release{'s' * (releases != 1)}"
    return Refused("weights_invalid", what, "EXPLAIN PRIVACY lists the releases; give one weight for each.")


def compose(
    tree: exp.Query, catalog: Catalog, compiler: Compiler, refusal: Refused, parts: tuple[Fraction, ...] | None = None
) -> Program:
    """The program of a statement, named apart, that is not one release; `refusal` says why it is not."""
    forget_unread(tree)
    composer = Composer(catalog, compiler)
    outer = composer.query(tree, {})
    releases = composer.releases.values()
    alone = outer.sql("duckdb") == 'SELECT * FROM "release 0"' and len(releases) == 1
    if alone and not any(release.waits or release.reads for release in releases):
        raise refusal
    if parts is not None and len(parts) != len(releases):
        raise not_one_for_each(len(releases), parts)
    even = (Fraction(1, max(len(releases), 1)),) * len(releases)
    plans = tuple(composer.planned(release, share) for release, share in zip(releases, parts or even, strict=True))
    if parts is None and (better := shares(outer, plans, composer.ctes)) != even:
        plans = tuple(composer.planned(release, share) for release, share in zip(releases, better, strict=True))
    tables = tuple(composer.tables)
    functions = (table.this for table in outer.find_all(exp.Table) if isinstance(table.this, exp.Func))
    if not plans and not tables and any(fold(one.name) not in SERIES for one in functions):
        raise refusal
    families = tuple(composer.families)
    return Program(plans, composer.text(outer), tables, CURRENCIES[catalog.policy.budget.accounting], families)
