"""The box: what is cut where it does not fit, and what never is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from dpsql.frontends.shell.duckbox import Column, draw, level, plain, short


def lines(columns: list[Column], rows: int, most: int = 40, limit: int = 80, turned: bool = False) -> list[str]:
    return list(draw(columns, rows, most, limit, turned))


def numbers(count: int, name: str = "n") -> Column:
    return Column(name, "int64", [str(i) for i in range(count)], right=True, whole=True)


def test_a_small_box() -> None:
    assert lines([numbers(2, "id"), Column("name", "varchar", ["a", "日本"])], 2) == [
        "┌───────┬─────────┐",
        "│  id   │  name   │",
        "│ int64 │ varchar │",
        "├───────┼─────────┤",
        "│     0 │ a       │",
        "│     1 │ 日本    │",
        "└───────┴─────────┘",
        "  2 rows  2 columns",
    ]
    assert lines([numbers(0)], 0)[-2:] == ["└───────┘", "  0 rows  1 column"]


def test_many_rows_are_cut_in_the_middle() -> None:
    drawn = lines([numbers(100)], 100, most=5)
    assert [line.strip("│ ") for line in drawn[4:-2]] == ["0", "1", "2", "·", "·", "·", "98", "99"]
    assert drawn[-1].split("  ") == ["", "100 rows (5 shown)", "1 column"]
    assert len(lines([numbers(8)], 8, most=5)) == 8 + 6  # the dots would take as many lines


def test_many_columns_are_hidden_in_the_middle() -> None:
    drawn = lines([numbers(1, f"column_{i}") for i in range(20)], 1)
    names = [name.strip() for name in drawn[1].strip("│").split("│")]
    assert names == ["column_0", "column_1", "column_2", "…", "column_17", "column_18", "column_19"]
    assert drawn[-1].endswith("20 columns (6 shown)")
    assert len({cell_len(line) for line in drawn[:-1]}) == 1


def test_texts_are_cut_before_columns_are_hidden_and_numbers_never() -> None:
    bars = [f"{10**30:,} ± 1"]
    drawn = lines(
        [Column("t", "varchar", ["x" * 200]), Column("n", "double", bars, right=True, whole=True)], 1, limit=70
    )
    assert f"{bars[0]} │" in drawn[4]
    assert "xxx…" in drawn[4]
    assert cell_len(drawn[0]) == 70
    assert f"{bars[0]} │" in lines([Column("n", "double", bars, right=True, whole=True)], 1, limit=20)[4]


def test_a_column_for_each_row() -> None:
    drawn = lines([numbers(3, "id"), Column("name", "varchar", ["a", "b", "c"])], 3, turned=True)
    assert [cell.strip() for cell in drawn[1].strip("│").split("│")] == ["Column", "Type", "Row 1", "Row 2", "Row 3"]
    assert drawn[-1].split() == ["3", "rows", "2", "columns"]


def test_signs_stand_below_each_other() -> None:
    assert level(["1 ± 10", "NULL", "1,000 ± 2"]) == ["    1 ± 10", "NULL", "1,000 ±  2"]


@pytest.mark.parametrize(
    ("type_", "name"),
    [
        ("INTEGER[]", "int32[]"),
        ('"NULL"', "null"),
        ("STRUCT(a BIGINT)", "struct(a int64)"),
        ("DECIMAL(5,2)", "decimal(5,2)"),
    ],
)
def test_types_are_short(type_: str, name: str) -> None:
    assert short(type_) == name


def test_nothing_moves_the_cursor() -> None:
    assert plain("a\x1b[2J\r\n\tb\x9b") == r"a\x1b[2J\r\n\tb\x9b"


@given(
    st.lists(st.tuples(st.text(max_size=30), st.booleans()), min_size=1, max_size=12),
    st.integers(0, 12),
    st.integers(0, 6),
    st.integers(20, 200),
    st.booleans(),
)
def test_whatever_it_is_the_box_has_straight_edges(
    columns: list[tuple[str, bool]], rows: int, most: int, limit: int, turned: bool
) -> None:
    made = [Column(name, "varchar", [f"{name}{i}" for i in range(rows)], right=right) for name, right in columns]
    drawn = lines(made, rows, most, limit, turned)
    assert len({cell_len(line) for line in drawn[:-1]}) == 1
    assert cell_len(drawn[0]) <= max(limit, 40)
