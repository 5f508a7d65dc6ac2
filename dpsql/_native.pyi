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

def add_noise(exact: _Stream, mechanism: Literal["laplace", "gaussian"], scales: Sequence[float]) -> Noisy:
    """Adds fresh noise to each value of each column: `scales[i]` is the scale for column i.

    `exact` has columns of type decimal128(38, 0) without NULL. It is read to its end.

    Raises ValueError for an input that is not so, or a scale outside 2^-200 ... 2^100, or an exact value
    above 2^120; RuntimeError if the operating system gives no random bits, or if a noisy value has more
    than 38 digits. The texts are constant and name no value.
    """
