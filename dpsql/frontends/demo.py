"""A sample shop, and dpsql answering questions about it. The data is synthetic, so exact answers may stand beside."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import duckdb
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table

from dpsql.answer import Answer, Row, cell, digits
from dpsql.errors import BudgetExhausted, Refused
from dpsql.session import Session, connect

POLICY = """\
[dataset]
id = "sample shop"

[budget]                        # of the persons in this dataset
epsilon = 3.0
delta = 1e-6
accounting = "gdp"

[defaults]                      # of one query
epsilon = 0.5
max_epsilon = 1.0
max_rows_contributed = 32       # more rows than these of one person count for less

[tables.customer]
person = "id"
key = ["id"]
max_rows_contributed = 1
[tables.customer.columns]
segment = { in = ["business", "family", "single", "student"] }
age = { between = [16, 100] }

[tables.orders]
person = { column = "customer", references = "customer.id" }
key = ["id"]
[tables.orders.columns]
amount = { between = [0, 500] }
status = { in = ["delivered", "returned", "open"] }

[tables.region]
public = true
key = ["id"]

[tables.product]
public = true
key = ["id"]
"""

# Deterministic: uniform numbers come from a hash of the row's number, so that every shop is the same shop.
DATA = """
CREATE MACRO u(i, salt) AS (hash(i, salt) % 1000003) / 1000003.0;
CREATE TABLE region AS SELECT i AS id, ['north', 'east', 'south', 'west'][i] AS name FROM range(1, 5) t(i);
CREATE TABLE product AS SELECT i AS id, 'product ' || i AS name, ['food', 'books', 'toys', 'garden'][1 + i % 4] AS category
    FROM range(1000) t(i);
CREATE TABLE customer (id INTEGER PRIMARY KEY, segment VARCHAR NOT NULL, age INTEGER NOT NULL, region INTEGER NOT NULL);
INSERT INTO customer SELECT i, ['business', 'family', 'family', 'single', 'student'][1 + floor(5 * u(i, 1))::INT],
    16 + floor(70 * (u(i, 2) + u(i, 3)) / 2)::INT, 1 + floor(4 * u(i, 4))::INT FROM range(50_000) t(i);
CREATE TABLE orders (id INTEGER NOT NULL, customer INTEGER NOT NULL, product INTEGER NOT NULL, status VARCHAR NOT NULL,
    amount DECIMAL(10, 2) NOT NULL, ordered DATE NOT NULL, FOREIGN KEY (customer) REFERENCES customer (id));
INSERT INTO orders SELECT i, floor(50_000 * u(i, 5) ^ 1.05)::INT, floor(1000 * u(i, 7))::INT,
    ['delivered', 'delivered', 'delivered', 'delivered', 'returned', 'open'][1 + floor(6 * u(i, 8))::INT],
    round(-40 * ln(1 - u(i, 9)), 2), DATE '2023-01-01' + floor(730 * u(i, 10))::INT FROM range(950_000) t(i);
DROP MACRO u;
"""

QUESTIONS = (
    ("How many orders are there in each state?", "SELECT status, count(*) AS orders FROM orders GROUP BY status"),
    (
        "What do the segments spend on an order?",
        "SELECT segment, count(*) AS orders, avg(amount) AS average "
        "FROM orders JOIN customer ON orders.customer = customer.id WHERE ordered >= '2024-01-01' "
        "GROUP BY segment ORDER BY average DESC",
    ),
    (
        "How old are our students?",
        "SELECT count(*) AS students, avg(age) AS age FROM customer WHERE segment = 'student'",
    ),
    (
        "What do people return?",
        "SELECT category, count(*) AS returned FROM orders JOIN product ON orders.product = product.id "
        "WHERE status = 'returned' GROUP BY category ORDER BY returned DESC",
    ),
)
EXPLAINED = "SELECT avg(amount) AS average, sum(amount) AS turnover FROM orders WHERE ordered >= '2024-12-01'"
REFUSED = "SELECT customer, amount FROM orders ORDER BY amount DESC LIMIT 10"
NEXT = """\
dpsql shell {0}             ask by yourself; .help lists what there is
dpsql explain {0} "SELECT avg(age) FROM customer"
dpsql sql {0} "SELECT segment, count(*) FROM customer GROUP BY segment"
dpsql init YOUR.parquet                          the same for your own data
(`dpsql` is at .venv/bin/dpsql if you came by `make demo`.)"""
TWICE = "SELECT count(*) AS customers FROM customer"


def make(directory: Path, step: Callable[[float], None] = lambda _: None) -> Path:
    """The sample shop in this directory; made once. `step` hears how much of it is done."""
    database = directory / "shop.duckdb"
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "shop.policy.toml").write_text(POLICY, encoding="utf-8")
    if not database.exists():
        draft = directory / "shop.draft.duckdb"
        draft.unlink(missing_ok=True)
        statements = DATA.split(";\n")
        with duckdb.connect(str(draft)) as connection:
            connection.execute("SET enable_progress_bar = false")  # ours is enough
            for number, statement in enumerate(statements):
                connection.execute(statement)
                step((number + 1) / len(statements))
        draft.rename(database)
    return database


# Most riders have a few rides, and some have thousands: what a real file of rides looks like.
RIDES = """
CREATE MACRO u(i, salt) AS (hash(i, salt) % 1000003) / 1000003.0;
CREATE TABLE riders AS SELECT i AS rider, 1950 + floor(55 * u(i, 11))::INT AS born,
    ['basic', 'basic', 'plus', 'pro'][1 + floor(4 * u(i, 12))::INT] AS plan FROM range(50_000) t(i);
