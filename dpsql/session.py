"""A session: compile, reserve, run, release, finish, settle."""

from __future__ import annotations

import datetime
import hashlib
import json
import logging
import math
import re
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from difflib import get_close_matches
from fractions import Fraction
from functools import partial
from itertools import zip_longest
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from dpsql import describe
from dpsql.advice import advice
from dpsql.answer import Answer
from dpsql.backends import DuckDB
from dpsql.backends.duckdb import Shadow, Snapshot, file_of, finishes, second_opinion
from dpsql.bars import Ends, cut, layout, misplaced
from dpsql.compiler import compile as compiler
from dpsql.compiler.bind import bind
from dpsql.compiler.program import Plan, Program
from dpsql.compiler.rewrite import asks_time
from dpsql.describe import Tables, tables_of, view_columns
from dpsql.errors import Failed, Interrupted, Refused, Unfinished
from dpsql.explain import Explanation, percent
from dpsql.finish import Public, Scratch
from dpsql.history import Run, Runs, runs_of, share, tighter
from dpsql.kernel.accountant import Charge, Loss, in_words, roughly
from dpsql.kernel.exact import read_public
from dpsql.kernel.mechanisms import Sampled
from dpsql.ledger import Balance, Charged, Ledger
from dpsql.policy.catalog import Catalog, Interval, Policy, Reference, Schema, build, encodable, fold, read_policy
from dpsql.prepare import arrange, prepared
from dpsql.progress import Progress, watched
from dpsql.rehearse import NOTE, fill, free_tickets
from dpsql.run import Tick, noisy
from dpsql.sources import SUFFIXES, files_of, gather
from dpsql.verify import once

# The parser warns on standard error about text that it half understands; it is refused all the same.
logging.getLogger("sqlglot").setLevel(logging.ERROR)

# Recognised before parsing: the parser reads them as something else.
EXPLAIN = r"\s*EXPLAIN\s+(?:PRIVACY\s+)?(?!PRIVACY\b|ANALYZE\b)"
COMMAND = re.compile(rf"(?:(?P<explain>{EXPLAIN})|\s*SHOW\s+BUDGET\s*;?\s*$)", re.IGNORECASE)
DEFAULT_DELTA_SHARE = 100  # of the budget's delta, for a query that names none
REMEMBERED = 1_000  # queries that the engines have confirmed already
INTERRUPTED = "Query interrupted"  # what DuckDB makes of Ctrl-C while the main thread is in it: a RuntimeError


@dataclass(frozen=True, repr=False)
class Budget:
    """What has been spent, what is left and what there was; `analyst` is the same for the analyst's allocation."""

    spent: Loss
    left: Loss
    total: Loss
    analyst: Budget | None = None
    room: int | None = None  # for queries like the last one; None before the first
    part: float = 0.0  # of the budget that is spent
    tighter: str = ""  # "delta" where that runs out first

    def __str__(self) -> str:
        more = f"; room for {roughly(self.room)} more like the last query" if self.room is not None else ""
        first = f"; {self.tighter} runs out first" if self.tighter else ""
        lines = [f"{percent(1 - self.part)} of the budget is left{more}{first}"]
        lines += [
            f"{name:<6} epsilon {loss.epsilon:.4g}, delta {loss.delta:.3g} ({loss.currency} {loss.amount:.6g})"
            for name, loss in (("spent", self.spent), ("left", self.left), ("total", self.total))
        ]
        own = (
            []
            if self.analyst is None
            else ["your allocation:", *(f"  {line}" for line in str(self.analyst).splitlines())]
        )
        return "\n".join([*lines, *own])

    __repr__ = __str__


