"""From a request to a release: what runs on the data, with which limits and noise, and at what price.

Theorem: a release is (epsilon, delta)-DP for adding or removing one person with all of their rows (or for replacing them
by another, if the policy says so), at the price of `charge`, whatever the request is. Proof: each line's Gives is the next
line's Needs; `allot` ends with the claim. Limits that are not declared are released first, and the release is planned anew
with them: they are taken as declared ones are. What is computed from released values later is post-processing.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from dpsql.errors import Refused
from dpsql.kernel.blocks import Unknown
from dpsql.kernel.derive import invalid
from dpsql.kernel.limits.limit import limit
from dpsql.kernel.limits.rungs import climb
from dpsql.kernel.mechanisms import Gaussian, Laplace
from dpsql.kernel.noise import Release, allot
from dpsql.kernel.persons import track
from dpsql.kernel.question import ask, find_rows
from dpsql.kernel.request import Request
from dpsql.policy.catalog import Catalog

STEPS = (find_rows, track, ask, limit, climb, allot)
NOISES: dict[str, type[Laplace] | type[Gaussian]] = {"laplace": Laplace, "gaussian": Gaussian}


def plan(request: Request, catalog: Catalog, rungs: tuple[int, ...] | None = None) -> Release:
    """The release of a request; with `rungs`, the one that follows after its limits have been chosen.

    Needs:   nothing of the request; the catalogue is the owner's
    Gives:   a release, or a refusal. Both are functions of the request and of public facts
    Proof:   `check` refuses what is no request; then see the theorem
    Checked: test_gate
    """
    try:
        check(request, catalog)
        limited = catalog.limited(request.max_rows, request.max_groups)
        pure, noise = catalog.policy.budget.accounting == "pure", NOISES[request.noise]
        norm = (Laplace if pure else Gaussian).norm if request.even else noise.norm
        rows = find_rows(request, limited)

        def follow(picked: Mapping[Unknown, Fraction]) -> Release:
            question = ask(request, rows, norm, picked)
            return allot(climb(limit(question, limited, noise.norm)), request, catalog)

        first = follow({})
        if rungs is None:
            return first
        if len(rungs) != len(first.unknowns):
            invalid("there is not one choice for each limit")
        chosen = list(zip(first.unknowns, rungs, strict=True))
        if any(type(number) is not int or not 0 <= number < len(unknown.rungs) for unknown, number in chosen):
            invalid("a choice is none of its rungs")
        return follow({unknown: unknown.rungs[number] for unknown, number in chosen})
    except RecursionError:
        raise Refused("too_deep", "the query is nested too deep", "Flatten it.") from None
    except (TypeError, ValueError, AttributeError, IndexError, KeyError, OverflowError, ArithmeticError):
        invalid("a part of it has another type than it should have")


def check(request: Request, catalog: Catalog) -> None:
    """Refuse what is no request, or would be priced wrongly."""
    pure = catalog.policy.budget.accounting == "pure"
    numbers = (request.epsilon, request.delta, request.part)
    if type(request) is not Request or any(type(number) is not Fraction for number in numbers):
        invalid("its numbers are not exact")
    if not 0 < request.part <= 1 or request.epsilon <= 0 or not 0 <= request.delta < 1:
        invalid("its price is out of range")
    if request.noise not in NOISES or (request.noise == "laplace" and not pure):
        invalid("the ledger does not add up this noise")
    if request.noise == "gaussian" and not request.delta:
        invalid("Gaussian noise needs a delta")
    flags = (request.hidden, request.counted, request.waiting, request.even)
    if any(type(flag) is not bool for flag in flags):
        invalid("a flag is neither true nor false")


def follow(release: Release, rungs: tuple[int, ...]) -> Release:
    """The release that follows when its limits have been chosen."""
    return plan(release.request, release.catalog, rungs)
