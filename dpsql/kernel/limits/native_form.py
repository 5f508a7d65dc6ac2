"""The limits for `rust/limit`: what the engine streams, and what it adds up itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from sqlglot import exp

from dpsql.kernel import algebra
from dpsql.kernel.algebra import Call, Column, Expr, identifier, name, total
from dpsql.kernel.blocks import Axis, Summand
from dpsql.kernel.functions import to_type
from dpsql.kernel.keys import PrivateKeys, PublicKeys, numbered, text_of_keys
from dpsql.kernel.limits.grid import (
    as_digits,
    claimed,
    grids,
    hash_of,
    huge,
    in_range,
    inputs,
    measured,
    number,
    own_steps,
    place_of,
    present,
    row_value,
    rows_of,
    shared,
    short,
    shown_rows,
    step,
    sum_of_own,
    times,
    with_steps,
)
from dpsql.kernel.limits.one_row import bounding, same_group, single, uses
from dpsql.kernel.question import Question
from dpsql.kernel.relations import (
    Capped,
    Filter,
    Group,
    Join,
    Owned,
    Project,
    Relation,
    Scan,
    Unnest,
    Windowed,
    base,
    owners,
    select,
    sources,
)
from dpsql.policy.catalog import CODE, DOUBLE, PERSON, VARCHAR, Reference, Table, fold, quoted


@dataclass(frozen=True)
class Block:
    """A summand for the native form: its axes as (grid, degree); for each column the powers and the factor."""

    kind: str
    axes: tuple[tuple[int, int], ...]
    columns: tuple[tuple[tuple[int, ...], int], ...]
    coarse: int
    weight: int
    whole: float


@dataclass(frozen=True)
class Limits:
    """What one native pass is told: what it reads, the limits and the blocks. Made in `limit`."""

    rows: str  # SQL for each row's person, keys and values; "" if there is nothing to limit
    owners: tuple[
        str, ...
    ]  # SQL for references and persons, and for references to these, if rows have such in the place of persons
    persons: str  # SQL for the first column of `rows` alone, if it is read first to count each person's; else ""
    sums: str  # SQL for keys and sums of persons whom nothing limits; "" if that is known of none
    declared: str  # SQL for all public keys in order, "" without any
    keys: int
    private: bool
    hashed: Literal["", "keys", "pairs"]  # of what rows have a hash by which private keys are ranked
    norm: int
    max_rows: int
    max_groups: int
    in_groups: int
    blocks: tuple[Block, ...]
    names: tuple[str, ...]  # of the columns of integers
    enough: int | None = None  # so many persons of a private key are counted at the most; None: all
    values: bool = False  # whether rows are claims: of a person, keys, a value, what it adds, and a hash of the claim


LISTED = 32  # texts that are looked up one after the other
WIDEST = 36  # columns of one native pass
# Their hashes are computed there, and only for persons who have too many groups.
QUICK = {"=", "!=", "<", "<=", ">", ">=", "BETWEEN", "AND", "OR", "NOT", "IS NULL"}  # functions in conditions
HASHED = {f"{sign}{word}" for sign in ("", "U") for word in ("TINYINT", "SMALLINT", "INTEGER", "BIGINT")}


def natively(question: Question, max_rows: int, max_groups: int, in_groups: int, norm: int) -> tuple[Limits, ...]:
    """What `rust/limit` is told: one pass for blocks of rows and persons, or more if these are many, and one for each of values.

    Needs:   the question of which `limit` speaks, and its limits
    Gives:   passes, whose columns beside one another are the integers that `limit` gives. Of private keys the first pass has all
             that there are
    Proof:   `rows` has each row's person, keys and values. Values are still to be clipped, which is one comparison, and rows of
             nobody are left out natively; or it has what leads to a person, and `owners` says where, for the same join
             (`referring`). `persons` is the same relation in the same snapshot, without keys and values, or has rows more: whoever
             has few rows there has few. Private keys are ranked by the engine's own hashes, so that all passes rank
             alike, and keep the same: `rows` has them, or they are of whole numbers, for which they are known. Rows with other keys
             than the declared ones are left out natively (`as_stored`), or by the engine (`claims`). The rest is the
             integer arithmetic of rust/limit; how many rows a person has with each key is the same in each pass. Which passes there
             are depends on the text and on the schema alone
    Checked: test_lemmas (against SQL), test_limit
    """
    blocks = list(enumerate(question.summands))
    parts: list[list[tuple[int, Summand]]] = [[]] if isinstance(question.keys, PrivateKeys) else []
    for one in blocks:
        if one[1].kind != "values":
            if not parts or sum(len(s.indices) for _, s in (*parts[-1], one)) > WIDEST:
                parts.append([])
            parts[-1].append(one)
    parts += [[one] for one in blocks if one[1].kind == "values"]
    return tuple(one_pass(question, part, max_rows, max_groups, in_groups, norm) for part in parts)


def one_pass(
    question: Question, part: list[tuple[int, Summand]], max_rows: int, max_groups: int, in_groups: int, norm: int
) -> Limits:
    question = replace(question, summands=tuple(s for _, s in part))
    values = any(s.kind == "values" for s in question.summands)

    def counted(axis: Axis) -> bool:
        return not values or axis.degree > 0  # each claim has a value

    blocks = tuple(
        Block(
            "rows" if values else s.kind,
            tuple((axis.grid, axis.degree) for axis in s.axes if counted(axis)),
            tuple(
                (tuple(power for power, axis in zip(index, s.axes, strict=True) if counted(axis)), s.factor(index))
                for index in s.indices
            ),
            s.coarse,
            s.weight,
            shared(s.weight, in_groups),
        )
        for s in question.summands
    )
    keys, private, declared = question.keys.columns, isinstance(question.keys, PrivateKeys), ""
    if values:
        found: Parts = (claims(question), [], None, None)
    else:
        found = parted(question, max_rows, max_groups)
    rows, owners, sums, persons_ = found
    if keys and isinstance(question.keys, PublicKeys):
        shown = ", ".join(quoted(column[0]) for column in keys)
        listed = text_of_keys(question.keys.columns, numbers=True)
        declared = f'SELECT {shown} FROM ({listed}) AS "keys" ORDER BY "row" ASC'
    return Limits(
        text_of(rows),
        tuple(map(text_of, owners)),
        text_of(persons_),
        text_of(sums),
        declared,
        len(keys),
        private,
        hashed(question) if not values else "pairs",
        norm,
        max_rows,
        max_groups,
        in_groups,
        blocks,
        (*(["persons"] if private and not values else []), *(c for i, s in part for c in s.columns(i))),
        values=values,
    )


Parts = tuple[exp.Select | None, list[exp.Select], exp.Select | None, exp.Select | None]


def parted(question: Question, max_rows: int, max_groups: int) -> Parts:
    """SQL for the rows that need limits, for whose they are, for the sums of those that need none, and for the persons of the
    first alone; from the text and the schema alone.

    In a prepared table it is known how many rows each person has. Those with few are within the limits whatever is asked of
    them, since no relation that the table bounds has more rows of hers; only the others are limited.
    """
    relation, kinds = mapped(question.relation, read), {s.kind for s in question.summands}
    if single(relation):
        return None, [], unlimited(question, relation, one=True), None
    if kinds <= {"persons"} and same_group(question):
        return None, [], unlimited(question, relation, one=False), None
    base = bounding(relation)
    if isinstance(question.keys, PrivateKeys) or not isinstance(base, Owned) or not base.scan.table.prepared:
        referred, owned = referring(question, relation)
        return streamed(question, referred), owned, None, persons(question, referred, max_rows, max_groups)
    coded = (
        replace(base, read=CODE) if len(list(owners_in(relation))) == 1 else base
    )  # else a join would compare numbers with persons

    def with_(new: Owned) -> Relation:
        return mapped(relation, lambda owned: new if owned is base else owned)

    if kinds != {"rows"}:
        return streamed(question, with_(coded)), [], None, None
    light, heavy = replace(coded, few=max_rows), replace(coded, many=max_rows)
    return streamed(question, with_(heavy)), [], unlimited(question, with_(light), one=True), None


def read(owned: Owned) -> Owned:
    """The person as a prepared table has them, which are those that references lead to."""
    return replace(owned, read=PERSON) if owned.scan.table.prepared else owned


def owners_in(relation: Relation) -> Iterator[Owned]:
    if isinstance(relation, Owned):
        yield relation
    for source in sources(relation):
        yield from owners_in(source)


def mapped(relation: Relation, change: Callable[[Owned], Owned]) -> Relation:
    """The relation with other owners in the places of those that it has, wherever these can be reached."""
    match relation:
        case Owned():
            return change(relation)
        case Filter(source) | Project(source) | Windowed(source) | Group(source) | Unnest(source) | Capped(source):
            return replace(relation, source=mapped(source, change))
        case Join(left, right):
            return replace(relation, left=mapped(left, change), right=mapped(right, change))
        case _:
            return relation


def hashed(question: Question) -> Literal["", "keys", "pairs"]:
    """Of what rows must have a hash: not of whole numbers as they are stored. Expressions may have another type than they say."""
    if not isinstance(question.keys, PrivateKeys):
        return ""
    owned = list(owners_in(question.relation))
    roots = [one.root.columns[fold(str(one.root.person))].type.sql for one in owned]
    if len(roots) != 1 or roots[0] not in HASHED:
        return "pairs"
    keys = question.by
    stored = all(isinstance(key, Column) and key.facts.stored and key.facts.type.sql in HASHED for key in keys)
    return "" if stored else "keys"


def referring(question: Question, relation: Relation) -> tuple[Relation, list[exp.Select]]:
    """The rows with the reference that leads to their person in her place, and SQL for who that is.

    `attribute` joins the rows with `owners` on the reference, and these with what they refer to; here it is done natively, as the
    last step, on the same tables. So it may be only where nothing before looks at the person, or multiplies rows of nobody.
    """
    found = carried(relation)
    if found is None or not found.path or hashed(question) == "pairs":
        return relation, []
    targets = [table for table, _ in found.path[1:]] + [found.root]
    if not all(whole(table, link, target) for (table, link), target in zip(found.path, targets, strict=True)):
        return relation, []
    table, link = found.path[0]
    column = table.columns[fold(link.columns[0])].name
    referred = mapped(relation, lambda owned: replace(owned, read=column, nobody=True) if owned is found else owned)
    last = owners(found.root, found.path[-1][1].referenced, (), found.root, once=False)
    return referred, [last, *(reference(*pair) for pair in zip(found.path[::-1], found.path[-2::-1], strict=False))]


def whole(table: Table, link: Reference, target: Table) -> bool:
    """Whether a reference is one whole number, and what it refers to of the same type."""
    pairs = ((table, link.columns), (target, link.referenced))
    types = [of.columns[fold(word)].type.sql for of, words in pairs for word in words]
    return len(types) == 2 and types[0] == types[1] and types[0] in HASHED


def reference(through: tuple[Table, Reference], link: tuple[Table, Reference]) -> exp.Select:
    """Of a table on the way to the person: what it is referred to by, and what it refers to in turn."""
    table = through[0]
    words = (link[1].referenced[0], through[1].columns[0])
    cells = [
        name(table.columns[fold(word)].name, "t").as_(key, quoted=True)
        for word, key in zip(words, ("key_0", "next"), strict=True)
    ]
    return exp.select(*cells).from_(base(table))


def carried(relation: Relation) -> Owned | None:
    """The only table with persons, if they are only carried from there to the top."""
    match relation:
        case Owned(_, _, _, read_):
            return None if read_ else relation
        case Filter(source) | Project(source):
            return carried(source)
        case Join(left, right, _, "inner" | "left" | "semi" | "anti", None) if not any(owners_in(right)):
            return carried(left)
        case Join(left, right, _, "inner", None) if not any(owners_in(left)):
            return carried(right)
        case _:
            return None


def with_nobody(relation: Relation) -> Relation:
    """With rows that have no person, where nothing looks at several rows."""
    match relation:
        case Owned(_, path, _, read_):
            return relation if path and not read_ else replace(relation, nobody=True)
        case Filter(source) | Project(source):
            return replace(relation, source=with_nobody(source))
        case _:
            return relation


def persons(question: Question, relation: Relation, max_rows: int, max_groups: int) -> exp.Select | None:
    """The person of each row that `streamed` gives, or more rows than these: who has few need not be limited, and if that is known
    before the rows come they are added up at once. Else they are kept until all are there.

    None where to read the rows twice would take longer, or where hardly anyone has few: nobody knows how many private keys there
    are, so that each row may be another group.
    """
    private = isinstance(question.keys, PrivateKeys)
    if (
        {s.kind for s in question.summands} != {"rows"}
        or not scanned(relation)
        or (private and 2 * max_groups < max_rows)
    ):
        return None
    rows = exp.select(name(question.person).as_("person", quoted=True))
    read_ = select(as_stored(question, with_nobody(relation)))
    return rows.from_(read_.subquery(identifier("s"), copy=False), copy=False)


def scanned(relation: Relation) -> bool:
    """Whether its rows are those of one table that meet a condition which is quick."""
    match relation:
        case Owned(_, path, _, read_):
            return bool(read_ or not path)
        case Filter(source, predicate):
            return scanned(source) and quick(predicate)
        case Project(source):
            return scanned(source)
        case _:
            return False


def quick(expression: Expr) -> bool:
    return not isinstance(expression, Call) or (expression.function in QUICK and all(map(quick, expression.arguments)))


def streamed(question: Question, relation: Relation) -> exp.Select:
    """Each row's person, keys, the hash that ranks private ones if it is needed, and values."""
    blocks = list(enumerate(question.summands))
    cells = (
        ((as_digits(axis) or row_value(axis)) if axis.degree else present(total(axis.value))).as_(x, quoted=True)
        for i, s in blocks
        for x, axis in zip(inputs(i), s.axes, strict=False)
    )
    after: list[exp.Expr] = [name(x) for i, s in blocks for x, _ in zip(inputs(i), s.axes, strict=False)]
    if of := hashed(question):
        keys = [name(column[0]) for column in question.keys.columns]
        hash_ = hash_of(keys) if of == "keys" else place_of([name("person"), *keys])
        after = [hash_.as_("hash", quoted=True), *after]
    made = [("rows", rows_of(question, as_stored(question, with_nobody(relation)), *cells))]
    return with_steps(by_number(question, "rows", [name("person")], after), made)


