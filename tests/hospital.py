"""A hospital: measurements of admissions of patients, and public tables of wards and diagnoses."""

from __future__ import annotations

import datetime
import random
from functools import partial
from typing import Any

from database import Database, Rows, shaken

TABLES = {
    "patient": "id BIGINT, born DATE, sex VARCHAR, postcode VARCHAR, height DOUBLE, smoker BOOLEAN, insurer VARCHAR NOT NULL",
    "admission": "id BIGINT, patient BIGINT, ward VARCHAR, diagnosis VARCHAR, admitted TIMESTAMP, discharged TIMESTAMP, "
    "emergency BOOLEAN NOT NULL, cost INTEGER, notes VARCHAR",
    "measurement": "admission BIGINT, kind VARCHAR NOT NULL, taken TIMESTAMP, value DOUBLE, device SMALLINT",
    "ward": "name VARCHAR, floor INTEGER, beds INTEGER, speciality VARCHAR",
    "diagnosis": "code VARCHAR, title VARCHAR, chapter VARCHAR, severity INTEGER",
}
PUBLIC: Rows = {
    "ward": [("north", 1, 20, "surgery"), ("south", 1, 30, "medicine"), ("icu", 2, 8, None), ("attic", 9, 0, "none")],
    "diagnosis": [
        *[("I10", "Essential hypertension", "IX", 1), ("I21", "Acute myocardial infarction", "IX", 3)],
        *[
            ("J18", "Pneumonia", "X", 2),
            ("S72", "Fracture of femur", "XIX", 2),
            ("Z00", "General examination", "XXI", None),
        ],
    ],
}
POLICY: dict[str, Any] = {
    "patient": {
        "person": "id",
        "max_rows_contributed": 1,
        "columns": {
            "born": {"between": [datetime.date(1920, 1, 1), datetime.date(2024, 12, 31)]},
            "sex": {"in": ["f", "m", "x"]},
            "height": {"between": [40, 220]},
            "insurer": {"in": ["public", "private", "none"]},
        },
    },
    "admission": {
        "person": {"column": "patient", "references": "patient.id"},
        "key": ["id"],
        "columns": {
            "admitted": {"between": [datetime.datetime(2023, 1, 1), datetime.datetime(2024, 12, 31)]},
            "cost": {"between": [0, 50_000]},
        },
    },
    "measurement": {
        "person": {"column": "admission", "references": "admission.id"},
        "shared": True,
        "columns": {"kind": {"in": ["pulse", "pressure", "temperature"]}, "value": {"between": [0, 250]}},
    },
    "ward": {"public": True, "key": ["name"]},
    "diagnosis": {"public": True, "key": ["code"]},
}


def clean(persons: int = 45, seed: int = 1, same: int = 3) -> Rows:
    """Patients come in threes with the same history, so that no group is of one person; what is measured is their own."""
    r = random.Random(seed)
    patients, admissions, measurements = [], [], []
    for p in range(persons):
        three = random.Random(p // same)
        one = three.choice
        born = datetime.date(1930 + three.randrange(80), 1 + three.randrange(12), r.randint(1, 28))
        patients.append(
            (p, born, ["f", "m", None, "x"][p // same % 4], one(["0150", "0151", "5003"]), r.uniform(40, 220), one([None, True, False]),
             one(["public", "private", "none"]))
        )  # fmt: skip
        when = datetime.datetime(2023, 1, 10, 8)
        for i in range(p // same % 4):
            when += datetime.timedelta(days=one([3, 20, 90]), hours=one([0, 5]))
            left = one([None, when + datetime.timedelta(days=one([1, 2, 9]), hours=3)])
            admissions.append(
                (10 * p + i, p, one(["north", "south", "icu", None]), one(["I10", "I21", "J18", "S72", "?"]), when, left,
                 one([True, False]), r.choice([None, r.randint(0, 50_000)]), one([None, "", "Fever, cough", "fall at home", "fever"]))
            )  # fmt: skip
            for j in range(one([0, 1, 3])):
                kind = one(["pulse", "pressure", "temperature"])
                taken = when + datetime.timedelta(hours=4 * j)
                measurements.append((10 * p + i, kind, taken, r.choice([None, r.uniform(30, 200)]), one([1, 2, None])))
    return {"patient": patients, "admission": admissions, "measurement": measurements}


HOSPITAL = Database("hospital", TABLES, PUBLIC, POLICY, clean, partial(shaken, TABLES, clean))
