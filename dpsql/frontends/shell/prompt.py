"""The shell at a terminal: typing with highlighting, completion and history, and the line under it."""

from __future__ import annotations

from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app
from prompt_toolkit.cursor_shapes import CursorShape
from prompt_toolkit.filters import Condition, completion_is_selected
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.history import FileHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.lexers import DynamicLexer, PygmentsLexer, SimpleLexer
from prompt_toolkit.output import create_output
from prompt_toolkit.styles import Style
from pygments.lexers.sql import PostgresLexer

from dpsql import __version__
from dpsql.frontends.shell.completion import Names
from dpsql.frontends.shell.runner import Shell
from dpsql.frontends.shell.settings import history
from dpsql.frontends.shell.statements import complete
from dpsql.frontends.shell.toolbar import Watch

STYLE = Style.from_dict(
    {
        "bottom-toolbar": "noreverse bg:#3a3a3a fg:#d0d0d0",
        "bottom-toolbar.refused": "fg:#ffd75f",
        "pygments.keyword": "bold ansiblue",
        "pygments.literal.string": "ansigreen",
        "pygments.literal.number": "ansicyan",
        "pygments.comment": "ansibrightblack",
    }
)


def keys() -> KeyBindings:
    """Enter takes the completion that is chosen, and runs nothing yet. Ctrl-C clears what is typed."""
    made = KeyBindings()

    @made.add("enter", filter=completion_is_selected)
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.complete_state = None

    @made.add("c-c")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.reset()

    return made


class Prompt:
    """Reads what is typed and lets the shell run it, until Ctrl-D."""

    def __init__(self, shell: Shell) -> None:
        self.shell = shell
        shell.interactive = True
        self.session: PromptSession[str] = PromptSession(
            message=lambda: shell.settings.main,
            prompt_continuation=lambda width, number, wrapped: shell.settings.more,
            multiline=Condition(lambda: not complete(get_app().current_buffer.text)),
            lexer=DynamicLexer(lambda: PygmentsLexer(PostgresLexer) if shell.settings.highlight else SimpleLexer()),
            completer=Names(shell),
            complete_while_typing=True,
            complete_in_thread=True,
            history=FileHistory(str(history())),
            enable_history_search=False,
            bottom_toolbar=self.toolbar,
            style=STYLE,
            key_bindings=keys(),
            output=create_output(always_prefer_tty=True),  # data may go elsewhere
            cursor=CursorShape.BEAM,
            reserve_space_for_menu=6,
        )
        self.watch = Watch(shell, self.session.app.invalidate)
        self.session.default_buffer.on_text_changed += lambda buffer: self.watch.typed(buffer.text)

    def toolbar(self) -> StyleAndTextTuples:
        style = "class:bottom-toolbar.refused" if self.watch.price.refused else ""
        return [(style, self.watch.line(get_app().output.get_size().columns))]

    def run(self) -> int:
        """Read and run until Ctrl-D or .exit; the exit code."""
        shell = self.shell
        tables = len(shell.session.tables)
        shell.say(
            f"dpsql {__version__}: {shell.name}, {tables} table{'s' * (tables != 1)}. Answers have noise, and cost a part of the budget."
        )
        shell.say("Type SQL that ends with a semicolon, `.help` for commands, Ctrl-D to leave.")
        shell.code = 0
        try:
            self.loop()
        finally:
            self.watch.close()
        return shell.code

    def loop(self) -> None:
        shell = self.shell
        while not shell.done:
            try:
                text = self.session.prompt()
            except KeyboardInterrupt:  # between two keys
                continue
            except EOFError:
                break
            self.watch.typed("")
            try:
                shell.script(text)
            except KeyboardInterrupt:
                shell.say("interrupted")
            if not shell.done:
                shell.code = 0
            self.watch.refresh()
