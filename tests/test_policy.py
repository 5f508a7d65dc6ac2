"""Reading policies: what is wrong is refused, with its place, before there is a ledger and before data is read."""

import copy
import datetime
import json
import math
import re
import tomllib
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import duckdb
import pytest

import dpsql
from dpsql.policy.catalog import Analyst, read_policy
from dpsql.problems import problems, warnings

TOML = """
[dataset]
id = "shop"
version = "2024-06"

[budget]
epsilon = 0.1
delta = 1e-6
accounting = "gdp"
neighbours = "add-remove"

[defaults]
epsilon = 0.01
delta = 1e-9
max_epsilon = 0.05
max_rows_contributed = 3

[analysts.ana]
epsilon = 0.03

[tables.customer]
person = "id"
key = ["id"]
max_rows_contributed = 1
[tables.customer.columns]
number = { between = [-5, 10] }
ratio = { between = [0.25, 0.75] }
price = { between = [0, 99.99] }
name = { in = ["Ann", "Bob's"] }
small = { in = [1, 2] }
happy = { in = [true, false] }
joined = { between = [1992-01-01, 1998-12-31] }
seen = { between = [1992-01-01T00:00:00, 1998-12-31] }

[tables.orders]
person = { column = "customer", references = "customer.id" }

[tables.items]
person = { columns = ["order_number", "order_line"], references = "orders(number, line)" }

[tables.nation]
public = true
key = ["number"]
"""
POLICY = tomllib.loads(TOML)


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[duckdb.DuckDBPyConnection]:
    """Kept open, since opening the file again for each policy would take most of the time."""
    path = tmp_path_factory.mktemp("shop") / "shop.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.execute(
            "CREATE TABLE customer (id INTEGER, number BIGINT, ratio DOUBLE, price DECIMAL(10, 2), name VARCHAR, "
            "small TINYINT, happy BOOLEAN, joined DATE, seen TIMESTAMP, list INTEGER[]);"
            "CREATE TABLE orders (number INTEGER, line INTEGER, customer INTEGER, ratio DOUBLE);"
            "CREATE TABLE items (order_number INTEGER, order_line INTEGER);"
            "CREATE TABLE nation (number INTEGER, name VARCHAR);"
            "CREATE VIEW rich AS SELECT * FROM customer"
        )
        yield connection


def changed(place: str, value: Any) -> dict[str, Any]:
    """The policy with one setting replaced or, where the value is ..., removed."""
    policy = copy.deepcopy(POLICY)
    *path, last = place.split("/")
    inner = policy
    for name in path:
        inner = inner.setdefault(name, {})
    if value is ...:
        del inner[last]
    else:
        inner[last] = value
    return policy


def refused(database: duckdb.DuckDBPyConnection, policy: Any, ledger: Path) -> dpsql.Refused:
    with pytest.raises(dpsql.Refused) as caught:
        dpsql.connect(database, policy=policy, ledger=ledger, analyst="ana")
    assert list(ledger.parent.iterdir()) == []
    return caught.value


def test_toml_and_dict_are_the_same(tmp_path: Path) -> None:
    path = tmp_path / "shop.policy.toml"
    path.write_text(TOML)
    assert read_policy(path) == read_policy(str(path)) == read_policy(POLICY)


def test_json_and_dict_are_the_same(tmp_path: Path) -> None:
    """The ending says what a file is."""
    path = tmp_path / "shop.policy.json"
    path.write_text(text := json.dumps(POLICY, default=datetime.date.isoformat))
    assert read_policy(path) == read_policy(str(path)) == read_policy(json.loads(text))
    with pytest.raises(dpsql.Refused, match="not valid TOML"):
        read_policy(path.rename(tmp_path / "shop.policy.toml"))
    for broken in ('{"budget": ', "[]", "5", '{"budget": {"epsilon": 1}, "budget": {"epsilon": 2}}', "[" * 100_000):
        path.write_text(broken)
        with pytest.raises(dpsql.Refused, match=r"not valid JSON|expected a table"):
            read_policy(path)


def test_numbers_are_the_decimals_that_were_written() -> None:
    policy = read_policy(POLICY)
    assert (policy.budget.epsilon, policy.budget.delta) == (Fraction(1, 10), Fraction(1, 10**6))
    assert (policy.defaults.epsilon, policy.defaults.max_epsilon) == (Fraction(1, 100), Fraction(1, 20))
    assert policy.analysts == {"ana": Analyst(Fraction(3, 100))}


