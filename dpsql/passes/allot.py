"""How much noise, and what it costs."""

from __future__ import annotations

from fractions import Fraction

from dpsql.accountant import Charge, mu_of, units
from dpsql.algebra import scans
from dpsql.catalog import Catalog, Table, fold, path_to_person
from dpsql.errors import Refused
from dpsql.mechanisms import Gaussian, Laplace, Mechanism
from dpsql.passes.limit import Limited
from dpsql.plan import Plan

MAX_SCALE = 2.0**90  # in grid units; sums and noise together must fit 38 digits


def allot(limited: Limited, catalog: Catalog, epsilon: Fraction, delta: Fraction) -> Plan:
    """Calibrate one noise for the whole vector of the statement.

    Needs:   one person moves block i by at most weight_i * max_rows, in the norm of the ledger's mechanism
    Gives:   a plan whose release is (epsilon, delta)-DP and is charged what its mechanisms, as sampled, cost
    Proof:   the blocks are one vector. Laplace: losses sensitivity_i / scale_i add up, and each scale is at least
             k * sensitivity_i / epsilon. Gaussian: (sensitivity_i / scale_i)^2 add up to at most mu^2, and mu is the
             largest with delta(mu, epsilon) <= delta. The charge is computed from the very scales that are sampled
    Checked: test_allot, test_record_play (the same on every database)
    """
    split = limited.split
    sensitivities = [summand.weight * limited.max_rows for summand in split.summands]
    mechanisms: tuple[Mechanism, ...]
    if catalog.policy.budget.accounting == "pure":
        mechanisms = Laplace.calibrate(sensitivities, epsilon)
    else:
        mechanisms = Gaussian.calibrate(sensitivities, mu_of(epsilon, delta))
    if max(mechanism.scale for mechanism in mechanisms) > MAX_SCALE:
        raise Refused("noise_too_large", "the noise would be larger than any answer", "Ask for a larger epsilon.")
    charge = Charge(mechanisms[0].currency, units(sum((m.loss for m in mechanisms), Fraction(0))))
    top = [s.table for s in scans(split.tracked.relation)]
    notes = (
        *split.notes,
        f"more than {limited.max_rows} row{'s' * (limited.max_rows > 1)} of one person count for less (max_rows_contributed)",
    )
    return Plan(
        limited.inner.sql("duckdb", comments=False),
        frozenset(table.path for start in top for table in reached(start, catalog)),
        split.keys,
        split.summands,
        mechanisms,
        split.outer.sql("duckdb", comments=False),
        split.outputs,
        split.estimates,
        limited.max_rows,
        epsilon,
        delta,
        charge,
        notes,
    )


def reached(table: Table, catalog: Catalog) -> list[Table]:
    """The tables that finding a row's person may read."""
    return [table, *(catalog.tables[fold(link.table)] for _, link in path_to_person(table, catalog.tables))]
