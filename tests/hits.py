"""Web analytics: one wide table of page views, a person's by her UserID."""

from __future__ import annotations

import datetime
import random
from functools import partial
from typing import Any

from database import Database, Rows, shaken

TABLES = {
    "hits": "WatchID BIGINT NOT NULL, UserID BIGINT, EventTime TIMESTAMP NOT NULL, EventDate DATE NOT NULL, CounterID INTEGER NOT NULL, "
    "ClientIP INTEGER NOT NULL, RegionID INTEGER, URL VARCHAR NOT NULL, Title VARCHAR, Referer VARCHAR, SearchPhrase VARCHAR NOT NULL, "
    "SearchEngineID SMALLINT NOT NULL, AdvEngineID SMALLINT NOT NULL, OS SMALLINT, UserAgent SMALLINT, ResolutionWidth SMALLINT NOT NULL, "
    "ResolutionHeight SMALLINT NOT NULL, IsMobile SMALLINT NOT NULL, MobilePhoneModel VARCHAR NOT NULL, Age SMALLINT, Sex SMALLINT NOT NULL, "
    "IsRefresh SMALLINT NOT NULL, IsLink SMALLINT NOT NULL, IsDownload SMALLINT NOT NULL, TraficSourceID SMALLINT NOT NULL, "
    "BrowserLanguage VARCHAR, HitColor VARCHAR, ParamPrice BIGINT, FetchTiming INTEGER, Score DOUBLE"
}
POLICY: dict[str, Any] = {
    "hits": {
        "person": "UserID",
        "columns": {
            "EventDate": {"between": [datetime.date(2013, 7, 1), datetime.date(2013, 7, 31)]},
            "EventTime": {"between": [datetime.datetime(2013, 7, 1), datetime.datetime(2013, 7, 31, 23, 59, 59)]},
            "AdvEngineID": {"in": [0, 2, 3]},
            "ResolutionWidth": {"between": [0, 4000]},
            "ResolutionHeight": {"between": [0, 4000]},
            "IsMobile": {"in": [0, 1]},
            "Age": {"between": [0, 120]},
            "Sex": {"in": [0, 1, 2]},
            "IsRefresh": {"between": [0, 1]},
            "TraficSourceID": {"in": [-1, 0, 1, 2, 3]},
            "ParamPrice": {"between": [0, 1000]},
            "FetchTiming": {"between": [0, 30_000]},
            "Score": {"between": [-1, 1]},
        },
    }
}
URLS = [
    *["https://shop.example/", "https://shop.example/cart", "https://shop.example/item/7?ref=mail&utm_source=news"],
    *[
        "http://news.example/2013/07/heat",
        "http://news.example/2013/07/rain?p=2",
        "http://maps.example/city?q=oslo",
        "",
    ],
]
TITLES = [None, "", "Shop: everything", "Your cart", "Breaking News: heat", "News of rain", "Google of maps"]
REFERERS = [
    *[None, "", "https://www.google.example/search?q=shoes", "http://news.example/", "https://m.social.example/u/1"],
    *["http://www.google.example/search?q=rain+oslo", "android-app://shop"],
]
SCREENS = [(360, 640), (1280, 720), (1366, 768), (1920, 1080)]


def clean(persons: int = 45, seed: int = 1, same: int = 3) -> Rows:
    """Persons come in threes that see the same pages at the same time, so that no group is of one person; numbers are their own."""
    r = random.Random(seed)
    hits = []
    for p in range(persons):
        three = random.Random(p // same)
        one, age = three.choice, r.choice([None, *range(18, 80)])
        region, os, phone, screen = (
            one([None, 1, 2, 229]),
            one([None, 2, 7, 44]),
            one(["", "", "iPad", "N9"]),
            one(SCREENS),
        )
        for _ in range(2 + p // same % 6):
            when = datetime.datetime(
                2013, 7, three.randint(1, 28), three.randint(6, 22), one([0, 15, 59]), one([0, 30])
            )
            place = three.randrange(len(URLS))
            engine = one([0, 0, 2, 3])
            hits.append(
                (r.randrange(2**60), 10**18 + p, when, when.date(), one([34, 62, 62]), r.randrange(2**31), region, URLS[place],
                 TITLES[place], one(REFERERS), one(["", "", "shoes", "rain oslo", "Red Shoes"]), engine, one([0, 0, 0, 2, 3]), os,
                 one([1, 2, None]), *screen, int(phone != ""), phone, age, p // same % 3, one([0, 0, 1]), one([0, 1]), one([0, 0, 1]),
                 one([-1, 0, 1, 2, 3]), one([None, "en", "no", "de"]), one(["T", "E", None]), r.choice([None, *range(1000)]),
                 r.randrange(30_000), r.uniform(-1, 1))
            )  # fmt: skip
    return {"hits": hits}


HITS = Database("hits", TABLES, {}, POLICY, clean, partial(shaken, TABLES, clean))
