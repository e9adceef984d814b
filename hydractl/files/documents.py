"""Forms of the JSON documents that hydractl writes, and the check of those that it reads again.

A form says what reading asks for: other keys are allowed, and what has a default may be missing or null. Each field is
described by one sentence; ``docs/make_schemas.py`` publishes them as JSON Schemas. The form of an eval depends on the
metrics there are: :mod:`hydractl.report.eval_document`. Masks, scores and circuits are read by
:mod:`hydractl.heads.mask`, which holds them against the sites of a model; their forms stand in the script.

This imports pydantic, so verbs that read such a document only now and then import it when they do.
"""

from __future__ import annotations

from collections.abc import Iterable, Sized
from itertools import pairwise
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator
from pydantic_core import ErrorDetails

from hydractl.errors import InputError
from hydractl.heads.mask import MOST_HEADS
from hydractl.jsonio import read_json_file, shown

_MOST_PROBLEMS = 10

_NEEDED = {
    "bool_type": "true or false",
    "dict_type": "an object",
    "finite_number": "a number",
    "float_type": "a number",
    "greater_than": "a number above {gt}",
    "greater_than_equal": "a count",
    "int_type": "a count",
    "less_than_equal": "a count of at most {le}",
    "list_type": "a list",
    "literal_error": "{expected}",
    "model_type": "an object",
    "string_type": "a text",
    "too_long": "a list of {max_length} at most",
    "too_short": "a list of {min_length} or more",
}
"""What is needed where pydantic finds an error of this type."""


