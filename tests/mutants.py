"""Tests of the tests: mistakes in what has to be right, made one at a time. The tests that are named for each must find it.

`make mutants` builds the native module with its own mistakes, copies the package, makes a mistake in the copy, and runs the
tests there, which get a minute. It prints which test found which, and fails if one was not found.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
SECONDS = 60.0
GATE = "test_gate.py::test_random_requests"


@dataclass(frozen=True)
class Mutant:
    """What a file says, and what it says in its place; of a mistake in Rust only the name. The tests that find it."""

    name: str
    tests: tuple[str, ...]
    file: str = ""
    right: str = ""
    wrong: str = ""


MUTANTS = [
    Mutant("one row more than the limit is kept", (f"{GATE}[gdp]",), "limits/native_form.py",
           "        max_rows,\n        max_groups,\n        in_groups,\n        blocks,", "        max_rows + 1,\n        max_groups,\n        in_groups,\n        blocks,"),
    Mutant("a cap looks at other persons", ("test_lemmas.py -k locality",), "relations.py",
           "partition_by=list(map(name, (owner, *by_)))", "partition_by=list(map(name, by_))"),
    Mutant("the threshold is one lower", ("test_threshold.py",), "mechanisms/threshold.py",
           "        return cls(least, keys, noise, pair)\n\n    def cost", "        return cls(least - 1, keys, noise, pair)\n\n    def cost"),
    Mutant("one block is not charged", ("test_allot.py -k test_charge",), "noise.py",
           "    drawn = (*mechanisms, *(", "    drawn = (*mechanisms[1:], *("),
    Mutant("a replaced person counts once", (f"{GATE}[replace]", "test_lemmas.py -k replacing"), "noise.py",
           'apart = kind.swap if catalog.policy.budget.neighbours == "replace" else 1', "apart = 1"),
    Mutant("NaN becomes the upper end", ("test_values.py test_lemmas.py -k 'nan or sensitivity'", "test_specs.py -k sum"), "relations.py",
           '        if type_ == DOUBLE:  # NaN is greater than everything in the engine', "        if not type_:  # NaN is greater than everything in the engine"),
    Mutant("the bound on rows is dropped", ("test_growth.py -k test_bound",), "fan_out.py",
           "return (caps <= WIDE or self.most == ROWS[-1]) and self.too_wide(relation) is None", "return True"),
    Mutant("values are not clipped at the top", (f"{GATE}[gdp]",), "limits/grid.py",
           "        (exp.GT(this=x.copy(), expression=number(axis.grid)), number(axis.grid)),\n", ""),
    Mutant("a join does not equate the persons", (f"{GATE}[gdp]", "test_lemmas.py -k locality"), "persons.py",
           "persons=(left.person, right.person), person=person", "persons=None, person=person"),
    Mutant("rows of nobody are kept", ("test_lemmas.py -k locality",), "relations.py",
           "[] if nobody else [exp.Not(this=paren(exp.Is(this=who, expression=exp.Null())))]", "[]"),
    Mutant("a step forgets the person", (f"{GATE}[gdp]", "test_lemmas.py -k locality"), "relations.py",
           "            if person is not None:\n                shown, by = [name(person), *shown], [name(person), *by]",
           "            if person is not None:\n                shown = [exp.Anonymous(this=\"min\", expressions=[name(person)]).as_(person, quoted=True), *shown]"),
    Mutant("a window sees other persons", (f"{GATE}[gdp]", "test_lemmas.py -k locality"), "relations.py",
           "[name(person)] if person is not None else []), *(steady(total(e), e.facts.type) for e in over.partition)",
           "[]), *(steady(total(e), e.facts.type) for e in over.partition)"),
    Mutant("each person is said to have one row in each group", (f"{GATE}[gdp]",), "question.py",
           "    apart, meant = False, (relation, by)\n", "    apart, meant = True, (relation, by)\n"),
    Mutant("an outer join makes nothing NULL", (f"{GATE}[gdp]", f"{GATE}[pure]"), "derive.py",
           "replace(facts, nullable=True, stored=False) for word, facts in known.items()", "replace(facts, stored=False) for word, facts in known.items()"),
    Mutant("arguments are not counted", (f"{GATE}[gdp]", "test_gate.py -k no_request"), "derive.py",
           "    if not fits:\n        invalid(\"a function with another", "    if fits is None:\n        invalid(\"a function with another"),
    Mutant("rows may reach several persons", ("test_shared.py",), "../policy/catalog.py",
           "found = None if table.shared else ambiguous(table, tables)", "found = None"),
    Mutant("whoever counts in many groups is charged for one", (f"{GATE}[gdp]",), "limits/limit.py",
           's.weight * (root_of(in_groups, norm) if s.kind == "persons" else most)', 's.weight * (1 if s.kind == "persons" else most)'),
    Mutant("anything may run", ("test_gate.py -k only_the_kernel",), "exact.py",
           "if type(made) is not kind or made not in _issued:", "if made is None:"),
    Mutant("a ticket is good twice", ("test_gate.py -k used_once",), "charged.py",
           "self._steps.pop() != step", "self._steps[-1] != step"),
    Mutant("every table has one row a person", (f"{GATE}[gdp]", "test_single.py"), "limits/one_row.py",
           "            return frozenset((fold(str(scan.table.person)),)) in scan.table.unique", "            return True"),
    Mutant("blocks do not share", ("test_allot.py -k test_charge", "test_mechanisms.py -k calibrat"), "mechanisms/gaussian.py",
           "math.nextafter(math.sqrt(len(sensitivities)), math.inf)", "1.0"),
    Mutant("the person's name may be taken", ("test_gate.py -k not_ours",), "derive.py",
           "any(fold(word).startswith(OURS) for word in known)", "any(word is None for word in known)"),
    *(
        Mutant(name, tests)
        for name, tests in {
            "rust_limit_off_by_one": (f"{GATE}[gdp]",),
            "rust_root_too_small": (f"{GATE}[gdp]", "test_limit.py"),
            "rust_norm_with_another_root": (f"{GATE}[pure]",),
            "rust_person_counts_twice": (f"{GATE}[gdp]",),
            "rust_one_group_more": (f"{GATE}[gdp]", f"{GATE}[pure]"),
            "rust_counts_in_one_group_more": (f"{GATE}[gdp]",),
        }.items()
    ),
]  # fmt: skip


def found_by(mutant: Mutant, native: Path) -> tuple[str, float]:
    """The tests that find a mistake, and after how many seconds; "" if none does within the time."""
    with tempfile.TemporaryDirectory() as place:
        here = Path(place)
        shutil.copytree(ROOT / "dpsql", here / "dpsql", ignore=shutil.ignore_patterns("__pycache__", "*.so"))
        shutil.copytree(ROOT / "tests", here / "tests", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", here)
        shutil.copy(native, here / "dpsql" / "_native.abi3.so")
        if mutant.file:
            file = here / "dpsql" / "kernel" / mutant.file
            text = file.read_text(encoding="utf-8")
            if text.count(mutant.right) != 1:
                raise SystemExit(f"{mutant.name}: {mutant.file} does not say {mutant.right!r} once")
            file.write_text(text.replace(mutant.right, mutant.wrong), encoding="utf-8")
        environment = {**os.environ, "PYTHONPATH": place, "PYTHONDONTWRITEBYTECODE": "1"}
        environment |= {} if mutant.file else {"DPSQL_MUTANT": mutant.name}
        start = time.monotonic()
        for tests in mutant.tests:
            names, _, chosen = tests.partition(" -k ")
            command = [sys.executable, "-m", "pytest", "-x", "-q", "-m", "not long", "-p", "no:cacheprovider"]
            command += [f"tests/{name}" for name in names.split()] + (["-k", chosen.strip("'")] if chosen else [])
            left = SECONDS - (time.monotonic() - start)
            try:
                ended = subprocess.run(command, cwd=place, env=environment, capture_output=True, timeout=max(left, 1))
            except subprocess.TimeoutExpired:
                break
            if ended.returncode == 1:
                return tests, time.monotonic() - start
            if ended.returncode != 0:
                raise SystemExit(f"{mutant.name}: {tests} did not run:\n{ended.stdout.decode()[-2000:]}")
    return "", time.monotonic() - start


def main(native: Path, wanted: list[str]) -> int:
    missed = 0
    print("| mistake | found by | seconds |\n|---|---|---|", flush=True)
    for mutant in MUTANTS:
        if wanted and not any(word in mutant.name for word in wanted):
            continue
        tests, seconds = found_by(mutant, native)
        missed += not tests
        print(f"| {mutant.name} | {tests or '**nothing**'} | {seconds:.0f} |", flush=True)
    print(f"\n{len(MUTANTS)} mistakes, {missed} not found")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve(), sys.argv[2:]))
