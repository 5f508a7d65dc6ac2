"""A session: compile, reserve, run, release, finish, settle."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from dpsql import compile as compiler
from dpsql.accountant import Loss, in_words, roughly
from dpsql.answer import Answer
from dpsql.backends import DuckDB
from dpsql.backends.duckdb import Shadow, Snapshot, finishes, second_opinion
from dpsql.catalog import Catalog, Policy, Schema, build, encodable, read_policy
from dpsql.errors import Failed, Interrupted, Refused, Unfinished
from dpsql.explain import Explanation
from dpsql.finish import Public, Scratch
from dpsql.history import Run, runs_of
from dpsql.interrupt import interruptible
from dpsql.ledger import Balance, Ledger
from dpsql.mechanisms import Sampled
from dpsql.passes.bind import bind
from dpsql.plan import Plan, Program
from dpsql.prepare import arrange, prepared
from dpsql.progress import Progress, watched
from dpsql.rehearse import NOTE, fill
from dpsql.release import Noisy, choose, release
from dpsql.sources import SUFFIXES, gather

# The parser warns on standard error about text that it half understands; it is refused all the same.
logging.getLogger("sqlglot").setLevel(logging.ERROR)

# Recognised before parsing: the parser reads them as something else.
COMMAND = re.compile(r"\s*(?:(?P<explain>EXPLAIN\s+PRIVACY\s)|SHOW\s+BUDGET\s*;?\s*$)", re.IGNORECASE)
DEFAULT_DELTA_SHARE = 100  # of the budget's delta, for a query that names none
REMEMBERED = 1_000  # queries that the engines have confirmed already
INTERRUPTED = "Query interrupted"  # what DuckDB makes of Ctrl-C while the main thread is in it: a RuntimeError


@dataclass(frozen=True)
class Budget:
    """What has been spent, what is left and what there was; `analyst` is the same for the analyst's allocation."""

    spent: Loss
    left: Loss
    total: Loss
    analyst: Budget | None = None
    room: int | None = None  # for queries like the last one; None before the first

    def __str__(self) -> str:
        lines = [
            f"{name:<6} epsilon {loss.epsilon:.4g}, delta {loss.delta:.3g} ({loss.currency} {loss.amount:.6g})"
            for name, loss in (("spent", self.spent), ("left", self.left), ("total", self.total))
        ]
        if self.room is not None:
            lines.append(f"room   {roughly(self.room)} more queries like the last one")
        own = (
            []
            if self.analyst is None
            else ["your allocation:", *(f"  {line}" for line in str(self.analyst).splitlines())]
        )
        return "\n".join([*lines, *own])


def connect(
    database: Any,
    *,
    policy: str | Path | Mapping[str, Any],
    ledger: str | Path | None = None,
    analyst: str | None = None,
) -> Session:
    """Open a database for private questions.

    `database` is the path of a DuckDB file or an open duckdb connection; or the path of a Parquet or CSV file, which is
    one table with the file's name; or several of these and of frames, under the names of the policy's tables:
    `{"visits": "visits/*.parquet", "people": df}`. Files and frames are read into memory, once. `policy` is a TOML file
    or a dict; `ledger` a path or ":memory:", by default a file beside the database. Whoever can choose the ledger can
    choose a fresh budget: this call is the data owner's.
    """
    declared = read_policy(policy)
    if declared.analysts and analyst not in declared.analysts:
        raise Refused(
            "analyst_unknown",
            "the policy names its analysts, and this is none of them"
            if analyst
            else "the policy names its analysts, so analyst= is needed",
            f"Pass one of: {', '.join(declared.analysts)}.",
        )
    path = Path(database) if isinstance(database, str | Path) else None
    if ledger is None and path is None:
        raise Refused(
            "ledger_missing", "an open connection, files and frames need a ledger", 'Pass ledger="shop.ledger".'
        )
    dataset = declared.dataset or (path.name if path is not None else None)
    if dataset is None:
        raise Refused(
            "dataset_missing",
            "the policy does not say which dataset this is",
            'Add [dataset] with id = "shop" to the policy.',
        )
    backend, schemas, catalog = opened(database, declared)
    if ledger is None:
        assert path is not None
        ledger = path.with_suffix(".ledger")
    return Session(backend, schemas, catalog, Ledger(ledger, dataset, declared), analyst or "")