def test_a_good_policy_connects(database: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    with dpsql.connect(database, policy=POLICY, ledger=tmp_path / "x.ledger", analyst="ana") as db:
        assert db.budget.total.epsilon == pytest.approx(0.1)
        assert db.budget.spent.amount == 0
        assert db.budget.analyst is not None
        assert db.budget.analyst.total.epsilon == pytest.approx(0.03)
        assert len(db.sql("SELECT happy, count(*) FROM customer GROUP BY happy")) == 3


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "No such file"),
        (b"budget = [", "not valid TOML"),
        (b"[budget]\nepsilon = 1\n[budget]\nepsilon = 2\n", "not valid TOML"),
        (b"\xff\xfe", "not UTF-8"),
        (b"x = " + b"[" * 100_000, "not valid TOML"),
        (b"[budget]\nepsilon = " + b"9" * 5_000, ""),
    ],
    ids=["missing", "broken", "twice", "binary", "deep", "long"],
)
def test_an_unreadable_file(
    database: duckdb.DuckDBPyConnection, tmp_path: Path, content: bytes | None, message: str
) -> None:
    path = tmp_path / "shop.policy.toml"
    if content is not None:
        path.write_bytes(content)
    (tmp_path / "ledgers").mkdir()
    error = refused(database, path, tmp_path / "ledgers" / "x.ledger")
    assert error.code in ("policy_unreadable", "policy_invalid")
    assert str(path) in error.message
    assert message in error.message


@pytest.mark.parametrize("source", [None, 5, [], b"x", "a\0b", "/"])
def test_what_is_no_policy_at_all(database: duckdb.DuckDBPyConnection, tmp_path: Path, source: Any) -> None:
    codes = ("policy_unreadable", "policy_invalid", "policy_missing")
    assert refused(database, source, tmp_path / "x.ledger").code in codes


NUMBERS = [math.nan, math.inf, -math.inf, 0, 0.0, -1, True, "1", [1], {}, None, 10**400]


@pytest.mark.parametrize("value", NUMBERS, ids=lambda value: str(value)[:6])
@pytest.mark.parametrize(
    "place", ["budget/epsilon", "defaults/epsilon", "defaults/max_epsilon", "analysts/ana/epsilon"]
)
def test_a_number_that_is_none(database: duckdb.DuckDBPyConnection, tmp_path: Path, place: str, value: Any) -> None:
    error = refused(database, changed(place, value), tmp_path / "x.ledger")
    assert error.code == "policy_invalid"
    assert f"policy, {place.replace('/', '.')}: " in error.message


@pytest.mark.parametrize("value", [math.nan, math.inf, -1e-9, 0, 0.51, 1, 2.5, True, "1e-6", None])
@pytest.mark.parametrize("place", ["budget/delta", "defaults/delta"])
def test_a_delta_that_is_none(database: duckdb.DuckDBPyConnection, tmp_path: Path, place: str, value: Any) -> None:
    error = refused(database, changed(place, value), tmp_path / "x.ledger")
    assert error.code == "policy_invalid"
    assert f"policy, {place.replace('/', '.')}: " in error.message


@pytest.mark.parametrize("accounting", ["pure", "gdp", "zcdp"])
@pytest.mark.parametrize("budget", [{"epsilon": 5e-324}, {"delta": 1e-320}], ids=lambda value: str(value)[:60])
def test_a_subnormal_number(
    database: duckdb.DuckDBPyConnection, tmp_path: Path, accounting: str, budget: dict[str, Any]
) -> None:
    policy = POLICY | {"budget": POLICY["budget"] | {"accounting": accounting} | budget}
    assert refused(database, policy, tmp_path / "x.ledger").code == "policy_invalid"


