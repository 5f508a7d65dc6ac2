"""An event log whose persons are texts, and a public table of the kinds of events."""

from __future__ import annotations

import datetime
import random
from functools import partial
from typing import Any

from database import Database, Rows, shaken

TABLES = {
    "event": "id BIGINT NOT NULL, person VARCHAR, ts TIMESTAMP, kind VARCHAR NOT NULL, session INTEGER, payload VARCHAR, duration DOUBLE, "
    "ok BOOLEAN, waited INTERVAL, spent INTERVAL NOT NULL",
    "kind": "name VARCHAR, category VARCHAR, weight DOUBLE, billable BOOLEAN, level INTEGER",
}
PUBLIC: Rows = {
    "kind": [
        *[("view", "read", 1.0, False, 1), ("click", "read", 2.0, False, 1), ("cart", "shop", 3.0, False, 2)],
        *[("buy", "shop", 10.0, True, 3), ("error", "system", 0.5, False, None), ("refund", "shop", -10.0, True, 3)],
    ]
}
POLICY: dict[str, Any] = {
    "event": {
        "person": "person",
        "columns": {"duration": {"between": [0, 600]}, "spent": {"between": ["0 seconds", "2 hours"]}},
    },
    "kind": {"public": True, "key": ["name"]},
}
PAYLOADS = [
    *[None, "", "page=/home;ref=google", "page=/item/7;price=19.90", "page=/cart;n=3", "code=500;msg=Server Error"],
    *["page=/home;ref=mail", "price=5;voucher=SUMMER", "user@example.org"],
]
WAITED = [
    None,
    "1 month",
    "30 days",
    "29 days 24:00:00",
    "-3 hours",
    "90 minutes",
    "1 day 02:30:00",
    "14 months -3 days",
]


def clean(persons: int = 45, seed: int = 1, same: int = 3) -> Rows:
    """Persons come in threes that do the same at the same time, so that no group is of one person; durations are their own."""
    r = random.Random(seed)
    events = []
    for p in range(persons):
        three, pause = random.Random(p // same), random.Random(1000 + p // same)
        when = datetime.datetime(2024, 1, 1, 9)
        for i in range(2 + p // same % 6):
            when += three.choice(
                [datetime.timedelta(minutes=10), datetime.timedelta(hours=7), datetime.timedelta(days=6)]
            )
            kind = "view" if i == 0 else three.choice(["view", "click", "cart", "buy", "error", "idle"])
            payload, ok = three.choice(PAYLOADS), three.choice([None, True, False])
            waited, spent = pause.choice(WAITED), pause.choice(["0 days", "01:30:00", "00:20:00", "2 hours"])
            duration = r.choice([None, r.uniform(0, 600)])
            events.append((100 * p + i, f"p{p:02}", when, kind, i // 3, payload, duration, ok, waited, spent))
    return {"event": events}


EVENTS = Database("events", TABLES, PUBLIC, POLICY, clean, partial(shaken, TABLES, clean))
