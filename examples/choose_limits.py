"""How the owner of 300,000 rides chooses limits: bias against noise, the policy's check, and the ledger.

    python examples/choose_limits.py                        # in any directory: it makes rides.parquet there
    python examples/choose_limits.py --picture limits.svg   # draws the table too

The figures are exact. They are for the owner alone: a limit that is chosen by looking at the data tells about the data, so take a
round number that you would defend without them.
"""

import argparse
from pathlib import Path

import duckdb

import dpsql
from dpsql.frontends.demo import sample
from dpsql.history import recorded
from dpsql.problems import problems, warnings

POLICY = """
[budget]
epsilon = 10.0
delta = 1e-6
[defaults]
epsilon = 0.5
max_rows_contributed = 30
[tables.rides]
person = "rider"
[tables.rides.columns]
price = { between = [0, 50] }
"""
LIMITS = [1, 2, 4, 8, 16, 30, 64, 128, 256, 512, 1024, 2048, 5000]
QUERIES = {"count(*)": "SELECT count(*) AS n FROM rides", "sum(price)": "SELECT sum(price) AS n FROM rides"}


def errors(name: str) -> list[dict[str, object]]:
    """For each limit: what clipping takes away, what the noise adds (at 95 %), and both, in percent of the exact answer."""
    ((exact,),) = duckdb.sql(QUERIES[name].replace("rides", "'rides.parquet'")).fetchall()
    found: list[dict[str, object]] = []
    # So much epsilon that there is hardly any noise: what is left of the error is the bias. Never do that with a real ledger.
    loud = {"budget": {"epsilon": 1e15, "delta": 1e-6, "accounting": "pure"}, "tables": {"rides": {"person": "rider"}}}
    loud["tables"]["rides"]["columns"] = {"price": {"between": [0, 50]}}  # type: ignore[index]
    with (
        dpsql.connect("rides.parquet", policy=loud, ledger=":memory:") as db,
        dpsql.connect("rides.parquet", policy="rides.policy.toml", ledger=":memory:") as real,
    ):
        for limit in LIMITS:
            ((clipped,),) = db.sql(QUERIES[name], epsilon=1e9, max_rows_contributed=limit)
            noise = real.explain(QUERIES[name], max_rows_contributed=limit).errors["n"] or 0.0
            bias = abs(float(exact) - float(clipped))
            parts = {"both": (bias**2 + noise**2) ** 0.5, "bias": bias, "noise": noise}
            found += [
                {"aggregate": name, "limit": limit, "error": kind, "percent": 100 * size / float(exact)}
                for kind, size in parts.items()
            ]
    return found


def picture(rows: list[dict[str, object]], path: str) -> None:
    import altair

    shown = [row for row in rows if float(str(row["percent"])) > 0.01]  # the scale has no zero
    chart = altair.Chart(altair.Data(values=shown)).mark_line(point=True)
    colours = altair.Scale(domain=["both", "bias", "noise"], range=["#c4c4c4", "#c05a2e", "#3f6fb5"])
    chart = chart.encode(
        x=altair.X("limit:Q", scale=altair.Scale(type="log"), title="max_rows_contributed"),
        y=altair.Y("percent:Q", scale=altair.Scale(type="log"), title="error, % of the exact answer"),
        color=altair.Color("error:N", scale=colours, sort=None, title=None),
    ).properties(width=300, height=260)
    both = [
        chart.transform_filter(f"datum.aggregate == '{name}'").properties(title=f"{name}, epsilon 0.5")
        for name in QUERIES
    ]
    altair.hconcat(*both).save(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--picture", metavar="FILE", help="draw bias and noise, as SVG or PNG")
    options = parser.parse_args()
    sample(Path())
    Path("rides.policy.toml").write_text(POLICY, encoding="utf-8")
    print("The policy has no problems." if not problems("rides.policy.toml") else problems("rides.policy.toml"))
    print("\n".join(warnings("rides.policy.toml")) or "It promises something, too: there are no warnings.", "\n")
    rows = [row for name in QUERIES for row in errors(name)]
    for name in QUERIES:
        print(
            f"{name}: error in % of the exact answer, at epsilon 0.5\n{'limit':>7} {'bias':>8} {'± noise':>8} {'both':>8}"
        )
        table = {(row["limit"], row["error"]): row["percent"] for row in rows if row["aggregate"] == name}
        best = min(LIMITS, key=lambda limit: float(str(table[limit, "both"])))
        for limit in LIMITS:
            cells = " ".join(f"{table[limit, kind]:>8.2f}" for kind in ("bias", "noise", "both"))
            print(f"{limit:>7} {cells}{'  <- least' if limit == best else ''}")
        print()
    with dpsql.connect("rides.parquet", policy="rides.policy.toml", ledger="rides.ledger") as db:
        db.sql(QUERIES["count(*)"])
    runs = recorded("rides.ledger").runs
    print(
        f"The ledger has {len(runs)} statement(s); the last: {runs[-1].statement} ({runs[-1].state}, {runs[-1].part:.2%})"
    )
    if options.picture:
        picture(rows, options.picture)
        print(f"{options.picture} is drawn")


if __name__ == "__main__":
    main()
