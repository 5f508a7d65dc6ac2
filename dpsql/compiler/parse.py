"""Text to one statement of allow-listed node classes."""

from __future__ import annotations

import copy
import datetime
import difflib
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import sqlglot
from sqlglot import exp
from sqlglot.dialects.duckdb import DuckDB
from sqlglot.parsers.duckdb import DuckDBParser
from sqlglot.tokenizer_core import Token, TokenType

from dpsql.compiler.aggregates import RULES
from dpsql.compiler.rewrite import write_out
from dpsql.errors import Refused, spelling
from dpsql.kernel.functions import NAMES
from dpsql.policy.catalog import encodable, fold

MAX_BYTES, MAX_TOKENS, MAX_DEPTH = 64_000, 5_000, 100

NODES: frozenset[type[exp.Expr]] = frozenset(
    (
        exp.Select,
        exp.From,
        exp.Table,
        exp.TableAlias,
        exp.Join,
        exp.Where,
        exp.Group,
        exp.GroupingSets,
        exp.Rollup,
        exp.Cube,
        exp.Having,
        exp.Order,
        exp.Ordered,
        exp.Limit,
        exp.Offset,
        exp.Alias,
        exp.Identifier,
        exp.Column,
        exp.Star,
        exp.Literal,
        exp.Boolean,
        exp.Null,
        exp.Placeholder,
        exp.Cast,
        exp.TryCast,
        exp.DataType,
        exp.DataTypeParam,
        exp.Case,
        exp.If,
        exp.Like,
        exp.ILike,
        exp.Escape,
        exp.DPipe,
        exp.Anonymous,
        exp.Paren,
        exp.Add,
        exp.Sub,
        exp.Mul,
        exp.Div,
        exp.IntDiv,
        exp.Mod,
        exp.Neg,
        exp.BitwiseAnd,
        exp.BitwiseOr,
        exp.EQ,
        exp.NEQ,
        exp.LT,
        exp.LTE,
        exp.GT,
        exp.GTE,
        exp.SimilarTo,
        exp.And,
        exp.Or,
        exp.Not,
        exp.In,
        exp.Between,
        exp.Is,
        exp.Count,
        exp.Sum,
        exp.Avg,
        exp.Min,
        exp.Max,
        exp.LogicalAnd,
        exp.LogicalOr,
        exp.Filter,
        exp.Distinct,
        exp.Subquery,
        exp.With,
        exp.CTE,
        exp.Union,
        exp.Intersect,
        exp.Except,
        exp.Values,
        exp.Tuple,
        exp.Exists,
        exp.Qualify,
        exp.Window,
        exp.WindowSpec,
        exp.RowNumber,
        exp.Rank,
        exp.DenseRank,
        exp.Lag,
        exp.Lead,
        exp.FirstValue,
        exp.LastValue,
        exp.IgnoreNulls,
        exp.Pivot,
        exp.PivotAlias,
        exp.NullSafeEQ,
        exp.NullSafeNEQ,
        exp.Pow,
        exp.BitwiseLeftShift,
        exp.BitwiseRightShift,
        exp.BitwiseNot,
        exp.Glob,
        exp.All,
        exp.Struct,
        exp.PropertyEQ,
        exp.Map,
        exp.ToMap,
        exp.Lambda,
        exp.Comprehension,
        exp.LimitOptions,
        exp.Array,
        exp.Bracket,
        exp.Slice,
        exp.Unnest,
        exp.Lateral,
        exp.Kwarg,
    )
)

HINTS: dict[type[exp.Expr], str] = {
    exp.Any: "Ask how many: count_if(x > 1); or compare with a subquery: x = ANY (SELECT ...).",
    exp.Parameter: "Write parameters as ?, $1 or $name.",
    exp.CurrentTime: "Write now(), or hour(now()).",
}


# The words that the engine's grammar knows behind EXTRACT, and how it then writes them.
FIELDS = {
    word: unit.upper()
    for unit in ("year", "quarter", "month", "week", "day", "hour", "minute", "second")
    for word in (unit, f"{unit}s")
} | {word: word.upper() for word in ("decade", "century", "millennium")}