def connect(
    database: Any,
    *,
    policy: str | Path | Mapping[str, Any] | None = None,
    ledger: str | Path | None = None,
    analyst: str | None = None,
) -> Session:
    """Open a database for private questions.

    `database` is the path of a DuckDB file or an open duckdb connection; or the path of a Parquet or CSV file, which is
    one table with the file's name; or of a directory of such files; or several of these and of frames, under the names of the policy's tables:
    `{"visits": "visits/*.parquet", "people": df}`. Files and frames are read into memory, once. `policy` is a TOML or JSON file
    or a dict, by default the file beside the database that ends in .policy.toml; `ledger` a path or ":memory:", by default a file beside the database. Whoever can choose the ledger can
    choose a fresh budget: this call is the data owner's.
    """
    path = Path(database) if isinstance(database, str | Path) else None
    if path is not None and not path.exists() and not any(mark in str(path) for mark in "*?["):
        raise missing(path)
    if policy is None:
        if path is None:
            raise Refused("policy_missing", "there is no policy", 'Pass policy="shop.policy.toml".')
        policy = companion(path, ".policy.toml")
    declared = read_policy(policy)
    if declared.analysts and analyst not in declared.analysts:
        raise Refused(
            "analyst_unknown",
            "the policy names its analysts, and this is none of them"
            if analyst
            else "the policy names its analysts, and nobody is named here",
            f"Pass one of: {', '.join(declared.analysts)}.",
        )
    if ledger is None and path is None:
        raise Refused(
            "ledger_missing", "an open connection, files and frames need a ledger", 'Pass ledger="shop.ledger".'
        )
    dataset = declared.dataset or named(database)
    if dataset is None:
        raise Refused(
            "dataset_missing",
            "the policy does not say which dataset this is",
            'Add these two lines to the policy:\n[dataset]\nid = "shop"',
        )
    backend, schemas, catalog = opened(database, declared)
    if ledger is None:
        assert path is not None
        ledger = companion(path, ".ledger")
    paths = {name: schema.path for name, schema in schemas.items()}
    book = Ledger(ledger, dataset, declared, lazy=True, paths=paths)
    catalog = catalog.knowing(book.verified(declared.version), "unique")
    return Session(backend, schemas, replace(catalog, place=str(path or "")), book, analyst or "")


def companion(path: Path, ending: str) -> Path:
    """The file that goes with a database, beside it: shop.policy.toml, shop.ledger."""
    return (path.resolve() if path.is_dir() else path).with_suffix(ending)


def missing(path: Path) -> Refused:
    """That a database is not there, with the file whose name is nearest."""
    there = [one.name for one in path.parent.iterdir()] if path.parent.is_dir() else []
    near = get_close_matches(path.name, there, 1, 0.8)
    hint = f"Did you mean {path.parent / near[0]}?" if near else "Check the path."
    return Refused("database_missing", f"there is no database {str(path)!r}", hint)


def named(database: Any) -> str | None:
    """The identity of a dataset whose policy gives none: the name of the one file that it is in; else None.

    So a file has one identity whether its path or a connection to it is passed. There is no default for what has no file of
    its own (a database in memory, frames, several files): any word of ours would be the same word for the next such dataset,
    and a ledger of the first would then look right for the second. Files of one name are told apart by their ledgers, which lie
    beside them; if the caller names one ledger for both, both are charged to it, which promises no less to anyone.
    """
    if isinstance(database, Mapping) and len(database) == 1:
        (database,) = database.values()
        return Path(database).name if isinstance(database, str | Path) and Path(database).is_file() else None
    if isinstance(database, str | Path):
        return Path(database).name or Path(database).resolve().name
    file = file_of(database) if hasattr(database, "cursor") else None
    return Path(file).name if file else None


def opened(database: Any, declared: Policy) -> tuple[DuckDB, dict[str, Schema], Catalog]:
    """The database with its schema, held against the policy."""
    if isinstance(database, Mapping):
        backend = DuckDB(gather(database, declared), ours=True, loaded=True)
    elif isinstance(database, str | Path) and Path(database).suffix.lower() in SUFFIXES:
        if any(mark in str(database) for mark in "*?[") and not Path(database).is_file():
            raise Refused(
                "source_not_supported",
                f"{str(database)!r} may be several files, and their table needs a name",
                f"Pass a dict: {{'visits': {str(database)!r}}}.",
            )
        backend = DuckDB(gather({Path(database).stem: database}, declared), ours=True, loaded=True)
    elif isinstance(database, str | Path) and Path(database).is_dir():
        # Its other files are none of the policy's tables.
        wanted = {fold(name) for name in declared.tables}
        files = [path for path in files_of(Path(database)) if fold(path.stem) in wanted]
        if len({path.stem for path in files}) < len(files):
            hint = "Each table has its file's name: rename one of them."
            raise Refused("source_twice", f"two files of {str(database)!r} would be the same table", hint)
        backend = DuckDB(gather({path.stem: path for path in files}, declared), ours=True, loaded=True)
    elif isinstance(database, str | Path):
        backend = prepared(Path(database), declared) or DuckDB(database)
    elif hasattr(database, "cursor"):
        backend = DuckDB(database)
    else:
        raise Refused(
            "database_not_supported",
            f"cannot connect to a {type(database).__name__}",
            "Pass the path of a DuckDB file, an open duckdb connection, or a dict of files and frames.",
        )
    with backend.snapshot() as snapshot:
        schemas = snapshot.schemas(declared.tables)
        catalog = build(declared, schemas, backend.repeats)
        if backend.loaded:  # it stays as it is for as long as the session lives
            links = [table.person for table in catalog.tables.values() if isinstance(table.person, Reference)]
            keys = {(fold(link.table), frozenset(map(fold, link.referenced))): link for link in links}
            found = [key for key, link in keys.items() if snapshot.holds(once(catalog.tables[key[0]], link.referenced))]
            catalog = replace(catalog.knowing(found, "checked"), loaded=True)
    return backend, schemas, catalog


