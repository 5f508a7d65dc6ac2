from collections.abc import Sequence
from typing import Literal, Protocol, final

__all__ = ["Noisy", "add_noise"]

class _Stream(Protocol):
    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...

@final
class Noisy:
    """Noisy columns. An Arrow stream that can be read any number of times."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...
    def __len__(self) -> int: ...

def add_noise(
    exact: _Stream, mechanism: Literal["laplace", "gaussian"], scales: Sequence[float], threshold: int | None = None
) -> Noisy:
    """Adds fresh noise to the last columns: `scales` are theirs, in order.

    With a threshold, the columns before them are keys, of any type, and only rows whose first noisy value reaches
    the threshold are kept.

    The columns to be noised have type decimal128(38, 0) and no NULL. `exact` is read to its end.

    Raises ValueError for an input that is not so, or a scale outside 2^-200 ... 2^100, or an exact value
    above 2^120; RuntimeError if the operating system gives no random bits, or if a noisy value has more
    than 38 digits. The texts are constant and name no value.
    """
