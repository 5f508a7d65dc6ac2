"""The allow-list of scalar functions. What is not a row of `FUNCTIONS` does not exist.

Each row says when a call is well typed, what is known of its result, how it is written below the noise (`total`: it
cannot raise, whatever the cells hold) and how it is written above it (`plain`: released values may do what they like).

Needs:   the facts of the arguments are true of every cell
Gives:   `total` evaluates to a value for every row, and the facts of the result are true of it
Proof:   integers and decimals: the engine may reassociate and move constants across a comparison, so that each step
         fits proves nothing. Every expression has a `size` that bounds every partial result of every rearrangement: sizes
         of leaves are at least 1 and add up under + and -, and multiply under *. Both sides are cast to a type that holds
         the size of the result, hence their own. What the engine may replace by one of its arguments (CASE, COALESCE,
         LEAST, casts, ...) has the largest size of these. Doubles follow IEEE 754 and never raise, nor do their
         functions: NaN and infinity come out. Elsewhere it is the argument that is guarded and not the operation, which
         therefore may be moved anywhere (the engine computes common subexpressions outside of COALESCE and TRY): a zero
         divisor is NULL before the division sees it, and so is a date outside of the years 1 to 9999; what is added to
         dates is bounded, so nothing leaves the engine's range. Intervals are NULL where they are read, unless they are brief, and
         have sizes that add up (see `intervals`). Casts that may not fit are TRY_CAST, which makes a NULL
         of a cell without going over its vector again. Patterns, units, types, formats and lengths are constants,
         checked here. Texts grow by a bounded factor, constants in them are short, and functions that take more than
         linear time see short texts only: others are NULL before they get there. A macro of the engine that has an
         argument twice is written out. Ranges come from enclosing expressions and never from a filter, which the engine
         may move. An expression that is written twice is a small one (`again`), so the SQL is not exponential in the
         text
Checked: test_functions (every function, and random expressions of them, on adversarial cells), test_lemmas, test_names (what
         else DuckDB has, and why it is not here)
"""

from __future__ import annotations

from dpsql.kernel.functions.casts import CASTS
from dpsql.kernel.functions.dates import DATES, PARTS, since
from dpsql.kernel.functions.facts import Facts, Function, Range, again, cast, holds, mismatch, paren, to_type
from dpsql.kernel.functions.intervals import INTERVALS, brief, level, some
from dpsql.kernel.functions.lists import LISTS, element
from dpsql.kernel.functions.logic import LOGIC
from dpsql.kernel.functions.numbers import NUMBERS
from dpsql.kernel.functions.text import TEXT

FUNCTIONS: dict[str, Function] = {
    function.name: function for function in (*NUMBERS, *LOGIC, *TEXT, *DATES, *INTERVALS, *CASTS, *LISTS)
}
# What an analyst may call by name, and under which other names.
NAMES: dict[str, Function] = {
    name: function
    for function in FUNCTIONS.values()
    if function.arguments is not None
    for name in (function.name, *function.aliases)
}

__all__ = [
    "FUNCTIONS",
    "NAMES",
    "PARTS",
    "Facts",
    "Function",
    "Range",
    "again",
    "brief",
    "cast",
    "element",
    "holds",
    "level",
    "mismatch",
    "paren",
    "since",
    "some",
    "to_type",
]