@pytest.mark.parametrize("accounting", ["pure", "gdp", "zcdp"])
@pytest.mark.parametrize(
    ("epsilon", "delta"),
    [
        (1e-300, 1e-6),
        (1e-19, 1e-6),
        (1e-12, 1e-25),
        (1.0, 1e-300),
        (1.0, 1e-25),
        (1e21, 0.5),
        (1e90, 1e-6),
        (1e300, 1e-6),
    ],
)
def test_an_extreme_budget_is_refused_or_works(
    database: duckdb.DuckDBPyConnection, accounting: str, epsilon: float, delta: float
) -> None:
    """Whatever a budget is, a question is answered or it ends in one of our errors."""
    budget = {"epsilon": epsilon, "delta": delta, "accounting": accounting}
    policy = {name: POLICY[name] for name in ("dataset", "tables")} | {"budget": budget}
    try:
        with dpsql.connect(database, policy=policy, ledger=":memory:") as db:
            assert str(db.budget)
            answer = db.sql("SELECT count(*) FROM customer", epsilon=0.5)
            assert db.budget.spent.amount > 0
            assert len(answer) == 1
    except (dpsql.Refused, dpsql.BudgetExhausted) as error:
        assert error.code in ("policy_invalid", "budget_exhausted", "delta_invalid")


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("surprise", 1),
        ("dataset", "shop"),
        ("dataset/id", 5),
        ("dataset/id", ""),
        ("dataset/owner", "me"),
        ("budget", ...),
        ("budget", 5),
        ("budget/epsilon", ...),
        ("budget/delta", ...),
        ("budget/rho", 1),
        ("budget/accounting", "rdp"),
        ("budget/accounting", ["gdp"]),
        ("budget/accounting", None),
        ("budget/neighbours", "other"),
        ("defaults", [1]),
        ("defaults/max_rows", 5),
        ("defaults/max_rows_contributed", 0),
        ("defaults/max_rows_contributed", 1.5),
        ("defaults/max_rows_contributed", True),
        ("defaults/max_rows_contributed", 2**31),
        ("analysts", ["ana"]),
        ("analysts/ana", 0.5),
        ("analysts/ana/epsilon", ...),
        ("analysts/ana/delta", 1e-9),
        ("analysts/ana/role", "viewer"),
        ("analysts/ana/role", "god"),
        ("analysts/ana/max_epsilon", 0),
        ("views", {"rich": 5}),
        ("tables", ["customer"]),
        ("tables/customer", "id"),
        ("tables/customer/persons", "id"),
        ("tables/customer/max_rows_contributed", -1),
        ("tables/customer/key", 5),
        ("tables/customer/key", "id"),
        ("tables/customer/columns", ["id"]),
        ("tables/customer/columns/number", [0, 1]),
        ("tables/customer/columns/number/clip", [0, 1]),
        ("tables/nation/public", 1),
        ("tables/nation/public", "yes"),
        ("tables/customer/person", 5),
        ("tables/nation", {"person": None}),
        ("tables/customer/person", "ratio"),
        ("tables/customer/person", "joined"),
        ("tables/customer/person", "list"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_setting_that_is_wrong(database: duckdb.DuckDBPyConnection, tmp_path: Path, place: str, value: Any) -> None:
    error = refused(database, changed(place, value), tmp_path / "x.ledger")
    assert error.code == "policy_invalid"
    assert place.replace("/", ".") in error.message


@pytest.mark.parametrize(
    ("place", "value"),
    [("customer/person", ...), ("customer/public", True), ("nation/public", ...), ("nation/public", False)],
)
def test_either_a_person_or_public(database: duckdb.DuckDBPyConnection, tmp_path: Path, place: str, value: Any) -> None:
    error = refused(database, changed(f"tables/{place}", value), tmp_path / "x.ledger")
    assert error.code == "policy_invalid"
    assert f"tables.{place.split('/')[0]}: must have either `person` or `public = true`" in error.message


@pytest.mark.parametrize(
    ("place", "value", "code"),
    [
        ("tables/nowhere", {"public": True}, "table_missing"),
        ("tables/rich", {"public": True}, "table_missing"),
        ("tables/other.customer", {"public": True}, "table_missing"),
        ("tables/customer/person", "nobody", "column_missing"),
        ("tables/customer/person", "", "column_missing"),
        ("tables/customer/key", ["id", "nothing"], "column_missing"),
        ("tables/customer/key", [5], "column_missing"),
        ("tables/customer/columns/nothing", {"between": [0, 1]}, "column_missing"),
    ],
)
def test_what_the_database_does_not_have(
    database: duckdb.DuckDBPyConnection, tmp_path: Path, place: str, value: Any, code: str
) -> None:
    error = refused(database, changed(place, value), tmp_path / "x.ledger")
    assert error.code == code
    assert f"policy, {place.replace('/', '.')}: " in error.message
    assert error.hint


@pytest.mark.parametrize("name", ["CUSTOMER", "main.customer", "shop.main.customer"])
def test_one_table_declared_twice(database: duckdb.DuckDBPyConnection, tmp_path: Path, name: str) -> None:
    """Else the rows of persons would be public under the other name."""
    tables = {"customer": {"person": "id"}, name: {"public": True}}
    error = refused(database, POLICY | {"tables": tables}, tmp_path / "x.ledger")
    assert error.code == "policy_invalid"
    assert "customer" in error.message.lower()


def test_one_column_declared_twice(database: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    error = refused(database, changed("tables/customer/columns/NUMBER", {"between": [0, 9]}), tmp_path / "x.ledger")
    assert "number" in error.message.lower()


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ({}, "expected a column"),
        ({"column": "customer"}, "expected a column"),
        ({"references": "customer.id"}, "expected a column"),
        ({"column": "customer", "references": 5}, "expected a column"),
        ({"column": "customer", "references": "customer"}, "expected a column"),
        ({"column": "customer", "references": ""}, "expected a column"),
        ({"columns": [], "references": "customer.id"}, "expected a column"),
        ({"columns": "customer", "references": "customer.id"}, "expected a column"),
        ({"column": "customer", "columns": ["number"], "references": "customer.id"}, ""),
        ({"column": "customer", "refers": "customer.id"}, "unknown setting"),
        ({"column": "nobody", "references": "customer.id"}, "no column 'nobody'"),
        ({"column": 5, "references": "customer.id"}, "no column 5"),
        ({"column": "customer", "references": "nowhere.id"}, "'nowhere', which is not a table of persons"),
        ({"column": "customer", "references": "nation.number"}, "'nation', which is not a table of persons"),
        ({"column": "customer", "references": "customer.nothing"}, "no column 'nothing'"),
        ({"column": "customer", "references": "customer.price"}, "customer is INTEGER but customer.price is DECIMAL"),
        ({"column": "customer", "references": "customer.name"}, "VARCHAR"),
        ({"column": "ratio", "references": "customer.ratio"}, "floating"),
        ({"column": "customer", "references": "orders.number"}, "circle"),
        ({"column": "customer", "references": "items.order_number"}, "circle"),
        ({"columns": ["customer", "line"], "references": "customer.id"}, "different number"),
        ({"columns": ["customer"], "references": "customer(id, number)"}, "different number"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_reference_that_leads_nowhere(
    database: duckdb.DuckDBPyConnection, tmp_path: Path, reference: dict[str, Any], message: str
) -> None:
    error = refused(database, changed("tables/orders/person", reference), tmp_path / "x.ledger")
    assert error.code in ("policy_invalid", "column_missing")
    assert "policy, tables." in error.message
    assert message in str(error)


DAY = datetime.date(1995, 5, 5)
NOON = datetime.datetime(1995, 5, 5, 12)


@pytest.mark.parametrize(
    ("column", "limits", "message"),
    [
        ("number", {"between": [10, -5]}, "low end is above the high end"),
        ("number", {"between": [1]}, "expected [low, high]"),
        ("number", {"between": [1, 2, 3]}, "expected [low, high]"),
        ("number", {"between": 5}, "expected [low, high]"),
        ("number", {"between": "15"}, "expected [low, high]"),
        ("number", {"between": ["1", "5"]}, "expected a number"),
        ("number", {"between": [False, True]}, "expected a number"),
        ("number", {"between": [0.5, 2]}, "0.5 is not a value of type BIGINT"),
        ("number", {"between": [DAY, DAY]}, "expected a number"),
        ("ratio", {"between": [math.nan, 2]}, "must be finite"),
        ("ratio", {"between": [0, math.inf]}, "must be finite"),
        ("ratio", {"between": [0, 10**400]}, ""),
        ("price", {"between": [0.001, 1]}, "0.001 is not a value of type DECIMAL"),
        ("small", {"between": [1000, 2000]}, "outside of what TINYINT can hold"),
        ("name", {"between": ["a", "b"]}, "VARCHAR has no range"),
        ("happy", {"between": [False, True]}, "BOOLEAN has no range"),
        ("list", {"between": [0, 1]}, "has no range"),
        ("joined", {"between": [1992, 1998]}, "1992 is not a value of type DATE"),
        ("joined", {"between": ["1992-01-01", "1998-02-30"]}, "is not a value of type DATE"),
        ("joined", {"between": ["1998-12-31", "1992-01-01"]}, "low end is above"),
        ("joined", {"between": ["19920101", "1998-12-31"]}, "is not a value of type DATE"),
        ("seen", {"between": ["1992-01-01", "1998-12-31T10:00:00Z"]}, "is not a value of type TIMESTAMP"),
        ("joined", {"between": [NOON, NOON]}, "is not a value of type DATE"),
        ("joined", {"between": [datetime.date(1998, 1, 1), DAY]}, "low end is above the high end"),
        ("seen", {"between": [NOON.replace(tzinfo=datetime.UTC), NOON]}, "is not a value of type TIMESTAMP"),
        ("seen", {"between": [datetime.time(1), datetime.time(2)]}, "is not a value of type TIMESTAMP"),
        ("name", {"in": []}, "expected a list"),
        ("name", {"in": "Ann"}, "expected a list"),
        ("name", {"in": ["Ann", "Bob", "Ann"]}, "stands twice"),
        ("name", {"in": ["Ann", 1]}, "1 is not a value of type VARCHAR"),
        ("name", {"in": ["Ann", None]}, "None is not a value of type VARCHAR"),
        ("name", {"in": [["Ann"]]}, "is not a value of type VARCHAR"),
        ("name", {"in": ["A\0"]}, "is not a value of type VARCHAR"),
        ("name", {"in": ["\ud800"]}, "is not a value of type VARCHAR"),
        ("small", {"in": [1, 1.0]}, "stands twice"),
        ("small", {"in": [1, True]}, "expected a number"),
        ("small", {"in": [1, "2"]}, "expected a number"),
        ("small", {"in": [1.5]}, "1.5 is not a value of type TINYINT"),
        ("small", {"in": [1, 1000]}, "TINYINT"),
        ("happy", {"in": [1, 0]}, "1 is not a value of type BOOLEAN"),
        ("joined", {"in": ["1995-05-05T00:00:00"]}, "is not a value of type DATE"),
        ("joined", {"in": ["1995-05-05", datetime.date(1995, 5, 5)]}, "twice"),
        ("joined", {"in": [DAY, DAY]}, "stands twice"),
        ("ratio", {"in": [0.5]}, "DOUBLE cannot have a list"),
        ("number", {"between": [0, 1], "in": [0, 1]}, "both"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_range_or_a_list_that_is_wrong(
    database: duckdb.DuckDBPyConnection, tmp_path: Path, column: str, limits: dict[str, Any], message: str
) -> None:
    error = refused(database, changed(f"tables/customer/columns/{column}", limits), tmp_path / "x.ledger")
    assert error.code == "policy_invalid"
    assert f"policy, tables.customer.columns.{column}" in error.message
    assert message in error.message


@pytest.mark.parametrize("analyst", [None, "", "bob", "ANA"])
def test_an_analyst_whom_the_policy_does_not_name(
    database: duckdb.DuckDBPyConnection, tmp_path: Path, analyst: str | None
) -> None:
    with pytest.raises(dpsql.Refused) as caught:
        dpsql.connect(database, policy=POLICY, ledger=tmp_path / "x.ledger", analyst=analyst)
    assert caught.value.code == "analyst_unknown"
    assert list(tmp_path.iterdir()) == []


def test_a_table_that_changes_under_a_session_is_refused(tmp_path: Path) -> None:
    """What was checked when connecting is checked again for each question, before it is charged."""
    with duckdb.connect() as connection:
        connection.execute("CREATE TABLE visits (person INTEGER)")
        policy = {
            "dataset": {"id": "shop"},
            "budget": {"epsilon": 1.0},
            "tables": {"visits": {"person": "person", "max_rows_contributed": 1}},
        }
        with dpsql.connect(connection, policy=policy, ledger=tmp_path / "x.ledger") as db:
            connection.execute("ALTER TABLE visits ALTER person TYPE DOUBLE")
            with pytest.raises(dpsql.Refused):
                db.sql("SELECT count(*) FROM visits", epsilon=0.1)
            assert db.budget.spent.amount == 0


@pytest.mark.parametrize(
    ("column", "text", "value"),
    [
        ("joined", ["1992-01-01", "1998-12-31"], [datetime.date(1992, 1, 1), datetime.date(1998, 12, 31)]),
        (
            "seen",
            ["1992-01-01", "1998-12-31T10:30:00.5"],
            [datetime.datetime(1992, 1, 1), datetime.datetime(1998, 12, 31, 10, 30, 0, 500_000)],
        ),
        ("seen", ["1992-01-01 10:00", "1998-12-31"], [datetime.datetime(1992, 1, 1, 10), datetime.date(1998, 12, 31)]),
    ],
)
def test_dates_are_iso_texts_too(
    database: duckdb.DuckDBPyConnection, tmp_path: Path, column: str, text: list[str], value: list[Any]
) -> None:
    """In dicts, in what was JSON, and in TOML."""
    place = f"tables/customer/columns/{column}"
    file = tmp_path / "policy.toml"
    file.write_text(re.sub(rf"(?m)^{column} = .*$", f"{column} = {{ between = {text} }}", TOML))
    found = []
    for policy in (
        changed(place, {"between": value}),
        changed(place, {"between": text}),
        changed(place, json.loads(json.dumps({"between": text}))),
        file,
    ):
        with dpsql.connect(database, policy=policy, ledger=":memory:", analyst="ana") as db:
            found.append(db._catalog.tables["customer"].columns[column].between)
    assert found[0] is not None and found == [found[0]] * 4


def test_a_list_of_dates_as_texts(database: duckdb.DuckDBPyConnection) -> None:
    policy = changed("tables/customer/columns/joined", {"in": ["1992-01-01", "1992-01-02"]})
    with dpsql.connect(database, policy=policy, ledger=":memory:", analyst="ana") as db:
        rows = db.sql("SELECT joined, count(*) FROM customer GROUP BY joined").fetchall()
    assert {row[0] for row in rows} == {datetime.date(1992, 1, 1), datetime.date(1992, 1, 2), None}


# --- what can be said without a database -------------------------------------------------------------------------------


def test_a_good_policy_has_no_problems() -> None:
    assert problems(POLICY) == [] and warnings(POLICY) == []


@pytest.mark.parametrize(
    ("place", "value", "message", "hint"),
    [
        ("budgets", {}, "budgets: unknown setting", "Did you mean budget?"),
        ("dataset/idd", "x", "dataset.idd: unknown setting", "Did you mean id?"),
        ("budget/epsilom", 1, "budget.epsilom: unknown setting", "Did you mean epsilon?"),
        ("defaults/max_rows", 3, "defaults.max_rows: unknown setting", "Did you mean max_rows_contributed?"),
        ("analysts/ana/rolle", "owner", "analysts.ana.rolle: unknown setting", "Did you mean role?"),
        ("tables/customer/persom", "id", "tables.customer.persom: unknown setting", "Did you mean person?"),
        ("tables/orders/person/colum", "x", "orders.person.colum: unknown setting", "Did you mean column?"),
        ("tables/customer/columns/name/inn", [], "name.inn: unknown setting", "Did you mean in?"),
        ("budget", ..., "budget: is missing", "Add [budget]"),
        ("budget/epsilon", -1, "budget.epsilon: must be greater", ""),
        ("budget/delta", 2, "budget.delta: must lie between", ""),
        ("analysts/ana/epsilon", 0, "analysts.ana.epsilon: must be", ""),
        ("analysts/ana/role", "viewer", "analysts.ana.role: a viewer has no part", "Leave epsilon out."),
        ("tables/customer/columns/number", {"between": [10, -5]}, "number.between: the low end is above", ""),
        ("tables/customer/columns/joined", {"between": ["2020-02-01", "2020-01-01"]}, "low end is above", ""),
        ("tables/customer/columns/joined", {"between": ["a", "b"]}, "neither a date", ""),
        ("tables/customer/columns/name", {"in": []}, "name.in: expected a list", ""),
        ("tables/customer/columns/name", {"in": ["a", "a"]}, "name.in: a value stands twice", ""),
        ("tables/customer/columns/name", {"in": ["a", 1]}, "name.in: its values are not of one type", ""),
        ("tables/customer/columns/small", {"in": [1], "between": [0, 1]}, "both `between` and `in`", "Keep one"),
        ("tables/customer/columns/small", {"type": "SMALL"}, "is not a type that can be declared", ""),
        ("tables/nation/public", ..., "must have either `person` or `public", "Write person"),
        ("tables/nation/person", "number", "must have either `person` or `public", ""),
        ("tables/nation/key", "number", "nation.key: expected a list", ""),
        ("tables/nation/max_rows_contributed", 0, "expected a whole number", ""),
        ("tables/orders/person/references", "custmer.id", "references 'custmer'", "Did you mean customer?"),
        ("tables/orders/person/references", "nation.number", "references 'nation'", ""),
        ("tables/orders/person/references", "customer.idd", "column 'idd'", "Did you mean id?"),
        ("tables/orders/person/references", "items.order_number", "circle", ""),
        ("tables/orders/person/references", "customer", "expected a column and what it references", ""),
        ("tables/Nation", {"public": True}, "is the same table", ""),
        ("views", {"v": 5}, "views: must map names", ""),
        ("views", {"v": "SELEC 1"}, "views.v: ", ""),
        ("views", {"v": "SELECT * FROM w", "w": "SELECT * FROM custmer"}, "views.w: reads 'custmer'", "mean customer?"),
        ("tables/customer/key", [], "customer.key: expected a list of columns", ""),
        ("tables", {}, "tables: there are none", "Say whose"),
        ("tables", {"t": {"public": True}}, "tables: none of them is about persons", ""),
        ("tables", {"t": {"person": "id"}, "u": {"person": ""}}, "tables.u.person: expected a column", "Write person"),
    ],
)
def test_a_problem_is_found_without_a_database(place: str, value: Any, message: str, hint: str) -> None:
    policy = changed(place, value)
    found, *more = problems(policy)
    assert all("circle" in other.message for other in more)  # each table on it says so
    assert found.code == "policy_invalid" and message in found.message and hint in found.hint


def test_all_problems_are_found_at_once() -> None:
    policy = changed("budget/epsilon", 0)
    policy["budget"]["delta"] = 3
    policy["tables"]["customer"]["columns"]["number"] = {"between": [3, 1]}
    policy["tables"]["customer"]["columns"]["name"] = {"in": ["a", "a"]}
    policy["tables"]["orders"]["person"]["references"] = "customers.id"
    policy["tables"]["more"] = {}
    places = [problem.message.split(": ")[0].removeprefix("policy, ") for problem in problems(policy)]
    assert places == [
        "budget.epsilon",
        "budget.delta",
        "tables.customer.columns.number.between",
        "tables.customer.columns.name.in",
        "tables.orders.person",
        "tables.more",
    ]


@pytest.mark.parametrize(("place", "value"), [("budget/delta", 0.002), ("budget/epsilon", 21)])
def test_a_budget_that_promises_little_is_a_warning(place: str, value: float) -> None:
    policy = changed(place, value)
    (found,) = warnings(policy)
    assert problems(policy) == [] and found.startswith(place.replace("/", "."))


def test_persons_of_two_widths() -> None:
    """They are refused with a hint that works: one of them leads to the other."""
    connection = duckdb.connect()
    connection.execute("CREATE TABLE a AS SELECT range::INTEGER AS id FROM range(100)")
    connection.execute("CREATE TABLE b AS SELECT range % 100 AS id FROM range(300)")
    policy: dict[str, Any] = {"dataset": {"id": "x"}, "budget": {"epsilon": 10.0}, "defaults": {"epsilon": 0.1}}
    queries = [
        "SELECT count(*) FROM a JOIN b USING (id)",
        "SELECT count(*) FROM (SELECT id FROM a UNION ALL SELECT id FROM b)",
    ]
    for b in ("id", {"column": "id", "references": "a.id"}):
        tables = {"a": {"person": "id"}, "b": {"person": b}}
        db = dpsql.connect(connection, policy=policy | {"tables": tables}, ledger=":memory:")
        for query in queries:
            if isinstance(b, dict):
                assert db.explain(query).plan.charge.amount
                continue
            with pytest.raises(dpsql.Refused, match="different types") as caught:
                db.explain(query)
            assert 'references = "' in caught.value.hint