def claims(question: Question) -> exp.Select:
    """Each row's person, keys, the value that is counted once in each group, what it adds, and the hash that ranks the claim.

    The value stands there as a key does, so that equal ones are the same. Rows of keys that are not shown are left out here: a
    person would keep their claims in the place of others.
    """
    (summand,) = question.summands
    (axis,), (x, y) = summand.axes, inputs(0)
    keys = [name(column[0]) for column in question.keys.columns]
    itself = replace(axis, value=Column(x, axis.value.facts))
    added = [(as_digits(itself) or row_value(itself)).as_(y, quoted=True)] if axis.degree else []
    hash_ = place_of([name("person"), *keys, name(x)]).as_("hash", quoted=True)
    relation = with_nobody(mapped(shown_rows(question), read))
    made = [("rows", rows_of(question, relation, claimed(axis).as_(x, quoted=True)))]
    rows = by_number(question, "rows", [name("person")], [name(x), *added, hash_])
    return with_steps(rows.where(present(name(x)), copy=False), made)


def unlimited(question: Question, relation: Relation, one: bool) -> exp.Select:
    """Sums by key where there is nothing to limit: the engine's own aggregates.

    Needs:   `one`: each person has at most `max_rows` rows and all blocks are of rows, or has one row. Else: all rows of a
             person have the same keys, and all blocks are of persons
    Gives:   keys and sums, as the limits give them for these persons
    Proof:   with n <= max_rows rows in all, the norm of a person's counts is at most max_rows, so nothing of hers is scaled:
             she adds `factor` times what her rows add, and with one row in one group `weight` if it counts. All together add the sums
             over rows. And where all of a person's rows have the same keys she has one pair, and adds `weight` if one of
             her rows counts: all together add that for each person with such a row. Exact values are summed in their own type
             (`own_steps`): clipped to the same ends and shifted afterwards, by linearity these are the same integers
    Checked: test_lemmas (against SQL), test_limit, test_single, test_prepare
    """
    blocks = list(enumerate(question.summands))
    cells, clipped = list[exp.Expr](), list[exp.Expr]()
    for i, s in blocks:
        own = one and own_steps(s)
        value = (lambda axis: total(axis.value)) if own else row_value
        cells += (value(axis).as_(x, quoted=True) for x, axis in zip(inputs(i), s.axes, strict=False))
        clipped += [in_range(s.axes[0], inputs(i)[0]).as_(inputs(i)[0], quoted=True)] if own else grids(i, s)
    keys, person = [name(column[0]) for column in question.keys.columns], name("person")
    grid = exp.select(person, *keys, *clipped).from_(step("rows"))
    sums, private = exp.select(*keys), isinstance(question.keys, PrivateKeys)
    if private:
        everyone = exp.Star() if one else exp.Distinct(expressions=[name("person")])
        sums = sums.select(huge(exp.Count(this=everyone)).as_("persons", quoted=True))
    for i, s in blocks:
        if one:
            found = sum_of_own(i, s) if own_steps(s) else measured(i, s)
            columns = zip(s.columns(i), s.indices, found, strict=True)
            sums = sums.select(*(times(c.this, s.factor(index)).as_(word, quoted=True) for word, index, c in columns))
            continue
        there = [present(name(x)) for x, _ in zip(inputs(i), s.axes, strict=False)]
        counted = exp.Case(ifs=[exp.If(this=exp.and_(*there), true=person.copy())]) if there else person.copy()
        count = huge(exp.Count(this=exp.Distinct(expressions=[counted])))
        sums = sums.select(times(count, s.weight).as_(s.columns(i)[0], quoted=True))
    sums = sums.from_(step("grid"))
    sums = sums.group_by(*keys) if keys else sums
    words = [*(["persons"] if private else []), *(c for i, s in blocks for c in s.columns(i))]
    rows = rows_of(question, as_stored(question, relation), *cells)
    return with_steps(
        by_number(question, "added", [], [name(word) for word in words]),
        [("rows", rows), ("grid", grid), ("added", sums)],
    )


