"""How much noise, and what it costs."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from functools import partial

from dpsql.accountant import CURRENCIES, SLACK, Currency, mu_of
from dpsql.catalog import Catalog, Table, fold, path_to_person
from dpsql.errors import Refused
from dpsql.mechanisms import Approximate, Gaussian, Ladder, Laplace, Later, Mechanism, Sampled, Threshold, cost
from dpsql.passes.climb import Climbed
from dpsql.passes.limit import root_of
from dpsql.plan import Linear, Plan, PrivateKeys
from dpsql.relations import scans

# What private keys get of a statement: of mu^2 or epsilon for counting the persons, of delta for the threshold.
SHARE_OF_KEYS = {"mu^2": Fraction(15, 100), "epsilon": Fraction(25, 100), "delta": Fraction(45, 100)}
# What limits that are not declared get of mu^2 or epsilon, all together.
SHARE_OF_LADDERS = Fraction(20, 100)
MAX_SCALE = 2.0**90  # in grid units; sums and noise together must fit 38 digits


def allot(
    climbed: Climbed,
    catalog: Catalog,
    epsilon: Fraction,
    delta: Fraction,
    part: Fraction = Fraction(1),
    waiting: bool = False,
) -> Plan:
    """Calibrate one noise for the whole vector of the statement.

    Needs:   one person adds to block i, or takes from it, non-negative numbers of norm at most sensitivities[i]
    Gives:   a plan whose release is (epsilon, delta)-DP and is charged what its mechanisms, as sampled, cost; for private
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
    limited = climbed.limited
    split, private = limited.split, isinstance(limited.split.keys, PrivateKeys)
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
    share, shown = Fraction(0), any(Linear({"persons": Fraction(1)}) == form for form in split.estimates.values())
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
    top = [s.table for s in scans(split.tracked.relation)]
    hidden = (
        [
            f"groups are shown from about {threshold.least} persons on; smaller ones are hidden",
            f"of one person's groups at most {threshold.keys} count",
        ]
        if threshold
        else []
    )
    return Plan(
        partial(limited.reference, enough),
        frozenset(table.path for start in top for table in reached(start, catalog)),
        split.keys,
        split.summands,
        mechanisms,
        threshold,
        split.outer.sql("duckdb", comments=False, copy=False),
        split.outputs,
        split.estimates,
        limited.max_rows,
        epsilon if drawn else Fraction(0),
        Fraction(0) if (kind is Laplace and not (private or waiting)) or not drawn else delta,
        charge,
        (*split.notes, *hidden, *limited.notes),
        split.tracked.apart,
        limited.even,
        limited.unknowns,
        ladder,
        climbed.query.sql("duckdb", comments=False, copy=False) if climbed.query is not None else "",
        sampled,
        limits=limited.limits and replace(limited.limits, enough=enough),
        covered=covered,
    )


def bounded(noise: Mechanism) -> Mechanism:
    if noise.scale > MAX_SCALE:
        raise Refused("noise_too_large", "the noise would be larger than any answer", "Ask for a larger epsilon.")
    return noise


def reached(table: Table, catalog: Catalog) -> list[Table]:
    """The tables that finding a row's person may read."""
    return [table, *(catalog.tables[fold(link.table)] for _, link in path_to_person(table, catalog.tables))]