# The functions that have nodes of their own.
NODED = {
    "COUNT",
    "SUM",
    "AVG",
    "MIN",
    "MAX",
    "BOOL_AND",
    "BOOL_OR",
    "IF",
    "ROW_NUMBER",
    "RANK",
    "DENSE_RANK",
    "LAG",
    "LEAD",
}
NODED |= {"FIRST_VALUE", "LAST_VALUE"}
EXTREMES = ("arg_min", "argmin", "min_by", "arg_max", "argmax", "max_by")
# Aggregates that the parser would translate.
AS_CALLED = [*EXTREMES, "approx_quantile", "quantile", "quantile_cont", "quantile_disc"]
AS_CALLED += ["string_agg", "stringagg", "listagg", "group_concat"]


# What an aggregate over persons may be told by name, as in GoogleSQL.
BOUNDS = ("contribution_bounds_per_row", "contribution_bounds_per_group")


def plain_or_told(name: str) -> Any:
    """An aggregate that has a node of its own. With arguments that have names it is a call like the others: nodes have no place
    for these."""

    def build(arguments: list[exp.Expr]) -> exp.Expr:
        if any(isinstance(argument, exp.Kwarg) for argument in arguments):
            return exp.Anonymous(this=name.lower(), expressions=arguments)
        node: exp.Expr = DuckDBParser.FUNCTIONS[name](arguments)
        return node

    return build


class Reader(DuckDBParser):
    """The parser, but a call of a function stays what it is: a name and its arguments, in order.

    sqlglot would translate them (`date_trunc(s, d)` into SECOND, `'14 months ago'` into 14 months). Forms with words in
    them (EXTRACT, SUBSTRING, TRIM, POSITION, INTERVAL) become the call that DuckDB makes of them.
    """

    FUNCTIONS: ClassVar = {
        **{name: f for name, f in DuckDBParser.FUNCTIONS.items() if name in NODED},
        **{name: plain_or_told(name) for name in ("COUNT", "SUM", "AVG")},
    }
    FUNCTION_PARSERS: ClassVar = {
        **{
            name: f
            for name, f in DuckDBParser.FUNCTION_PARSERS.items()
            if name.lower() not in {*NAMES, *RULES, *AS_CALLED}
        },
        "EXTRACT": lambda self: self.extract(),
        "POSITION": lambda self: self.reread("POSITION", "this", "substr"),
        "SUBSTRING": lambda self: self.reread("SUBSTRING", "this", "start", "length"),
        "TRIM": lambda self: self.reread("TRIM", "this", "expression"),
    }

    # As the engine reads them, both take a whole sum: ~a + 1 is ~(a + 1).
    UNARY_PARSERS: ClassVar = {
        **DuckDBParser.UNARY_PARSERS,
        TokenType.TILDE: lambda self: self.expression(exp.BitwiseNot(this=self.given(self._parse_term()))),
    }
    NO_PAREN_FUNCTION_PARSERS: ClassVar = {
        **DuckDBParser.NO_PAREN_FUNCTION_PARSERS,
        "@": lambda self: self.expression(exp.Abs(this=self.given(self._parse_term()))),
    }

    def _parse_exponent(self) -> Any:
        """a ** b and a ^ b, of which the sign is kept."""
        this: Any = self._parse_unary()
        while self._match_set(self.EXPONENT):
            sign = self._prev.text
            this = self.expression(signed("pow", sign, self.given(this), self.given(self._parse_unary())))
        return this

    def given(self, side: exp.Expr | None) -> exp.Expr:
        if side is None:
            self.raise_error("there is nothing beside an operator")
        return side or exp.Null()

    def reread(self, form: str, *names: str) -> exp.Expr:
        """The call that the engine makes of a form with words in it."""
        node = DuckDBParser.FUNCTION_PARSERS[form](self)
        side = node.args.pop("position", None) if form == "TRIM" else None
        name = {"LEADING": "ltrim", "TRAILING": "rtrim"}.get(str(side), form.lower())
        arguments = [node.args.pop(argument) for argument in names if node.args.get(argument)]
        if any(node.args.values()):
            raise Refused(
                "not_supported",
                f"this form of {form} is not supported",
                "Write trim(x), substring(x, 1, 3) or position('a' IN x).",
                position(node),
            )
        return self.expression(exp.Anonymous(this=name, expressions=arguments))

    def _parse_simplified_pivot(self, is_unpivot: bool | None = None) -> exp.Pivot:
        """PIVOT t ON x IN (1, 2) USING count(*) GROUP BY y, and what may stand behind it."""
        pivot = super()._parse_simplified_pivot(is_unpivot)
        for clause, found in (
            ("order", self._parse_order()),
            ("limit", self._parse_limit()),
            ("offset", self._parse_offset()),
        ):
            pivot.set(clause, found)
        return pivot

    def _parse_bracket(self, this: exp.Expr | None = None) -> Any:
        """list[i] with the index as it is written: sqlglot would count from 0."""
        if isinstance(this, exp.Bracket):
            this.set("offset", 1)
        return super()._parse_bracket(this)

    def extract(self) -> exp.Expr:
        """EXTRACT(unit FROM x), with the unit as a word or as a text."""
        self._advance()
        unit = self._prev.text
        if self._prev.token_type != TokenType.STRING:
            unit = FIELDS.get(unit.lower(), unit)
        if not self._match(TokenType.FROM):
            self.raise_error("Expected FROM after EXTRACT")
        arguments = [exp.Literal.string(unit), self._parse_bitwise()]
        return self.expression(exp.Anonymous(this="date_part", expressions=arguments))

    def _parse_interval(self, require_interval: bool = True, parse_function_unit: bool = True) -> Any:
        """INTERVAL '3 month' as a cast, and INTERVAL 3 MONTH, '3' MONTH and (3) MONTH as interval(3, 'month')."""
        index = self._index
        if not self._match(TokenType.INTERVAL):
            return None
        start = self._prev.start
        amount: exp.Expr | None = None
        if self._match(TokenType.STRING):
            text = self._prev.text
            if not re.fullmatch(r"[+-]?\d+", text):
                to = exp.DataType.build("INTERVAL", dialect="duckdb")
                return placed(exp.Cast(this=exp.Literal.string(text), to=to), start)
            amount = exp.Literal.string(text)
        elif self._match(TokenType.NUMBER):
            amount = exp.Literal.number(self._prev.text)
        elif self._match(TokenType.L_PAREN):
            sign = "-" if self._match(TokenType.DASH) else ""
            if self._match(TokenType.NUMBER) and self._curr is not None and self._curr.token_type == TokenType.R_PAREN:
                amount = exp.Literal.number(sign + self._prev.text)
            else:
                self._retreat(index + 2)
                amount = self._parse_assignment()
            amount = amount if self._match(TokenType.R_PAREN) else None
        if amount is None or self._curr is None:
            self._retreat(index)
            return None
        self._advance()
        if not isinstance(amount.this if isinstance(amount, exp.Neg) else amount, exp.Literal):
            return self.expression(lasting(amount, self._prev.text.lower().removesuffix("s")))
        unit = exp.Literal.string(self._prev.text.lower())
        return placed(exp.Anonymous(this="interval", expressions=[amount, unit]), start)