class Form(BaseModel):
    """Base of all forms: numbers are finite and of the type they are said to be."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)


def check(document: Any, form: type[Form], message: str, hint: str | None = None) -> None:
    """Check that a document has a form; nothing in it is converted.

    Raises:
        InputError: ``message``, with a line for each of the first problems: its place, what is there, what is needed.
    """
    try:
        form.model_validate(document)
    except ValidationError as error:
        problems = [_line(problem) for problem in error.errors(include_url=False)[:_MOST_PROBLEMS]]
        raise InputError(message, hint, problems) from None


def schema_of(form: type[Form]) -> str:
    """The name and version of the documents of a form: what their key ``schema`` holds."""
    return str(get_args(form.model_fields["schema_"].annotation)[0])


def read_document(path: str, form: type[Form]) -> dict[str, Any]:
    """The results that a verb wrote to a file; ``-`` is standard input.

    Raises:
        InputError: it is another file, the answer of a dry run, or has not the form.
    """
    document = read_json_file(path)
    origin = "standard input" if path == "-" else path
    schema = schema_of(form)
    verb = schema.removeprefix("hydractl.").partition("/")[0]
    if not isinstance(document, dict) or document.get("schema") != schema:
        name = shown(document.get("schema")) if isinstance(document, dict) else "none"
        raise InputError(f"{origin} is not the JSON of {verb} (schema {name})")
    if document.get("dry_run"):
        raise InputError(f"{origin} holds no results", hint="a dry run measures nothing")
    check(document, form, f"{origin} is no document that {verb} writes")
    return document


def _line(problem: ErrorDetails) -> str:
    kind, place, value, context = problem["type"], problem["loc"], problem["input"], problem.get("ctx", {})
    if kind == "value_error":  # raised by one of our own validators
        return f"{_place(place)} {context['error']}" if place else str(context["error"])
    if kind == "missing" or (value is None and place and isinstance(place[-1], str)):
        return f"{_place(place[:-1])} has no {_place(place[-1:])}"
    if value is None:
        return f"{_place(place)} is null"
    needed = _NEEDED[kind].format(**context) if kind in _NEEDED else f"what it should be: {problem['msg']}"
    return f"{_place(place)} is {shown(value)}, not {needed}"


def _place(keys: Iterable[str | int]) -> str:
    """``models[0].id.n``; a control character of an untrusted key is escaped."""
    place = "".join(f"[{key}]" if isinstance(key, int) else f".{repr(key)[1:-1]}" for key in keys)
    return place.removeprefix(".") or "it"


# --- what documents have in common ------------------------------------------------------------------------------------

Count = Annotated[int, Field(ge=0, le=2**63 - 1)]
"""A whole number that is not negative."""

Positive = Annotated[float, Field(gt=0)]

Number = float | None
"""A measured number, null where there is none."""


def _rising(edges: list[float]) -> list[float]:
    if any(high <= low for low, high in pairwise(edges)):
        raise ValueError("does not rise")
    return edges


Edges = Annotated[list[float], Field(min_length=2), AfterValidator(_rising)]
"""Of bins: each above the one before."""

Sha256 = Annotated[Any, Field(description="SHA-256 of its file; a list where several run one after another.")]
Schema = Field(alias="schema", description="Name and version of this form.")


def equally_long(*lists: Sized) -> None:
    """Refuse, as a validator, lists that belong together and differ in length."""
    if len({len(entries) for entries in lists}) > 1:
        raise ValueError("has lists that differ in length")


class SiteHeads(Form):
    """The heads at one site."""

    site: str = Field(description="Path of the attention block in the library's own model.")
    tower: str | None = Field(None, description="`main`, or `visual` or `text` in a model with two towers.")
    heads: Annotated[Count, Field(le=MOST_HEADS)] = Field(description="Number of heads before any pruning.")
    kept: list[list[Count]] = Field(description="For each member its kept heads, in the original numbering.")

    @field_validator("kept")
    @classmethod
    def _there(cls, kept: list[list[int]], info: ValidationInfo) -> list[list[int]]:
        if any(head >= info.data.get("heads", MOST_HEADS) for heads in kept for head in heads):
            raise ValueError("names a head that is not there")
        return kept


class Epoch(Form):
    """One epoch of a training."""

    epoch: Count | None = Field(None, description="Number of the epoch, from 1.")
    steps: Count | None = Field(None, description="Number of steps made by its end.")
    loss: Number = Field(None, description="Mean loss of its steps.")
    val_accuracy: Number = Field(None, description="Accuracy on the validation data at its end.")
    val_nll: Number = Field(None, description="Negative log-likelihood of the validation data at its end.")


class Training(Form):
    """The training that a member came from."""

    member: Count | None = Field(None, description="Number of the member, from 0.")
    steps: Count | None = Field(None, description="Number of steps of the training.")
    kept_epoch: Count | None = Field(None, description="The epoch whose weights were kept.")
    n: Count | None = Field(None, description="Number of training samples, where it is known.")
    n_val: Count | None = Field(None, description="Number of validation samples, where it is known.")
    epochs: list[Epoch] | None = Field(None, description="Its epochs in order; of a long training about 60 of them.")


class Cost(Form):
    """The cost of one sample."""

    params: Count | None = Field(None, description="Number of stored parameters.")
    params_nonzero: Count | None = Field(None, description="Those that are not zero, where single weights were pruned.")
    macs: Count | None = Field(None, description="Multiply-adds of one sample.")
    single_macs: Count | None = Field(None, description="Multiply-adds of the model with all its heads.")


class McDropout(Form):
    """How the members were drawn by MC dropout."""

    p: float = Field(description="Probability to drop.")
    samples: Count = Field(description="Number of passes.")
    seed: Count = Field(description="Seed of the masks.")


class DataSet(Form):
    """A data set."""

    spec: str | None = Field(None, description="The SPEC it was asked for by.")
    n: Count | None = Field(None, description="Number of samples.")
    fingerprint: str | None = Field(None, description="SHA-256 of its samples and labels.")
    openood_list: str | None = Field(None, alias="list", description="The list of OpenOOD that it is.")
    skipped: Any = Field(None, description="`n` and `ids` of samples that could not be read and were left out.")
    left_out: Count | None = Field(None, description="Number of samples left out, as they are among the training data.")


class FittedOn(DataSet):
    """The validation set of a stored calibration."""

    spec: str = Field(description="The SPEC it was asked for by.")
    n: Count = Field(description="Number of samples.")
    fingerprint: str = Field(description="SHA-256 of its samples and labels.")


class Calibration(Form):
    """The calibration of an averaged prediction."""

    kind: str | None = Field(None, description="`temperature` or `vector`.")
    temperature: Number = Field(None, description="What logarithms are divided by; null of a vector.")
    scale: list[Number] | None = Field(None, description="Factor of each class; null of a temperature.")
    bias: list[Number] | None = Field(None, description="Summand of each class; null of a temperature.")
    fitted_on: DataSet | None = Field(None, description="The validation set; null where it was given.")
    stored: bool | None = Field(None, description="Whether it stood in the model's file.")


class Threshold(Form):
    """The OOD score from which on a sample counts as OOD."""

    score: str | None = Field(None, description="Name of the OOD score.")
    value: Number = Field(None, description="The threshold.")
    rule: str | None = Field(None, description="How it was chosen.")


class Cascade(Form):
    """When the first member of a cascade answers alone."""

    member: Count = Field(description="Number of the member that runs first, from 0.")
    score: str = Field(description="The OOD score, of that member alone, that decides.")
    value: float = Field(description="Samples with this score or a higher one run the other members too.")
    first_macs: Count = Field(description="Multiply-adds of the first member.")
    rest_macs: Count = Field(description="Multiply-adds of the other members behind it.")


class StoredScore(Form):
    """An OOD score."""

    score: str = Field(description="Its name.")


class ScoreData(DataSet):
    """The training data that OOD scores on features were fitted to."""

    knn_k: Count | None = Field(None, description="The neighbour that `knn` takes.")


class Probe(Form):
    """The classifier of features that was measured instead of the model's own."""

    name: str = Field(description="`knn` or `linear`.")
    c: list[Number] | None = Field(None, description="For each member the inverse penalty of `linear`.")
    fitted_on: DataSet | None = Field(None, description="The training data.")
    chosen_on: DataSet | None = Field(None, description="The data that `c` was chosen on; null where it is 1.")


