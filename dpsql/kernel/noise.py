"""How much noise, and what it costs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property

from dpsql.errors import Refused
from dpsql.kernel.accountant import CURRENCIES, SLACK, Charge, Currency, mu_of
from dpsql.kernel.blocks import Summand, Unknown
from dpsql.kernel.exact import ExactQuery, Path, ReleasedTable, issue
from dpsql.kernel.keys import Keys, PrivateKeys, PublicKeys
from dpsql.kernel.limits.limit import Limited, root_of
from dpsql.kernel.limits.native_form import Limits
from dpsql.kernel.limits.rungs import Climbed
from dpsql.kernel.mechanisms import Approximate, Gaussian, Ladder, Laplace, Later, Mechanism, Sampled, Threshold, cost
from dpsql.kernel.relations import scans
from dpsql.kernel.request import Request
from dpsql.policy.catalog import Catalog, Table, fold, path_to_person

# What private keys get of a statement: of mu^2 or epsilon for counting the persons, of delta for the threshold.
SHARE_OF_KEYS = {"mu^2": Fraction(15, 100), "epsilon": Fraction(25, 100), "delta": Fraction(45, 100)}
# What limits that are not declared get of mu^2 or epsilon, all together.
SHARE_OF_LADDERS = Fraction(20, 100)
MAX_SCALE = 2.0**90  # in grid units; sums and noise together must fit 38 digits


@dataclass(frozen=True, eq=False)
class Streams:
    """The queries of one native pass: `rows` are limited, `owners` says whose they are, `persons` has their persons alone, and
    `sums` are of persons whom nothing limits."""

    limits: Limits
    rows: ExactQuery | None
    owners: tuple[ExactQuery, ...]
    persons: ExactQuery | None
    sums: ExactQuery | None


@dataclass(frozen=True, eq=False)
class Exact:
    """The queries of a release. `choosing` is the only one of a release whose limits are to be chosen; `keys` lists the
    public groups."""

    choosing: ExactQuery | None = None
    passes: tuple[Streams, ...] = ()
    keys: ExactQuery | None = None

    @property
    def all(self) -> tuple[ExactQuery, ...]:
        read = (
            one for streams in self.passes for one in (*streams.owners, streams.persons, streams.rows, streams.sums)
        )
        return tuple(one for one in (self.choosing, *read, self.keys) if one is not None)


@dataclass(frozen=True, eq=False)
class Release:
    """All that is needed to release sums of a request: exact queries, limits, noise, charge. Constructed only by `allot`."""

    request: Request
    catalog: Catalog = field(repr=False)
    rows: Callable[[], str] = field(repr=False)  # makes a part of `text`, which most queries do not need
    tables: frozenset[tuple[str, str, str]]
    keys: Keys
    summands: tuple[Summand, ...]
    mechanisms: tuple[Mechanism, ...]
    threshold: Threshold | None
    max_rows: int
    epsilon: Fraction
    delta: Fraction
    charge: Charge
    notes: tuple[str, ...]
    apart: bool  # a row is what one person adds to a group
    even: bool  # how much a person's rows count for does not depend on the groups that they are in
    unknowns: tuple[Unknown, ...]  # limits that are chosen first
    ladder: Ladder | None
    climb: str  # what is asked for them
    sampled: tuple[Sampled, ...]  # all that is charged: the ledger keeps it, and computes the charge again from it
    limits: tuple[Limits, ...]  # the passes in which rows from the engine are limited and added up natively
    covered: Approximate | None  # Gaussian noise in a pure ledger, with the epsilon and delta that it is charged for
    chosen: bool  # its limits were chosen by an earlier release
    exact: Exact
    loads: tuple[ReleasedTable, ...]  # tables of earlier releases that it reads

    @cached_property
    def text(self) -> str:
        """All that is asked of the data, the same whether or not it is prepared: two releases with the same text are one."""
        bare = tuple(replace(one, rows="", owners=(), persons="", sums="", declared="") for one in self.limits)
        return f"{self.keys!r}\n{bare!r}\n{self.rows()}"

    @property
    def choosing(self) -> bool:
        """Whether limits have to be chosen before it can run."""
        return bool(self.unknowns) and not self.chosen

    @property
    def ends(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The smallest choice of limits, and the largest."""
        return (0,) * len(self.unknowns), tuple(len(unknown.rungs) - 1 for unknown in self.unknowns)

    @property
    def noise(self) -> dict[str, Mechanism]:
        """The mechanism of each released column, in their order; the persons of private keys come first."""
        persons: dict[str, Mechanism] = {"persons": self.threshold.noise} if self.threshold else {}
        return persons | {
            column: mechanism
            for index, (summand, mechanism) in enumerate(zip(self.summands, self.mechanisms, strict=True))
            for column in summand.columns(index)
        }

    @property
    def drawn(self) -> tuple[Sampled, ...]:
        """The noise, once the limits are known."""
        return (self.covered,) if self.covered else (*self.mechanisms, *([self.threshold] if self.threshold else []))

    @property
    def noises(self) -> tuple[Mechanism, ...]:
        """The mechanisms that are charged: one for each block, and that of the threshold."""
        return (*self.mechanisms, *([self.threshold.noise] if self.threshold else []))


