"""What the owner of the data does to a ledger: raise its budget, reset failures, back it up, recover it, record what holds.

Needs:   a caller who may write the ledger's file: the owner
Gives:   each act is a row of the ledger, under the name of who did it; none of them lowers what has been spent
Proof:   rows are only appended. `raise_budget` changes the total alone, and to more. `recover` charges what may have been
         charged after the last row that is left. What stays true of the past is what the rows say, which `verify` checks first
Checked: test_upkeep
"""

from __future__ import annotations

import json
import os
import sqlite3
import uuid
from collections.abc import Iterable
from contextlib import closing
from fractions import Fraction
from pathlib import Path

from dpsql import head
from dpsql.errors import Refused
from dpsql.history import check_rows
from dpsql.ledger import (
    NOTHING,
    Chain,
    Entry,
    Ledger,
    failing_closed,
    failures_of,
    find,
    insert,
    now,
    of_analyst,
    open_file,
    opened,
    said,
    terms,
    terms_of,
    usable,
)
from dpsql.policy.catalog import Policy, fold
from dpsql.verify import Finding


def allow(policy: Policy | None, owner: str, what: str) -> None:
    if (
        policy is not None
        and policy.analysts
        and (owner not in policy.analysts or policy.analyst(owner).role != "owner")
    ):
        who = (
            f"{owner!r} is not an owner in the policy"
            if owner
            else "the policy names its analysts, and nobody is named here"
        )
        owners = [name for name in policy.analysts if policy.analyst(name).role == "owner"]
        add = (
            "Name one" if owners else 'The policy names none yet: add [analysts.NAME] with role = "owner", and name it'
        )
        raise Refused("role_may_not", who, f"Only an owner {what}. {add}: --analyst {owners[0] if owners else 'NAME'}.")


def raise_budget(path: str | Path, policy: Policy, owner: str) -> None:
    """The owner's row: the policy's budget, which is larger than the ledger's, is the ledger's from now on."""
    allow(policy, owner, "raises a budget")
    with Chain(usable(path), None).appending(durable=True) as (db, _, append):
        found = terms_of(db)
        old = json.loads(found)
        new = json.loads(terms(policy.dataset or old["dataset"], policy))
        changed = {name for name in new if name != "persons" and new[name] != old[name]}
        if not changed:
            raise Refused(
                "nothing_to_raise",
                f"there is nothing to raise: the ledger and the policy are both of {said(found)}",
                "Write a larger epsilon or delta into [budget] of the policy first.",
            )
        larger = all(Fraction(new[name]) >= Fraction(old[name]) for name in ("epsilon", "delta"))
        if not larger or changed - {"epsilon", "delta"}:
            raise Refused(
                "ledger_differs",
                f"the ledger is of {said(found)}; the policy says {said(json.dumps(new))}",
                "Only epsilon and delta can change, and only to more.",
            )
        wanted = json.dumps(new | {"persons": old["persons"]}, sort_keys=True)
        append(opened(wanted, policy.budget)._replace(state="raised", analyst=owner))


def reset_failures(path: str | Path, owner: str, policy: Policy | None = None) -> int:
    """Let statements be asked again after too many have failed; returns how many had, and how many have no end."""
    allow(policy, owner, "resets failures")
    with Chain(usable(path), None).appending(durable=True) as (db, last, append):
        found = failures_of(db, last, 0.0)
        append(row("reset", owner))
    return found


def record(path: str | Path, name: str, policy: Policy, findings: Iterable[Finding], owner: str) -> str:
    """Keep of which columns no two rows agree in this version of the data; says what was done. A later record of a version
    takes the place of an earlier one."""
    if policy.version is None:
        return 'not recorded: the policy has no version. Add it under [dataset], as in version = "1", and verify again'
    allow(policy, owner, "records what was verified")
    by_key: dict[tuple[str, frozenset[str]], list[bool]] = {}
    for finding in findings:
        if finding.unique is not None:
            table, columns = finding.unique
            by_key.setdefault((fold(table), frozenset(map(fold, columns))), []).append(finding.holds)
    unique = sorted([table, sorted(columns)] for (table, columns), holds in by_key.items() if any(holds))
    text = json.dumps({"version": policy.version, "unique": unique}, sort_keys=True)
    with Ledger(path, policy.dataset or name, policy).chain.appending(durable=True) as (_, _, append):
        append(row("verified", owner, text))
    return f"recorded in {path} for version {policy.version!r}: {len(unique)} key{'s' * (len(unique) != 1)}"