def by_number(question: Question, source: str, before: Sequence[exp.Expr], after: Sequence[exp.Expr]) -> exp.Select:
    """A step's columns, with the keys between them: declared texts by their numbers, others with the types that declared ones have.

    Texts are looked up by the engine, which does that once for each entry of a dictionary and not for each row. What is not
    among them has no number, and no group.
    """
    if isinstance(question.keys, PrivateKeys):
        keys: list[exp.Expr] = [name(word) for word, _ in question.keys.columns]
        return exp.select(*before, *keys, *after, copy=False).from_(step(source), copy=False)
    shown, joins = list[exp.Expr](), list[exp.Join]()
    for i, (word, type_, values) in enumerate(question.keys.columns):
        if type_ != VARCHAR:
            shown.append(to_type(name(word), type_.sql).as_(word, quoted=True))
            continue
        if len(values) <= LISTED and values[0] is not None and None not in values[:-1]:
            listed = [algebra.literal(value, VARCHAR) for value in values if value is not None]
            place: exp.Expr = exp.Anonymous(
                this="list_position", expressions=[exp.Array(expressions=listed), name(word)]
            )
            if len(listed) < len(values):  # what is not declared counts as NULL
                place = exp.Coalesce(this=place, expressions=[number(len(values))])
            shown.append(place.as_(word, quoted=True))
            continue
        number_: exp.Expr = to_type(name("i", f"d{i}"), "INTEGER")
        if None in values:  # what is not declared counts as NULL
            number_ = exp.Coalesce(this=number_, expressions=[number(values.index(None) + 1)])
        shown.append(number_.as_(word, quoted=True))
        counted = exp.Var(this=f'SELECT "v", "i" + 1 AS "i" FROM ({numbered(type_, values)})')
        table = exp.Subquery(this=counted, alias=exp.TableAlias(this=identifier(f"d{i}")))
        on = exp.EQ(this=name(word, source), expression=name("v", f"d{i}"))
        joins.append(exp.Join(this=table, on=on, side="LEFT" if None in values else None))
    query = exp.select(*before, *shown, *after, copy=False).from_(step(source), copy=False)
    for join in joins:
        query = query.join(join, copy=False)
    return query