def allot(climbed: Climbed, request: Request, catalog: Catalog) -> Release:
    """Calibrate one noise for the whole vector of the statement.

    Needs:   one person adds to block i, or takes from it, non-negative numbers of norm at most sensitivities[i]
    Gives:   a release that is (epsilon, delta)-DP and is charged what its mechanisms, as sampled, cost; for private
             keys a threshold on the number of persons, who count once in each of at most `max_groups` keys
    Proof:   the blocks are one vector. Laplace: losses sensitivity_i / scale_i add up, and each scale is at least
             k * sensitivity_i / epsilon. Gaussian: (sensitivity_i / scale_i)^2 add up to at most mu^2, and mu is the
             largest with delta(mu, epsilon) <= delta. The number of persons of private keys is one more block, with a
             share of its own (all of it if there is no other); the threshold takes its part of delta. Where these numbers
             are not shown they are counted up to `Threshold.enough`, by which one person moves them no more. Where neighbours replace a person instead, the two
             vectors are `swap` times as far apart as one is long, and so is each sensitivity; the threshold and the ladder
             stay (`Threshold`, `Ladder`). The charge is computed from what is sampled. Limits that are not declared are
             released before, from a part of their own; that choice and the noise compose adaptively, and the charge is
             what both may cost at the most, whichever limits are chosen. One of several releases gets a `part` of the
             loss that (epsilon, delta) allow, and of the delta of thresholds, whether or not it has private keys: so
             all parts together lose no more than one release that has. A release that is `waiting` for the values of
             another is charged in the same way as one that waits for its limits. Gaussian noise in a pure ledger gets a part
             of epsilon, without that for its limits, and a part of delta, and is charged just these (`Approximate`): so
             they add up to both, whichever noise each release has
    Checked: test_allot, test_record_play (the same on every database)
    """
    limited, part, waiting = climbed.limited, request.part, request.waiting
    epsilon, delta = request.epsilon, request.delta
    question, private = limited.question, isinstance(limited.question.keys, PrivateKeys)
    pure = catalog.policy.budget.accounting == "pure"
    kind: type[Laplace] | type[Gaussian] = Laplace if limited.norm == Laplace.norm else Gaussian
    unit: Currency = "epsilon" if kind is Laplace else "mu^2"
    apart = kind.swap if catalog.policy.budget.neighbours == "replace" else 1
    sensitivities = [apart * most for most in limited.sensitivities]
    if private and not delta:
        raise Refused(
            "delta_missing",
            "groups that are not declared can only be shown at a delta, and there is none",
            "Ask the owner to declare the domain of the column, or a delta in [budget].",
        )
    noise_delta = delta - delta * SHARE_OF_KEYS["delta"] if private or (part != 1 and not pure) else delta
    key_delta = (delta if kind is Laplace else delta - noise_delta) * part
    whole = part * (epsilon if pure else Fraction(mu_of(epsilon, noise_delta)) ** 2)
    ladder, rest = None, whole
    if limited.unknowns:
        ladder = Ladder.calibrate(whole * SHARE_OF_LADDERS / len(limited.unknowns), "epsilon" if pure else "mu^2")
        rest = (whole - ladder.loss * len(limited.unknowns)) * (1 - Fraction(SLACK))
    loss = Fraction(mu_of(rest, part * noise_delta)) ** 2 if pure and kind is Gaussian else rest
    share, shown = Fraction(0), request.counted
    if private:  # the persons count as one block more where they are shown, and alone where nothing else is
        even = Fraction(1, len(sensitivities) + 1)
        share = max(SHARE_OF_KEYS[unit], even if shown or not sensitivities else Fraction(0))
    mechanisms: tuple[Mechanism, ...] = kind.calibrate(sensitivities, loss * (1 - share))
    threshold = None
    if private:
        (persons,) = kind.calibrate([apart * root_of(limited.max_groups, limited.norm)], loss * share)
        threshold = Threshold.calibrate(bounded(persons), limited.max_groups, key_delta)
    enough = threshold.enough if threshold and not shown else None
    for mechanism in mechanisms:
        bounded(mechanism)
    drawn = (*mechanisms, *([threshold] if threshold else []))
    covered = Approximate(rest, part * noise_delta, drawn) if pure and kind is Gaussian and drawn else None
    sampled: tuple[Sampled, ...] = (covered,) if covered else drawn
    if ladder is not None or (waiting and drawn):  # charged before they are known: the same for each of them
        reserve = (part * delta if pure else key_delta) if waiting or private or covered else Fraction(0)
        later = Later((Laplace if pure else Gaussian).guarantee, whole if waiting else rest, reserve)
        if not later.covers((covered,) if covered else drawn):
            raise AssertionError("a release costs more than was reserved for it")
        sampled = (*([ladder] * len(limited.unknowns) if ladder is not None and not waiting else []), later)
    charge = cost(sampled, CURRENCIES[catalog.policy.budget.accounting])
    top = [s.table for s in scans(question.relation)]
    own = {table.name: table for table in top if table.path[0] == "temp"}.values()
    hidden = (
        [
            f"groups are shown from about {threshold.least} persons on; smaller ones are hidden",
            f"of one person's groups at most {threshold.keys} count",
        ]
        if threshold
        else []
    )
    tables = frozenset(table.path for start in top for table in reached(start, catalog))
    limits = tuple(replace(one, enough=enough) for one in limited.limits)
    choosing = climbed.query.sql("duckdb", comments=False, copy=False) if climbed.query is not None else ""
    made = Release(
        request,
        catalog,
        limited.rows,
        tables,
        question.keys,
        question.summands,
        mechanisms,
        threshold,
        limited.max_rows,
        epsilon if drawn else Fraction(0),
        Fraction(0) if (kind is Laplace and not (private or waiting)) or not drawn else delta,
        charge,
        (*hidden, *limited.notes),
        question.apart,
        limited.even,
        limited.unknowns,
        ladder,
        choosing,
        sampled,
        limits,
        covered,
        bool(question.picked),
        queries(limited, limits, choosing, tables) if drawn else Exact(),
        tuple(issue(ReleasedTable(t.name, tuple((c.name, c.type) for c in t.columns.values()), t.key)) for t in own),
    )
    return issue(made)


