"""Five questions about 300,000 rides, with error bars and prices: `python examples/first_questions.py`.

It makes rides.parquet in the directory where it runs, and asks as an analyst would: first for free, then for a price.
"""

from pathlib import Path

import dpsql
from dpsql.frontends.demo import sample

POLICY = {
    "budget": {"epsilon": 10.0, "delta": 1e-6},
    "defaults": {"epsilon": 0.5, "max_rows_contributed": 30},
    "tables": {
        "rides": {
            "person": "rider",
            "columns": {
                "city": {"in": ["Bern", "Oslo", "Rome", "Lima"]},
                "minutes": {"between": [0, 120]},
                "price": {"between": [0, 50]},
            },
        }
    },
}
QUESTIONS = {
    "How many rides are there in each city?": "SELECT city, count(*) AS rides FROM rides GROUP BY city",
    "How many people ride in each month?": (
        "SELECT month(started) AS month, count(DISTINCT rider) AS riders FROM rides GROUP BY month ORDER BY month"
    ),
    "How long are rides, and what do they cost?": "SELECT avg(minutes) AS minutes, avg(price) AS price FROM rides",
    "What does a rider pay in a year?": (
        "SELECT avg(paid) AS paid "
        "FROM (SELECT rider, greatest(least(sum(price), 100), 0) AS paid FROM rides GROUP BY rider)"
    ),
    "Which cities have the longest rides?": (
        "SELECT city, avg(minutes) AS minutes FROM rides WHERE city IS NOT NULL GROUP BY city ORDER BY minutes DESC"
    ),
}


def main() -> None:
    sample(Path())
    with dpsql.connect("rides.parquet", policy=POLICY, ledger=":memory:") as db:
        first = next(iter(QUESTIONS.values()))
        print("What would the first question cost, and how exact would it be? To ask that is free.\n")
        print(db.explain(first), "\n")
        print("On synthetic rows, made from the policy, also free:")
        db.rehearse(first).show()
        for question, query in QUESTIONS.items():
            print(f"\n{question}\n{query}")
            db.sql(query).show()
        print(f"\nThe budget:\n{db.budget}")
        try:
            db.sql("SELECT rider, price FROM rides ORDER BY price DESC LIMIT 10")
        except dpsql.Refused as refusal:
            print(f"\nWho paid most? That is about single persons, so it is refused:\n{refusal}")


if __name__ == "__main__":
    main()
