"""Names that stand once in a statement."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count

from sqlglot import exp

from dpsql.compiler.lower import refuse
from dpsql.policy.catalog import fold

# Names that only we give.
RESERVED = ("release ", "released ", "public ", "with ", "tied ")


Views = Callable[[str], exp.Query | None]  # the query of a view, by its name


def name_apart(tree: exp.Query, views: Views) -> None:
    """See to it that no name of the statement hides another, or one of ours; views become their queries."""
    for word in tree.find_all(exp.Identifier):
        if fold(word.name).startswith(RESERVED):
            refuse("name_reserved", f"{word.name!r} is a name that only dpsql gives", "Choose another one.", word)
    unique(tree, {}, count(), views)


def unique(query: exp.Expr, scope: dict[str, str], numbers: Iterator[int], views: Views) -> None:
    """Give each CTE a name that stands once, and all that mean it: from then on no name hides another."""
    scope = dict(scope)
    with_ = query.args.get("with_")
    for cte in with_.expressions if with_ is not None else ():
        unique(cte.this, scope, numbers, views)
        scope[fold(cte.alias)] = word = f"with {next(numbers)}"
        cte.args["alias"].set("this", exp.to_identifier(word, quoted=True))
    inner = (exp.Select, exp.SetOperation)
    for node in list(query.walk(prune=lambda node: node is not query and isinstance(node, (*inner, exp.With)))):
        if isinstance(node, inner) and node is not query:
            unique(node, scope, numbers, views)
        elif isinstance(node, exp.Table) and not node.args.get("db") and fold(node.name) in scope:
            node.set("alias", node.args.get("alias") or exp.TableAlias(this=node.this.copy()))
            node.set("this", exp.to_identifier(scope[fold(node.name)], quoted=True))
        elif isinstance(node, exp.Table) and not node.args.get("db") and (view := views(fold(node.name))) is not None:
            unique(view, {}, numbers, views)
            alias = node.args.get("alias") or exp.TableAlias(this=node.this.copy())
            node.replace(exp.Subquery(this=view, alias=alias))