def placed(node: exp.Expr, start: int) -> exp.Expr:
    node.meta["start"] = start
    return node


def lasting(amount: exp.Expr, unit: str) -> exp.Expr:
    """INTERVAL (x) DAY as the engine writes it out."""
    number: exp.Expr = exp.cast(amount, "DOUBLE", dialect="duckdb")
    if unit not in ("second", "millisecond"):
        whole = "INTEGER" if unit in ("year", "quarter", "month", "week", "day") else "BIGINT"
        number = exp.cast(exp.Anonymous(this="trunc", expressions=[number]), whole, dialect="duckdb")
    return exp.Anonymous(this=f"to_{unit}s", expressions=[number])


class Marked(DuckDB):
    """DuckDB's dialect without dollar-quoted texts, for which `IN ($a,$b)` is mistaken."""

    Parser = Reader
    INDEX_OFFSET = 0

    class Tokenizer(DuckDB.Tokenizer):
        HEREDOC_STRINGS = []  # noqa: RUF012


@dataclass(frozen=True)
class Parsed:
    tree: exp.Query | exp.Pivot
    marks: Mapping[str, int] = field(
        default_factory=dict
    )  # the parameters by name, and where each stands first; `?` have numbers for names


def signed(name: str, sign: str, *arguments: exp.Expr) -> exp.Anonymous:
    """The function that a sign stands for. The sign is kept for the name of a column."""
    node = exp.Anonymous(this=name, expressions=list(arguments))
    node.meta["sign"] = sign
    return node