CREATE TABLE rides AS WITH many AS (
    SELECT i AS rider, least(5_000, floor(2.1 / (1 - u(i, 13)) ^ 0.7))::INT AS rides FROM range(50_000) t(i)),
  each AS (SELECT rider, unnest(range(rides)) AS n FROM many)
  SELECT rider, ['Bern', 'Oslo', 'Rome', 'Lima'][1 + floor(4 * u(hash(rider, n), 14) ^ 1.5)::INT] AS city,
    TIMESTAMP '2024-01-01' + INTERVAL 1 MINUTE * floor(525_600 * u(hash(rider, n), 15))::INT AS started,
    round(3 - 12 * ln(1 - u(hash(rider, n), 16)), 1)::DECIMAL(6, 1) AS minutes,
    round(1.5 - 3 * ln(1 - u(hash(rider, n), 17)), 2)::DECIMAL(6, 2) AS price FROM each ORDER BY hash(rider, n);
DROP MACRO u;
"""


def sample(directory: Path) -> list[Path]:
    """The shop, a Parquet file of some 300,000 rides and a CSV file of 50,000 riders."""
    made = [make(directory), directory / "shop.policy.toml", directory / "rides.parquet", directory / "riders.csv"]
    with duckdb.connect(":memory:") as connection:
        for statement in RIDES.split(";\n"):
            connection.execute(statement)
        connection.execute(f"COPY rides TO '{made[2]}' (FORMAT parquet)")
        connection.execute(f"COPY riders TO '{made[3]}' (FORMAT csv, HEADER)")
    return made


def beside(answer: Answer, rows: list[Row]) -> Table:
    """The answer with its error bars, and the exact values that only a demonstration may show."""
    keys = [i for i, error in enumerate(answer.errors[0]) if error is None]
    truth = {tuple(row[i] for i in keys): row for row in rows}
    table = Table()
    for index, name in enumerate(answer.columns):
        table.add_column(name, justify="left" if index in keys else "right")
        if index not in keys:
            table.add_column("exact", justify="right", style="dim")
    for row, bars in zip(answer, answer.errors, strict=True):
        known = truth.get(tuple(row[i] for i in keys), row)
        cells: list[str] = []
        for index, value in enumerate(row):
            cells.append(cell(value, bars[index]))
            if index not in keys:
                cells.append(f"{known[index]:,.{digits(bars[index])}f}")
        table.add_row(*cells)
    return table


def bar(db: Session, width: int = 40) -> str:
    """The budget as a bar: what is spent of the ledger's amount."""
    budget = db.budget
    part = budget.spent.amount / budget.total.amount
    return f"budget [{'#' * round(part * width):.<{width}}] {part:.1%} spent"


def demo(directory: Path, console: Console) -> None:
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("making a sample shop of a million rows", total=1.0)
        database = make(directory, lambda done: progress.update(task, completed=done))
    say = partial(console.print, highlight=False)
    say(f"[bold]{database}[/], its policy beside it: 50,000 customers, 950,000 orders, two public tables\n")
    # The ledger of a demonstration is forgotten with it. A real one is a file that only the owner can write.
    with connect(database, policy=directory / "shop.policy.toml", ledger=":memory:") as db:
        for question, query in QUESTIONS:
            say(f"[bold]{question}[/]\n[dim]{query}[/]")
            answer = db.sql(query)
            with duckdb.connect(str(database), read_only=True) as exact:
                console.print(beside(answer, exact.execute(query).fetchall()))
            say(f"[dim]cost: epsilon {answer.loss.epsilon:g}; {escape(bar(db))}[/]\n")
        say(f"[bold]What would this cost, and how exact would it be?[/]\n[dim]{EXPLAINED}[/]")
        say(escape(str(db.explain(EXPLAINED))) + "\n")
        say(f"[bold]Who ordered the most expensive things?[/]\n[dim]{REFUSED}[/]")
        try:
            db.sql(REFUSED)
        except Refused as refusal:
            say(f"[red]refused[/] {refusal}\n")
        say(f"[bold]The same total asked twice[/] has fresh noise, and is paid for twice\n[dim]{TWICE}[/]")
        for _ in range(2):
            twice = db.sql(TWICE, epsilon=0.1)
            say(f"{cell(next(iter(twice))[0], twice.errors[0][0])}   [dim]{escape(bar(db))}[/]")
        say("\n[bold]An analyst who goes on asking[/]")
        asked = 0
        try:
            while True:
                db.sql(TWICE, epsilon=1.0)
                asked += 1
        except BudgetExhausted as end:
            say(f"after {asked} more queries at epsilon 1: [red]budget exhausted[/] {end}\n")
        say(f"[bold]The budget[/]\n{db.budget}\n{escape(bar(db))}")
    say(f"\n[bold]What to type next[/]\n{NEXT.format(database)}", soft_wrap=True)
