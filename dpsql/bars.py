"""DP_INTERVAL_LOW(c) and DP_INTERVAL_HIGH(c): the ends of the error bar of column c as columns of the answer.

They are cut out of the text before it is compiled: blanks stand in their place, so that errors point at the right spot. What
they show is computed from the answer, and so adds nothing to what is released.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import sqlglot
from sqlglot import Token, TokenType

from dpsql.errors import Refused
from dpsql.policy.catalog import encodable

LONGEST = 64_000  # characters: of longer texts the parser says that they are too long
NAMED = re.compile(r"dp_interval_(low|high)", re.IGNORECASE)
# What ends a SELECT list. FROM does not, where it belongs to IS DISTINCT FROM.
ENDS = frozenset({TokenType.FROM, TokenType.SEMICOLON, TokenType.WHERE, TokenType.GROUP_BY, TokenType.HAVING, TokenType.ORDER_BY, TokenType.LIMIT, TokenType.QUALIFY, TokenType.WINDOW})  # fmt: skip
OPEN = frozenset({TokenType.L_PAREN, TokenType.L_BRACKET, TokenType.L_BRACE})
WORDS = frozenset({TokenType.VAR, TokenType.IDENTIFIER})
CLOSE = frozenset({TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.R_BRACE})


@dataclass(frozen=True)
class Shown:
    """A column of the answer as it is shown: which one was computed, and which end of its error bar if not itself."""

    name: str
    column: int
    end: Literal["", "low", "high"] = ""


@dataclass(frozen=True)
class Ends:
    """A DP_INTERVAL of the SELECT list: at which place it stands, of which column it is, and what it is called."""

    place: int
    column: str
    end: Literal["low", "high"]
    name: str
    position: int


def cut(query: str) -> tuple[str, tuple[Ends, ...]]:
    """The query without the error bars of its SELECT list, and these.

    >>> cut("SELECT count(*) AS c, DP_INTERVAL_LOW(c) AS low FROM t")[0]
    'SELECT count(*) AS c                             FROM t'
    """
    if not NAMED.search(query) or len(query) > LONGEST:
        return query, ()
    try:
        tokens = sqlglot.tokenize(query, read="duckdb")
    except sqlglot.errors.SqlglotError:
        return query, ()  # which the parser refuses
    items, commas = select_list(tokens)
    if not any(map(calls, tokens)):
        return query, ()
    found: list[Ends] = []
    text = query
    for place, item in enumerate(items):
        if (ends := read(item, place)) is None:
            continue
        found.append(ends)
        first = commas[place - 1].start if place else item[0].start
        last = commas[place].end if not place and commas else item[-1].end
        text = text[:first] + re.sub(r"[^\n]", " ", text[first : last + 1]) + text[last + 1 :]
    if left := next((token for token in sqlglot.tokenize(text, read="duckdb") if calls(token)), None):
        hint = "Write it as a column of the outermost SELECT: SELECT count(*) AS c, DP_INTERVAL_LOW(c) FROM …"
        raise misplaced(query, f"{left.text} stands where there is no answer yet", hint, left.start)
    if len(found) == len(items):
        hint = "Select the column too: SELECT count(*) AS c, DP_INTERVAL_LOW(c) FROM …"
        raise misplaced(query, "only error bars are selected", hint, found[0].position)
    return text, tuple(found)


def calls(token: Token) -> bool:
    """Whether it is the name of one of the two, and not a text, a comment or a quoted name."""
    return token.token_type is TokenType.VAR and NAMED.fullmatch(token.text) is not None


def misplaced(query: str, what: str, hint: str, position: int, code: str = "interval_misplaced") -> Refused:
    """The refusal, with its place in the query."""
    refusal = Refused(code, what, hint, position)
    refusal.locate(query)
    return refusal


def select_list(tokens: Sequence[Token]) -> tuple[list[list[Token]], list[Token]]:
    """The items of the outermost SELECT list, and the commas between them. Of several SELECTs (UNION) there is none."""
    depth, inside, starts = 0, False, 0
    items: list[list[Token]] = [[]]
    commas: list[Token] = []
    for token in tokens:
        depth += (token.token_type in OPEN) - (token.token_type in CLOSE)
        if depth == 0 and token.token_type is TokenType.SELECT:
            inside, starts = True, starts + 1
        elif (
            depth == 0
            and token.token_type in ENDS
            and (not items[-1] or items[-1][-1].token_type is not TokenType.DISTINCT)
        ):
            inside = False
        elif inside and depth == 0 and token.token_type is TokenType.COMMA:
            commas.append(token)
            items.append([])
        elif inside:
            items[-1].append(token)
    return (items, commas) if starts == 1 else ([], [])


def read(item: Sequence[Token], place: int) -> Ends | None:
    """DP_INTERVAL_LOW(column) [AS name]."""
    kinds = [token.token_type for token in item]
    found = NAMED.fullmatch(item[0].text) if item and calls(item[0]) else None
    if found is None or len(item) not in (4, 5, 6) or (kinds[1], kinds[3]) != (TokenType.L_PAREN, TokenType.R_PAREN):
        return None
    if len(item) == 6 and kinds[4] is not TokenType.ALIAS:
        return None
    end: Literal["low", "high"] = "low" if found[1].lower() == "low" else "high"
    name = item[-1].text if len(item) > 4 else f"{item[0].text.lower()}({item[2].text})"
    if kinds[2] not in WORDS or (len(item) > 4 and kinds[-1] not in WORDS) or not name or not encodable(name):
        return None
    return Ends(place, item[2].text, end, name, item[2].start)


def layout(columns: tuple[str, ...], ends: Sequence[Ends] = (), query: str = "") -> tuple[Shown, ...]:
    """The columns of an answer with the error bars that the query asked for at their places.

    >>> layout(("city", "c"), [Ends(1, "C", "low", "low", 0)])
    (Shown(name='city', column=0, end=''), Shown(name='low', column=1, end='low'), Shown(name='c', column=1, end=''))
    """
    shown = [Shown(name, index) for index, name in enumerate(columns)]
    places = {name.casefold(): index for index, name in reversed(list(enumerate(columns)))}
    for one in ends:
        if one.column.casefold() not in places:
            hint = f"Name one of: {', '.join(columns)}. Give an aggregate a name with AS first."
            raise misplaced(query, f"the answer has no column {one.column!r}", hint, one.position, "column_unknown")
        shown.insert(one.place, Shown(one.name, places[one.column.casefold()], one.end))
    return tuple(shown)


def with_ends(shown: Sequence[Shown], barred: Sequence[bool]) -> tuple[Shown, ...]:
    """Behind each column that has error bars NAME_low and NAME_high, unless these are there already."""
    there = {(one.column, one.end) for one in shown if one.end}
    result: list[Shown] = []
    for one in shown:
        result.append(one)
        if not one.end and barred[one.column]:
            low, high = Shown(f"{one.name}_low", one.column, "low"), Shown(f"{one.name}_high", one.column, "high")
            result += [end for end in (low, high) if (end.column, end.end) not in there]
    return tuple(result)
