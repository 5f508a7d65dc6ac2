"""What `dpsql ledger verify` finds, and what `dpsql ledger show` tells: on real files, changed as an intruder would."""

from __future__ import annotations

import json
import os
import random
import sqlite3
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import duckdb
import pytest
from click.testing import CliRunner
from test_ledger import COUNT, compiled, copied, declare, opened, tampered

import dpsql
from dpsql import head
from dpsql.explain import percent
from dpsql.frontends.cli import cli
from dpsql.frontends.shell.toolbar import left
from dpsql.history import recorded, verify
from dpsql.kernel.mechanisms import Gaussian, Ladder, Laplace, Later, Sampled, Threshold, read, write
from dpsql.ledger import Entry, Ledger
from dpsql.policy.catalog import read_policy
from dpsql.upkeep import raise_budget

BUDGET = {"epsilon": 4.0, "delta": 1e-6}
ANALYSTS = {"ana": {"epsilon": 3.0}, "bob": {"epsilon": 1.0}, "olga": {"role": "owner"}}


@pytest.fixture(scope="module", params=["pure", "gdp", "zcdp"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger with all that can stand in one."""
    path = tmp_path_factory.mktemp("made") / "shop.ledger"
    known = declare(budget={**BUDGET, "accounting": request.param}, analysts=ANALYSTS)
    plans = [
        compiled(query, budget=known["budget"])
        for query in (COUNT, "SELECT spend, count(*), sum(age) FROM visits GROUP BY spend")
    ]
    ledger = Ledger(path, "shop", read_policy(known))
    for number in range(6):
        run = ledger.reserve(plans[number % 2], COUNT, ("ana", "bob", "olga")[number % 3])
        if number != 3:
            ledger.settle(run, f"answer {number}")
    larger = declare(budget={**known["budget"], "epsilon": 5.0}, analysts=ANALYSTS)
    raise_budget(path, read_policy(larger), "olga")
    Ledger(path, "shop", read_policy(larger)).reserve(plans[1], COUNT, "ana")
    return path


@pytest.fixture
def path(made: Path, tmp_path: Path) -> Path:
    return copied(made, tmp_path / "shop.ledger")


def refusal(path: Path, noted: str | None = None) -> tuple[str, str]:
    with pytest.raises(dpsql.Refused) as caught:
        verify(path, noted)
    return caught.value.code, caught.value.message


def chain(path: Path) -> list[Entry]:
    return list(recorded(path).entries)


def test_a_good_ledger(path: Path) -> None:
    before = path.read_bytes()
    last = chain(path)[-1]
    assert verify(path) == f"{last.number}:{last.hash}" and last.number == 14
    assert path.read_bytes() == before
    for entry in chain(path):
        assert verify(path, f"{entry.number}:{entry.hash}") == verify(path)


def test_a_flipped_bit(path: Path) -> None:
    """Anywhere in either file: it is found, or no row has changed (bytes that SQLite does not use)."""
    entries, chance = chain(path), random.Random(7)
    whole, found = path.read_bytes(), 0
    for bit in chance.sample(range(8 * len(whole)), 400):
        changed = bytearray(whole)
        changed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(changed)
        try:
            verify(path)
        except dpsql.Refused:
            found += 1
        else:
            assert chain(path) == entries, f"bit {bit}"
    assert found > 80
    path.write_bytes(whole)
    anchor = head.beside(path).read_bytes()
    for bit in range(8 * len(anchor)):
        changed = bytearray(anchor)
        changed[bit // 8] ^= 1 << bit % 8
        head.beside(path).write_bytes(changed)
        assert refusal(path)[0] in ("ledger_corrupt", "ledger_rolled_back")


def resealed(path: Path, change: Callable[[Entry], Entry], start: int) -> None:
    """An intruder who knows the chain: one row changed, all hashes after it made anew, the head with them."""
    before = ""
    with sqlite3.connect(path) as connection:
        triggers = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
        for name, _ in triggers:
            connection.execute(f"DROP TRIGGER {name}")
        for entry in [Entry.of(row) for row in connection.execute("SELECT * FROM entry ORDER BY number").fetchall()]:
            made = (change(entry) if entry.number == start else entry).sealed(before)
            marks = ", ".join(f"{name} = ?" for name in Entry._fields[1:])
            connection.execute(f"UPDATE entry SET {marks} WHERE number = ?", [*map(str, made[1:]), made.number])
            before = made.hash
        for _, sql in triggers:
            connection.execute(sql)
    head.beside(path).write_bytes(b"dpsql head %020d %s\n" % (made.number, made.hash.encode()))


@pytest.mark.parametrize("column", [name for name in Entry._fields if name not in ("number", "hash")])
def test_a_changed_row(made: Path, tmp_path: Path, column: str) -> None:
    for number in (1, 2, 5, 14):
        path = copied(made, tmp_path / f"{number}.ledger")
        value = {"state": "raised" if number != 1 else "settled"}.get(column, "7")
        tampered(path, f"UPDATE entry SET {column} = '{value}' WHERE number = {number}")
        assert refusal(path)[0] in ("ledger_corrupt", "ledger_rolled_back")


@pytest.mark.parametrize("number", [1, 2, 7, 13, 14])
def test_a_removed_row(path: Path, number: int) -> None:
    tampered(path, f"DELETE FROM entry WHERE number = {number}")
    assert refusal(path)[0] in ("ledger_corrupt", "ledger_rolled_back")


def test_removed_triggers(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("DROP TRIGGER entry_update")
    assert refusal(path)[0] == "ledger_corrupt"


@pytest.mark.parametrize(
    ("number", "change", "message"),
    [
        (2, {"amount": 1}, "charge"),
        (4, {"delta": 1}, "charge"),
        (4, {"mechanisms": "[]"}, "charge"),
        (5, {"spent": 1}, "add up"),
        (5, {"own": 1}, "add up"),
        (1, {"total": 10**30}, "budget"),
        (13, {"total": 10**30}, "budget"),
        (5, {"total": 10**30}, "add up"),
        (3, {"run": "x"}, "not charged"),
        (3, {"analyst": "bob"}, "not charged"),
        (3, {"state": "reserved", "run": "3-x", "mechanisms": "[]"}, "charge"),
    ],
)
def test_a_chain_that_was_made_anew(path: Path, number: int, change: dict[str, Any], message: str) -> None:
    """The hashes are right, and still the charge must follow from the mechanisms, and the sums from the charges."""
    resealed(path, lambda entry: entry, 1)
    assert verify(path)
    resealed(path, lambda entry: entry._replace(**change), number)
    code, text = refusal(path)
    assert code == "ledger_corrupt" and f"row {number}" in text and message in text


@pytest.mark.parametrize("number", [2, 4])
def test_a_charge_of_negative_numbers(path: Path, number: int) -> None:
    """A scale and a sensitivity that are both negative cost as much as the true ones, and are no noise."""

    def negative(record: Any) -> Any:
        signs = {"scale": lambda text: f"-{text}", "sensitivity": lambda text: f"-{text}"}
        if isinstance(record, list):
            return [negative(one) for one in record]
        if not isinstance(record, dict):
            return record
        return {name: signs[name](value) if name in signs else negative(value) for name, value in record.items()}

    resealed(path, lambda entry: entry._replace(mechanisms=json.dumps(negative(json.loads(entry.mechanisms)))), number)
    code, text = refusal(path)
    assert code == "ledger_corrupt" and "damaged" in text


NOISES = (Laplace(1.5, 2), Gaussian(1.5, 2), Threshold(30, 4, Gaussian(2.5, 2)), Ladder(0.5, "epsilon"), Later("epsilon-DP", Fraction(1), Fraction(0)))  # fmt: skip


@pytest.mark.parametrize("noise", NOISES, ids=lambda noise: noise.name)
def test_records_have_numbers_above_zero(noise: Sampled) -> None:
    """Not finite, zero, or below it: no such number was ever written."""
    assert read(write([noise])) == (noise,)
    for name in set(noise.record) & {"scale", "sensitivity", "rate", "least", "keys", "loss", "delta"}:
        others = {"delta": [], "least": [0, 0.5, True], "keys": [0, 0.5, True]}.get(name, ["0"])
        for bad in (-1, "-1", "-0x1p-3", "-1/2", "nan", "inf", "-inf", *others):
            with pytest.raises((ValueError, TypeError)):
                read(json.dumps([{**noise.record, name: bad}]))


def test_an_older_copy_with_its_head(path: Path, tmp_path: Path) -> None:
    """Consistent in itself: only a head that was noted elsewhere tells."""
    older = copied(path, tmp_path / "older.ledger")
    policy = read_policy(
        declare(budget={**BUDGET, "epsilon": 5.0, "accounting": json.loads(chain(path)[0].text)["accounting"]})
    )
    plan = compiled(COUNT, budget={**BUDGET, "accounting": policy.budget.accounting})
    Ledger(path, "shop", policy).reserve(plan, COUNT, "ana")
    noted = verify(path)
    copied(older, path)
    assert verify(path) != noted
    assert refusal(path, noted)[0] == "ledger_rolled_back"


def test_a_swapped_file(path: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.ledger"
    opened(other)
    os.replace(other, path)
    assert refusal(path)[0] == "ledger_rolled_back"


@pytest.fixture
def run() -> Iterator[Callable[..., Any]]:
    yield lambda *arguments: CliRunner().invoke(cli, list(arguments), env={"COLUMNS": "140"})


def test_show(path: Path, run: Callable[..., Any]) -> None:
    told = json.loads(run("ledger", "show", str(path), "--json").stdout)
    assert [(r["analyst"], r["state"]) for r in told["runs"]] == [
        ("ana", "settled"), ("bob", "settled"), ("olga", "settled"), ("ana", "reserved"), ("bob", "settled"),
        ("olga", "settled"), ("ana", "reserved"),
    ]  # fmt: skip
    assert [(b["by"], b["epsilon"]) for b in told["budgets"]] == [("", "4"), ("olga", "5")]
    assert sum(r["charge"]["amount"] for r in told["runs"]) == chain(path)[-1].spent
    assert told["runs"][0]["statement"] == COUNT and 0 < told["runs"][0]["part"] < 1
    group = json.loads(run("ledger", "show", str(path), "--json", "--persons", "4").stdout)
    assert group["spent"]["epsilon"] > 3 * told["spent"]["epsilon"] and group["spent"]["delta"] > told["spent"]["delta"]
    shown = run("ledger", "show", str(path)).stdout
    assert shown.count(COUNT) == 7 and "█" in shown and "spent: epsilon" in shown and "olga" in shown


def test_one_part_everywhere_and_80_columns(tmp_path: Path) -> None:
    """Where delta runs out first, its part is the part."""
    people = duckdb.connect()
    people.execute("CREATE TABLE people AS SELECT range AS id, range % 3 AS k FROM range(3000)")
    policy = {
        "dataset": {"id": "p"},
        "budget": {"epsilon": 1000, "delta": 1e-6},
        "tables": {"people": {"person": "id"}},
    }
    db = dpsql.connect(people, policy=policy, ledger=tmp_path / "p.ledger")
    query = "SELECT k, count(*) FROM people GROUP BY k"
    explained = db.explain(query, epsilon=0.1, delta=1e-7)
    assert "delta runs out first" in str(explained)
    db.sql(query, epsilon=0.1, delta=1e-7)
    (run,) = db.history
    assert 0.02 < run.part == explained.price == db.budget.part and left(db.budget) == 1 - run.part
    assert "delta runs out first" in str(db.budget)
    shown = CliRunner().invoke(cli, ["ledger", "show", str(tmp_path / "p.ledger")], env={"COLUMNS": "80"}).stdout
    assert percent(run.part) in shown and "SELECT k, count(*)" in shown and max(map(len, shown.splitlines())) <= 80


def test_commands(path: Path, tmp_path: Path, run: Callable[..., Any]) -> None:
    done = run("ledger", "verify", str(path))
    assert done.exit_code == 0 and done.stdout.strip() == verify(path)
    assert run("ledger", "verify", str(path), "--noted", done.stdout.strip()).exit_code == 0
    assert run("ledger", "verify", str(path), "--noted", "3:abc").exit_code == 3
    accounting = json.loads(chain(path)[0].text)["accounting"]
    policy = tmp_path / "shop.policy.toml"
    policy.write_text(
        f'[budget]\nepsilon = 6.0\ndelta = 1e-6\naccounting = "{accounting}"\n[analysts.olga]\nrole = "owner"\n'
    )
    raising = ("ledger", "raise", str(path), "--policy", str(policy))
    assert run(*raising).exit_code == 3
    assert run(*raising, "--analyst", "olga").exit_code == 0
    assert run(*raising, "--analyst", "olga").exit_code == 3  # it is that already
    assert recorded(path).budgets[-1]["epsilon"] == "6" and verify(path)
    assert run("ledger", "verify", str(tmp_path / "none.ledger")).exit_code == 3
