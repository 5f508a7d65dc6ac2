"""Literate specs: prose, queries, and what becomes of them; `--update-specs` rewrites the latter.

`tests/specs/*.md` are about the shop, `tests/specs/hits/*.md` and so on about the databases of these names.
"""

from __future__ import annotations

import datetime
import re
from dataclasses import dataclass
from pathlib import Path

from database import Database
from events import EVENTS
from hits import HITS
from hospital import HOSPITAL
from shop import SHOP

DATABASES = {one.name: one for one in (SHOP, HITS, EVENTS, HOSPITAL)}
FENCE = re.compile(r"^```(\w+)\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
HERE = Path(__file__).parent / "specs"
NOW = datetime.datetime(2026, 5, 17, 12)  # what clocks say where there is no session


@dataclass(frozen=True)
class Spec:
    file: Path
    number: int
    query: str
    expected: tuple[tuple[str, str], ...]  # kind of block and its text

    def __str__(self) -> str:
        return f"{self.file.relative_to(HERE).with_suffix('')}-{self.number}"

    @property
    def database(self) -> Database:
        return DATABASES[self.file.relative_to(HERE).parent.name or "shop"]

    @property
    def plain(self) -> str:
        """The query as the engine knows it: a block `duckdb` behind the query, where it is not the same."""
        return dict(self.expected).get("duckdb", self.query)

    @property
    def refused(self) -> bool:
        return any(kind == "refused" for kind, _ in self.expected)


def read(file: Path) -> list[Spec]:
    blocks = FENCE.findall(file.read_text())
    specs: list[Spec] = []
    for kind, text in blocks:
        if kind == "sql":
            specs.append(Spec(file, len(specs) + 1, text, ()))
        else:
            last = specs.pop()
            specs.append(Spec(file, last.number, last.query, (*last.expected, (kind, text))))
    return specs


def every(database: str | None = None) -> list[Spec]:
    found = [spec for file in sorted(HERE.rglob("*.md")) for spec in read(file)]
    return [spec for spec in found if database in (None, spec.database.name)]


def update(spec: Spec, actual: dict[str, str]) -> None:
    """Rewrite one spec's blocks in its file, or add them behind a query that has none."""
    text = spec.file.read_text()
    fences = list(FENCE.finditer(text))
    starts = [i for i, fence in enumerate(fences) if fence[1] == "sql"]
    first = starts[spec.number - 1]
    last = starts[spec.number] - 1 if spec.number < len(starts) else len(fences) - 1
    given = {kind: text for kind, text in spec.expected if kind == "duckdb"}
    wanted = [*given, *([kind for kind, _ in spec.expected if kind in actual] or list(actual)[:1])]
    actual = actual | given
    body = fences[first][0] + "".join(f"\n```{kind}\n{actual[kind]}```\n" for kind in wanted)
    spec.file.write_text(text[: fences[first].start()] + body + text[fences[last].end() :])
