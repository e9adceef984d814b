"""The ``hydractl`` command: parse the command line, run the verb (subcommand), exit with its code."""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import shutil
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import typer

from hydractl.cli.answer import Answer
from hydractl.cli.console import settle_log
from hydractl.cli.failures import no_such_verb, parser_problem, say_failure
from hydractl.cli.help import app_help, info_help, verb_help
from hydractl.cli.request import INFO, Request
from hydractl.errors import INTERRUPTED, UsageError, failure_of, is_panic
from hydractl.options.registry import VERBS

_COMPLETING = "_HYDRACTL_COMPLETE"
"""Set by the shell while it asks for completions (Typer's protocol)."""
_COMPLETION = ("--install-completion", "--show-completion")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0, or that of the error, which is written to standard error.

    No error leaves this function. A traceback is shown only if ``HYDRACTL_DEBUG`` asks for it.

    Args:
        argv: the words after ``hydractl``; None for those of this process, which is then taken to run nothing else.
    """
    is_whole_process = argv is None
    if argv is None:
        argv = sys.argv[1:]

    # Faster: collections of garbage then pass over the modules that are imported, see hydractl.files.collecting.
    if is_whole_process:
        gc.freeze()
    answer = Answer(sys.stdout)
    try:
        with _interruptible():
            _run(list(argv), answer)
    except BaseException as error:
        # Others, such as SystemExit, are not failures. A panic of a library in Rust is one, though no Exception.
        is_failure = isinstance(error, (Exception, KeyboardInterrupt)) or is_panic(error)
        if not is_failure:
            raise
        failure = failure_of(error)
        say_failure(failure, error)
        return failure.exit_code
    finally:
        settle_log()
        if is_whole_process:
            # Collect what the command has left. All else are modules, which the interpreter need not look at when it
            # exits.
            gc.collect()
            gc.freeze()
    return 0


def _run(arguments: list[str], answer: Answer) -> None:
    """Do what a command line asks for: run a verb or ``--info``. Help is printed while it is parsed."""
    request = _parse(arguments, answer)
    if request is None:
        return
    # Imported only here, because it imports the settings, which --help and --version do not need.
    from hydractl.cli.running import describe_files, run_verb

    if request.verb == INFO:
        describe_files(request, answer)
    else:
        run_verb(request, answer)


def _parse(arguments: list[str], answer: Answer) -> Request | None:
    """Return the verb and the texts of its options; None if help, the version or completion was asked for, and is done.

    Raises:
        UsageError: this is not a command of hydractl.
        KeyboardInterrupt: Ctrl-C was pressed during parsing.
    """
    # The first word decides what is to be done. Without any the help is shown.
    arguments = arguments or ["--help"]
    first = arguments[0]

    # The shell asks for completions, or completion is to be installed.
    is_for_completion = _COMPLETING in os.environ or first in _COMPLETION
    if is_for_completion:
        _complete(arguments)
        return None

    # The first word is a verb, --info, or an option of the program such as --version.
    is_option = first.startswith("-")
    if not is_option and first not in VERBS:
        raise no_such_verb(first)
    if first == INFO:
        # Typer would read --info as an option of the program, but it is a command with options of its own. "--" ends
        # the program's options, so the word after it is read as the command.
        arguments = ["--", *arguments]
    try:
        command = _command(first)
        result = command.main(args=arguments, prog_name="hydractl", standalone_mode=False, obj=answer)
    except typer.TyperException as error:
        raise parser_problem(error, first) from None

    # With standalone_mode=False Typer returns what the command's function returned: a verb or --info returns a request.
    # If no function was called, e.g. because help was printed, Typer returns an exit code instead.
    if isinstance(result, Request):
        return result
    if result == 0:  # help or version has been printed
        return None
    if result == INTERRUPTED:  # Typer turns Ctrl-C into this number
        raise KeyboardInterrupt
    raise UsageError("no verb", hint="hydractl --help")


@functools.cache
def _command(first: str) -> Any:
    """Build the command that parses the options of the program, and those of the verb if the first word names one."""
    commands = []
    if first in (*VERBS, INFO):
        commands = [first]
    return typer.main.get_command(build_app(commands))


def _complete(arguments: list[str]) -> None:
    """Run Typer's completion: answer the shell that asks, or install it."""
    command = typer.main.get_command(build_app(list(VERBS), completion=True))
    try:
        command.main(args=arguments, prog_name="hydractl", standalone_mode=False)
    except SystemExit as ended:
        if ended.code:
            raise UsageError("no shell that has completion", hint="run it in bash, zsh, fish or PowerShell") from None
    except typer.TyperException as error:
        raise parser_problem(error, "") from None


def build_app(commands: Sequence[str], *, completion: bool = False) -> typer.Typer:
    """Return the Typer app that parses the command line; it runs no verb.

    Its commands return a :class:`Request`. ``--help``, ``-h`` and ``--version`` print at once, by the :class:`Answer`
    that whoever calls the app puts into its context (``obj``).

    Args:
        commands: the verbs to add, and perhaps ``--info``; each takes time to build.
        completion: whether to add the options that install completion in a shell.
    """
    app = typer.Typer(
        add_completion=completion, add_help_option=False, pretty_exceptions_enable=False, rich_markup_mode=None
    )

    # Typer calls these as soon as it has parsed the option, before any other; without the flag ``value`` is False.
    def show_help(context: typer.Context, parameter: typer.CallbackParam, value: bool) -> None:
        """Print the help of the command, the short one for ``-h``, and end the parsing."""
        if value:
            context.obj.text(_help_of(context.info_name, short=parameter.name == "h"))
            raise typer.Exit

    def show_version(context: typer.Context, value: bool) -> None:
        """Print the version, and end the parsing."""
        if value:
            from hydractl.files.version import __version__

            context.obj.text(f"hydractl {__version__}")
            raise typer.Exit

    help_option = typer.Option(False, "--help", is_eager=True, callback=show_help)
    short_option = typer.Option(False, "-h", is_eager=True, callback=show_help)
    version_option = typer.Option(False, "--version", is_eager=True, callback=show_version)

    @app.callback(invoke_without_command=True)
    def hydractl(version: bool = version_option, help: bool = help_option, h: bool = short_option) -> None:
        """Nothing to do without a verb: the options act by themselves."""

    # The verbs; importing their options takes time, which the help of the program does not need.
    if commands:
        from hydractl.cli.running import request_function

        for name in commands:
            app.command(name, add_help_option=False)(request_function(name, help=help_option, h=short_option))
    return app


def _help_of(command: str | None, *, short: bool) -> str:
    """Return the help of a verb or of ``--info``, or else of the program, as wide as the terminal."""
    columns = shutil.get_terminal_size((80, 24)).columns
    if command in VERBS:
        return verb_help(command, columns, short=short)
    if command == INFO:
        return info_help(columns)
    return app_help(columns)


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Within a ``with`` block, raise KeyboardInterrupt on the first SIGINT or SIGTERM; a second one ends the process.

    Afterwards the earlier handlers are put back.
    """
    # Python lets only the main thread set handlers of signals.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    signals = (signal.SIGINT, signal.SIGTERM)

    def interrupt(*_: Any) -> None:
        """Raise KeyboardInterrupt, and restore the default handlers, so that the next signal ends the process."""
        for number in signals:
            signal.signal(number, signal.SIG_DFL)
        raise KeyboardInterrupt

    handlers_before = {number: signal.signal(number, interrupt) for number in signals}
    try:
        yield
    finally:
        for number, handler in handlers_before.items():
            signal.signal(number, handler)
