"""How much noise, and what it costs."""

from __future__ import annotations

import math
from fractions import Fraction

from dpsql.accountant import Charge, mu_of, units
from dpsql.algebra import scans
from dpsql.catalog import Catalog, Table, fold, path_to_person
from dpsql.errors import Refused
from dpsql.mechanisms import Gaussian, Laplace, Mechanism, Threshold
from dpsql.passes.limit import Limited
from dpsql.plan import Plan, PrivateKeys

# What private keys get of a statement: of mu^2 or epsilon for counting the persons, of delta for the threshold.
SHARE_OF_KEYS = {"mu^2": Fraction(15, 100), "epsilon": Fraction(25, 100), "delta": Fraction(45, 100)}
MAX_SCALE = 2.0**90  # in grid units; sums and noise together must fit 38 digits


def allot(limited: Limited, catalog: Catalog, epsilon: Fraction, delta: Fraction) -> Plan:
    """Calibrate one noise for the whole vector of the statement.

    Needs:   one person moves block i by at most weight_i * max_rows, in the norm of the ledger's mechanism
    Gives:   a plan whose release is (epsilon, delta)-DP and is charged what its mechanisms, as sampled, cost; for private
             keys a threshold on the number of persons, who count once in each of at most `max_groups` keys
    Proof:   the blocks are one vector. Laplace: losses sensitivity_i / scale_i add up, and each scale is at least
             k * sensitivity_i / epsilon. Gaussian: (sensitivity_i / scale_i)^2 add up to at most mu^2, and mu is the
             largest with delta(mu, epsilon) <= delta. The number of persons of private keys is one more block, with a
             share of its own; the threshold takes its part of delta. The charge is computed from what is sampled
    Checked: test_allot, test_record_play (the same on every database)
    """
    split, private = limited.split, isinstance(limited.split.keys, PrivateKeys)
    sensitivities = [summand.weight * limited.max_rows for summand in split.summands]
    pure = catalog.policy.budget.accounting == "pure"
    if private and not delta:
        raise Refused(
            "delta_missing",
            "groups that are not declared can only be shown at a delta, and there is none",
            "Ask the owner to declare the domain of the column, or a delta in [budget].",
        )
    noise_delta = delta - delta * SHARE_OF_KEYS["delta"] if private else delta
    mechanisms: tuple[Mechanism, ...]
    threshold = None
    if pure:
        rest = 1 - SHARE_OF_KEYS["epsilon"] if private else Fraction(1)
        mechanisms = Laplace.calibrate(sensitivities, epsilon * rest)
        if private:
            (noise,) = Laplace.calibrate([limited.max_groups], epsilon - epsilon * rest)
            threshold = Threshold.calibrate(bounded(noise), limited.max_groups, delta)
    else:
        mu = mu_of(epsilon, noise_delta)
        share = float(SHARE_OF_KEYS["mu^2"]) if private else 0.0
        mechanisms = Gaussian.calibrate(sensitivities, mu * math.sqrt(1 - share))
        if private:
            # Once in each of her keys: in L2 that is the root of their number, rounded up.
            root = Fraction(math.isqrt(limited.max_groups * 10**24) + 1, 10**12)
            (persons,) = Gaussian.calibrate([root], mu * math.sqrt(share))
            threshold = Threshold.calibrate(bounded(persons), limited.max_groups, delta - noise_delta)
    for mechanism in mechanisms:
        bounded(mechanism)
    noises = [*mechanisms, *([threshold.noise] if threshold else [])]
    lost = sum((mechanism.loss for mechanism in noises), Fraction(0))
    charge = Charge(noises[0].currency, units(lost), units(threshold.delta) if threshold else 0)
    top = [s.table for s in scans(split.tracked.relation)]
    hidden = [f"groups are shown from about {threshold.least} persons on; smaller ones are hidden"] if threshold else []
    notes = (
        *split.notes,
        *hidden,
        f"more than {limited.max_rows} row{'s' * (limited.max_rows > 1)} of one person count for less (max_rows_contributed)",
    )
    return Plan(
        limited.inner.sql("duckdb", comments=False),
        frozenset(table.path for start in top for table in reached(start, catalog)),
        split.keys,
        split.summands,
        mechanisms,
        threshold,
        split.outer.sql("duckdb", comments=False),
        split.outputs,
        split.estimates,
        limited.max_rows,
        epsilon,
        Fraction(0) if pure and not private else delta,
        charge,
        notes,
    )


def bounded(noise: Mechanism) -> Mechanism:
    if noise.scale > MAX_SCALE:
        raise Refused("noise_too_large", "the noise would be larger than any answer", "Ask for a larger epsilon.")
    return noise


def reached(table: Table, catalog: Catalog) -> list[Table]:
    """The tables that finding a row's person may read."""
    return [table, *(catalog.tables[fold(link.table)] for _, link in path_to_person(table, catalog.tables))]
