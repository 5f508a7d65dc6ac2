from collections.abc import Sequence
from typing import Literal, Protocol, final

from dpsql.kernel.limits.native_form import Limits

__all__ = [
    "Keys",
    "Noisy",
    "Totals",
    "add_noise",
    "add_truncated",
    "choose",
    "flips",
    "limit",
    "quantile",
    "respond",
    "select",
    "show",
    "words_drawn",
]

class _Stream(Protocol):
    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...

@final
class Keys:
    """Public keys, in the order of the result. They can be used any number of times.

    Raises ValueError if one stands there twice, or has a type that is none of whole number, decimal, double, text, date,
    timestamp and truth value.
    """

    def __new__(cls, keys: _Stream) -> Keys: ...

@final
class Noisy:
    """Noisy columns. An Arrow stream that can be read any number of times."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...
    def __len__(self) -> int: ...

def add_noise(
    exact: _Stream,
    mechanism: Literal["laplace", "sliced_laplace", "gaussian"],
    scales: Sequence[float],
    threshold: int | None = None,
) -> Noisy:
    """Adds fresh noise to the last columns: `scales` are theirs, in order.

    With a threshold, the columns before them are keys, of any type, and only rows whose first noisy value reaches
    the threshold are kept.

    The columns to be noised have type decimal128(38, 0) and no NULL. `exact` is read to its end.

    "sliced_laplace" has the distribution of "laplace", without tables: its operations and addresses do not depend on
    what is drawn.

    Raises ValueError for an input that is not so, or a scale outside 2^-200 ... 2^100 (2^50 if sliced), or an exact
    value above 2^120; RuntimeError if the operating system gives no random bits, or if a noisy value has more
    than 38 digits. The texts are constant and name no value.
    """

@final
class Totals:
    """Exact integers that Python cannot read: noise is added to them, or a choice made by them, and then they are gone."""

    def __new__(cls, exact: _Stream) -> Totals: ...
    def with_noise(
        self,
        mechanism: Literal["laplace", "sliced_laplace", "gaussian"],
        scales: Sequence[float],
        threshold: int | None = None,
    ) -> Noisy:
        """As `add_noise`. Raises ValueError the second time."""
    def beside(self, others: Sequence[Totals], keys: int, names: Sequence[str]) -> Totals:
        """The columns of these names, of this table and of others, whose rows are found by key; so many of the first columns are
        keys. Without keys all have the same rows. What others have of keys that are not here is left out. Raises ValueError if a
        column is missing, and the second time."""
    def choose(self, rate: float, weights: Sequence[Sequence[int]]) -> list[int]:
        """As the function of this name. Raises ValueError the second time."""

def limit(
    rows: _Stream | None,
    sums: _Stream | None,
    declared: Keys | None,
    limits: Limits,
    owners: Sequence[_Stream] | None = None,
    persons: _Stream | None = None,
) -> Totals:
    """Limits what each person's rows add, and adds all of it up by keys.

    `rows` has a person; the keys; a hash of keys (uint64) or of person and keys (uint32), as `hashed` says; and for each axis of
    each block a double or a whole number, or for degree 0 a truth value. `declared` are the public keys, in the order of the result; None
    without keys or if they are private. Rows with other keys are left out; values that no key has count as NULL. `sums`
    are added as they are: keys, the number of persons if these are private, and the sums (decimal128(38, 0)). With `owners`,
    `rows` has a reference in the place of the person: the first of them are references (whole numbers) and persons, and each
    of the others references and what these refer to. `persons` is the first
    column of `rows`, or has more rows than that: it is read before, and tells who has few.

    Where `limits.values`, `rows` has a person; the keys; a value, which counts once for each key; what it adds if that is not one; and
    a hash of person, keys and value (uint32). Each person keeps `max_rows` of their keys and values, the first by the hash. There
    are no other streams then, and no persons in the result.

    Raises ValueError for rows that are not so, a type that is none of whole number, decimal, double,
    text, date, timestamp and truth value, or more than 40 columns. The texts are constant and name no value.
    """

def add_truncated(exact: _Stream, scale: float, bound: int) -> Noisy:
    """Adds the integer k with probability proportional to exp(-|k| / scale), among |k| <= bound, to one column.

    Raises as `add_noise`; the bound is at most 2^62.
    """

def choose(exact: _Stream, rate: float, weights: Sequence[Sequence[int]]) -> list[int]:
    """For each list of weights, chooses row i of its own with probability proportional to
    `weights[i] * exp(rate * score)`, exactly.

    `exact` has one column of scores, of type decimal128(38, 0), without NULL: the rows of the first list, then
    those of the second, and so on. The weights are public: one for each row, from 1 to 2^128 - 1. The rate is taken as the binary fraction that it is.

    Raises ValueError for an input that is not so, or no rows, or a rate that is not finite and above zero, or a
    score above 2^120; RuntimeError if the operating system gives no random bits. The texts are constant and name
    no value.
    """

def select(exact: _Stream, noise: Literal["gumbel", "exponential", "laplace"], rate: float, k: int = 1) -> Noisy:
    """Chooses the candidates with the largest `rate * score + noise`, for independent standard noise, exactly.

    `exact` has one column: of scores, of type decimal128(38, 0), which are one vector; or of lists of such scores,
    one vector for each row. Nothing is NULL. The result has columns `vector` and `place`, one row for each choice,
    in order of vectors and then of choice; an empty vector gives none.

    Gumbel noise is the exponential mechanism, for k > 1 again and again among those left. Exponential noise is
    permute-and-flip; it and Laplace noise give one place for each vector.

    Raises ValueError for an input that is not so, or a rate that is not finite and above zero, or a score above
    2^120; RuntimeError if the operating system gives no random bits. The texts are constant and name no value.
    """

def quantile(exact: _Stream, over: int, under: int, epsilon: float, widths: Sequence[int]) -> int:
    """Chooses the cell of a histogram for the quantile `over / under`, by the exponential mechanism, exactly.

    `exact` has one column of type decimal128(38, 0), without NULL: the rows in each cell, in order, to which one
    person adds at most 1 in all. The widths of the cells are public, from 1 to 2^128 - 1. The choice is
    epsilon-bounded-range.

    Raises as `choose`, and ValueError for a quantile outside 0 ... 1 or a negative number of rows.
    """

def respond(exact: _Stream, k: int, epsilon: float) -> Noisy:
    """Keeps each of the answers 0 ... k - 1 with probability e^epsilon / (k - 1 + e^epsilon), exactly.

    Else it becomes one of the others, all with the same probability. `exact` has one column of type
    decimal128(38, 0), without NULL; the result has one column `answer`.

    Raises ValueError for an input that is not so; RuntimeError if the operating system gives no random bits. The
    texts are constant and name no value.
    """

def show(exact: _Stream, epsilon: float, delta: float) -> Noisy:
    """Keeps the keys that optimal (epsilon, delta)-DP partition selection shows, for persons with one key each.

    The last column of `exact` is the number of persons, of type decimal128(38, 0), without NULL; the result has the
    columns before it, the keys, of any type.

    Raises ValueError for an input that is not so, or parameters outside 0 < epsilon, 0 < delta < 1, or so small that
    a key would need more than 2^17 persons; RuntimeError if the operating system gives no random bits. The texts are
    constant and name no value.
    """

def flips(over: int, under: int, n: int, *, exp: bool = False) -> Noisy:
    """A column `event` of n independent events of probability `over / under`, or exp(-over / under), exactly.

    Raises ValueError if there is no such probability; RuntimeError if the operating system gives no random bits.
    """

def words_drawn() -> int:
    """How many 64-bit random words all calls in this process have drawn so far, for measurements."""
