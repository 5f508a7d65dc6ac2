"""The names that DuckDB gives to columns without an alias: count_star(), (sum(x) / 2), ..."""

from __future__ import annotations

import re

from sqlglot import exp

from dpsql.compiler.lower import OPERATORS, TYPES
from dpsql.policy.catalog import fold


def label(node: exp.Expr | None, top: bool = False) -> str:
    """DuckDB's name for an expression: count_star(), (sum(x) / 2), ..."""
    match node:
        case None:  # half an expression, which is refused later
            return ""
        case exp.Cast() if node.meta.get("called"):  # what stood there before
            return str(node.meta["called"])
        case exp.Column():
            parts = [part for part in (node.args.get("table"), node.this) if part is not None]
            return parts[-1].name if top else ".".join(quoted(part.name) for part in parts)
        case exp.Count() if node.this is None or isinstance(node.this, exp.Star):
            return "count_star()"
        case exp.Count() | exp.Sum() | exp.Avg():
            return f"{type(node).__name__.lower()}({label(node.this)})"
        case exp.Min() | exp.Max() | exp.RowNumber() | exp.Rank() | exp.DenseRank():
            word = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(node).__name__).lower()
            return f"{word}({', '.join(label(part) for part in [node.this, *node.expressions] if part)})"
        case exp.Lag() | exp.Lead() | exp.FirstValue() | exp.LastValue():
            word = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(node).__name__).lower()
            parts = [node.args[part] for part in ("this", "offset", "default") if node.args.get(part) is not None]
            return f"{word}({', '.join(map(label, parts))})"
        case exp.IgnoreNulls():
            return label(node.this)[:-1] + " IGNORE NULLS)"
        case exp.Window():
            return over(node)
        case exp.Bracket():
            return f"{label(node.this)}[{', '.join(map(label, node.expressions))}]"
        case exp.Slice():
            return ":".join(
                label(end) if end is not None else "" for end in (node.this or None, node.expression or None)
            )
        case exp.Array():
            return f"list_value({', '.join(map(label, node.expressions))})"
        case exp.Distinct():
            return f"DISTINCT {', '.join(label(part) for part in node.expressions)}"
        case exp.Filter():
            return f"{label(node.this)} FILTER (WHERE {label(node.expression.this)})"
        case exp.Paren():
            return label(node.this)
        case exp.Literal():
            return "'" + node.this.replace("'", "''") + "'" if node.is_string else str(node.this)
        case exp.Boolean():
            return "true" if node.this else "false"
        case exp.Null():
            return "NULL"
        case exp.DPipe():
            return f"({label(node.this)} || {label(node.expression)})"
        case exp.Like() | exp.ILike():
            sign = "!" * bool(node.args.get("negate")) + "~~" + "*" * isinstance(node, exp.ILike)
            return f"({label(node.this)} {sign} {label(node.expression)})"
        case exp.SimilarTo():
            return f"regexp_full_match({label(node.this)}, {label(node.expression)})"
        case exp.Escape():
            name = "like_escape" if isinstance(node.this, exp.Like) else "ilike_escape"
            text = f"{name}({label(node.this.this)}, {label(node.this.expression)}, {label(node.expression)})"
            return f"(NOT {text})" if node.this.args.get("negate") else text
        case exp.Case():
            tests = [
                f"({label(node.this)} = {label(arm.this)})" if node.this else label(arm.this)
                for arm in node.args["ifs"]
            ]
            arms = "".join(
                f" WHEN ({t}) THEN ({label(arm.args['true'])})" for t, arm in zip(tests, node.args["ifs"], strict=True)
            )
            default = node.args.get("default")
            return f"CASE {arms} ELSE {label(default) if default else 'NULL'} END"
        case exp.If():
            parts = [node.args[part] for part in ("this", "true", "false") if node.args.get(part) is not None]
            return f'"if"({", ".join(map(label, parts))})'
        case exp.Cast():
            word = "TRY_CAST" if isinstance(node, exp.TryCast) else "CAST"
            to = node.args["to"]
            if not all(isinstance(size, exp.DataTypeParam) for size in to.expressions):
                return f"{word}({label(node.this)} AS {to.sql('duckdb')})"
            sizes = ", ".join(size.name for size in to.expressions)
            return f"{word}({label(node.this)} AS {TYPES.get(to.this, 'INTERVAL')}{f'({sizes})' if sizes else ''})"
        case exp.Anonymous() if node.this == "interval":
            amount, unit = node.expressions
            return span(label(amount), unit.this.removesuffix("s"))
        case exp.Anonymous() if node.meta.get("sign"):
            sign = str(node.meta["sign"])
            first, *rest = map(label, node.expressions)
            if sign == ".":
                return f"{first}.{quoted(fold(node.name))}({', '.join(rest)})"
            first, *rest = [*rest, first] if sign == "<@" else [first, *rest]
            return f"({first} {sign} {rest[0]})" if rest else f"({sign}({first}))"
        case exp.Tuple():
            return f'"row"({", ".join(map(label, node.expressions))})'
        case exp.Glob():
            return f"({label(node.this)} ~~~ {label(node.expression)})"
        case exp.Anonymous() if node.find(exp.Kwarg) in node.expressions:  # as without what is told by name
            given = [part for part in node.expressions if not isinstance(part, exp.Kwarg)]
            star = fold(node.name) == "count" and all(isinstance(part, exp.Star) for part in given)
            return "count_star()" if star else f"{fold(node.name)}({', '.join(map(label, given))})"
        case exp.Anonymous():
            word = fold(node.name)
            word = "COALESCE" if word in ("coalesce", "ifnull") else f'"{word}"' if word in KEYWORDS else word
            return f"{word}({', '.join(label(part) for part in node.expressions)})"
        case exp.Placeholder():
            return f"${node.name}"
        case exp.Neg():
            return f"-{node.this.this}" if isinstance(node.this, exp.Literal) else f"(-({label(node.this)}))"
        case exp.Not() if isinstance(node.this, exp.Is):
            return f"({label(node.this.this)} IS NOT NULL)"
        case exp.Not():
            return f"(NOT {label(node.this)})"
        case exp.Is():
            return f"({label(node.this)} IS NULL)"
        case exp.In() if node.args.get("field"):
            return f"contains({label(node.args['field'])}, {label(node.this)})"
        case exp.In() if (query := node.args.get("query")) is not None:
            return f"({label(node.this)} = ANY({subquery(query)}))"
        case exp.Exists():
            return f"EXISTS({subquery(node.this)})"
        case exp.Subquery() | exp.Select():
            return f"({subquery(node)})"
        case exp.In():
            return f"({label(node.this)} IN ({', '.join(label(option) for option in node.expressions)}))"
        case exp.Between():
            return f"({label(node.this)} BETWEEN {label(node.args['low'])} AND {label(node.args['high'])})"
        case exp.And() | exp.Or():
            parts = list(node.flatten(unnest=False))
            return "(" + f" {OPERATORS[type(node)]} ".join(label(part) for part in parts) + ")"
        case exp.BitwiseNot():
            return f"(~({label(node.this)}))"
        case _ if type(node) in OPERATORS:
            return f"({label(node.this)} {OPERATORS[type(node)]} {label(node.expression)})"
        case _:
            return node.sql("duckdb")


