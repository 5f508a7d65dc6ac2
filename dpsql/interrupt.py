"""Work that Ctrl-C, or the end of its time, can end. Python delivers it to the main thread between two instructions, and a native call is one."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import TypeVar

T = TypeVar("T")

Orders = SimpleQueue[Callable[[], None]]

_idle: list[Orders] = []  # of threads that wait for work: to start one takes longer than to look at few rows
os.register_at_fork(after_in_child=_idle.clear)  # where no thread has come along


def serve(orders: Orders) -> None:
    while True:
        orders.get()()


def interruptible(
    work: Callable[[], T], stop: Callable[[], None], tick: Callable[[], None] = lambda: None, end: float = math.inf
) -> T | None:
    """Do the work in a thread of its own while this one waits, which Ctrl-C can end: then `stop` is called until it does.
    It is called too when the monotonic clock reaches `end`. `tick` is called again and again meanwhile.

    None if the work failed: why it did may depend on data, so the reason is dropped where it arose.
    """
    done, results = threading.Event(), list[T]()

    def run() -> None:
        try:
            results.append(work())
        except BaseException:  # noqa: BLE001
            pass
        finally:
            done.set()

    try:
        orders = _idle.pop()
    except IndexError:
        orders = SimpleQueue()
        threading.Thread(target=serve, args=(orders,), name="dpsql", daemon=True).start()
    try:
        orders.put(run)
        # In short steps: a signal may have been given to another thread, which does not wake this one.
        while not done.wait(min(0.1, max(0.02, end - time.monotonic()))):
            tick()
            if time.monotonic() >= end:
                stop()
    except (KeyboardInterrupt, SystemExit):  # the latter from the handler of another signal
        # Again and again: an engine forgets an interrupt that comes before its query has begun.
        # And through further interrupts: whoever comes after this must find the engine idle.
        while True:
            try:
                while not done.is_set():
                    orders.put(done.set)  # which is next if the work was never put there
                    stop()
                    done.wait(0.02)
                break
            except (KeyboardInterrupt, SystemExit):
                pass
        raise
    finally:
        if done.is_set():  # one who comes between two tries ends the loop too, and the thread is still at work
            _idle.append(orders)
    return results.pop() if results else None