class Session:
    """Private questions to one database. Make it with `dpsql.connect`."""

    def __init__(
        self, backend: DuckDB, schemas: Mapping[str, Schema], catalog: Catalog, ledger: Ledger, analyst: str
    ) -> None:
        self._backend, self._schemas, self._catalog = backend, schemas, catalog
        with backend.snapshot() as snapshot:
            self._texts = snapshot.texts(schemas)
            if snapshot.schemas(catalog.policy.tables) != schemas:
                raise Refused("schema_changed", "a table of the policy has changed meanwhile", "Connect again.")
        self._plans: dict[tuple[str | float | datetime.datetime | None, ...], Plan | Program] = {}
        self._shadow = Shadow(schemas)
        self._confirmed: set[tuple[str, ...]] = set()
        self._ledger, self._analyst = ledger, analyst
        self._scratch: Scratch | None = None
        self._lock = threading.Lock()  # for whoever makes it or lets go of it
        self._tables: Tables | None = None
        self._stage: DuckDB | None = None  # with synthetic rows, for rehearsals
        self._closed = False
        self.progress: Progress | None = watched()  # called with the phase and the seconds so far, while a query runs

    def sql(
        self,
        query: str,
        parameters: object = None,
        *,
        epsilon: float | None = None,
        delta: float | None = None,
        query_id: str | None = None,
        weights: Sequence[float] | None = None,
        max_rows_contributed: int | None = None,
        max_groups_contributed: int | None = None,
        timeout: float | None = None,
    ) -> Answer:
        """Answer a query, and charge for it. `parameters` are a list for `?` and `$1`, or a dict for `$name`.

        A query with a `query_id` is charged once: asked again, it has the same answer, which the ledger keeps. `weights` are
        for a statement of several releases, one for each in the order of EXPLAIN: the parts of the budget that they get.
        `max_rows_contributed` and `max_groups_contributed` stand in place of the policy's: what one person may add. After
        `timeout` seconds, or after the policy's `max_seconds`, the query is ended: it stays charged, and counts as a failure.

        Needs:   nothing: query, parameters, epsilon and delta are hostile
        Gives:   an answer whose loss was durable before any row was read; or an error, charged if data was touched
        Proof:   the plan is made and confirmed first, from public facts; `reserve` returns only when the charge is on
                 disk; then the exact queries, one native call that limits and adds the noise, and the finishing query on its
                 result; before them, where limits are not declared, one exact query and one native call that chooses
                 them. What goes wrong after `reserve`, or takes too long, is one constant error, Ctrl-C another, and only where
                 nothing but releases and public tables is read it says why; nothing is given back. Which statements end so is
                 not covered by noise: the ledger counts them, and refuses others after `max_failures`
        Checked: test_record_play, test_session, test_interrupt
        """
        if not isinstance(query, str):
            raise Refused("syntax", "the query is not a text", "Pass SQL as a str.")
        limits = (max_rows_contributed, max_groups_contributed)
        if command := COMMAND.match(query):
            return self._told(command, query, parameters, epsilon, delta, weights, limits)
        if (known := self._catalogue(query, parameters)) is not None:
            return known
        self._may("ask")
        asked, (query, ends) = query, cut(query)
        seconds = self._seconds(timeout)
        # What was asked before under this id is about the time of then.
        now = self._asked_at(query_id) if query_id is not None else self._now()
        plan = self._plan(query, epsilon, delta, parameters, weights, limits, now)
        barred(plan, ends, asked)
        mark = fingerprint(plan, query_id) if query_id is not None else ""
        if query_id is not None and (before := self._answered(plan, asked, query_id, mark)) is not None:
            before.place(ends)
            return before
        with self._backend.snapshot() as snapshot:
            if snapshot.texts(self._schemas) != self._texts:
                raise Refused(
                    "schema_changed", "a table of the policy has changed since the session began", "Connect again."
                )
            read = (path for part in plan.parts for path in part.release.tables)
            if self._backend.grown(snapshot, read):  # the plan may allow more rows than it was made for
                self._plans.clear()
                raise Refused("data_changed", "a public table has changed since the query was planned", "Ask again.")
            answer: Answer | Unfinished | None = None
            run: Charged | None = None
            interrupted: BaseException | None = None
            scratch = self._finisher()
            try:
                # What releases nothing about anyone has nothing to be charged for.
                run = self._ledger.reserve(plan, asked, self._analyst, query_id) if plan.sampled else None
                end = time.monotonic() + seconds
                with scratch.until(end):
                    answer = self._answer(plan, snapshot, scratch, run, mark, now, end)
            except Exception:  # of `reserve`, which says no
                raise
            except BaseException as error:  # Ctrl-C, or what a handler of another signal raises
                interrupted = error.with_traceback(None)
                if isinstance(error, KeyboardInterrupt):
                    interrupted = Interrupted() if plan.sampled else KeyboardInterrupt()
            # Whoever waits and then gives up has learnt as much as from a time-out. Where the ledger cannot be written the charge
            # stands without an end, which counts too, and what is said is the same.
            if run is not None and answer is None:
                with suppress(Refused, KeyboardInterrupt, SystemExit):
                    self._ledger.fail(run)
            # Raised here, so that the exception has neither a cause nor a context.
            if interrupted is not None:
                interrupted.__context__ = interrupted.__cause__ = None
                raise interrupted
            if answer is None:
                raise Failed if run is not None else Unfinished("it took too long, or too much memory", charged=False)
            if isinstance(answer, Unfinished):
                raise answer
        answer.place(ends)
        return answer

    def _answer(
        self,
        plan: Plan | Program,
        snapshot: Snapshot,
        scratch: Scratch,
        run: Charged | None,
        mark: str,
        now: datetime.datetime,
        end: float,
    ) -> Answer | Unfinished | None:
        """Run a plan that has been charged; None if anything goes wrong, since that may depend on data."""
        try:
            answers, kept, drawn = list[Answer](), list[Any](), list[Sampled]()
            tables = self._public(plan, snapshot)
            for part, ticket in zip_longest(plan.parts, run.tickets if run is not None else ()):
                self._load(scratch, part, answers, tables, snapshot)
                made = self._given(scratch, part, answers, tables)
                released = noisy(made, snapshot, ticket, self._tick(plan, part), end)
                if released is None:
                    return None
                chosen, table, rungs = released
                answers.append(scratch.finish(chosen, table, self._loss(part)))
                kept.append([rungs, answers[-1].stored() if mark else ""])
                scratch.agree(plan, answers)
                drawn += chosen.release.drawn if rungs or part.waits else []
            answer = self._whole(scratch, plan, answers, tables, self._loss(plan))
            if run is not None:
                self._ledger.settle(run, json.dumps([mark, kept, now.isoformat()]) if mark else "", tuple(drawn))
        except Unfinished as error:  # nothing but releases was read there
            if run is None:
                return Unfinished(error.what, charged=False)
            if time.monotonic() >= end:  # how much of it was left for this depends on the data
                return None
            with suppress(Refused):
                self._ledger.settle(run)
            return error
        except Exception as error:
            with self._lock:
                if self._scratch is scratch:
                    self._scratch = None  # an engine that has failed may be of no use any more
            if isinstance(error, RuntimeError) and str(error) == INTERRUPTED:
                raise KeyboardInterrupt from None
            return None
        return answer

    def _tick(self, plan: Plan | Program, part: Plan) -> Tick:
        """Tells whoever watches which release is on its way."""
        if self.progress is None:
            return lambda phase: None
        show, start = self.progress, time.monotonic()
        of = f" {plan.parts.index(part) + 1} of {len(plan.parts)}" if len(plan.parts) > 1 else ""

        def tick(phase: str) -> None:
            with suppress(Exception):  # a display that fails must not end a query that is charged
                show(phase and f"dpsql: {phase}{of}", time.monotonic() - start)

        return tick

    def _public(self, plan: Plan | Program, snapshot: Snapshot) -> dict[str, Public]:
        if isinstance(plan, Plan):
            return {}
        shapes = self._shadow.columns()
        reads = {name: read_public(self._catalog, name) for name in plan.tables}
        return {name: (shapes[name], partial(snapshot.public, read)) for name, read in reads.items()}

    def _load(
        self, scratch: Scratch, plan: Plan, answers: list[Answer], tables: Mapping[str, Public], snapshot: Snapshot
    ) -> None:
        """The tables that a release reads of those before it."""
        queries = {read.name: read for read in plan.reads}
        for table in plan.release.loads:
            snapshot.load(table, scratch.rows(queries[table.name], answers, tables))

    def _given(self, scratch: Scratch, plan: Plan, answers: list[Answer], tables: Mapping[str, Public]) -> Plan:
        """The plan with the released values that it waited for."""
        if plan.given is None:
            return plan
        made = plan.given(tuple(scratch.values(read, answers, tables) for read in plan.waits))
        if made.charge != plan.charge:
            raise AssertionError("the charge of a release depends on what it waited for")
        self._confirm(replace(made, reads=plan.reads))  # its SQL has constants in it that nobody has seen before
        return made

    def _whole(
        self, scratch: Scratch, plan: Plan | Program, answers: list[Answer], tables: Mapping[str, Public], loss: Loss
    ) -> Answer:
        if isinstance(plan, Plan):
            answers[0].compute()
            return answers[0]
        return scratch.combine(plan, answers, tables, loss)

    def _answered(self, plan: Plan | Program, query: str, query_id: str, mark: str) -> Answer | None:
        """The answer that the ledger keeps under this id, byte for byte: post-processing of what was released then."""
        stored = self._ledger.answered(query_id, plan, query, self._analyst)
        if not stored:
            return None
        known, kept, *_ = json.loads(stored)
        if mark != known:
            what = f"query {query_id!r} had other parameters, or was planned by another version of dpsql"
            raise Refused("query_differs", what, "Ask under another id.")
        answers, scratch = list[Answer](), self._finisher()
        with self._backend.snapshot() as snapshot:
            tables = self._public(plan, snapshot)
            for part, (rungs, rows) in zip(plan.parts, kept, strict=True):
                made = self._given(scratch, part, answers, tables)
                made = made.then(tuple(rungs)) if made.then else made
                answers.append(scratch.again(made, rows, self._loss(part)))
                scratch.agree(plan, answers)
            return self._whole(scratch, plan, answers, tables, self._loss(plan))

    def _seconds(self, timeout: float | None) -> float:
        """What a statement may take."""
        most = float(self._catalog.policy.defaults.max_seconds)
        if timeout is not None and (not usable(timeout) or timeout > most):
            raise Refused(
                "timeout_invalid", f"timeout must lie between 0 and max_seconds, {most:g}", f"Pass timeout={most:g}."
            )
        return most if timeout is None else float(timeout)

    def _open(self) -> None:
        if self._closed:
            raise Refused("session_closed", "the session is closed", "Call dpsql.connect again.")

    def _now(self) -> datetime.datetime:
        """The time of a statement, in UTC, rounded down to the policy's clock."""
        return rounded(here(), self._catalog.policy.defaults.clock)

    def _asked_at(self, query_id: str) -> datetime.datetime:
        """The time of a statement that has an id: that of the first asking, if its answer is kept."""
        if not isinstance(query_id, str) or not 0 < len(query_id) <= 200 or not encodable(query_id):
            raise Refused("query_id_invalid", "a query's id is a text of 1 to 200 characters", "Pass a UUID.")
        _, settled = self._ledger.asked(query_id)
        times = json.loads(settled.answer)[2:] if settled and settled.answer else []
        return datetime.datetime.fromisoformat(times[0]) if times else self._now()

    def _may(self, what: Literal["ask", "see the ledger"]) -> None:
        self._open()
        if self._catalog.policy.analyst(self._analyst).role == "viewer":
            raise Refused(
                "role_may_not",
                f"a viewer may not {what}",
                "explain, rehearse and budget are allowed; for more ask the owner.",
            )

    @property
    def history(self) -> list[Run]:
        """What was asked, when and at what charge: an owner sees everybody's queries, an analyst their own."""
        self._may("see the ledger")
        everything = self._catalog.policy.analyst(self._analyst).role == "owner"
        return Runs(run for run in runs_of(self._ledger) if everything or run.analyst == self._analyst)

    def rehearse(
        self,
        query: str,
        parameters: object = None,
        *,
        epsilon: float | None = None,
        delta: float | None = None,
        weights: Sequence[float] | None = None,
        max_rows_contributed: int | None = None,
        max_groups_contributed: int | None = None,
    ) -> Answer:
        """The same on synthetic rows made from the policy: no charge, no real data. The notes say so."""
        limits = (max_rows_contributed, max_groups_contributed)
        if command := COMMAND.match(query):
            return self._told(command, query, parameters, epsilon, delta, weights, limits)
        if (known := self._catalogue(query, parameters)) is not None:
            return known
        asked, (query, ends) = query, cut(query)
        plan = self._plan(query, epsilon, delta, parameters, weights, limits)
        barred(plan, ends, asked)
        if self._stage is None:
            twin = self._shadow.twin()
            fill(twin, self._catalog)
            arrange(twin, self._catalog)
            self._stage = DuckDB(twin, ours=True, synthetic=True)
        with self._stage.snapshot() as snapshot:
            answers, tables, scratch = list[Answer](), self._public(plan, snapshot), self._finisher()
            for part, ticket in zip(plan.parts, free_tickets(part.release for part in plan.parts), strict=True):
                self._load(scratch, part, answers, tables, snapshot)
                made = self._given(scratch, part, answers, tables)
                released = noisy(made, snapshot, ticket, self._tick(plan, part))
                if released is None:
                    raise Refused("engine_cannot", "the engine cannot run this query on synthetic rows", "Simplify it.")
                answers.append(scratch.finish(*released[:2], self._free()))
                scratch.agree(plan, answers)
            answer = self._whole(scratch, plan, answers, tables, self._free())
        answer.place(ends)
        answer.notes = (NOTE, *answer.notes)
        return answer

    def _confirm(self, plan: Plan | Program) -> None:
        """Let both engines see what would run, so that what cannot is refused before anything is charged."""
        if any(part.release.catalog is not self._catalog for part in plan.parts):
            raise AssertionError("a release was planned with another catalogue than the owner's")
        # What is confirmed depends on the names of the columns too, by which the query around the releases reads them.
        names = [[output.name for output in part.outputs] for part in plan.parts]
        texts = (*written(plan), repr(names), repr([part.waits + part.reads for part in plan.parts]))
        if texts in self._confirmed:
            return
        for part in plan.parts:
            for one in (part, *part.extremes):
                self._shadow.confirm(one.release)
                finishes(one.outer)
                self._finisher().confirm(one)
        if isinstance(plan, Program):
            for text in (plan.outer, *(read.query for part in plan.parts for read in (*part.waits, *part.reads))):
                finishes(text, aggregating=True)
            self._finisher().confirm(plan, self._shadow.columns())
        if len(self._confirmed) == REMEMBERED:
            self._confirmed.clear()
        self._confirmed.add(texts)

    def _finisher(self) -> Scratch:
        """The scratch database. A statement takes it once: another thread may let go of it meanwhile, and in a new one
        tables of the same names are other answers."""
        with self._lock:
            if self._scratch is None:
                self._scratch = Scratch(float(self._catalog.policy.defaults.max_seconds))
            return self._scratch

    def _told(
        self,
        command: re.Match[str],
        query: str,
        parameters: object,
        epsilon: float | None,
        delta: float | None,
        weights: Sequence[float] | None,
        limits: tuple[int | None, int | None],
    ) -> Answer:
        """EXPLAIN PRIVACY and SHOW BUDGET as answers: free, and read off public facts."""
        if command["explain"]:
            rows_, groups = limits
            explained = self.explain(
                query,
                parameters,
                epsilon=epsilon,
                delta=delta,
                weights=weights,
                max_rows_contributed=rows_,
                max_groups_contributed=groups,
            )
            return self._finisher().tell(("explain",), [(line,) for line in str(explained).splitlines()], self._free())
        bind({}, parameters)
        budget = self.budget
        rows = [
            (
                name,
                *(float(f"{x:.6g}") for x in (b.spent.epsilon, b.left.epsilon, b.total.epsilon, b.total.delta)),
                round(1 - b.part, 6),
            )
            for name, b in (("dataset", budget), ("analyst", budget.analyst))
            if b is not None
        ]
        names = ("of", "spent_epsilon", "left_epsilon", "total_epsilon", "total_delta", "part_left")
        return self._finisher().tell(names, list(rows), self._free())

    @property
    def tables(self) -> Tables:
        """The tables and views with their columns and what is public about them. Free; no row is looked at."""
        self._open()
        if self._tables is None:
            views = dict(self._catalog.policy.views)
            columns = view_columns(views, self._shadow.twin(within=True)) if views else {}
            self._tables = tables_of(self._catalog, columns)
        return self._tables

    @property
    def analyst(self) -> str:
        """Who asks; empty where the policy names nobody."""
        return self._analyst

    @property
    def policy(self) -> Policy:
        """What the owner declared; it is public."""
        return self._catalog.policy

    def _catalogue(self, query: str, parameters: object) -> Answer | None:
        """The answer to DESCRIBE, SHOW TABLES, SUMMARIZE or a query on information_schema, which are free; None for others."""
        try:
            if command := describe.COMMAND.match(query):
                names, types, rows = describe.told(command, self.tables)
            elif (tree := describe.about_the_catalogue(query)) is not None:
                names, types, rows = describe.catalogue(tree, query, self.tables)
            else:
                return None
        except Refused as error:
            error.locate(query)
            raise
        bind({}, parameters)
        answer = self._finisher().tell(names, rows, self._free(), types)
        answer.notes = (describe.NOTE,)
        return answer

    def _free(self) -> Loss:
        return Loss(0.0, 0.0, self._ledger.currency, 0.0)

    def explain(
        self,
        query: str,
        parameters: object = None,
        *,
        epsilon: float | None = None,
        delta: float | None = None,
        weights: Sequence[float] | None = None,
        max_rows_contributed: int | None = None,
        max_groups_contributed: int | None = None,
    ) -> Explanation:
        """What would run, with which noise and error, at what cost. Touches no data and costs nothing."""
        if not isinstance(query, str):
            raise Refused("syntax", "the query is not a text", "Pass SQL as a str.")
        # Blanks in its place, so that errors point at the right spot.
        text = re.sub(f"^{EXPLAIN}", lambda found: re.sub(r"\S", " ", found[0]), query, flags=re.IGNORECASE)
        limits = (max_rows_contributed, max_groups_contributed)
        text, ends = cut(text)
        plan = self._plan(text, epsilon, delta, parameters, weights, limits)
        barred(plan, ends, query)
        budget = self._catalog.policy.budget
        balances = [self._ledger.balance(who) for who in (None, self._analyst)]
        tightest = min(balances, key=lambda balance: balance.room(plan.charge))

        def other(query: str, max_rows: int | None = None) -> Plan | Program:
            return self._plan(query, epsilon, delta, parameters, weights, (max_rows or limits[0], limits[1]))

        return Explanation(
            plan,
            self._loss(plan),
            self.budget.left,
            tightest.room(plan.charge),
            budget.delta,
            part(tightest, plan.charge),
            1 - part(tightest, tightest.spent),
            tighter(plan.charge, tightest.total),
            tuple(advice(text, plan, other)),
        )

    @property
    def budget(self) -> Budget:
        """What has been spent, and what is left."""
        self._open()
        own = self._describe(self._ledger.balance(self._analyst)) if self._analyst else None
        return self._describe(self._ledger.balance(), own)

    def _describe(self, balance: Balance, analyst: Budget | None = None) -> Budget:
        delta, last = self._catalog.policy.budget.delta, self._ledger.last_charge()
        spent, left, total = (in_words(charge, delta) for charge in (balance.spent, balance.left, balance.total))
        room = balance.room(last) if last else None
        known = balance.spent, balance.total
        return Budget(spent, left, total, analyst, room, share(*known), tighter(*known))

    def _plan(
        self,
        query: str,
        epsilon: float | None,
        delta: float | None,
        parameters: object = None,
        weights: Sequence[float] | None = None,
        limits: tuple[int | None, int | None] = (None, None),
        now: datetime.datetime | None = None,
    ) -> Plan | Program:
        self._open()
        plain = parameters is None and weights is None and {type(epsilon), type(delta)} <= {float, int, type(None)}
        plain = plain and {*map(type, limits)} <= {int, type(None)}
        now = now or self._now()
        timed = any(map(asks_time, (str(query), *self._catalog.policy.views.values())))
        asked = (query, epsilon, delta, *limits, now if timed else None) if plain else None
        if asked is not None and asked in self._plans:  # compiling is a pure function of these
            return self._plans[asked]
        policy = self._catalog.policy
        epsilon_, delta_ = privacy(policy, epsilon, delta, policy.max_epsilon(self._analyst))
        try:
            plan = compiler.compile(query, self._catalog, epsilon_, delta_, parameters, shares(weights), now, limits)
            second_opinion(query)
            self._confirm(plan)
        except Refused as error:
            if error.code == "syntax" and encodable(query):  # of which the engine knows more, unless it can read it
                second_opinion(query, error.position)
            error.locate(query)
            raise
        if asked is not None:
            if len(self._plans) == REMEMBERED:
                self._plans.clear()
            self._plans[asked] = plan
        return plan

    def _loss(self, plan: Plan | Program) -> Loss:
        return Loss(float(plan.epsilon), float(plan.delta), plan.charge.currency, plan.charge.amount / 10**18)

    def close(self) -> None:
        """Let go of everything; the session refuses from then on. The ledger stays."""
        self._closed = True
        self._scratch = self._stage = None
        self._backend.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def barred(plan: Plan | Program, ends: Sequence[Ends], query: str) -> None:
    """Refuse error bars of what has none, before anything is charged."""
    if not ends:
        return
    if isinstance(plan, Program):
        hint = "Ask for the releases one by one, or leave DP_INTERVAL out."
        what = "the error bars of what is computed from several releases are not known"
        raise misplaced(query, what, hint, ends[0].position)
    layout(tuple(output.name for output in plan.outputs), ends, query)