def subquery(node: exp.Expr) -> str:
    """DuckDB's name for a query on one table; of others it is near."""
    query = node.unnest()
    source, where = query.args.get("from_"), query.args.get("where")
    if not (isinstance(query, exp.Select) and source is not None and isinstance(source.this, exp.Table)) or any(
        value for name, value in query.args.items() if name not in ("expressions", "from_", "where", "kind")
    ):
        return query.sql("duckdb", comments=False)
    items = [label(item.unalias()) + (f" AS {quoted(item.alias)}" if item.alias else "") for item in query.expressions]
    condition = f" WHERE {label(where.this)}" if where is not None else ""
    return f"SELECT {', '.join(items)} FROM {source.this.sql('duckdb', comments=False)}{condition}"


def over(node: exp.Window) -> str:
    """DuckDB's name for a window. Its count(*) is count()."""
    word = (
        label(node.this).replace("count_star()", "count()", 1) if isinstance(node.this, exp.Count) else label(node.this)
    )
    partition, order, spec = (node.args.get(part) for part in ("partition_by", "order", "spec"))
    parts = [f"PARTITION BY {', '.join(map(label, partition))}"] if partition else []
    if order:
        parts.append("ORDER BY " + ", ".join(map(term, order.expressions)))
    if spec:
        ends = [
            f"{end if isinstance(end, str) else label(end)}{f' {side}' if side else ''}"
            for end, side in ((spec.args.get(p), spec.args.get(f"{p}_side")) for p in ("start", "end"))
            if end
        ]
        without = f" EXCLUDE {spec.args['exclude']}" if spec.args.get("exclude") else ""
        parts.append(f"{spec.args['kind']} BETWEEN {ends[0]} AND {ends[1] if ends[1:] else 'CURRENT ROW'}{without}")
    return f"{word} OVER ({' '.join(parts)})"