def text_of(query: exp.Select | None) -> str:
    return query.sql("duckdb", comments=False, copy=False) if query is not None else ""


def as_stored(question: Question, relation: Relation) -> Relation:
    """The rows with public keys and values as they are stored, where nothing else looks at them.

    The scan makes NULL of a value that is not declared, and a row whose key is not declared is left out. The native form does
    both when it looks the key up, so that the engine need not compare each row with a long list. The scan also puts
    values into their range, and the grid does it again.
    """
    axes = [axis for summand in question.summands for axis in summand.axes]
    keys = question.by
    for key in keys if isinstance(question.keys, PublicKeys) else ():
        others = (*(axis.value for axis in axes), *(other for other in keys if other != key))
        if isinstance(key, Column) and not any(key.name in uses(other) for other in others):
            relation = stored_as(relation, key.name, "domain")
    for value in {axis.value for axis in axes if isinstance(axis.value, Column)}:
        used = [axis for axis in axes if value.name in uses(axis.value)]
        if not any(value.name in uses(key) for key in keys) and all(map(clipped_again, used)):
            relation = stored_as(relation, value.name, "between")
    return relation


def clipped_again(axis: Axis) -> bool:
    """Whether values out of range end where the scan would have put them. Exact ones must not be shifted before that."""
    facts = axis.value.facts
    ranged = facts.declared and axis.span > 0 and facts.range == (axis.low, axis.high)  # a grid has a step at the least
    shifted = facts.type == DOUBLE or not axis.low or short(axis)
    return isinstance(axis.value, Column) and axis.degree > 0 and ranged and shifted


def stored_as(relation: Relation, column: str, what: Literal["domain", "between"]) -> Relation:
    """The relation without a declaration of a column, unless something in it looks at the column."""
    match relation:
        case Scan(table, alias, names):
            found = [fold(cell) for cell in names if f"{alias}.{cell}" == column]
            columns = table.columns
            free = {
                cell: replace(columns[cell], domain=None) if what == "domain" else replace(columns[cell], between=None)
                for cell in found
            }
            return replace(relation, table=replace(table, columns={**table.columns, **free}))
        case Owned(scan):
            bare = stored_as(scan, column, what)
            assert isinstance(bare, Scan)
            return replace(relation, scan=bare)
        case Filter(source, predicate) if column not in uses(predicate):
            return replace(relation, source=stored_as(source, column, what))
        case Join(left, right, on) if on is None or column not in uses(on):
            return replace(relation, left=stored_as(left, column, what), right=stored_as(right, column, what))
        case _:
            return relation