def part(balance: Balance, charge: Charge) -> float:
    """Which part of the budget a charge is: of its amount or of its delta, whichever is more."""
    return share(charge, balance.total)


def here() -> datetime.datetime:
    """What the machine's clock says, in UTC."""
    return datetime.datetime.now(datetime.UTC)


def rounded(now: datetime.datetime, clock: Interval) -> datetime.datetime:
    """A time in UTC rounded down, as the engine's time_bucket does: weeks begin on Mondays.

    >>> str(rounded(datetime.datetime(2024, 5, 17, 12, 45), Interval(0, 0, 3_600_000_000)))
    '2024-05-17 12:00:00'
    """
    start, step = datetime.datetime(2000, 1, 3), datetime.timedelta(microseconds=int(clock.length))
    return start + (now.replace(tzinfo=None) - start) // step * step


def usable(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return 0 < value < 1e300 if isinstance(value, int) else math.isfinite(value) and value > 0


def fingerprint(plan: Plan | Program, query_id: str) -> str:
    """Tells plans apart that differ only in the values of their parameters, which the ledger does not keep.

    Not by what runs, which is other SQL where the data is prepared: a query is charged once also where that changes.
    """
    texts = [query_id, *(part.release.text for part in plan.parts), *beside(plan)]
    return hashlib.sha256(json.dumps(texts).encode()).hexdigest()


def beside(plan: Plan | Program) -> tuple[str, ...]:
    """All SQL of a plan but for the exact queries."""
    reads = (read.query for part in plan.parts for read in (*part.waits, *part.reads))
    return (plan.outer, *(text for part in plan.parts for text in (part.outer, part.release.climb)), *reads)


def written(plan: Plan | Program) -> tuple[str, ...]:
    """All SQL that a plan would run."""
    return (*(query.sql for part in plan.parts for query in part.release.exact.all), *beside(plan))


def shares(weights: Sequence[float] | None) -> tuple[Fraction, ...] | None:
    """The caller's weights as exact parts of one."""
    if weights is None:
        return None
    if isinstance(weights, str) or not isinstance(weights, Sequence) or not weights or not all(map(usable, weights)):
        raise Refused("weights_invalid", "weights must be a list of numbers greater than zero", "Pass weights=[2, 1].")
    exact = [Fraction(str(weight)) for weight in weights]
    parts = tuple(weight / sum(exact) for weight in exact)
    if min(parts) < Fraction(1, 10**6):
        raise Refused("weights_invalid", "a weight is less than a millionth of all", "Leave that release out.")
    return parts


def privacy(
    policy: Policy, epsilon: float | None, delta: float | None, most: Fraction | None
) -> tuple[Fraction, Fraction]:
    """The query's parameters: from the call, else from the policy."""
    for name, value in (("epsilon", epsilon), ("delta", delta)):
        if value is not None and not usable(value):
            raise Refused(f"{name}_invalid", f"{name} must be a finite number greater than zero", f"Pass {name}=0.5.")
    wanted = Fraction(str(epsilon)) if epsilon is not None else policy.defaults.epsilon
    if wanted is None:
        raise Refused(
            "epsilon_missing", "neither the call nor the policy says which epsilon to use", "Pass epsilon=0.5."
        )
    if most is not None and wanted > most:
        raise Refused(
            "epsilon_too_large",
            f"epsilon {float(wanted):g} is more than the policy's max_epsilon {float(most):g}",
            "Ask for less.",
        )
    if not Fraction(1, 10**9) <= wanted <= 10**21:
        raise Refused(
            "epsilon_invalid", "epsilon must lie between 1e-9 and 1e21", "A usual value is between 0.1 and 1."
        )
    if not policy.budget.delta:  # then the ledger is pure
        if delta:
            raise Refused("delta_invalid", "the budget has no delta", "Leave delta out.")
        return wanted, Fraction(0)
    share = (
        Fraction(str(delta))
        if delta is not None
        else policy.defaults.delta or policy.budget.delta / DEFAULT_DELTA_SHARE
    )
    if not Fraction(1, 10**30) <= share <= policy.budget.delta:  # else a small epsilon could take the whole budget
        raise Refused("delta_invalid", "delta must lie between 1e-30 and the budget's delta", "A usual value is 1e-8.")
    return wanted, share