def opened(database: Any, declared: Policy) -> tuple[DuckDB, dict[str, Schema], Catalog]:
    """The database with its schema, held against the policy."""
    if isinstance(database, Mapping):
        backend = DuckDB(gather(database, declared), ours=True)
    elif isinstance(database, str | Path) and Path(database).suffix.lower() in SUFFIXES:
        if any(mark in str(database) for mark in "*?[") and not Path(database).is_file():
            raise Refused(
                "source_not_supported",
                f"{str(database)!r} may be several files, and their table needs a name",
                f"Pass a dict: {{'visits': {str(database)!r}}}.",
            )
        backend = DuckDB(gather({Path(database).stem: database}, declared), ours=True)
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
    return backend, schemas, build(declared, schemas)


Tick = Callable[[str], None]


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
        self._plans: dict[tuple[str | float | None, ...], Plan | Program] = {}
        self._shadow = Shadow(schemas)
        self._confirmed: set[tuple[str, ...]] = set()
        self._ledger, self._analyst = ledger, analyst
        self._scratch: Scratch | None = None
        self._lock = threading.Lock()  # for whoever makes it or lets go of it
        self._stage: DuckDB | None = None  # with synthetic rows, for rehearsals
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
    ) -> Answer:
        """Answer a query, and charge for it. `parameters` are a list for `?` and `$1`, or a dict for `$name`.

        A query with a `query_id` is charged once: asked again, it has the same answer, which the ledger keeps. `weights` are
        for a statement of several releases, one for each in the order of EXPLAIN: the parts of the budget that they get.
        `max_rows_contributed` and `max_groups_contributed` stand in place of the policy's: what one person may add.

        Needs:   nothing: query, parameters, epsilon and delta are hostile
        Gives:   an answer whose loss was durable before any row was read; or an error, charged if data was touched
        Proof:   the plan is made and confirmed first, from public facts; `reserve` returns only when the charge is on
                 disk; then the exact queries, one native call that limits and adds the noise, and the finishing query on its
                 result; before them, where limits are not declared, one exact query and one native call that chooses
                 them. What goes wrong after `reserve` is one constant error, Ctrl-C another, and only where nothing but
                 releases and public tables is read it says why; nothing is given back
        Checked: test_record_play, test_session, test_interrupt
        """
        if not isinstance(query, str):
            raise Refused("syntax", "the query is not a text", "Pass SQL as a str.")
        limits = (max_rows_contributed, max_groups_contributed)
        if command := COMMAND.match(query):
            return self._told(command, query, parameters, epsilon, delta, weights, limits)
        self._may("ask")
        plan = self._plan(query, epsilon, delta, parameters, weights, limits)
        mark = fingerprint(plan, query_id) if query_id is not None else ""
        if query_id is not None and (known := self._answered(plan, query, query_id, mark)) is not None:
            return known
        with self._backend.snapshot() as snapshot:
            if snapshot.texts(self._schemas) != self._texts:
                raise Refused(
                    "schema_changed", "a table of the policy has changed since the session began", "Connect again."
                )
            answer: Answer | Unfinished | None = None
            interrupted = False
            try:
                # What releases nothing about anyone has nothing to be charged for.
                run = self._ledger.reserve(plan, query, self._analyst, query_id) if plan.sampled else None
                answer = self._answer(plan, snapshot, run, mark)
            except KeyboardInterrupt:
                interrupted = True
            # Raised here, so that the exception has neither a cause nor a context.
            if interrupted:
                raise Interrupted
            if answer is None:
                raise Failed
            if isinstance(answer, Unfinished):
                raise answer
        return answer

    def _answer(
        self, plan: Plan | Program, snapshot: Snapshot, run: str | None, mark: str
    ) -> Answer | Unfinished | None:
        """Run a plan that has been charged; None if anything goes wrong, since that may depend on data."""
        scratch = None
        try:
            scratch = self._finisher()
            answers, kept, drawn = list[Answer](), list[Any](), list[Sampled]()
            tables = self._public(plan, snapshot)
            for part in plan.parts:
                self._load(scratch, part, answers, tables, snapshot)
                released = noisy(self._given(scratch, part, answers, tables), snapshot, self._tick(plan, part))
                if released is None:
                    return None
                chosen, table, rungs = released
                answers.append(scratch.finish(chosen, table, self._loss(part)))
                kept.append([rungs, answers[-1].stored() if mark else ""])
                scratch.agree(plan, answers)
                drawn += chosen.drawn if rungs or part.waits else []
            answer = self._whole(scratch, plan, answers, tables, self._loss(plan))
            if run is not None:
                self._ledger.settle(run, json.dumps([mark, kept]) if mark else "", tuple(drawn))
        except Unfinished as error:  # nothing but releases was read there
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
        return {
            name: (shapes[name], partial(snapshot.public, path, self._shadow.types(name))) for name, path in plan.tables
        }

    def _load(
        self, scratch: Scratch, plan: Plan, answers: list[Answer], tables: Mapping[str, Public], snapshot: Snapshot
    ) -> None:
        """The tables that a release reads of those before it."""
        for read in plan.reads:
            snapshot.load(read, scratch.rows(read, answers, tables))

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
        if not isinstance(query_id, str) or not 0 < len(query_id) <= 200 or not encodable(query_id):
            raise Refused("query_id_invalid", "a query's id is a text of 1 to 200 characters", "Pass a UUID.")
        stored = self._ledger.answered(query_id, plan, query, self._analyst)
        if not stored:
            return None
        known, kept = json.loads(stored)
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

    def _may(self, what: Literal["ask", "see the ledger"]) -> None:
        if self._catalog.policy.analyst(self._analyst).role == "viewer":
            raise Refused(
                "role_may_not",
                f"a viewer may not {what}",
                "explain, rehearse and budget are allowed; for more ask the owner.",
            )

    @property
    def history(self) -> list[Run]:
        """What was asked, when and at what charge: an owner sees everybody's queries, an analyst her own."""
        self._may("see the ledger")
        everything = self._catalog.policy.analyst(self._analyst).role == "owner"
        return [run for run in runs_of(self._ledger) if everything or run.analyst == self._analyst]

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
        plan = self._plan(query, epsilon, delta, parameters, weights, limits)
        if self._stage is None:
            twin = self._shadow.twin()
            fill(twin, self._catalog)
            arrange(twin, self._catalog)
            self._stage = DuckDB(twin, ours=True)
        with self._stage.snapshot() as snapshot:
            answers, tables, scratch = list[Answer](), self._public(plan, snapshot), self._finisher()
            for part in plan.parts:
                self._load(scratch, part, answers, tables, snapshot)
                released = noisy(self._given(scratch, part, answers, tables), snapshot, self._tick(plan, part))
                if released is None:
                    raise Refused("engine_cannot", "the engine cannot run this query on synthetic rows", "Simplify it.")
                answers.append(scratch.finish(*released[:2], self._free()))
                scratch.agree(plan, answers)
            answer = self._whole(scratch, plan, answers, tables, self._free())
        answer.notes = (NOTE, *answer.notes)
        return answer

    def _confirm(self, plan: Plan | Program) -> None:
        """Let both engines see what would run, so that what cannot is refused before anything is charged."""
        # What is confirmed depends on the names of the columns too, by which the query around the releases reads them.
        names = [[output.name for output in part.outputs] for part in plan.parts]
        texts = (*written(plan), repr(names), repr([part.waits + part.reads for part in plan.parts]))
        if texts in self._confirmed:
            return
        for part in plan.parts:
            for one in (part, *part.extremes):
                self._shadow.confirm(one)
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
                self._scratch = Scratch()
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
            (name, b.spent.epsilon, b.left.epsilon, b.total.epsilon, b.total.delta, b.left.amount / b.total.amount)
            for name, b in (("dataset", budget), ("analyst", budget.analyst))
            if b is not None
        ]
        names = ("of", "spent_epsilon", "left_epsilon", "total_epsilon", "total_delta", "part_left")
        return self._finisher().tell(names, list(rows), self._free())

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
        text = re.sub(r"^\s*EXPLAIN\s+PRIVACY\s+", "", query, flags=re.IGNORECASE)
        limits = (max_rows_contributed, max_groups_contributed)
        plan = self._plan(text, epsilon, delta, parameters, weights, limits)
        budget = self._catalog.policy.budget
        room = min(self._ledger.balance(who).room(plan.charge) for who in (None, self._analyst))
        return Explanation(plan, self._loss(plan), self.budget.left, room, budget.delta)

    @property
    def budget(self) -> Budget:
        """What has been spent, and what is left."""
        own = self._describe(self._ledger.balance(self._analyst)) if self._analyst else None
        return self._describe(self._ledger.balance(), own)

    def _describe(self, balance: Balance, analyst: Budget | None = None) -> Budget:
        delta, last = self._catalog.policy.budget.delta, self._ledger.last_charge()
        spent, left, total = (in_words(charge, delta) for charge in (balance.spent, balance.left, balance.total))
        return Budget(spent, left, total, analyst, balance.room(last) if last else None)

    def _plan(
        self,
        query: str,
        epsilon: float | None,
        delta: float | None,
        parameters: object = None,
        weights: Sequence[float] | None = None,
        limits: tuple[int | None, int | None] = (None, None),
    ) -> Plan | Program:
        plain = parameters is None and weights is None and {type(epsilon), type(delta)} <= {float, int, type(None)}
        plain = plain and {*map(type, limits)} <= {int, type(None)}
        asked = (query, epsilon, delta, *limits) if plain else None
        if asked is not None and asked in self._plans:  # compiling is a pure function of these
            return self._plans[asked]
        policy = self._catalog.policy
        epsilon_, delta_ = privacy(policy, epsilon, delta, policy.max_epsilon(self._analyst))
        catalog = self._catalog.limited(*limits)
        try:
            plan = compiler.compile(query, catalog, epsilon_, delta_, parameters, shares(weights))
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
        """Let go of everything. The ledger stays."""
        self._scratch = self._stage = None
        self._backend.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def noisy(plan: Plan, snapshot: Snapshot, tick: Tick) -> tuple[Plan, Noisy | None, tuple[int, ...]] | None:
    """What is released, with the plan that it was released by: if limits are chosen first, the one that follows the choice."""
    rungs: tuple[int, ...] = ()
    if not plan.noise:  # the groups are public, and nothing is asked about them
        return plan, None, rungs
    if plan.then is not None:
        chosen = interruptible(
            lambda: choose(plan, snapshot.run(plan.climb)),
            snapshot.interrupt,
            partial(tick, "choosing limits for release"),
        )
        if chosen is None:
            return None
        plan, rungs = plan.then(chosen), chosen
    try:
        found = interruptible(
            lambda: release(plan, snapshot.run), snapshot.interrupt, partial(tick, "computing release")
        )
    finally:
        tick("")
    return None if found is None else (plan, found, rungs)


def usable(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return 0 < value < 1e300 if isinstance(value, int) else math.isfinite(value) and value > 0


def fingerprint(plan: Plan | Program, query_id: str) -> str:
    """Tells plans apart that differ only in the values of their parameters, which the ledger does not keep.

    By the SQL form, which is the same whether or not the data is prepared: a query is charged once also where that changes.
    """
    texts = [query_id, *(part.inner for part in plan.parts), *beside(plan)]
    return hashlib.sha256(json.dumps(texts).encode()).hexdigest()


def beside(plan: Plan | Program) -> tuple[str, ...]:
    """All SQL of a plan but for the exact queries."""
    reads = (read.query for part in plan.parts for read in (*part.waits, *part.reads))
    return (plan.outer, *(text for part in plan.parts for text in (part.outer, part.climb)), *reads)


def written(plan: Plan | Program) -> tuple[str, ...]:
    """All SQL that a plan would run."""
    return (*(text for part in plan.parts for text in part.exact), *beside(plan))


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