def queries(limited: Limited, limits: tuple[Limits, ...], choosing: str, tables: frozenset[Path]) -> Exact:
    """What runs for a release."""

    def exact(sql: str, rows: int = 0) -> ExactQuery | None:
        return issue(ExactQuery(sql, tables, rows)) if sql else None

    if choosing:
        return Exact(choosing=exact(choosing, sum(len(unknown.rungs) for unknown in limited.unknowns)))
    keys = limited.question.keys
    count = keys.count if isinstance(keys, PublicKeys) else 0
    passes = tuple(
        Streams(
            one,
            exact(one.rows),
            tuple(found for sql in one.owners if (found := exact(sql)) is not None),
            exact(one.persons),
            exact(one.sums, int(not one.keys)),
        )
        for one in limits
    )
    listed = limits[0].declared  # which reads no table
    return Exact(None, passes, issue(ExactQuery(listed, frozenset(), count)) if listed else None)


def bounded(noise: Mechanism) -> Mechanism:
    if noise.scale > MAX_SCALE:
        raise Refused("noise_too_large", "the noise would be larger than any answer", "Ask for a larger epsilon.")
    return noise


def reached(table: Table, catalog: Catalog) -> list[Table]:
    """The tables that finding a row's person may read."""
    return [table, *(catalog.tables[fold(link.table)] for _, link in path_to_person(table, catalog.tables))]
