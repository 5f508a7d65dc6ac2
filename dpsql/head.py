"""The anchored head of a ledger: how far its chain has come, in a file beside it.

The ledger is ahead of the head after a crash; it is never behind, unless an older copy was put in its place.
"""

from __future__ import annotations

import fcntl
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

WAIT = 10.0  # seconds for a lock
LINE = re.compile(rb"dpsql head (\d{20}) ([0-9a-f]{64})\n")  # one size, within one sector: replaced whole or not at all

Head = tuple[int, str]  # an entry's number and hash


class Busy(OSError):
    """Another process has held the file for too long."""


def beside(ledger: Path) -> Path:
    return ledger.with_name(f"{ledger.name}.head")


def read(file: Path) -> Head | None:
    """None where there is no file, or one that was never written; ValueError where it holds something else."""
    try:
        with opened(file, os.O_RDONLY, fcntl.LOCK_SH) as descriptor:
            line = os.pread(descriptor, 256, 0)
            return parse(line) if line else None
    except FileNotFoundError:
        return None


def advance(file: Path, head: Head, durable: bool) -> None:
    """Move the head forward, never back; on disk when this returns, if `durable`."""
    created = not file.exists()
    with opened(file, os.O_RDWR | os.O_CREAT, fcntl.LOCK_EX) as descriptor:
        found = os.pread(descriptor, 256, 0)
        newest = max(head, parse(found)) if found else head
        # Written also where it stays: after a failed fsync only a page that is dirty again will reach the disk.
        line = b"dpsql head %020d %s\n" % (newest[0], newest[1].encode())
        if os.pwrite(descriptor, line, 0) != len(line):
            raise OSError("the head could not be written")
        if durable:
            os.fsync(descriptor)
    if created:
        sync(file.parent)


def replace(file: Path, head: Head) -> None:
    """Begin anew, also further back: the owner's act after a loss. There is never half a head."""
    draft = file.with_name(f"{file.name}.new")
    draft.unlink(missing_ok=True)
    advance(draft, head, durable=True)
    os.replace(draft, file)
    sync(file.parent)


def parse(line: bytes) -> Head:
    match = LINE.fullmatch(line)
    if match is None:
        raise ValueError("not a head")
    return int(match[1]), match[2].decode()


@contextmanager
def opened(file: Path, flags: int, lock: int) -> Iterator[int]:
    descriptor, end = os.open(file, flags | os.O_CLOEXEC, 0o644), time.monotonic() + WAIT
    try:
        while True:
            try:
                fcntl.flock(descriptor, lock | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > end:
                    raise Busy("the head is locked") from None
                time.sleep(0.0005)
        yield descriptor
    finally:
        os.close(descriptor)


def sync(path: Path) -> None:
    """Have a file, or the names in a directory, on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
