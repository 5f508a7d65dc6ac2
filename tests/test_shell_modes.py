"""Output modes: the same bytes as the real DuckDB shell prints for public tables and constants."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from duckdb_cli import __file__ as where

from dpsql.frontends.shell.modes import width

REAL = Path(where).parent / "duckdb"
MODES = ("csv", "json", "jsonlines", "markdown", "list", "line", "html", "box", "table")
TABLES = r"""
CREATE TABLE plain AS SELECT * FROM (VALUES
    (1, 'one', 1.5, DATE '2020-01-31', TIMESTAMP '2020-01-31 10:00:00.123', true, 0.1::DOUBLE),
    (22, NULL, NULL, NULL, NULL, NULL, NULL),
    (-333, 'it''s, "so"', 12345.67, DATE '0044-03-15', TIMESTAMP '9999-12-31 23:59:59', false, 1e100),
    (4, 'two
lines', 0.01, DATE '1969-12-31', TIMESTAMP '1970-01-01', true, 'nan'),
    (5, 'a|b <c> & d', -0.5, DATE '2024-02-29', TIMESTAMP '2024-02-29 00:00:00.000001', true, '-inf'),
    (6, '日本語 héllo 👩‍👩‍👧 🇨🇭', 99, DATE '2024-12-31', TIMESTAMP '2024-12-31', false, 1e-7),
    (7, '', 7, DATE '2024-12-31', TIMESTAMP '2024-12-31', false, 123456789.125),
    (8, ' NULL ', 8, DATE '2024-12-31', TIMESTAMP '2024-12-31', false, -0.0),
    (9, E'tab\there\\', 9, DATE '2024-12-31', TIMESTAMP '2024-12-31', false, 1e16)
) t("id", "name", "price", "day", "at", "good", "x");
CREATE TABLE wide AS SELECT
    1::TINYINT AS a, 2::SMALLINT AS b, 3::BIGINT AS c, 170141183460469231731687303715884105727 AS d, 5::UTINYINT AS e,
    6::USMALLINT AS f, 7::UINTEGER AS g, 8::UBIGINT AS h, 0.1::FLOAT AS i, 1.0::DOUBLE AS j, '12:30:00.5'::TIME AS k,
    INTERVAL '1 month 2 days 03:00' AS l, '\x00ab'::BLOB AS m, '00000000-0000-0000-0000-000000000001'::UUID AS n,
    [1, NULL, 3] AS o, ['a,b', 'c''d', NULL, '', ' x'] AS p, {'a': 1, 'b': 'x''y', 'c': [0.5::DOUBLE]} AS q, MAP {'k': 1} AS r,
    '{"a": [1, null]}'::JSON AS s, 'b'::ENUM ('a', 'b') AS t, [DATE '2020-01-01'] AS u, [{'n': NULL, 'h': 5::HUGEINT}] AS v,
    []::INTEGER[] AS w, array_value(1.5::FLOAT, 2) AS x, '2020-01-31 10:00:00+00'::TIMESTAMPTZ AS y, '101'::BIT AS z;
CREATE TABLE "odd names" AS SELECT 'x' AS "a|b<", 5 AS "x""y,", 1 AS "ü 日本", 2 AS "two
lines";
CREATE TABLE empty_one (a INTEGER, b VARCHAR);
"""
POLICY = """
[dataset]
id = "public"
[budget]
epsilon = 1
[defaults]
epsilon = 0.1
""" + "".join(f'[tables."{name}"]\npublic = true\n' for name in ("plain", "wide", "odd names", "empty_one"))
STATEMENTS = (
    "SELECT * FROM plain ORDER BY id",
    "SELECT * FROM wide",
    'SELECT * FROM "odd names"',
    "SELECT * FROM empty_one",
    "SELECT 1 AS i, NULL::INTEGER AS n, 'it''s' AS t, 1.50 AS d, DATE '2020-01-31' AS day, true AS b",
    "SELECT TIMESTAMP '2020-01-31 10:00:00' AS ts, INTERVAL '3 days' AS iv, 1e10 AS big, 'two\nlines, \"quoted\"' AS q",
    'SELECT 1 AS "日本語", 2 AS "two\nlines", 3 AS "ünï", 4 AS "a\tb"',
    "SELECT [1, 2, NULL] AS l, {'a': 1, 'b': 'text'} AS s, '日本語' AS w, 0.1 + 0.2 AS sum",
    "SELECT name, price * 2 AS twice FROM plain WHERE id < 5 ORDER BY id",
    "SELECT '' AS e, ' a' AS sp, 'a''b' AS sq, 'é' AS u, '\\' AS bs, '#x' AS h, '-' AS d, 'a\tb' AS tab",
)  # fmt: skip
SETTINGS = ("", '.headers off\n.nullvalue N/A\n.separator ";"\n', '.headers on\n.nullvalue ""\n.separator "\\t"\n')
FLAGS = ("-noheader", "-nullvalue", "none", "-separator", ";")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database that the real shell has written."""
    directory = tmp_path_factory.mktemp("golden")
    (directory / "public.policy.toml").write_text(POLICY)
    run([str(REAL), "public.duckdb"], directory, TABLES)
    return directory


def run(command: list[str], directory: Path, script: str) -> str:
    environment = os.environ | {"HOME": str(directory), "PYTHONIOENCODING": "utf-8", "TZ": "UTC"}
    done = subprocess.run(
        command, cwd=directory, env=environment, input=script, capture_output=True, text=True, encoding="utf-8"
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(("mode", "flags"), [*((mode, ()) for mode in MODES), ("csv", FLAGS), ("list", FLAGS)])
def test_the_real_shell_prints_the_same(made: Path, mode: str, flags: tuple[str, ...]) -> None:
    asked = "".join(f"{statement};\n" for statement in STATEMENTS)
    script = asked if flags else "".join(settings + asked for settings in SETTINGS)
    theirs = run([str(REAL), "public.duckdb", f"-{mode}", *flags], made, script)
    ours = run([sys.executable, "-m", "dpsql", "shell", "public.duckdb", f"-{mode}", *flags], made, script)
    assert ours == theirs
    assert "日本語" in ours


def test_width() -> None:
    assert [width(text) for text in ("", "日本", "a\tb", "long\nab", "e\u0301", "👩‍👩‍👧")] == [0, 4, 9, 2, 1, 2]
