"""How many rows one person's rows can become below the noise."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import assert_never

from dpsql.errors import Refused
from dpsql.kernel.algebra import Aggregate, Call, Column, Expr, Free, call, columns_in, conjuncts, constant, total
from dpsql.kernel.exact import count_repeats
from dpsql.kernel.functions.facts import UNIT, plain_text
from dpsql.kernel.relations import (
    Capped,
    Filter,
    Group,
    Join,
    Owned,
    Project,
    Relation,
    Scan,
    Stack,
    Unnest,
    Values,
    Windowed,
    columns,
    enforce,
    scans,
    sources,
)
from dpsql.policy.catalog import DOUBLE, INTERVAL, VARCHAR, Catalog, Table, fold

WIDEST = 1_000_000  # rows that one row of a person may become
WIDE = 1_000  # of these, by joins of the person's own rows, wherever ten rows of each table are enough for that
LISTS, ROWS = (10_000, 1_000, 100, 30, 10), (1_000, 30, 10)  # what lists, and a person's rows before a join, are cut to
STEPS = tuple((elements, rows) for rows in ROWS for elements in LISTS)  # the first that keeps within these is taken
FEW = 100  # rows that one row may meet in a join before that counts as many
LITTLE = 10  # times as much as is stored of a text or list: so much is made of any, however long it is
LONG = 4_096  # bytes of a text or list in a row that may meet as many rows as the person has
RELEASED = 100_000  # rows of a table that is made from releases; loading more of them is refused

Fixed = frozenset[str]  # columns whose values are given
Own = Mapping[str, "Rows"] | None


@dataclass(frozen=True)
class Rows:
    """At most `factor` times the power of how many rows the person has in the database."""

    power: int
    factor: int

    def __mul__(self, other: Rows) -> Rows:
        return Rows(self.power + other.power, self.factor * other.factor)

    def __add__(self, other: Rows) -> Rows:
        return Rows(max(self.power, other.power), self.factor + other.factor)

    @property
    def usual(self) -> int:
        """What to compare two bounds by, of which either holds: for a person with very many rows."""
        return int(self.factor * WIDEST**self.power)


ONE, OWN = Rows(0, 1), Rows(1, 1)


@dataclass
class Growth:
    """Bounds on the rows of one person, from the text and public facts alone.

    Needs:   a relation of the closed set; the policy's tables, and how often values stand in public ones
    Gives:   `rows`: no person with n rows in the database has more than factor * n^power rows in the relation; and of
             those no more than that agree on given values, none NULL, of the columns `fixed`
    Proof:   by induction over the nodes. A table about persons has at most n rows of the person, and one where a unique
             key is fixed; a public table has what was counted in it. A list has at most the length that it is cut to. A
             join has at most one row for each row of a side and each row of the other side that agrees with it: there the
             columns that the condition equates with that side are fixed. An outer join adds rows that meet nothing. A column that is equated with a fixed one is
             fixed. A group comes from at least one row, and one group has all its keys fixed
    Bytes:   `shortened` leaves out rows whose texts and lists are too long for how often they may be repeated. Of each text of
             a row at most WIDEST * UNIT bytes are made, or LITTLE times as many as are stored; a window that gives a text to other rows of the
             person makes as many of it as the person has rows, like a join with them. A filter looks at one row at a time, so
             it is local, and it leaves no more rows than there were
    Checked: test_growth, test_lemmas (growth)
    """

    catalog: Catalog
    elements: int = LISTS[-1]
    most: int = ROWS[-1]
    stretch: Fraction = Fraction(1)  # how many times longer than those of their row the statement makes texts and lists
    known: dict[tuple[int, Fixed], tuple[Relation, Rows]] = field(default_factory=dict)

    def rows(self, relation: Relation, fixed: Fixed = frozenset()) -> Rows:
        place = id(relation), fixed
        if place not in self.known:
            self.known[place] = relation, self._rows(relation, fixed)
        return self.known[place][1]

    def _rows(self, relation: Relation, fixed: Fixed) -> Rows:
        match relation:
            case Scan(table, alias, names):
                return self._table(table, frozenset(word for word in names if f"{alias}.{word}" in fixed))
            case Owned(scan):
                return self.rows(scan, fixed)
            case Values(named, lines):
                # Of these types values may be equal to the engine that are not the same to us.
                known = [word for word, type_ in named if type_ not in (DOUBLE, INTERVAL)]
                places = [i for i, (word, _) in enumerate(named) if word in fixed and word in known]
                return Rows(0, max(Counter(tuple(line[i] for i in places) for line in lines).values()))
            case Filter(source) | Windowed(source):
                return self.rows(source, fixed.intersection(columns(source)))
            case Project(source, _, named_):
                return self.rows(source, renamed(named_, fixed))
            case Unnest(source, list_, _, _, most):
                return self.rows(source, fixed.intersection(columns(source))) * Rows(0, length(list_) or most)
            case Capped(source, _, _, most, by):
                found = self.rows(source, fixed)
                return min(found, Rows(0, most), key=lambda rows: rows.usual) if fixed.issuperset(by) else found
            case Group(source, keys):
                one = relation.alone or all(word in fixed for word, _ in keys)
                return ONE if one else self.rows(source, renamed(keys, fixed))
            case Stack(left, right, kind):
                if kind in ("intersect", "except"):
                    return self.rows(left, fixed)
                there = [b for (a, _), (b, _) in zip(left.columns, right.columns, strict=True) if a in fixed]
                return self.rows(left, fixed) + self.rows(right, frozenset(there))
            case Join():
                return self._join(relation, fixed)
            case _:
                assert_never(relation)

    def _table(self, table: Table, fixed: Fixed) -> Rows:
        if table.person is not None:
            return ONE if unique(table, fixed) else OWN
        if table.path[0] == "temp":
            return ONE if table.key and fixed.issuperset(table.key) else Rows(0, RELEASED)
        found = self.catalog.repeats(table, fixed, lambda: count_repeats(self.catalog, table.name, fixed))
        return Rows(0, max(1, found))

    def _join(self, join: Join, fixed: Fixed) -> Rows:
        left, right = join.left, join.right
        if join.kind in ("semi", "anti"):
            return self.rows(left, fixed)
        mine, theirs = frozenset(columns(left)), frozenset(columns(right))
        from_left, from_right = list(given(join.on, mine, theirs)), list(given(join.on, theirs, mine))
        if join.kind != "full":
            fixed = fixed | {b.name for a, b in (*from_left, *from_right) if isinstance(a, Column) and a.name in fixed}
        ours, others = self.rows(left, fixed & mine), self.rows(right, fixed & theirs)
        by_left = ours * self.rows(right, fixed & theirs | {b.name for _, b in from_left})
        by_right = others * self.rows(left, fixed & mine | {b.name for _, b in from_right})
        # Each bound is of one row at least for each row of its side; what meets nothing on the other side is added.
        if join.kind != "inner":
            by_right += ours
        if join.kind == "full":
            by_left += others
        return min(by_left, by_right, key=lambda rows: rows.usual)

    def work(self, join: Join) -> Rows:
        """The pairs of rows that a join looks at: all that it makes, and of a semi join those that a comparison is left for."""
        if join.kind in ("semi", "anti") and not compares(join):
            return self.rows(join)
        return self._join(join if join.kind not in ("semi", "anti") else replace(join, kind="inner"), frozenset())

    def multiplies(self, join: Join) -> bool:
        """Whether many rows of each side of a join may meet one row of the other side."""
        if join.kind in ("semi", "anti") and not compares(join):
            return False
        of_left, of_right = equated(join)
        return min(self.rows(join.left, of_left).usual, self.rows(join.right, of_right).usual) > FEW

    def fits(self, relation: Relation) -> bool:
        caps = math.prod(cap.most for cap in capped_in(relation))
        return (caps <= WIDE or self.most == ROWS[-1]) and self.too_wide(relation) is None

    def too_wide(self, relation: Relation) -> Relation | None:
        """A part in which one row of a person may become too many rows, or rows of public tables do; None if there is none."""
        for source in sources(relation):
            if (found := self.too_wide(source)) is not None:
                return found
        if not isinstance(relation, Join | Unnest | Stack):
            return None
        made, read = self.work(relation) if isinstance(relation, Join) else self.rows(relation), list(scans(relation))
        private = any(scan.table.person is not None for scan in read)
        largest = max((self.rows(scan).factor for scan in read if not private), default=0)
        return relation if made.power > 1 or made.factor * self.stretch > max(WIDEST, largest) else None

    def shortened(self, relation: Relation, uses: Counter[str], made: Rows = ONE, own: Own = None) -> Relation:
        """The relation without rows whose texts and lists are too long, where one of its rows becomes up to `made` rows.

        `uses` counts the places that name a column. A list that only an unnest names is not repeated with its elements: `own`
        has how often it is.
        """
        match relation:
            case Scan() | Owned():
                return self._short(relation, made, own or {})
            case Values():
                return relation
            case Unnest(source, list_, _, _, most):
                if isinstance(list_, Column) and uses[list_.name] == 1:
                    own = {**(own or {}), list_.name: made}
                made *= Rows(0, length(list_) or most)
                return replace(relation, source=self.shortened(source, uses, made, own))
            case Join(left, right, _, kind):
                of_left, of_right = equated(relation)
                met = [self.rows(right, of_right), self.rows(left, of_left)]
                if kind in ("semi", "anti") and not compares(relation):
                    met = [ONE, ONE]
                left_, right_ = (
                    self.shortened(side, uses, made * by, {word: rows * by for word, rows in (own or {}).items()})
                    for side, by in zip((left, right), met, strict=True)
                )
                return replace(relation, left=left_, right=right_)
            case Stack():
                return self._arms(relation, uses, made * Rows(0, arms(relation)))
            case Windowed(source, added):
                # One row's text or list may come to stand in each row of the person; lag and lead give it to one row.
                long = ("VARCHAR", "LIST")
                carried = any(o.function not in ("lag", "lead") and o.facts.type.kind in long for _, o in added)
                many, kept = (made * OWN, {}) if carried else (made, own)
                return replace(relation, source=self.shortened(source, uses, many, kept))
            case Filter(source) | Capped(source):
                return replace(relation, source=self.shortened(source, uses, made, own))
            case Project(source) | Group(source):  # other names from here on
                return replace(relation, source=self.shortened(source, uses, made))
            case _:
                assert_never(relation)

    def _arms(self, stack: Stack, uses: Counter[str], made: Rows) -> Stack:
        """A set operation whose arms read one row as often as there are arms."""
        sides = [
            replace(side, source=self._arms(side.source, uses, made))
            if isinstance(side.source, Stack)
            else self.shortened(side, uses, made)
            for side in (stack.left, stack.right)
        ]
        assert isinstance(sides[0], Project) and isinstance(sides[1], Project)
        return replace(stack, left=sides[0], right=sides[1])

    def _short(self, relation: Scan | Owned, made: Rows, own: Mapping[str, Rows]) -> Relation:
        found: Relation = relation
        scan = relation.scan if isinstance(relation, Owned) else relation
        for word in scan.columns:
            stored, column = scan.table.columns[fold(word)], Column(f"{scan.alias}.{word}", enforce(scan.table, word))
            copies = own.get(column.name, made)
            if stored.domain is not None or not (copies.power or copies.factor * self.stretch > LITTLE):
                continue
            most = max(UNIT, int(min(WIDEST * UNIT / copies.factor, LONG if copies.power else WIDEST) / self.stretch))
            if (size := bytes_of(column)) is not None:
                fits = call("<=", size, constant(most))
                cut = f"rows of {scan.alias} are left out whose {word} has more than {most:,} bytes"
                note = cut if most < LONG else ""  # what is usual stands in docs/limits.md
                found = Filter(
                    found, call("OR", call("IS NULL", column), fits) if column.facts.nullable else fits, note
                )
        return found


def refusal(relation: Relation, stretch: Fraction) -> Refused:
    """What is said of a part that is too wide."""
    named = " and ".join(dict.fromkeys(multiplying(relation)))
    rows = f"{int(WIDEST / stretch):,} rows" + (f" with texts {float(stretch):g} times as long" if stretch > 1 else "")
    return Refused(
        "join_too_wide",
        f"one row may become more than {rows}: {named} multiply each other",
        "Join on a column in which no value stands twice, GROUP BY in a subquery before the join, or unnest fewer lists.",
    )


def bytes_of(column: Column) -> Expr | None:
    """How many bytes a text or a list has, nearly; None for what is never long."""
    if column.facts.type == VARCHAR:
        return call("strlen", column)
    if column.facts.type == VARCHAR.list:  # each element takes 16, also one that is NULL or empty
        texts = call("strlen", call("array_to_string", column, constant(",")))
        return call("+", call("coalesce", texts, constant(0)), call("*", call("array_length", column), constant(16)))
    return call("*", call("array_length", column), constant(8)) if column.facts.type.kind == "LIST" else None


def arms(side: Project | Stack) -> int:
    """How many selections a set operation puts together."""
    found = side.source if isinstance(side, Project) else side
    return arms(found.left) + arms(found.right) if isinstance(found, Stack) else 1


def expressions(relation: Relation) -> Iterator[Expr]:
    """All that a relation computes, and what that is computed from."""
    match relation:
        case Filter(_, predicate):
            yield from parts(predicate)
        case Join(_, _, on) if on is not None:
            yield from parts(on)
        case Project(_, _, named):
            yield from parts(*(e for _, e in named))
        case Group(_, keys, measures):
            yield from parts(*(e for _, e in keys))
            for _, m in measures:
                yield from parts(*(e for e in (m.argument, m.filter) if e is not None), *(e for e, *_ in m.order))
        case Windowed(_, added):
            for _, over in added:
                yield from parts(*over.arguments, *over.partition, *(e for e, *_ in over.order))
        case Unnest(_, list_):
            yield from parts(list_)
        case _:
            pass
    for source in sources(relation):
        yield from expressions(source)


def parts(*given: Expr) -> Iterator[Expr]:
    for expression in given:
        yield expression
        if isinstance(expression, Call | Aggregate | Free):
            yield from parts(*expression.arguments)


def lengthens(given: Iterable[Expr]) -> Fraction:
    """How many times longer than those of their row texts and lists are made."""
    facts = [e.facts for e in given]
    texts = [found.growth * found.copies for found in facts if found.type in (VARCHAR, VARCHAR.list)]
    lists = [Fraction(found.copies) for found in facts if found.type.kind == "LIST"]
    return max([Fraction(1), *texts, *lists])


def capped_in(relation: Relation) -> Iterator[Capped]:
    if isinstance(relation, Capped):
        yield relation
    for source in sources(relation):
        yield from capped_in(source)


def cuts(relation: Relation) -> Iterator[str]:
    """What an analyst should know of rows and elements that are left out."""
    if isinstance(relation, Capped):
        rows = "one row" if relation.most == 1 else f"{relation.most:,} rows"
        yield f"one row is joined with at most {rows} of {relation.alias} of the same person"
    if isinstance(relation, Filter) and relation.note:
        yield relation.note
    if isinstance(relation, Unnest) and relation.most:
        yield f"of each list at most {relation.most:,} elements are unnested"
    for source in sources(relation):
        yield from cuts(source)


def multiplying(relation: Relation) -> Iterator[str]:
    """What the query calls the tables, lists and subqueries of a join."""
    match relation:
        case Scan() | Project():
            yield from [] if relation.alias.startswith("#") else [relation.alias]
        case Values(named):
            yield named[0][0].split(".")[0]
        case Unnest(source, _, column):
            yield from multiplying(source)
            yield column.split(".")[0] if not column.startswith("#") else "unnest"
        case _:
            for source in sources(relation):
                yield from multiplying(source)


def unique(table: Table, fixed: Fixed) -> bool:
    """Whether no two rows agree on these columns. A declared range or domain changes cells, and then it proves nothing."""
    stored = {
        fold(word)
        for word in fixed
        if (column := table.columns[fold(word)]).between is None
        and column.domain is None
        and column.type not in (DOUBLE, INTERVAL)  # of which values may be equal and not the same
    }
    return any(key <= stored for key in table.unique)


def length(list_: Expr) -> int:
    """How many elements a list that is written out has; else 0."""
    return len(list_.arguments) if isinstance(list_, Call) and list_.function == "list_value" else 0


def renamed(named: tuple[tuple[str, Expr], ...], fixed: Fixed) -> Fixed:
    return frozenset(e.name for word, e in named if word in fixed and isinstance(e, Column))


def exactly(a: Expr, b: Expr) -> bool:
    """Whether at most one value of `a` equals a value of `b`."""
    return a.facts.type == b.facts.type or a.facts.type.kind == b.facts.type.kind == "INTEGER"


def given(on: Expr | None, mine: Fixed, theirs: Fixed) -> Iterator[tuple[Expr, Column]]:
    """Each column of `theirs` that a condition equates with an expression of `mine`, behind that expression."""
    for part in conjuncts(on) if on is not None else ():
        if isinstance(part, Call) and part.function == "=" and hashed(part):
            for a, b in (part.arguments, part.arguments[::-1]):
                if isinstance(b, Column) and b.name in theirs and within(a, mine) and exactly(b, a):
                    yield a, b


def hashed(equality: Call) -> bool:
    """Whether the engine sees an equality, by which it looks rows up. Of computed texts it sees a CASE (`functions.present`),
    which it computes for each pair of rows: then nothing is equated."""
    return all(side.facts.type != VARCHAR or plain_text(total(side)) for side in equality.arguments)


def equated(join: Join) -> tuple[Fixed, Fixed]:
    """The columns of the left and of the right side that a join equates with something of the other side."""
    mine, theirs = frozenset(columns(join.left)), frozenset(columns(join.right))
    of_left, of_right = given(join.on, theirs, mine), given(join.on, mine, theirs)
    return frozenset(b.name for _, b in of_left), frozenset(b.name for _, b in of_right)


def within(expression: Expr, names: Fixed) -> bool:
    return all(column.name in names for column in columns_in(expression))


def compares(join: Join) -> bool:
    """Whether a condition looks at both rows, and not just whether something of one equals something of the other."""
    sides = [frozenset(columns(side)) for side in (join.left, join.right)]
    for part in conjuncts(join.on) if join.on is not None else ():
        looked_up = (
            isinstance(part, Call)
            and part.function == "="
            and hashed(part)
            and all(any(within(side, names) for names in sides) for side in part.arguments)
        )
        if not looked_up and not any(within(part, names) for names in sides):
            return True
    return False