# --- benches ----------------------------------------------------------------------------------------------------------


class Latency(Form):
    """Times of one call on one batch, in milliseconds."""

    median: Positive = Field(description="Median of the runs.")
    mean: Number = Field(None, description="Mean of the runs.")
    std: Number = Field(None, description="Standard deviation of the runs, with n - 1; null for one run.")
    min: Number = Field(None, description="The fastest run.")
    max: Number = Field(None, description="The slowest run.")
    q25: Number = Field(None, description="First quartile of the runs.")
    q75: Number = Field(None, description="Third quartile of the runs.")
    runs: list[Positive] = Field(min_length=1, description="Every run, in the order of the rounds.")


class BenchInput(Form):
    """One sample of the input of a row."""

    image: list[Count] | None = Field(None, description="Channels, height and width of an image.")
    tokens: Count | None = Field(None, description="Number of tokens of a text.")


class BenchRow(Form):
    """One model at one batch size and dtype."""

    model: str = Field(description="Name of the row.")
    kind: str | None = Field(
        None, description="`model`; of an exported file its format; or of `--compare` the baseline."
    )
    members: Count | None = Field(None, description="Number of members.")
    sha256: Sha256 = None
    input: BenchInput | None = Field(None, description="What it ran on.")
    batch_size: Positive = Field(description="Samples of a batch.")
    dtype: str = Field(description="Number format of the computation.")
    device: str | None = Field(None, description="Where it ran.")
    compile: bool | None = Field(None, description="Whether it was compiled.")
    compile_mode: str | None = Field(None, description="Mode of `torch.compile`; null where it was not compiled.")
    latency_ms: Latency = Field(description="How long a call takes.")
    throughput_per_s: Positive = Field(description="Batch size over median latency.")
    ratio: Positive = Field(description="Median over rounds of the time over the first model's in the same round.")
    ratio_ci: list[Positive] = Field(min_length=2, max_length=2, description="95 % bootstrap interval of the ratio.")
    noisy: bool | None = Field(None, description="Whether the runs scatter too far; null for fewer than five rounds.")
    params: Positive | None = Field(description="Number of stored parameters of all members; null where not known.")
    params_nonzero: Count | None = Field(None, description="Those that are not zero, where single weights were pruned.")
    macs: Positive | None = Field(description="Multiply-adds of one sample; null where they are not known.")
    share: Number = Field(None, description="Of a cascade, the share of samples that run all members.")
    first_macs: Count | None = Field(None, description="Of a cascade, those of its first member.")
    rest_macs: Count | None = Field(None, description="Of a cascade, those of the other members behind it.")
    mac_ratio: Positive | None = Field(description="`macs` over the first model's; null where they are not known.")
    peak_share: Number = Field(None, description="Rate of multiply-adds over that of the machine at its best.")
    bytes: Count | None = Field(None, description="Size of the stored weights.")
    checkpoint_bytes: Count | None = Field(None, description="Size of the files; null where there are none.")
    peak_memory_bytes: Count | None = Field(None, description="Most memory in use; null where it is not counted.")


