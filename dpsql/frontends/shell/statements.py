"""Where statements and dot commands of a script begin and end."""

from __future__ import annotations

import re

# A statement's parts in which a semicolon does not end it; and an opening that has no end yet.
PARTS = re.compile(
    r"""--[^\n]*|/\*.*?\*/|\b[eE]'(?:[^'\\]|\\.|'')*'|'(?:[^']|'')*'|"(?:[^"]|"")*"|\$(?P<tag>\w*)\$.*?\$(?P=tag)\$"""
    r"""|(?P<end>;)|(?P<open>/\*|'|"|\$(?:[A-Za-z_]\w*)?\$)""",
    re.DOTALL,
)
COMMENTS = re.compile(r"--[^\n]*|/\*.*?\*/", re.DOTALL)
WORDS = re.compile(r'"((?:[^"\\]|\\.)*)"|\'([^\']*)\'|(\S+)')
BARE = re.compile(r"\s*(?P<word>exit|quit|help)\s*;?\s*", re.IGNORECASE)  # what is a command though it has no dot
ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}


def split(text: str) -> tuple[list[str], str]:
    """The statements that end in the text, and what is left after the last of them.

    >>> split("SELECT ';'; SELECT 1 -- ;")
    (["SELECT ';'"], ' SELECT 1 -- ;')
    """
    found, start, at = list[str](), 0, 0
    while part := PARTS.search(text, at):
        if part["open"]:
            break
        at = part.end()
        if part["end"]:
            found.append(text[start : part.start()].strip())
            start = at
    return [one for one in found if says(one)], text[start:]


def says(text: str) -> bool:
    """Whether there is more than blanks and comments."""
    return bool(COMMENTS.sub("", text).strip())


def complete(text: str) -> bool:
    r"""Whether Enter should run it: a dot command, nothing at all, or statements of which the last has ended.

    >>> complete("SELECT 1"), complete("SELECT 1;"), complete(".tables"), complete("SELECT ';"), complete("-- x\n;")
    (False, True, True, False, True)
    """
    if text.lstrip().startswith(".") or not text.strip() or BARE.fullmatch(text):
        return True
    rest = split(text)[1]
    return rest != text and not says(rest)


def words(text: str) -> list[str]:
    r"""A dot command's words: in double quotes `\\n`, `\\t` and the like are read.

    >>> words('.separator "\\t" a b')
    ['.separator', '\t', 'a', 'b']
    """
    found = []
    for double, single, bare in WORDS.findall(text):
        found.append(bare or single or re.sub(r"\\(.)", lambda m: ESCAPES.get(m[1], m[1]), double))
    return found
