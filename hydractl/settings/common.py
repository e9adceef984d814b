"""The options that every verb has, and the checks of the options of one verb together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, ClassVar, TypeAlias, TypeVar

from hydractl.expressions.conditions import Requirement, parse_requirement
from hydractl.options.call import name_for_weights, raise_problems
from hydractl.options.option import Option, option, options_of
from hydractl.options.sources import FLAG, VERB_KEY

file_option = partial(option, "Input and output")
run_option = partial(option, "Running")
general_option = partial(option, "General")

SPEC_FORMS = (
    "a folder of class folders, an .npz, an image list, texts (.csv, .tsv, .jsonl, .parquet), or NAME/SPLIT after a "
    "scheme"
)
"""The forms that the SPEC of a data set can have, for help texts."""

DTYPES = ("float32", "bfloat16", "float16", "float64")

RecordT = TypeVar("RecordT")

Rule: TypeAlias = Callable[[Any], list[str]]
"""A function from the settings of a verb to the problems between its options; see ``hydractl.settings.rules``."""


@dataclass(kw_only=True)
class Common:
    """Options of every verb. Call ``check()`` before use; merging flags and files calls it.

    Attributes:
        verb: the name on the command line.
        alternatives: groups of options that replace each other: a flag sets aside an alternative that a file gives.
        many_models: whether the verb takes several MODELs.
        models_called: how the help names the MODELs.
        models_help: how the help describes them.
        lacks: options of other verbs that would have no effect in this one.
        needs_output_file: whether the verb writes weights, so that ``-o -`` (JSON on standard output) makes no sense.
        rules: checks of options that need or exclude each other, in the order in which problems are reported.
        sources: where each value came from, by option name: ``flag``, ``HYDRACTL_KEEP``, ``hydra.yaml:prune.keep`` or
            ``default``. Empty if the settings were built in Python.
        ranks: the rank of each option's source, by option name, without defaults. None if built in Python.
        unread: options whose given value could not be read; nothing more is reported about them.
    """

    verb: ClassVar[str]
    alternatives: ClassVar[tuple[tuple[str, ...], ...]] = ()
    many_models: ClassVar[bool] = False
    models_called: ClassVar[str] = "MODEL..."
    models_help: ClassVar[str] = "One or more models; NAME=MODEL names it, A+B+C are members of one ensemble"
    needs_output_file: ClassVar[bool] = False
    lacks: ClassVar[tuple[str, ...]] = ()
    rules: ClassVar[tuple[Rule, ...]] = ()

    model: list[str] = file_option("The model to work on, or several where a verb takes several", [])
    output: str | None = file_option(
        "Output file; - is standard output for JSON [default: named after the input and what was done]",
        metavar="PATH",
        short="-o",
        writes=True,
        often=True,
    )
    data: str | None = file_option(
        f"The data set: {SPEC_FORMS}",
        metavar="SPEC",
        often=True,
    )
    limit: int | None = file_option(
        "Use only N samples, before anything else: the first ones, but of class folders and other sets sorted by class "
        "as many of each class, drawn by --seed [samples; default: all]",
        at_least=1,
    )
    max_length: int | None = file_option(
        "Maximum number of tokens of a text; longer texts are truncated [tokens; default: what the checkpoint says]",
        at_least=1,
    )
    labels: str | None = file_option(
        "Class names: a file with one per line, a JSON list, a folder of class folders, or a set with names built in "
        "(imagenet, cifar10, cifar100, food101, sun397, pets, dtd, eurosat, caltech101); they name the classes of a "
        "zero-shot model [default: those of the checkpoint, else of the data]",
        metavar="FILE|NAME",
        copied=True,
    )
    prompt: list[str] = file_option(
        "Template that turns a class name into a prompt, for a zero-shot model; repeat it to average several, or give "
        "a file of templates, or openai-imagenet for CLIP's own 80 [default: A photo of a {label}.]",
        [],
        metavar="TEMPLATE|FILE",
        copied=True,
    )
    tower: str | None = file_option(
        "The tower whose heads are meant, in a model with two towers [default: both]",
        choices=("visual", "text", "both"),
    )
    arch: str | None = file_option(
        "The architecture of a bare safetensors or .pth file, such as timm:vit_base_patch16_224 "
        "[default: what the file says]",
        metavar="NAME",
    )
    force: bool = file_option("Replace an output that exists", False, often=True, flag_only=True)
    json: bool = file_option("Print the result as one JSON document", False)
    device: str = run_option(
        "The device to compute on",
        "auto",
        metavar="auto|cpu|cuda[:i]|mps",
        pattern=r"auto|cpu|mps|cuda(:[0-9]{1,3})?",
        example="cuda:0",
        often=True,
    )
    workers: int | None = run_option(
        "Processes that read data; 0 is the main one [processes; default: 0; up to 8 where images are decoded for a "
        "CUDA device]",
        at_least=0,
    )
    seed: int = run_option("The seed of everything random", 0, at_least=0, often=True)
    dry_run: bool = run_option("Print the plan and stop", False, often=True)
    config: str | None = general_option(
        "The file of defaults, or a YAML mapping in braces [default: hydra.yaml, if there is one]",
        metavar="FILE|{...}",
    )
    quiet: bool = general_option("Print only warnings and errors", False, short="-q")
    verbose: bool = general_option("Print more: every option with its source, and details", False, short="-v")

    sources: dict[str, str] = field(default_factory=dict, repr=False, compare=False)
    ranks: dict[str, int] | None = field(default=None, repr=False, compare=False)
    unread: frozenset[str] = field(default=frozenset(), repr=False, compare=False)

    @property
    def to_stdout(self) -> bool:
        """Whether the verb's document goes to standard output instead of a file."""
        if self.output is None:
            return self.json
        return self.output == "-"

    @property
    def seed_mark(self) -> str:
        """The part of a default output name that tells the seed, e.g. ``.seed1``; empty for the default seed."""
        if self.seed:
            return f".seed{self.seed}"
        return ""

    def fill(self, record: type[RecordT], **own: Any) -> RecordT:
        """Return a record whose fields are filled from the options of the same names, or from ``own``.

        Args:
            record: a dataclass.
            own: values of fields that are not taken from options.
        """
        values = dict(own)
        for record_field in fields(record):  # type: ignore[arg-type]
            if record_field.name not in own:
                values[record_field.name] = getattr(self, record_field.name)
        return record(**values)

    def check(self) -> None:
        """Fill in defaults that depend on other options, and check all that needs no file; may be called again.

        Raises:
            UsageError: there is a problem; it lists all of them.
        """
        problems = self.problems()
        raise_problems(self.verb, problems)

    def problems(self) -> list[str]:
        """Return every problem of these settings, after completing them.

        It changes the settings: options that do not apply go back to their defaults, and :meth:`settle` fills in
        defaults that depend on other options.
        """
        problems = self._set_aside()
        self.settle()
        for declared_option in options_of(type(self)):
            if declared_option.name in self.unread:
                continue  # it has a problem already
            # The rules of a single option: its choices, its range, and so on.
            value = getattr(self, declared_option.name)
            where = self.where(declared_option.name)
            for complaint in declared_option.complaints(value):
                problems.append(f"{declared_option.label} {complaint}{where}")

        # Problems between options, and those of the MODEL and the output.
        problems += self._model_problems()
        problems += self._output_problems()
        problems += self.conflicts()
        return problems

    def settle(self) -> None:
        """Fill in the defaults that depend on other options."""

    def conflicts(self) -> list[str]:
        """Return the problems between the options of this verb, found by its ``rules``."""
        problems = []
        for rule in self.rules:
            problems += rule(self)
        return problems

    def inapplicable(self) -> dict[str, str]:
        """Return each option that has no effect because of another option, with the name of that other one."""
        return {}

    @classmethod
    def further_help(cls) -> dict[str, list[tuple[str, str]]]:
        """Return what the help adds below the options of a heading, as rows of two columns, by heading."""
        return {}

    def given(self, name: str) -> bool:
        """Return whether the option has a value, even one that could not be read."""
        if name in self.unread:
            return True
        return getattr(self, name) not in (None, [])

    def of_this_verb(self, name: str) -> bool:
        """Return whether the option was given to this verb, and not to all verbs at once in a file or a variable."""
        rank = self._rank(name)
        return rank in (VERB_KEY, FLAG)

    def where(self, name: str) -> str:
        """Return `` (source)`` of an option for messages; empty for a default, or in settings built in Python."""
        source = self.sources.get(name, "default")
        if source.startswith("default"):
            return ""
        return f" ({source})"

    def called(self, name: str) -> str:
        """Return the name of an option in messages, e.g. ``--keep``."""
        option = _declaration(type(self), name)
        return option.label

    def exactly_one(self, *names: str) -> list[str]:
        """Return a problem if not exactly one of these options was given."""
        if any(map(self.given, names)):
            return self.at_most_one(*names)
        called = ", ".join(map(self.called, names))
        return [f"{self.verb} needs one of {called}"]

    def at_most_one(self, *names: str) -> list[str]:
        """Return a problem if more than one of these options was given."""
        given_names = list(filter(self.given, names))
        if len(given_names) < 2:
            return []
        called = [self.called(name) + self.where(name) for name in given_names]
        listed = ", ".join(called)
        return [f"give only one of {listed}"]

    def needs(self, name: str, why: str = "") -> list[str]:
        """Return a problem if this option was not given.

        Args:
            name: the option.
            why: words that follow the name of the verb in the message.
        """
        if self.given(name):
            return []
        who = f"{self.verb} {why}".strip()
        return [f"{who} needs {self.called(name)}"]

    def goes_with(self, name: str, other: str) -> list[str]:
        """Return a problem if the option ``name`` was given without the option ``other``."""
        if not self.given(name):
            return []
        if self.given(other):
            return []
        needing = f"{self.called(name)}{self.where(name)}"
        return [f"{needing} needs {self.called(other)}"]

    def twice_named(self, name: str, form: Callable[[str], str] = str) -> list[str]:
        """Return a problem for each data set of an option whose name an earlier one has.

        Args:
            name: the option, whose values are ``NAME=SPEC`` or ``NAME:GROUP=SPEC``.
            form: brings a value into one of these forms, if it may have another.
        """
        label = self.called(name)
        where = self.where(name)
        problems = []
        names_before: set[str] = set()
        for text in getattr(self, name):
            # NAME or NAME:GROUP stands before "=".
            name_and_group = form(text).partition("=")[0]
            set_name = name_and_group.partition(":")[0]
            if set_name in names_before:
                problems.append(f"{label} has the name {set_name!r} twice{where}")
            names_before.add(set_name)
        return problems

    def one_from_stdin(self, *names: str) -> list[str]:
        """Return a problem if more than one of these options is ``-``: standard input can be read only once."""
        readers = []
        for name in names:
            if getattr(self, name) == "-":
                readers.append(self.called(name))
        if len(readers) < 2:
            return []
        listed = " and ".join(readers)
        return [f"standard input can be read once, not for {listed}"]

    def _set_aside(self) -> list[str]:
        """Put options back to their defaults if an option of higher rank replaces them or leaves them without effect.

        The rank of an option is that of its source, e.g. a flag ranks above a file.

        Returns:
            A problem for each option without effect whose rank is at least that of the option that causes it. An option
            that a file sets for all verbs is never a problem: it is meant for the verbs and modes that have a use for
            it.
        """
        # Of options that replace each other, the one of highest rank wins; others that were given go back to default.
        for group in self.alternatives:
            winner = max(group, key=self._rank)
            for name in group:
                # Rank 0 is a default, which needs no change.
                if 0 < self._rank(name) < self._rank(winner):
                    self._put_back(name, winner)

        # `cause` is the option that leaves `name` without effect. This is a problem if `name` ranks as high as its
        # cause and is not merely a key for all verbs in a file; otherwise it goes back to its default.
        problems = []
        for name, cause in self.inapplicable().items():
            cause_is_misspelt = bool(_declaration(type(self), cause).complaints(getattr(self, cause)))
            if name in self.unread or cause_is_misspelt:
                continue  # the misspelt value is reported by itself, and that is enough

            rank = self._rank(name)
            ranks_above_key_for_all_verbs = rank >= VERB_KEY
            ranks_as_high_as_cause = rank >= self._rank(cause)
            if ranks_above_key_for_all_verbs and ranks_as_high_as_cause:
                cause_with_value = self._called_with_value(cause)
                problems.append(f"{self.called(name)} has no effect with {cause_with_value}{self.where(name)}")
            elif rank > 0:
                self._put_back(name, cause)
        return problems

    def _called_with_value(self, name: str) -> str:
        """Return an option with its value as one would write it, e.g. ``--optimizer sgd``; a switch stands alone."""
        value = getattr(self, name)
        if value is True:
            return self.called(name)
        text = value
        if isinstance(value, list):
            text = ",".join(value)
        return f"{self.called(name)} {text}"

    def _rank(self, name: str) -> int:
        """Return the rank of the source of an option: 0 for a default, up to 5 for a flag.

        In settings built in Python every value that is not the default ranks as a flag.
        """
        if self.ranks is not None:
            return self.ranks.get(name, 0)
        # Settings built in Python have no ranks.
        if getattr(self, name) == _declaration(type(self), name).default:
            return 0
        return FLAG

    def _put_back(self, name: str, because: str) -> None:
        """Give an option its default value again, and record in ``sources`` which other option set it aside.

        Args:
            name: the option.
            because: the option that sets it aside.
        """
        option = _declaration(type(self), name)
        setattr(self, name, option.fresh_default())
        if self.ranks is None:
            return
        label_of_cause = self.called(because)
        source_before = self.sources[name]
        self.sources[name] = f"default, as {label_of_cause} sets aside {source_before}"
        del self.ranks[name]

    def _model_problems(self) -> list[str]:
        """Return a problem if no MODEL is named, or several are and the verb takes one."""
        if "model" in self.unread:
            return []
        if not self.model:
            return [f"{self.verb} needs a MODEL"]
        if len(self.model) > 1 and not self.many_models:
            return [f"{self.verb} takes one MODEL, not {len(self.model)}{self.where('model')}"]
        return []

    def names_export(self) -> bool:
        """Return whether ``--output`` names an exported file, whose name another check looks at."""
        return False

    def _output_problems(self) -> list[str]:
        """Return the problems of ``--output`` for weights, and of ``--quiet`` together with ``--verbose``."""
        problems = []
        where = self.where("output")
        writes_weights = self.needs_output_file
        if writes_weights and self.output == "-":
            problems.append(f"--output - is for JSON, {self.verb} writes weights{where}")

        # A name that ends like a file of another kind, e.g. a.onnx.
        if writes_weights and self.output is not None and not self.names_export():
            advice = name_for_weights(self.output)
            if advice is not None:
                problems.append(f"--output {self.output}: {self.verb} writes safetensors, so {advice}{where}")

        if self.quiet and self.verbose:
            where_quiet = self.where("quiet")
            where_verbose = self.where("verbose")
            problems.append(f"--quiet{where_quiet} and --verbose{where_verbose} exclude each other")
        return problems


@dataclass(kw_only=True)
class Batched(Common):
    """Options of verbs that compute in one batch size and one number format."""

    dtype: str = run_option("Number format of the computation", "float32", choices=DTYPES)
    batch_size: int = run_option("Samples that are computed together [samples]", 64, at_least=1)


class Requiring:
    """Reads ``--require`` of the verbs that have it; each of these verbs declares the option with its own help."""

    require: list[str]

    def requirements(self) -> list[Requirement]:
        """Return the ``--require`` expressions, in order."""
        return [parse_requirement(text) for text in self.require]


def _declaration(settings_type: type, name: str) -> Option:
    """Return the declaration of a verb's option, by the name of its field."""
    for declared_option in options_of(settings_type):
        if declared_option.name == name:
            return declared_option
    raise KeyError(name)
