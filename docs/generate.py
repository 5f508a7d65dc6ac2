"""Write the generated parts of the pages: `python docs/generate.py`. A test checks that they are up to date.

A page marks such a part with two comments, `<!-- generated: NAME -->` and `<!-- end -->`. Each NAME is a function of `PARTS`.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import click

import dpsql
from dpsql import dbapi, errors
from dpsql.answer import Answer
from dpsql.compiler.aggregates import AGGREGATES
from dpsql.explain import Explanation
from dpsql.frontends import sqlalchemy
from dpsql.frontends.cli import cli
from dpsql.frontends.notebook import DpsqlMagics
from dpsql.kernel.functions import FUNCTIONS
from dpsql.session import Budget, Session

ROOT = Path(__file__).parent.parent
PAGES = ROOT / "docs"
PART = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
WIDTH = 90


# --- functions and aggregates -----------------------------------------------------------------------------------------

FAMILIES = {
    "numbers": "Numbers",
    "logic": "Conditions and choices",
    "text": "Texts",
    "dates": "Dates and timestamps",
    "intervals": "Intervals",
    "casts": "Casts",
    "lists": "Lists",
}
SIGNS = {  # of operators that the table names by the types of their sides
    "negate": "-x",
    "TEXT[i]": "text[i]",
    "TEXT[i:j]": "text[i:j]",
    "DATE +": "date + days",
    "DATE -": "date - days",
    "DATE - DATE": "date - date",
    "MOMENT - MOMENT": "timestamp - timestamp",
    "- INTERVAL": "date - interval",
    "INTERVAL +": "interval + interval",
    "INTERVAL -": "interval - interval",
    "INTERVAL *": "interval * number",
    "INTERVAL /": "interval / number",
    "- INTERVAL x": "-interval",
    "INTERVAL OF": "INTERVAL (x) DAY",
    "LIST ||": "list || list",
}


def functions() -> Iterator[str]:
    """One table for each file of the function table."""
    for module, title in FAMILIES.items():
        found = vars(sys.modules[f"dpsql.kernel.functions.{module}"])[module.upper()]
        rows = [FUNCTIONS[function.name] for function in found]
        signs = [f"`{SIGNS.get(row.name, row.name)}`" for row in rows if row.arguments is None]
        yield f"### {title}\n"
        if signs:
            yield f"Operators and forms: {' '.join(signs)}\n"
        named = [row for row in rows if row.arguments is not None]
        if not named:
            continue
        yield "| function | arguments | other names |\n|---|---|---|"
        for row in sorted(named, key=lambda row: row.name):
            assert row.arguments is not None
            yield f"| {code(row.name)} | {arity(row.arguments)} | {' '.join(map(code, row.aliases))} |"
        yield ""


def aggregates() -> Iterator[str]:
    yield "| aggregate | arguments | DISTINCT | other names |\n|---|---|---|---|"
    for rule in AGGREGATES:
        arguments = "`*`, or one" if rule.name == "count" else str(len(rule.degrees))
        others = " ".join(map(code, rule.aliases))
        yield f"| `{rule.name}` | {arguments} | {'yes' if rule.distinct else ''} | {others} |"


def code(name: str) -> str:
    return f"`{name}`".replace("|", "\\|")


def arity(arguments: range) -> str:
    """How many arguments, in words.

    >>> arity(range(1, 2)), arity(range(1, 3)), arity(range(2, 100))
    ('1', '1 or 2', '2 or more')
    """
    first, last = arguments.start, arguments.stop - 1
    return (
        str(first)
        if first == last
        else f"{first} or more"
        if last > 9
        else f"{first} {'or' if last == first + 1 else 'to'} {last}"
    )


# --- errors -----------------------------------------------------------------------------------------------------------

SPEC = re.compile(r"```refused\n(\w+): (.*?)(?: \(at line \d+, column \d+\))?\n(?:hint: (.*?)\n)?```", re.DOTALL)
RAISED = {"Refused", "refuse", "BudgetExhausted", "InterfaceError", "ProgrammingError", "NotSupportedError"}


def codes() -> dict[str, tuple[str, str]]:
    """Every code that the source can give, with a message and a hint: from a spec, else as the source writes them."""
    found: dict[str, tuple[str, str]] = {}
    for path in sorted((ROOT / "dpsql").rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        named = [
            node for node in ast.walk(tree) if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        ]
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            before = {a.targets[0].id: a.value for a in named if a.lineno < node.lineno}  # type: ignore[attr-defined]
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            texts = [written(argument, before) for argument in node.args]
            if name == "misplaced" and len(node.args) > 4:
                found.setdefault(texts[4], (texts[1], texts[2]))
            elif name in RAISED and (first := re.fullmatch(r"[a-z]+(_[a-z]+)*", texts[0])):
                new = ([*texts, "", ""])[1], ([*texts, "", ""])[2]
                found[first[0]] = min(found.get(first[0], new), new, key=lambda pair: "".join(pair).count("…"))
    found["interval_misplaced"] = (
        "DP_INTERVAL_LOW stands where there is no answer yet",
        "Write it as a column of the outermost SELECT.",
    )
    for known in (errors.Failed(), errors.Unfinished("…")):
        found[known.code] = (known.message, known.hint)
    for _, name, message in errors.ENGINE_SAYS:
        found.setdefault(name, (message.replace("{0!r}", "…").replace("{0}", "…"), errors.HINTS.get(name, "")))
    for path in sorted((ROOT / "tests" / "specs").rglob("*.md"), key=lambda path: (len(path.parts), path)):
        for name, message, hint in reversed(SPEC.findall(path.read_text(encoding="utf-8"))):
            if name in found:
                found[name] = message, hint
    return dict(sorted(found.items()))


def written(node: ast.expr, before: Mapping[str, ast.expr] = MappingProxyType({})) -> str:
    """A text as the source writes it. What is filled in later is the name of what fills it, or an ellipsis."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(written(part, before) for part in parts)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return written(left, before) + written(right, before)
        case ast.IfExp(body=body):
            return written(body, before)
        case ast.FormattedValue(value=ast.Call(func=ast.Name(id="str"), args=[inner]), conversion=how):
            return written(ast.FormattedValue(value=inner, conversion=how), before)
        case ast.FormattedValue(value=ast.Name(id=name) | ast.Attribute(attr=name), conversion=how):
            return f"'{name.upper()}'" if how == ord("r") else name.upper()
        case ast.Name(id=name) if isinstance(before.get(name), ast.Constant | ast.JoinedStr | ast.BinOp | ast.IfExp):
            return written(before[name], {})
    return "…"