def backup(path: str | Path, target: str | Path) -> str:
    """A copy of the ledger as it is now, with its head; returns the head. Nothing is overwritten, and nothing is half-written."""
    file, copy = usable(path), Path(target)
    if copy.exists() or head.beside(copy).exists():
        raise Refused("backup_exists", f"{str(copy)!r} or its head file is there already", "Choose another name.")
    draft = copy.with_name(f"{copy.name}.{uuid.uuid4().hex}.new")
    with Chain(file, None).transaction("BEGIN") as (db, last), failing_closed(copy):
        try:
            with closing(sqlite3.connect(draft)) as made:
                db.backup(made)
            head.sync(draft)
            head.advance(head.beside(copy), (last.number, last.hash), durable=True)
            os.link(draft, copy)
            head.sync(copy.parent)
        finally:
            draft.unlink(missing_ok=True)
    return f"{last.number}:{last.hash}"


def recover(
    path: str | Path, owner: str, lost: Fraction | None = None, noted: str | None = None, policy: Policy | None = None
) -> Entry:
    """Take a ledger into use again whose head file is lost, or that was restored from a backup; returns the row that says so.

    `lost` is the part of the budget, from 0 to 1, that may have been charged after the last row. Where the head file is ahead
    of the ledger such charges are known to be missing, and where it is not there they may be: then all that is left is taken
    as lost, unless the owner says better: more than nothing in the first case. It is taken from what each analyst has left too,
    since nobody knows who was charged. `noted` is a head that `verify` printed, and which must lie in the past.
    """
    allow(policy, owner, "recovers a ledger")
    file = usable(path)
    with failing_closed(file), closing(open_file(file)) as db:
        db.execute("BEGIN IMMEDIATE")
        last = check_rows(file, db, noted)
        anchor = head.read(head.beside(file))
        before = find(db, "WHERE number = ?", str(anchor[0])) if anchor else None
        if lost is None and anchor is not None and before is not None and before.hash == anchor[1]:
            raise Refused(
                "nothing_to_recover",
                f"the ledger {str(file)!r} is whole and agrees with its head",
                "If it was restored from a backup together with its head, say what was lost since: --lost 0.05",
            )
        if lost == 0 and anchor is not None and (before is None or before.hash != anchor[1]):
            raise Refused(
                "ledger_rolled_back",
                f"the ledger ends at row {last.number}, and its head file knows another row {anchor[0]}: rows are missing, with "
                "the charges in them",
                "Say which part of the budget they may have taken: --lost 0.05. Without it, all that is left is taken.",
            )
        part = Fraction(1) if lost is None else lost
        rests = ((last.total, last.spent), (last.total_delta, last.spent_delta))
        amount, delta = (min(int(part * total) + (part > 0), total - spent) for total, spent in rests)
        behind = f"the head file knows row {anchor[0]}" if anchor else "the head file is missing"
        text = json.dumps({"why": behind, "lost": str(part)}, sort_keys=True)
        own = of_analyst(db, owner)
        made = row("recovered", owner, text)._replace(
            number=last.number + 1,
            at=now(),
            amount=amount,
            delta=delta,
            spent=last.spent + amount,
            spent_delta=last.spent_delta + delta,
            own=own.own,
            own_delta=own.own_delta,
            total=last.total,
            total_delta=last.total_delta,
        )
        made = made.sealed(last.hash)
        insert(db, made)
        db.execute("COMMIT")
        head.replace(head.beside(file), (made.number, made.hash))
    return made


def row(state: str, owner: str, text: str = "") -> Entry:
    return NOTHING._replace(state=state, run=str(uuid.uuid4()), analyst=owner, text=text)