# Signs that are calls of functions.
SIGNS: dict[type[exp.Expr], tuple[str, str]] = {
    exp.Abs: ("abs", "@"),
    exp.RegexpLike: ("regexp_matches", ""),
    exp.StartsWith: ("starts_with", "^@"),
    exp.ArrayOverlaps: ("list_has_any", "&&"),
    exp.ArrayContainsAll: ("list_has_all", "@>"),
    exp.ArrayContainedBy: ("list_has_all", "<@"),
}


def write_signs_out(tree: exp.Expr) -> None:
    """Signs and methods as calls: a ^@ b is starts_with(a, b), and x.f(y) is f(x, y)."""
    for group in list(tree.find_all(exp.WithinGroup)):
        within_group(group)
    for test in list(tree.find_all(exp.Is)):
        if isinstance(test.expression, exp.Boolean):  # x IS [NOT] TRUE
            whole = test.parent if isinstance(test.parent, exp.Not) else test
            kind = exp.NullSafeEQ if whole is test else exp.NullSafeNEQ
            truth = exp.cast(test.this, "BOOLEAN", dialect="duckdb")
            whole.replace(kind(this=truth, expression=test.expression))
    for node in list(tree.find_all(*SIGNS, exp.Dot)):
        if isinstance(node, exp.Dot):
            owner, function = node.this, node.expression
            if isinstance(owner, exp.Dot) and isinstance(owner.expression, exp.Identifier):
                owner = exp.Column(this=owner.expression, table=owner.this)
            if isinstance(owner, exp.Identifier):
                owner = exp.Column(this=owner)
            if isinstance(function, exp.Anonymous):
                node.replace(signed(function.name, "." * isinstance(owner, exp.Column), owner, *function.expressions))
            continue
        name, sign = SIGNS[type(node)]
        sides = [side for side in (node.this, node.args.get("expression")) if side is not None]
        rest = {k for k, v in node.args.items() if v} - {"this", "expression"}
        if not rest:
            node.replace(signed(name, sign, *(sides[::-1] if sign == "<@" else sides)))


def within_group(node: exp.WithinGroup) -> None:
    """percentile_cont(0.5) WITHIN GROUP (ORDER BY x) as quantile_cont(x, 0.5 ORDER BY x), as the engine does."""
    function, order = node.this, node.expression
    word = {"percentile_cont": "quantile_cont", "percentile_disc": "quantile_disc", "mode": "mode"}.get(
        fold(function.name)
    )
    if word is None or len(function.expressions) != (word != "mode") or len(order.expressions) != 1:
        return
    value = order.expressions[0].this.copy()
    arguments: list[exp.Expr] = [value, *function.expressions]
    arguments[-1] = exp.Order(this=arguments[-1], expressions=order.expressions)
    node.replace(exp.Anonymous(this=word, expressions=arguments))


def write_limit_out(node: exp.Expr) -> None:
    """FETCH FIRST 2 ROWS ONLY is LIMIT 2, and LIMIT (1 + 1) is too."""
    if isinstance(node, exp.Fetch):
        options = node.args.get("limit_options")
        if options is not None and (options.args.get("percent") or options.args.get("with_ties")):
            return
        node.replace(exp.Limit(expression=node.args.get("count") or exp.Literal.number(1)))
    elif isinstance(node.expression, exp.Paren | exp.Binary):
        total = folded(node.expression)
        if total is not None and total >= 0:
            node.set("expression", exp.Literal.number(total))


def folded(node: exp.Expr) -> int | None:
    """A sum, difference or product of constants."""
    match node:
        case exp.Paren():
            return folded(node.this)
        case exp.Literal() if not node.is_string and node.name.isdigit():
            return int(node.name)
        case exp.Add() | exp.Sub() | exp.Mul():
            left, right = folded(node.this), folded(node.expression)
            if left is None or right is None:
                return None
            return (
                left * right if isinstance(node, exp.Mul) else left + right * (1 if isinstance(node, exp.Add) else -1)
            )
    return None


def apart(tree: exp.Query) -> Parsed:
    """A query that stood inside of a statement, without parameters."""
    return Parsed(tree)


def position(node: exp.Expr | None) -> int | None:
    """Where in the text a node stands, as far as the parser remembers."""
    if node is None:
        return None
    return min((child.meta["start"] for child in node.walk() if "start" in child.meta), default=None)


# Functions that the parser calls otherwise than the query.
CALLED: dict[type[exp.Expr], str] = {
    exp.LogicalAnd: "bool_and",
    exp.LogicalOr: "bool_or",
    exp.GroupConcat: "string_agg",
}