def said() -> dict[str, dict[str, str]]:
    """When each code comes, by the kind of what it is about: written by hand."""
    return tomllib.loads((PAGES / "errors.toml").read_text(encoding="utf-8"))


def catalogue() -> Iterator[str]:
    examples = codes()
    for title, group in said().items():
        yield f"## {title}\n"
        for name, when in sorted(group.items()):
            message, hint = examples[name]
            yield f"### `{name}`\n\n{when}\n\n```text\n{name}: {message}"
            if hint:
                yield f"hint: {hint}"
            yield f"```\n\n`{kind(name)}` in `dpsql.dbapi`.\n"


def kind(name: str) -> str:
    """The class of PEP 249 of an error."""
    match name:
        case "failed":
            error: errors.Error = errors.Failed()
        case "unfinished":
            error = errors.Unfinished("")
        case "budget_exhausted":
            error = errors.BudgetExhausted(name, "")
        case "connection_closed" | "cursor_closed":
            return "InterfaceError"
        case _:
            error = errors.Refused(name, "")
    return dbapi.kind_of(error).__name__


# --- Python -----------------------------------------------------------------------------------------------------------


# What front-ends of ours call, and nobody else has a use for.
INNER: dict[type, tuple[str, ...]] = {
    Answer: ("place", "kept", "compute", "noisy", "stored", "table", "excerpt", "places", "remarks", "cells")
}

# Fields of values, which have no docstrings.
FIELDS: dict[type, dict[str, str]] = {
    Answer: {
        "loss": "What it cost: `epsilon`, `delta`, `currency` and `amount`.",
        "notes": "What an analyst should know: what is clipped, limited and hidden.",
        "plan": "What was run; None for answers that are not about persons.",
    },
    Explanation: {
        "loss": "What it would cost.",
        "left": "What is left now.",
        "repeats": "How often it still fits.",
        "cheaper": "What would make it less noisy at the same price.",
    },
    Budget: {
        "spent": "What has been spent: a loss as `answer.loss` is.",
        "left": "What is left.",
        "total": "What there was.",
        "analyst": "The same for the analyst's allocation, or None.",
        "room": "How many queries like the last one fit; None before the first.",
        "part": "The part of the budget that is spent.",
    },
}
SHORT = 40  # letters of a signature that fits into a table


def python() -> Iterator[str]:
    yield from callable_("dpsql.connect", dpsql.connect)
    yield from class_(Session, "db")
    yield from class_(Answer, "answer")
    yield from class_(Explanation, "explanation")
    yield from class_(Budget, "budget")
    yield "### Errors\n\n| class | when |\n|---|---|"
    for name in ("Error", "Refused", "BudgetExhausted", "Failed"):
        yield f"| `dpsql.{name}` | {first(getattr(dpsql, name))} |"
    yield ""


def driver() -> Iterator[str]:
    yield f"`apilevel = {dbapi.apilevel!r}`, `threadsafety = {dbapi.threadsafety}`, `paramstyle = {dbapi.paramstyle!r}`\n"
    yield from callable_("dpsql.dbapi.connect", dbapi.connect)
    yield from class_(dbapi.Connection, "connection")
    yield from class_(dbapi.Cursor, "cursor")
    yield "### Errors of the driver\n\n| class | what |\n|---|---|"
    for name, value in vars(dbapi).items():
        if isinstance(value, type) and issubclass(value, Exception):
            yield f"| `dpsql.dbapi.{name}` | {first(value)} |"
    others = [name for name, value in vars(dbapi).items() if isinstance(value, dbapi.Kind)]
    makers = ["Date", "Time", "Timestamp", "Binary", "DateFromTicks", "TimeFromTicks", "TimestampFromTicks"]
    yield f"\nTypes of PEP 249: {' '.join(map(code, others))}. Their makers: {' '.join(map(code, makers))}.\n"


