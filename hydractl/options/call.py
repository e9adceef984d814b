"""One call of a verb: the values of its options with their sources, and the problems between them.

A flag wins over a ``HYDRACTL_*`` variable, this over the verb's own mapping in ``hydra.yaml``, this over a top-level
key there, and this over the default. A Python program gives arguments in place of flags, and no variable is read.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, fields
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar, cast

from hydractl.errors import refuse_options
from hydractl.log import Log
from hydractl.options.option import Option, value_text
from hydractl.options.signature import OF_A_TERMINAL, Declared
from hydractl.options.sources import (
    CONFIG,
    FLAG,
    VERB_KEY,
    Given,
    deciding_text,
    paths_out_of_folder,
)
from hydractl.options.yaml_files import find_config, not_a_default

Kind = TypeVar("Kind")

EXPORTED = {".onnx": "onnx", ".pt2": "pt2"}
"""The format of an exported file, by the ending of its name."""
_OF_WEIGHTS = (".st", ".safetensors")


@dataclass
class Call:
    """One call of a verb.

    Attributes:
        declared: the verb.
        values: the value of each option, by name; one that was not given, or is wrong, has its default.
        sources: where each value came from: ``flag``, ``HYDRACTL_KEEP``, ``hydra.yaml:prune.keep`` or ``default``.
        ranks: the rank of each option's source, by name, without defaults.
        wrong: the problems of each option whose value cannot be read or breaks a rule; nothing more is reported of it.
        problems: the problems of the sources, and those between options.
        log: the log of the call.
        from_python: whether a Python program calls, and no command line.
        ready: is called when the options are right, before the work starts.
    """

    declared: Declared
    values: dict[str, Any] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    ranks: dict[str, int] = field(default_factory=dict)
    wrong: dict[str, list[str]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    log: Log = field(default_factory=Log)
    from_python: bool = False
    ready: Callable[[], object] = lambda: None

    @property
    def verb(self) -> str:
        """The name of the verb on the command line."""
        return self.declared.verb

    def label(self, name: str) -> str:
        """Return the name of an option in messages, e.g. ``--keep``."""
        return self.declared.by_name[name].label

    def where(self, name: str) -> str:
        """Return `` (source)`` of an option for messages; empty for a default."""
        source = self.sources.get(name, "default")
        return "" if source.startswith("default") else f" ({source})"

    def rank(self, name: str) -> int:
        """Return the rank of the source of an option: 0 for a default, up to 5 for a flag."""
        return self.ranks.get(name, 0)

    def given(self, name: str) -> bool:
        """Return whether the option has a value, even a wrong one."""
        return name in self.wrong or self.values[name] not in (None, [])

    def writes_to_stdout(self) -> bool:
        """Return whether the JSON goes to standard output, or to the program, instead of a file."""
        output = self.values.get("output")
        if output is None:
            return self.from_python or self.values["json"]
        return output == "-"

    def of_this_verb(self, name: str) -> bool:
        """Return whether the option was given to this verb, and not to all verbs at once in a file or a variable."""
        return self.rank(name) in (VERB_KEY, FLAG)

    def drop_shared(self, name: str) -> None:
        """Drop the value of an option that was given to all verbs at once: this verb takes only its own."""
        if not self.of_this_verb(name):
            self._drop(name)

    def _drop(self, name: str) -> None:
        """Give an option its default again."""
        self.values[name] = self.declared.by_name[name].fresh_default()
        self.wrong.pop(name, None)

    def put_back(self, name: str, because: str) -> None:
        """Give an option its default again, and say in ``sources`` which other option set it aside."""
        self._drop(name)
        source_before = self.sources[name]
        self.sources[name] = f"default, as {self.label(because)} sets aside {source_before}"
        del self.ranks[name]

    def lines(self) -> list[str]:
        """Return each option with its value and the source of the value, for ``-v``."""
        lines = []
        for option in self.declared.options:
            value = self.values[option.name]
            if value in (None, []):  # not given; its help may say what happens then: "... [default: auto]"
                text = option.notes.partition("default: ")[2] or "not given"
            else:
                text = value_text(value)
            lines.append(f"{option.label} {text} ({self.sources[option.name]})")
        return lines

    # --- rules between options ----------------------------------------------------------------------------------------

    def add(self, problem: str, source_of: str = "") -> None:
        """Add a problem, as a whole sentence without a full stop; at its end may stand where an option was given."""
        self.problems.append(problem + self.where(source_of))

    def of(self, name: str, problem: str) -> None:
        """Add a problem as a sentence that begins with an option, and where that was given."""
        self.add(f"{self.label(name)}{self.where(name)} {problem}")

    def needs(self, name: str, why: str = "") -> None:
        """Add a problem if this option was not given; ``why`` follows the name of the verb in the message."""
        if self.given(name):
            return
        who = f"{self.verb} {why}".strip()
        self.add(f"{who} needs {self.label(name)}")

    def goes_with(self, name: str, other: str) -> None:
        """Add a problem if the option ``name`` was given without the option ``other``."""
        if self.given(name) and not self.given(other):
            self.of(name, f"needs {self.label(other)}")

    def exactly_one(self, *names: str) -> None:
        """Add a problem if not exactly one of these options was given."""
        if any(map(self.given, names)):
            self.at_most_one(*names)
            return
        labels = ", ".join(map(self.label, names))
        self.add(f"{self.verb} needs one of {labels}")

    def at_most_one(self, *names: str) -> None:
        """Add a problem if more than one of these options was given."""
        given = [self.label(name) + self.where(name) for name in names if self.given(name)]
        if len(given) > 1:
            self.add(f"give only one of {', '.join(given)}")

    def unused(self, *names: str, because: str) -> None:
        """Give options their defaults again that have no effect because of another one, or add a problem for each.

        By where the option was given (its rank: 0 default, then recipe, file, file for this verb, variable, flag):

        - nowhere: nothing happens;
        - by a recipe, by a file for all verbs, or in a source that ranks below that of ``because``: back to default;
        - else: a problem, since somebody meant it to have an effect in this verb.
        """
        if because in self.wrong:
            return  # the misspelt value is reported by itself, and that is enough
        for name in names:
            rank = self.rank(name)
            if not rank:  # a default
                continue
            is_of_recipe_or_all_verbs = rank < VERB_KEY
            if is_of_recipe_or_all_verbs or rank < self.rank(because):
                self.put_back(name, because)
            elif name not in self.wrong:
                value = self.values[because]
                cause = self.label(because)
                if value is not True:  # a switch is named by its flag alone
                    cause += f" {value_text(value)}"
                self.add(f"{self.label(name)} has no effect with {cause}", name)

    def one_from_stdin(self, *names: str) -> None:
        """Add a problem if more than one of these options is ``-``: standard input can be read only once."""
        readers = [self.label(name) for name in names if str(self.values[name]) == "-"]
        if len(readers) > 1:
            self.add(f"standard input can be read once, not for {' and '.join(readers)}")

    # --- gathering values ---------------------------------------------------------------------------------------------

    def take(self, option: Option, given: Given) -> None:
        """Set the value of an option to what was given for it, or note in ``wrong`` what is wrong with that.

        Its source, and the rank of that source, are kept in both cases.

        Args:
            option: the option.
            given: the text or the argument of a program, where it was given, and the rank of that source.
        """
        self.sources[option.name] = given.source
        self.ranks[option.name] = given.rank
        try:
            # A text that cannot be read is a ValueError whose arguments are complaints, as those of a broken rule.
            value = option.read(given.raw)
            complaints = option.complaints(value)
        except ValueError as error:
            complaints = list(error.args)
        if complaints:
            self.wrong[option.name] = [f"{option.label} {complaint} ({given.source})" for complaint in complaints]
        else:
            self.values[option.name] = value

    def run(self, further: Mapping[str, Any] | None = None) -> Any:
        """Return the result of the verb's function, called with the values of the options.

        Args:
            further: arguments of the function that are no options, such as ``on_log``, by name.

        Raises:
            UsageError: there is a problem with the options; it lists all of them.
        """
        # The verb may change values first, as a recipe does.
        if self.declared.before is not None:
            self.declared.before(self)

        # Alternatives such as keep and remove: the one from the strongest source (a flag above a file) sets aside those
        # from weaker sources. Two of one source stay, and are a problem that the function reports.
        for group in self.declared.alternatives:
            winner = max(group, key=self.rank)
            for name in group:
                if 0 < self.rank(name) < self.rank(winner):
                    self.put_back(name, winner)

        # The models come first, then the other options by name. The function of a verb that takes one model gets the
        # first of the list; that it is empty or longer is a problem, which ``checking`` raises before the work.
        models = self.values["model"]
        others = [option.name for option in self.declared.options[1:] if option.name not in OF_A_TERMINAL]
        arguments = {name: self.values[name] for name in others}
        if self.declared.model.kind in ("model", "file"):
            models = next(iter(models), "")

        # While the function runs, ``current()`` returns this call.
        token = _CALL.set(self)
        try:
            return self.declared.function(models, **arguments, **(further or {}))
        finally:
            _CALL.reset(token)


_CALL: ContextVar[Call] = ContextVar("_CALL")


def current() -> Call:
    """Return the call that runs; LookupError outside of a verb. Threads do not inherit it."""
    return _CALL.get()


def gather(
    declared: Declared,
    given: Mapping[str, object],
    environ: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> Call:
    """Return the call of a verb with a value for each option: from the strongest source that has it, or the default.

    Problems of values are kept in the call, so that all of them can be reported together.

    Args:
        declared: the verb.
        given: the values of the command line, or the arguments of a program, by the name of the option; None means "not
            given".
        environ: the environment variables; None for none, as a program has arguments alone.
        folder: the working directory, where ``hydra.yaml`` is looked for; None means that it is not looked for.

    Raises:
        UsageError: the file of defaults cannot be read.
    """
    environ = environ or {}
    # The file of defaults: named by the flag or argument, else by the variable, else hydra.yaml.
    named = given.get("config") or environ.get(CONFIG)
    config = find_config(folder, None if named is None else str(named))
    call = Call(declared, problems=list(config.problems))
    for option in declared.options:
        # The default, which a value that was given replaces below.
        call.values[option.name] = option.fresh_default()
        call.sources[option.name] = "default"

        # An option such as --force is given with the command alone.
        if option.flag_only and environ.get(option.variable):
            call.problems.append(not_a_default(option.variable, option.key))

        # The text of the strongest source; None if the option was not given. It replaces the default, or adds a problem
        # to the call. A hydra.yaml in the working directory may be somebody else's, so paths in it that are written or
        # copied may not lead out of that directory.
        text = deciding_text(option, declared.verb, given, environ, config)
        if text is not None:
            call.take(option, text)
            call.problems += paths_out_of_folder(option, text, call.values[option.name], config)
    return call


# --- values -----------------------------------------------------------------------------------------------------------


def filled(kind: type[Kind], values: Mapping[str, Any], **others: object) -> Kind:
    """Return a dataclass of settings: each field has the value of the option of its name, or that in ``others``.

    Args:
        kind: the dataclass.
        values: the values of a verb's options, by name.
        others: fields that no option has the name of, or that are to differ from it.
    """
    names = [field.name for field in fields(cast(Any, kind)) if field.name in values]
    settings = {name: values[name] for name in names}
    settings.update(others)  # which replaces values of options
    return kind(**settings)


# --- rules between options --------------------------------------------------------------------------------------------


@contextmanager
def checking() -> Iterator[Call]:
    """Yield the call of the verb that runs, for a ``with`` block that checks options against each other.

    The block adds problems to the call; at its end all of them are raised as one UsageError. Without any, the work may
    start, and ``call.ready`` prepares it.
    """
    # Problems that every verb may have.
    call = current()
    _check_models(call)
    _check_output(call)
    _check_outputs_differ(call)
    if call.values["quiet"] and call.values["verbose"]:
        call.add(f"--quiet{call.where('quiet')} and --verbose{call.where('verbose')} exclude each other")

    # Those of this verb: the block runs here.
    yield call

    # All problems: of single options, of files, and between options.
    problems = [*chain.from_iterable(call.wrong.values()), *call.problems]
    refuse_options(problems, f"the options of {call.verb}", hint=f"hydractl {call.verb} --help")
    call.ready()


def _check_models(call: Call) -> None:
    """Add a problem to the call if no MODEL is named, or if several are and the verb takes one.

    The kind of the option says what it takes: ``model`` and ``file`` one model, ``documents`` results of verbs, others
    several models.
    """
    option = call.declared.model
    if option.name in call.wrong:  # that its value cannot be read is a problem already
        return
    models = call.values[option.name]
    if not models:
        wanted = "document that eval, bench or study wrote" if option.kind == "documents" else option.label
        call.add(f"{call.verb} needs a {wanted}")
    elif len(models) > 1 and option.kind in ("model", "file"):
        call.add(f"{call.verb} takes one MODEL, not {len(models)}", option.name)


def _check_output(call: Call) -> None:
    """Add a problem to the call if the name in ``--output`` does not suit what the verb writes.

    - a verb that writes JSON: any name, also ``-``, which is standard output;
    - one that writes anything else: not ``-``;
    - a folder: no name that ends like a file of hydractl;
    - weights: ``.st``, ``.safetensors`` or no ending; but ``.json`` if the verb can write JSON instead;
    - exports: any other name is checked by the verb.
    """
    verb, writes = call.verb, call.declared.writes
    output = call.values.get("output")
    if output is None or writes == "json":
        return
    stem, ending = os.path.splitext(output)
    can_be_json = call.declared.or_json and ending == ".json"
    if output == "-":
        written = "a folder" if writes == "folder" else "weights"
        call.add(f"--output - is for JSON, {verb} writes {written}", "output")
    elif writes == "folder" and ending in (".json", ".st", ".html"):
        call.add(f"--output {output}: {verb} writes a folder, so name it {stem}", "output")
    elif writes == "weights" and not can_be_json:
        advice = name_for_weights(output)  # None: the name is fine
        if advice is not None:
            call.add(f"--output {output}: {verb} writes safetensors, so {advice}", "output")


def _check_outputs_differ(call: Call) -> None:
    """Add a problem to the call for each option that names the same output file as one before it."""
    label_by_path: dict[str, str] = {}  # of the option that names the path first
    for option in call.declared.options:
        name = call.values[option.name]
        if not option.writes or name is None or "\0" in name:
            continue
        first = label_by_path.setdefault(os.path.realpath(name), option.label)
        if first != option.label:
            call.add(f"{first} and {option.label} name one file: {name}")


def name_for_weights(name: str) -> str | None:
    """Return what to name a checkpoint whose name ends like a file of another kind, e.g. ``a.onnx``; else None."""
    stem, ending = os.path.splitext(name)
    is_ending = ending[1:].isalnum()  # that of vit.taylor-8 is none
    if not is_ending or ending.lower() in _OF_WEIGHTS:
        return None
    return f"name it {stem}.st; hydractl export makes .onnx and .pt2 of it"
