"""What is asked of the kernel: a release, in a closed algebra that carries no proofs.

A request names tables as the policy does, columns and functions by their names, and constants by their values. It holds no
type of a column, no range, no person, no uniqueness and no SQL. The kernel derives all of these by itself (`derive`), and
refuses what it cannot derive. So whoever makes a request may be mistaken, or hostile: the answer may then be useless, but
it is limited, noised and charged like any other.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from dpsql.policy.catalog import Value

# --- expressions of one row -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Name:
    """A column of the relation below."""

    column: str


@dataclass(frozen=True)
class Constant:
    """A value, and the engine's name of its type."""

    value: Value
    type: str


@dataclass(frozen=True)
class Apply:
    """A function of the kernel's table."""

    function: str
    arguments: tuple[Expression, ...]


Expression = Name | Constant | Apply

# --- relations --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rows:
    """The rows of a table of the policy, or of a released one; their columns are called `alias.column`."""

    table: str
    alias: str
    columns: tuple[str, ...]


@dataclass(frozen=True)
class Listed:
    """Constant rows: a public table. `columns` are names and types."""

    columns: tuple[tuple[str, str], ...]
    rows: tuple[tuple[Value, ...], ...]


@dataclass(frozen=True)
class Joined:
    """Rows of both sides that meet the condition. The kernel adds that they are of the same person."""

    left: Relation
    right: Relation
    on: Expression | None
    kind: Literal["inner", "left", "full", "semi", "anti"] = "inner"


@dataclass(frozen=True)
class Kept:
    """The rows for which a condition is true."""

    source: Relation
    condition: Expression


@dataclass(frozen=True)
class Selected:
    """Expressions of each row, under new names."""

    source: Relation
    alias: str
    columns: tuple[tuple[str, Expression], ...]


# Expressions, whether they descend, and whether NULL comes first.
Order = tuple[tuple[Expression, bool, bool], ...]


@dataclass(frozen=True)
class Measured:
    """An aggregate of one person's rows."""

    function: str
    argument: Expression | None
    distinct: bool = False
    where: Expression | None = None
    order: Order = ()


@dataclass(frozen=True)
class Grouped:
    """One row for each person and key. `each`: the keys need not lead to the person."""

    source: Relation
    keys: tuple[tuple[str, Expression], ...]
    measures: tuple[tuple[str, Measured], ...]
    each: bool = False


Bound = int | Literal["unbounded"]  # rows from the current one: below zero before it, above zero behind it


@dataclass(frozen=True)
class Window:
    """A window function over rows of one person."""

    function: str
    arguments: tuple[Expression, ...]
    partition: tuple[Expression, ...]
    order: Order
    frame: tuple[Literal["ROWS", "RANGE"], Bound, Bound] | None


@dataclass(frozen=True)
class Windows:
    """The same rows with one more column for each window."""

    source: Relation
    columns: tuple[tuple[str, Window], ...]


@dataclass(frozen=True)
class Combined:
    """The rows of both sides, or those that a set operation leaves of them."""

    left: Selected
    right: Selected
    kind: Literal["union all", "union", "intersect", "except"]


@dataclass(frozen=True)
class Elements:
    """Each row once for each element of a list. `stay`: once with NULL if there is none."""

    source: Relation
    list: Expression
    column: str
    stay: bool = False


Relation = Rows | Listed | Joined | Kept | Selected | Grouped | Windows | Combined | Elements

# --- what is released of a relation -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Asked:
    """A value that a block sums: to which power, and the range that the query itself gives it."""

    value: Expression
    degree: int = 0
    clip: tuple[Fraction, Fraction] | None = None


@dataclass(frozen=True)
class Block:
    """Sums over rows, over distinct values, or over persons, for each group."""

    axes: tuple[Asked, ...] = ()
    kind: Literal["rows", "values", "persons"] = "rows"


@dataclass(frozen=True)
class Released:
    """A table that is made of earlier releases: its name, its columns with their types, and columns that are a key of it.

    Its rows are checked when they are loaded: their number, their types and the key.
    """

    name: str
    columns: tuple[tuple[str, str], ...]
    key: tuple[str, ...] = ()


@dataclass(frozen=True)
class Request:
    """One release: blocks for each group of a relation, and what it may cost."""

    relation: Relation
    keys: tuple[Expression, ...]
    blocks: tuple[Block, ...]
    epsilon: Fraction
    delta: Fraction
    noise: Literal["laplace", "gaussian"]
    tables: tuple[Released, ...] = ()
    hidden: bool = False  # groups are shown only if enough persons have them, also where all are known
    counted: bool = False  # the number of persons of a group is read, and not only compared with the threshold
    part: Fraction = Fraction(1)  # of epsilon and delta: the rest is for other releases of the statement
    waiting: bool = False  # its constants are released values: it is charged alike whatever they are
    even: bool = False  # measured for the ledger's own noise, so that it agrees with other releases
    max_rows: int | None = None  # the caller's own limits, in place of the policy's
    max_groups: int | None = None