def describe(node: exp.Expr) -> str:
    """A construct's name in words that stand in the query: CurrentDate -> CURRENT_DATE."""
    if isinstance(node, exp.Anonymous):
        return f"{node.name}()"
    if isinstance(node, exp.Var):
        return node.name.upper()
    if type(node) in CALLED:
        return f"{CALLED[type(node)]}()"
    word = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", type(node).__name__).upper()
    return f"{word.replace(' ', '_')}()" if isinstance(node, exp.Func) else word


def parse(text: str, now: datetime.datetime | None = None) -> Parsed:
    """Read one SELECT and refuse what the rest of the compiler has no case for. `now` is the time of the statement.

    Needs:   nothing: the text is hostile
    Gives:   one SELECT statement whose nodes are all of the classes in NODES, and its parameters by name; arguments with
             names stand in aggregates only, and hold constants
    Proof:   size and depth are counted on the tokens before the recursive parser runs; then every node is visited and
             one of another class is refused. The text is not used again: what the engine runs is generated from the
             resolved algebra, so a misreading by this parser can change the question but not the guarantee
    Checked: test_parse, specs/refusals.md
    """
    if not isinstance(text, str) or not encodable(text):
        raise Refused("syntax", "the query is not a text in Unicode", "Pass SQL as a str.")
    if len(text.encode("utf-8")) > MAX_BYTES:
        raise Refused("too_long", f"the query is longer than {MAX_BYTES} bytes", "Shorten it.")
    try:
        tokens = Marked().tokenize(text)
        if not tokens:
            raise Refused("one_statement", "the query is empty", "Send one SELECT.")
        check(tokens)
        tokens, marks = mark(tokens)
        if sys.getrecursionlimit() < 20_000:  # MAX_DEPTH levels take the parser about 40 frames each
            sys.setrecursionlimit(20_000)
        parser = Marked().parser(error_level=sqlglot.ErrorLevel.IMMEDIATE)
        statements = [s for s in parser.parse(tokens, text) if s]
    except sqlglot.errors.ParseError as error:
        first = error.errors[0] if error.errors else {}
        if "provided arguments" in (first.get("description") or ""):
            what = "a function has more arguments than it takes"
            raise Refused("arguments_invalid", what, "Count them.", place(text, first)) from None
        if first.get("highlight") == "=>":
            hint = "Write it behind the arguments of an aggregate without DISTINCT: sum(x, name => (0, 100))."
            raise Refused("syntax", "not valid SQL: => stands in a wrong place", hint, place(text, first)) from None
        # The parser calls things by the names of its classes.
        what = re.sub(r"Required keyword.*", "something is missing", first.get("description") or "cannot be parsed")
        raise Refused("syntax", f"not valid SQL: {what}", spelling(text), place(text, first)) from None
    except (sqlglot.errors.SqlglotError, RecursionError, ValueError, AttributeError, TypeError, IndexError):
        raise Refused("syntax", "not valid SQL: cannot be parsed", spelling(text)) from None
    if len(statements) != 1:
        raise Refused("one_statement", f"expected one statement, found {len(statements)}", "Send one SELECT at a time.")
    (tree,) = statements
    if not isinstance(tree, exp.Select | exp.SetOperation | exp.Pivot):
        raise Refused("select_only", f"{describe(tree)} is not a query", spelling(text, "Only SELECT is answered."))
    write_signs_out(tree)
    write_out(tree, now)
    for limit in list(tree.find_all(exp.Limit, exp.Fetch)):
        write_limit_out(limit)
    for order in list(tree.find_all(exp.Order)):
        order_by_all(order)
    for test in list(tree.find_all(exp.EQ, exp.NEQ)):
        any_of(test)
    for argument in tree.find_all(exp.Kwarg):
        read_name(argument)
    for node in tree.walk():
        if isinstance(node, exp.Group) and not any(node.args.values()):
            raise Refused("syntax", "not valid SQL: GROUP BY has no keys", "Name them, or write GROUP BY ALL.")
        excluded = isinstance(node, exp.Var) and isinstance(node.parent, exp.WindowSpec)  # EXCLUDE CURRENT ROW
        if type(node) not in NODES and not excluded:
            hint = next((hint for cls, hint in HINTS.items() if isinstance(node, cls)), "Leave it out.")
            if isinstance(node, exp.Any) and isinstance(node.this, exp.Paren | exp.Condition):
                hint = hint.replace("x > 1", node.this.unnest().sql("duckdb", comments=False))
            raise Refused("not_supported", f"{describe(node)} is not supported", hint, position(node))
        if isinstance(node, exp.Group) and not any(node.args.values()):
            raise Refused("syntax", "GROUP BY names nothing", "Name a column there.", position(node.parent))
        if isinstance(node, exp.Placeholder) and (fold(node.name) not in marks or node.args.keys() - {"this"}):
            raise Refused("syntax", "this is not how a parameter is written", "Write parameters as ?, $1 or $name.")
    for select in tree.find_all(exp.Select):
        write_windows_out(select)
    return Parsed(tree, marks)