def term(item: exp.Ordered) -> str:
    direction = " DESC" if item.args.get("desc") else ""
    return label(item.this) + direction + (" NULLS FIRST" if item.args.get("nulls_first") else "")


# The words of the engine's grammar: as names of columns and functions it quotes them.
KEYWORDS = frozenset(
    """
    abort absolute access action add admin after aggregate all also alter always analyse analyze and anti any approx
    array as asc asof assertion assignment asymmetric at attach attribute authorization backward before begin between
    bigint binary bit boolean both by cache call called cascade cascaded case cast catalog centuries century chain
    char character characteristics check checkpoint class close cluster coalesce collate collation column columns
    comment comments commit committed compression concurrently configuration conflict connect connection constraint
    constraints content continue conversion copy cost create cross csv cube current cursor cycle data database day
    days deallocate dec decade decades decimal declare default defaults deferrable deferred definer delete delimiter
    delimiters depends desc describe destroy detach dictionary disable discard disconnect distance distinct do
    document domain double drop each else enable encoding encrypted end enum error escape event exact except exclude
    excluding exclusive execute exists explain export export_state extension extensions external extract false family
    fetch filter first float following for force foreign forward freeze from full function functions generated glob
    global grant granted group grouping grouping_id groups handler having header hold hour hours identity if ignore
    ilike immediate immutable implicit import in include including increment index indexes inherit inherits initially
    inline inner inout input insensitive insert install instead int integer intersect interval into invoker is isnull
    isolation join json key label lambda language large last lateral leading leakproof left level like limit listen
    load local location lock locked logged macro map mapping match matched materialized maxvalue merge method
    microsecond microseconds millennia millennium millisecond milliseconds minute minutes minvalue mode month months
    move name names national natural nchar nearest new next no none not nothing notify notnull nowait null nullif
    nulls numeric object of off offset oids old on only operator option options or order ordinality others out outer
    over overlaps overlay overriding owned owner parallel parser partial partition partitioned passing password
    percent persistent pivot pivot_longer pivot_wider placing plans policy position positional pragma preceding
    precision prepare prepared preserve primary prior privileges procedural procedure program publication qualify
    quarter quarters quote range read real reassign recheck recursive ref references referencing refresh register
    reindex relative release rename repeatable replace replica reset resource resources respect restart restrict
    returning returns revoke right role rollback rollup row rows rule sample savepoint schema schemas scope scroll
    search second seconds secret secure security select semi sequence sequences serializable server session set setof
    sets share show similar similarity simple skip smallint snapshot some sorted source sql stable standalone start
    statement statistics stdin stdout storage stored strict strip struct subscription substring summarize symmetric
    sysid system table tables tablesample tablespace target temp template temporary text then ties time timestamp to
    trailing transaction transform treat trigger trim true truncate trusted try_cast tuple type types unbounded
    uncommitted unencrypted union unique unknown unlisten unlogged unpack unpivot until update use user using vacuum
    valid validate validator value values varchar variable variadic varying verbose version view views virtual
    volatile week weeks when where whitespace window with within without work wrapper write xml xmlattributes
    xmlconcat xmlelement xmlexists xmlforest xmlnamespaces xmlparse xmlpi xmlroot xmlserialize xmltable year years yes
    zone
    """.split()  # noqa: SIM905
)


def span(amount: str, unit: str) -> str:
    """DuckDB's name for INTERVAL 3 MONTH."""
    if unit in ("second", "millisecond"):
        return f"to_{unit}s(CAST({amount} AS DOUBLE))"
    type_ = "INTEGER" if unit in ("year", "quarter", "month", "week", "day") else "BIGINT"
    return f"to_{unit}s(CAST(trunc(CAST({amount} AS DOUBLE)) AS {type_}))"


def quoted(name: str) -> str:
    return (
        name
        if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) and fold(name) not in KEYWORDS
        else '"' + name.replace('"', '""') + '"'
    )