class Machine(Form):
    """What the times were taken on."""

    python: str | None = Field(None, description="Version of Python.")
    torch: str | None = Field(None, description="Version of torch.")
    processor: str | None = Field(None, description="Name of the processor.")
    cores: Count | None = Field(None, description="Number of its cores.")
    threads: Count | None = Field(None, description="Number of threads that torch used.")
    device_name: str | None = Field(None, description="Name of the accelerator; null on a CPU.")
    peak_macs_per_s: dict[str, Number] | None = Field(
        None, description="By dtype the best rate of a large matrix product, multiply-adds a second."
    )


class Bench(Form):
    """What `hydractl bench` measured."""

    schema_: Literal["hydractl.bench/1"] = Schema
    results: list[BenchRow] = Field(min_length=1, description="A row for each model, batch size and dtype.")
    machine: Machine | None = Field(None, description="What the times were taken on.")
    warnings: list[str] | None = Field(None, description="What to know before trusting the times.")
    conventions: dict[str, Any] | None = Field(None, description="A sentence on each key.")


# --- predictions ------------------------------------------------------------------------------------------------------


class PredictedSite(SiteHeads):
    """The heads at one site."""

    tower: str = Field(description="`main`, or `visual` or `text` in a model with two towers.")


class PredictedModel(Form):
    """The model that predictions are of, and what decides them."""

    name: str = Field(description="Name of the row.")
    sha256: Sha256 = None
    labels: list[str] | None = Field(None, min_length=1, description="Names of the classes, where they are known.")
    heads: list[PredictedSite] | None = Field(None, description="The heads at each site; empty where members differ.")
    training: list[Training] | None = Field(None, description="The trainings that members came straight from.")
    cost: Cost | None = Field(None, description="The cost of one sample.")
    prompt: list[str] | None = Field(None, description="Templates of a zero-shot model.")
    max_length: Count | None = Field(None, description="Tokens at which a text is cut.")
    batch_size: Count | None = Field(None, description="Samples that were computed together.")
    dtype: str | None = Field(None, description="Number format of the computation.")
    device: str | None = Field(None, description="Kind of device it ran on.")
    whole_last_block: bool | None = Field(None, description="Whether the last block ran for all tokens.")
    mc_dropout: McDropout | None = Field(None, description="How the members were drawn by MC dropout.")
    probe: Probe | None = Field(None, description="The classifier of features that the logits are of.")
    calibration: Calibration | None = Field(None, description="The calibration that the model's file holds.")
    threshold: Threshold | None = Field(None, description="The threshold that the model's file holds.")
    ood_score: StoredScore | None = Field(None, description="The OOD score that the model's file holds.")
    cascade: Cascade | None = Field(None, description="The cascade that the logits are of.")
    feature_scores: list[str] | None = Field(None, description="OOD scores on features, kept beside the logits.")
    fitted_on: ScoreData | None = Field(None, description="The training data that they were fitted to.")


class PredictedSet(Form):
    """One data set, whose tensors have its place in the list in their names."""

    name: str = Field(description="`id`, the name of an OOD set, or `CORRUPTION/SEVERITY`.")
    role: Literal["id", "ood", "val", "val_ood", "corruption"] = Field(description="What the set is for.")
    group: Literal["near", "far"] | None = Field(description="Of an OOD set `near` or `far`, where that was said.")
    n: Count = Field(description="Number of samples.")
    fingerprint: str = Field(description="SHA-256 of its samples and labels.")
    labelled: bool = Field(description="Whether labels are known.")
    seen: Count = Field(description="How many of its samples the model had seen before.")


class PredictionsHeader(Form):
    """The metadata of stored predictions, under `hydractl` in the header of their file."""

    schema_: Literal["hydractl.predictions/2"] = Schema
    model: PredictedModel = Field(description="The model, and what decides its logits.")
    sets: list[PredictedSet] = Field(min_length=1, description="The data sets, in the order of the tensors.")