def magics() -> Iterator[str]:
    text: str = DpsqlMagics.dpsql.parser.format_help()
    yield f"```text\n{text.strip()}\n```"


def dialect() -> Iterator[str]:
    yield paragraph(inspect.getdoc(sqlalchemy) or "")


def class_(of: type, called: str) -> Iterator[str]:
    """Its names in a table; what takes many arguments, or has more to say, stands below it in full."""
    yield f"### {of.__name__}\n\n{paragraph(inspect.getdoc(of) or '')}\n"
    shown = {name: member for name, member in vars(of).items() if name[0] != "_" and name not in INNER.get(of, ())}
    rows, long = [f"| `{called}.{name}` | {what} |" for name, what in FIELDS.get(of, {}).items()], []
    for name, member in shown.items():
        if isinstance(member, property):
            rows.append(f"| `{called}.{name}` | {first(member)} |")
        elif inspect.isfunction(member):
            taken = signature(member)
            if len(taken) > SHORT or "\n\n" in (member.__doc__ or ""):
                long.append(name)
            rows.append(f"| `{called}.{name}{taken if len(taken) <= SHORT else '(…)'}` | {first(member)} |")
    if rows:
        yield "\n".join(["| name | what |\n|---|---|", *rows]) + "\n"
    if inner := INNER.get(of, ()):
        yield f"For other front-ends: {' '.join(f'`{called}.{name}`' for name in inner)}.\n"
    for name in long:
        yield from callable_(f"{called}.{name}", shown[name], head="####")


def callable_(name: str, function: Callable[..., Any], head: str = "###") -> Iterator[str]:
    yield f"{head} {name}\n\n```text\n{name}{signature(function, long=True)}\n```\n\n{paragraph(inspect.getdoc(function) or '')}\n"


def signature(function: Callable[..., Any], long: bool = False) -> str:
    """How a function is called; without types in a table."""
    found = inspect.signature(function)
    parameters = [parameter for parameter in found.parameters.values() if parameter.name != "self"]
    if not long:
        parameters = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in parameters]
        return str(found.replace(parameters=parameters, return_annotation=inspect.Signature.empty)).replace("|", "\\|")
    inner = re.sub(r": '([^']*)'", r": \1", ",\n    ".join(map(str, starred(parameters))))  # annotations are texts
    return f"(\n    {inner},\n)" if inner else "()"


def starred(parameters: list[inspect.Parameter]) -> Iterator[object]:
    """The parameters, with the star before those that have to be named."""
    named = False
    for parameter in parameters:
        if parameter.kind is parameter.KEYWORD_ONLY and not named:
            named = True
            yield "*"
        yield parameter


def first(of: object) -> str:
    """The first paragraph of a docstring, on one line of a table."""
    return " ".join((inspect.getdoc(of) or "").split("\n\n")[0].split()).replace("|", "\\|")


def paragraph(text: str) -> str:
    """A docstring without what is for the proof; code that is set in becomes a block that is shown and not run."""
    text = re.split(r"\n\s*\nNeeds: ", text)[0]
    return re.sub(
        r"(?m)((?:^ {4}.*\n?)+)", lambda found: "```text\n" + inspect.cleandoc(found[1]) + "\n```\n", text
    ).strip()


# --- the command line -------------------------------------------------------------------------------------------------


def commands(command: click.Command = cli, name: str = "dpsql") -> Iterator[tuple[str, click.Command]]:
    """All commands with their whole names, groups first."""
    yield name, command
    if isinstance(command, click.Group):
        for word, inner in command.commands.items():
            yield from commands(inner, f"{name} {word}")


def command_line() -> Iterator[str]:
    for name, command in commands():
        shown = {"terminal_width": WIDTH, "max_content_width": WIDTH, **cli.context_settings}
        with click.Context(command, info_name=name, **shown) as context:
            yield f"## {name}\n\n```text\n{command.get_help(context)}\n```\n"


# --- pages ------------------------------------------------------------------------------------------------------------

PARTS: dict[str, Callable[[], Iterator[str]]] = {
    part.__name__: part for part in (functions, aggregates, catalogue, python, driver, magics, dialect, command_line)
}


def generated(text: str) -> str:
    """A page with its generated parts as they should be."""
    return PART.sub(lambda found: f"{found[1]}\n" + "\n".join(PARTS[found[2]]()).strip() + f"\n\n{found[3]}", text)


def main() -> None:
    for page in sorted(PAGES.glob("*.md")):
        old = page.read_text(encoding="utf-8")
        if (new := generated(old)) != old:
            page.write_text(new, encoding="utf-8")
            click.echo(f"{page.relative_to(ROOT)}: written", err=True)


if __name__ == "__main__":
    main()