def read_name(node: exp.Kwarg) -> None:
    """contribution_bounds_per_row => (0, 100): only aggregates over persons have arguments by name, and only these two."""
    call, ends, name = node.parent, node.expression, fold(node.name)
    if not isinstance(call, exp.Anonymous) or fold(call.name) not in RULES or name not in BOUNDS:
        near = difflib.get_close_matches(name, BOUNDS, n=1)
        hint = f"Did you mean {near[0]} => (0, 100)?" if near else f"Aggregates take {' and '.join(BOUNDS)}."
        hint = "COUNT, SUM, AVG and variances have; else write least(greatest(x, 0), 100)." if name in BOUNDS else hint
        what = describe(call) if isinstance(call, exp.Func) else "this"
        raise Refused("arguments_invalid", f"{what} has no argument of the name {node.name!r}", hint, position(call))
    inner = ends.expressions if isinstance(ends, exp.Tuple) else []
    constant = (exp.Literal, exp.Neg, exp.Placeholder, exp.Paren, exp.Boolean, exp.Cast, exp.DataType)
    if len(inner) != 2 or not all(isinstance(part, constant) for end in inner for part in end.walk()):
        hint = f"Write {name} => (0, 100)."
        raise Refused("bounds_invalid", f"{name} needs two constants in brackets", hint, position(call))
    node.set("this", exp.to_identifier(name))


def any_of(node: exp.Binary) -> None:
    """x = ANY (SELECT ...) is x IN (SELECT ...), and x <> ALL (SELECT ...) is NOT IN."""
    other = node.expression
    if type(other) is (exp.Any if isinstance(node, exp.EQ) else exp.All):
        query = other.this if isinstance(other.this, exp.Subquery) else exp.Subquery(this=other.this)
        if isinstance(query.this, exp.Query):
            found = exp.In(this=node.this, query=query)
            node.replace(found if isinstance(node, exp.EQ) else exp.Not(this=found))


def order_by_all(order: exp.Order) -> None:
    """ORDER BY ALL is written out, as the numbers of the SELECT list. SELECT * has others, which the engine knows."""
    match order.expressions, order.parent:
        case [exp.Ordered(this=exp.Var(this="ALL")) as term], exp.Select() as select if not select.is_star:
            terms = [term.copy() for _ in select.expressions]
            for place, each in enumerate(terms, 1):
                each.set("this", exp.Literal.number(place))
            order.set("expressions", terms)


def write_windows_out(select: exp.Select) -> None:
    """OVER w with WINDOW w AS (...) is OVER (...)."""
    named = {fold(window.name): window for window in select.args.get("windows") or []}
    uses = [window for window in select.find_all(exp.Window) if named and window.args.get("alias") is not None]
    uses = [window for window in uses if window.find_ancestor(exp.Select) is select]
    if {fold(window.args["alias"].name) for window in uses} != named.keys():
        raise Refused("window_unknown", "a window's name stands only in OVER or only in WINDOW", "Check the names.")
    for window in named.values():
        if window.args.get("alias") is not None or len(list(window.find_all(exp.Window))) > 1:
            raise Refused("not_supported", "a window that is made of another is not supported", "Write it out.")
    if sum(1 for window in uses for _ in named[fold(window.args["alias"].name)].walk()) > MAX_TOKENS:
        raise Refused("too_long", "the named windows are used too often", "Write them out where they are needed.")
    for window in uses:
        word = window.args["alias"]
        if word is not None:
            meant = named[fold(word.name)].args
            for part in ("partition_by", "order", "spec"):
                window.set(part, window.args.get(part) or copy.deepcopy(meant.get(part)))
            window.set("alias", None)
    select.set("windows", None)


def mark(tokens: list[Token]) -> tuple[list[Token], dict[str, int]]:
    """Give each `?` its number, in the order of the text, which a tree does not keep; and list all parameters."""
    result: list[Token] = []
    marks: dict[str, int] = {}
    kinds: set[str] = set()
    dollar: Token | None = None
    for token in tokens:
        if token.token_type == TokenType.PLACEHOLDER:
            number = str(len(marks) + 1)
            result.append(Token(TokenType.PARAMETER, "$", token.line, token.col, token.start, token.end))
            token = Token(TokenType.NUMBER, number, token.line, token.col, token.start, token.end, token.comments)
            marks.setdefault(number, token.start)
            kinds.add("?")
        elif dollar is not None:
            if token.token_type == TokenType.IDENTIFIER or not re.fullmatch(r"[1-9]\d{0,3}|[A-Za-z_]\w*", token.text):
                raise Refused("syntax", "cannot read the parameter", "Write it as ?, $1 or $name.", dollar.start)
            marks.setdefault(fold(token.text), dollar.start)
            kinds.add("$1" if token.text.isdigit() else "$name")
        dollar = token if token.token_type == TokenType.PARAMETER and token.text == "$" else None  # @x is abs(x)
        if len(kinds) > 1:
            raise Refused(
                "parameters_mixed", "the query mixes kinds of parameters", "Use ?, $1 or $name throughout.", token.start
            )
        result.append(token)
    return result, marks


def place(text: str, error: dict[str, Any]) -> int | None:
    """The character that a parser's line and column stand for; the column is that of the token's end."""
    if not error.get("line") or not error.get("col"):
        return None
    before = sum(len(line) + 1 for line in text.split("\n")[: error["line"] - 1])
    return min(max(before + int(error["col"]) - len(error.get("highlight") or ""), 0), len(text))


# The parser reads a list without anything in it where the engine does not.
LISTS = (TokenType.GROUP_BY, TokenType.ORDER_BY, TokenType.PARTITION_BY)
CLAUSES = (
    *LISTS,
    *(TokenType.HAVING, TokenType.QUALIFY, TokenType.WINDOW, TokenType.LIMIT, TokenType.OFFSET, TokenType.FETCH),
    *(TokenType.UNION, TokenType.INTERSECT, TokenType.EXCEPT, TokenType.R_PAREN, TokenType.COMMA, TokenType.SEMICOLON),
)


def check(tokens: list[Token]) -> None:
    if len(tokens) > MAX_TOKENS:
        raise Refused("too_long", f"the query has more than {MAX_TOKENS} tokens", "Shorten it.")
    depth = run = 0
    opening = (TokenType.L_PAREN, TokenType.L_BRACKET, TokenType.L_BRACE, TokenType.CASE)
    closing = (TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.R_BRACE, TokenType.END)
    for token, following in zip(tokens, [*tokens[1:], None], strict=True):
        depth += (token.token_type in opening) - (token.token_type in closing)
        run = run + 1 if token.token_type in (TokenType.NOT, TokenType.DASH, TokenType.DCOLON, TokenType.TILDE) else 0
        if max(depth, run) > MAX_DEPTH:
            raise Refused("too_deep", f"the query is nested more than {MAX_DEPTH} deep", "Flatten it.", token.start)
        if token.token_type in LISTS and (following is None or following.token_type in CLAUSES):
            raise Refused("syntax", f"nothing stands behind {token.text}", "Name a column there.", token.start)
        if any("/*" in comment for comment in token.comments):  # the engine nests comments, the parser may not
            raise Refused("syntax", "a comment inside a comment", "Remove the inner comment.", token.start)
        if token.token_type == TokenType.NUMBER:
            # The tokenizer splits `1e1+1e1` in the wrong place and would read the rest as an alias.
            glued = (
                following is not None
                and following.start == token.end + 1
                and (following.token_type in (TokenType.VAR, TokenType.NUMBER, TokenType.IDENTIFIER))
            )
            if glued or not re.fullmatch(r"\d+(\.\d*)?([eE][+-]?\d+)?|\.\d+([eE][+-]?\d+)?", token.text):
                raise Refused(
                    "syntax", f"cannot read the number {token.text!r}", "Put spaces around operators.", token.start
                )
