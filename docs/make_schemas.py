"""Write docs/schemas/ from the forms of documents. A test holds that the files are current."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from pydantic import Field
from pydantic.json_schema import GenerateJsonSchema

from hydractl.files.documents import (
    Bench,
    Cascade,
    DataSet,
    Form,
    PredictionsHeader,
    Schema,
    Threshold,
    schema_of,
)
from hydractl.files.documents import CountField as Count
from hydractl.files.records import Number
from hydractl.report.eval_document import ByScore, Diversity, Eval, Labelled

FOLDER = Path(__file__).with_name("schemas")
Provenance = dict[str, Any]

# --- masks, scores and circuits: read by hydractl.heads.mask, which needs no form of them -----------------------------


class Seen(Form):
    """One use of a data set by what is behind a file."""

    by: str = Field(description="The verb that used it.")
    as_: str = Field(
        alias="as", description="What it was used as: `id`, `ood`, `train`, `val`, `val_ood` or `calibration`."
    )
    data: str = Field(description="Fingerprint of the data set.")
    n: Count = Field(description="Number of its samples that were used.")
    hashes: str = Field(description="Base64 of the first six bytes of each sample's SHA-256, ascending, each once.")


class MaskSite(Form):
    """The heads that a mask keeps at one site."""

    heads: Count | None = Field(None, description="Number of heads before any pruning.")
    kept: list[Count] = Field(description="The kept heads, in the original numbering.")


class Mask(Form):
    """A head mask: which heads are kept at each site."""

    schema_: Literal["hydractl.mask/1"] = Schema
    arch: str | None = Field(None, description="Architecture of the model.")
    sites: dict[str, MaskSite] = Field(description="Every site of the model, by path.")
    source: Provenance | None = Field(None, description="Verb, inputs, settings, versions and seed it was made by.")
    seen: list[Seen] | None = Field(None, description="The samples that were seen in making it.")


class Scores(Form):
    """Importance of heads: higher means keep."""

    schema_: Literal["hydractl.scores/1"] = Schema
    arch: str | None = Field(None, description="Architecture of the model.")
    method: str | None = Field(None, description="The criterion.")
    sites: dict[str, list[Number]] = Field(description="By site one number a head; null for one that is gone.")
    cahp: dict[str, Any] | None = Field(None, description="Of this method how many heads to keep, and which.")
    source: Provenance | None = Field(None, description="Verb, inputs, settings, versions and seed they were made by.")
    seen: list[Seen] | None = Field(None, description="The samples that were seen in making them.")


class Measured(Form):
    """The counts of one evaluation in a search."""

    correct: Count = Field(description="How many ID samples are classified right.")
    n_id: Count = Field(description="Number of ID samples.")
    two_u: Count | None = Field(None, description="Twice the Mann-Whitney U; null without OOD data.")
    n_ood: Count | None = Field(None, description="Number of OOD samples; null without OOD data.")
    nll: Count | None = Field(None, description="Summed NLL in units of `loss_unit`; of that objective or constraint.")
    brier: Count | None = Field(None, description="Summed Brier score, likewise.")
    score: float = Field(description="The objective as a number.")
    mac_ratio: float | None = Field(
        None, description="Mult-adds of the ensemble, fused, over those of the model with all its heads."
    )


class Removal(Measured):
    """One step of a search: the head removed, and the counts right after it."""

    step: Count = Field(description="Number of the step, from 1.")
    site: str = Field(description="Site of the removed head.")
    head: Count = Field(description="The removed head, in the original numbering.")


class Rival(Form):
    """A head that could be removed instead on another machine."""

    site: str = Field(description="Its site.")
    head: Count = Field(description="The head, in the original numbering.")
    score: float = Field(description="Its score.")
    most: float = Field(description="The most that its score may be on another machine.")


class Undecided(Form):
    """A step whose winner led by less than rounding."""

    step: Count = Field(description="Number of the step.")
    lead: float = Field(description="The score of the step minus that of the best rival.")
    least: float = Field(description="The least that the score may be on another machine.")
    rivals: list[Rival] = Field(description="The heads that could go there instead, the best first.")


class Gain(Form):
    """How the AUROC on the validation samples rose from the whole model to the last step."""

    before: float = Field(description="Of the model that the search began with.")
    after: float = Field(description="After the last step.")
    corrected: float = Field(description="The share of wrongly ordered pairs of an ID and an OOD sample put right.")
    low: bool | None = Field(description="Whether that is below what was seen to help; null of an ensemble.")


class Agreement(Form):
    """How far a circuit agrees with an exact one."""

    removals: Count = Field(description="How many removals were compared.")
    jaccard: dict[str, Number] = Field(description="By N the Jaccard index of the first N removals of both.")
    kendall_tau: Number = Field(None, description="Kendall's tau of the orders, over the heads both remove.")
    score_lost: Number = Field(None, description="What the score is below the exact one; null of another objective.")


class Circuit(Form):
    """An order in which heads are removed: nested masks for every budget up to its length, but for `headmap`."""

    schema_: Literal["hydractl.circuit/1"] = Schema
    arch: str | None = Field(None, description="Architecture of the model.")
    objective: str | None = Field(None, description="What each step maximises.")
    ensemble_with: list[str] | None = Field(
        None,
        description="SHA-256 of the other members of the ensemble that the counts are of; without, of the circuit.",
    )
    algorithm: str | None = Field(None, description="`greedy` or `headmap`.")
    approx: str | None = Field(None, description="The approximation; null of an exact search.")
    ood_score: str | None = Field(None, description="The OOD score whose AUROC counts.")
    budget: Count | None = Field(None, description="How many heads were to be removed in all, or were, if it ended.")
    max_drop: float | None = Field(None, description="The value of `--max-drop`.")
    subject_to: list[str] | None = Field(None, description="The constraints that every removal keeps.")
    max_cost: float | None = Field(None, description="The value of `--max-cost`.")
    ended: Literal["max_drop", "max_cost", "subject_to"] | None = Field(
        None, description="What ended it before the budget."
    )
    loss_unit: float | None = Field(None, description="The unit of `nll` and `brier`.")
    sites: dict[str, Count] | None = Field(None, description="By site its number of heads.")
    base: Measured | None = Field(None, description="The counts before the first removal.")
    removed: list[Removal] = Field(description="The removals in order.")
    gain: Gain | None = Field(
        None, description="What the OOD validation samples gained; with OOD data, but not headmap."
    )
    rounding: list[Undecided] | None = Field(None, description="The steps whose winner led by less than rounding.")
    source: Provenance | None = Field(None, description="Verb, inputs, settings, versions and seed it was made by.")
    tower: str | None = Field(None, description="The tower that the search was kept to, of a model with two.")
    start_mask: Mask | None = Field(None, description="The heads that the search began with, where some were gone.")
    agreement: Agreement | None = Field(None, description="How far it agrees with the circuit of `--check-against`.")
    seen: list[Seen] | None = Field(None, description="The samples that were seen in making it.")
    warnings: list[str] | None = Field(None, description="What is odd about the data.")


# --- the answer of fuse: printed, and parts of it kept in the fused file ----------------------------------------------


class SelfCheck(Form):
    """Fused members against the same members run alone, before the file was written."""

    inputs: str = Field(description="What they ran on.")
    max_abs_logit: float = Field(description="The largest logit, without its sign.")
    member_max_abs: list[float] = Field(description="By member the largest difference of a logit: rounding.")
    merge_max_abs: list[float] = Field(description="By member the largest change of a logit by averaging.")
    merge_agreement: list[float] | None = Field(
        None, description="By member the share of inputs whose answer averaging keeps; not of bodies."
    )
    merge_log_p: list[float] | None = Field(
        None, description="By member the mean shift of log p by averaging, in nats; not of bodies."
    )
    pool_max_abs: Number = Field(
        None, description="The largest difference of an averaged probability: rounding; not of bodies."
    )
    tolerance: float = Field(description="The largest difference of a logit that is allowed.")
    mi: Number = Field(None, description="Mutual information of the fused members, in nats; not of bodies.")
    disagreement: Number = Field(
        None, description="Share of pairs of fused members that disagree; null for one member, not of bodies."
    )


class Limits(Form):
    """The most that averaging may do where `--merge auto` averages."""

    distance: float = Field(description="Relative distance of a member from the mean.")
    log_p: float = Field(description="Mean shift of log p, in nats.")


class Averaging(Form):
    """What averaging the members does to them, done or not."""

    asked: str | list[str] = Field(description="The value of `--merge`: `auto`, or parts.")
    parts: list[str] = Field(description="The parts that are, or would be, averaged.")
    done: bool = Field(description="Whether they are.")
    harmful: bool = Field(description="Whether a limit is passed.")
    distance: list[float] = Field(description="By member the distance of its weights from the mean, relative to them.")
    limits: Limits = Field(description="What is allowed.")
    merge_max_abs: list[float] = Field(description="As of the self-check.")
    merge_agreement: list[float] | None = Field(None, description="As of the self-check.")
    merge_log_p: list[float] | None = Field(None, description="As of the self-check.")
    parameters: Count = Field(description="Parameters of the averaged model.")


class Answers(Form):
    """Members and their ensemble on labelled data."""

    members: list[float] = Field(description="Accuracy of each member.")
    ensemble: float = Field(description="Accuracy of the mean of their softmaxes.")
    mi: float = Field(description="Mutual information of the members, in nats.")
    disagreement: float = Field(description="Share of pairs of members that disagree.")


class OnData(Form):
    """What averaging does on the data of `--data`."""

    data: str = Field(description="Fingerprint of the data set.")
    n: Count = Field(description="Number of its samples.")
    before: Answers = Field(description="Each member as it was, and the ensemble of them.")
    after: Answers = Field(description="The fused model.")


class CascadeLoss(Form):
    """What a cascade loses of a figure of all members on the validation data."""

    value: float = Field(description="The loss.")
    upper: float = Field(description="Its upper 95 % limit.")


class FittedCascade(Cascade):
    """A cascade, as it was fitted."""

    loss: float = Field(description="The largest loss of each figure that was allowed.")
    losses: dict[str, CascadeLoss] = Field(description="Of `accuracy`, `nll`, and the AUROC of each OOD set.")
    share: float = Field(description="Share of the ID validation samples that run all members.")
    macs: float = Field(description="Mean mult-adds of them.")
    fitted_on: DataSet = Field(description="The ID validation data.")
    fitted_on_ood: dict[str, DataSet] = Field(description="The OOD validation data by name.")


class Fuse(Form):
    """What `hydractl fuse --json` prints."""

    schema_: Literal["hydractl.fuse/1"] = Schema
    output: str = Field(description="The fused checkpoint.")
    arch: str = Field(description="Architecture of the members.")
    merge: list[str] = Field(description="What was averaged; empty where members are kept whole.")
    members: list[dict[str, Any]] = Field(description="Name, SHA-256, heads by site and kind of each member.")
    parameters: dict[str, Count] = Field(description="Parameters `averaged`, `equal` in all members and `per_member`.")
    shared: list[dict[str, Any]] | None = Field(None, description="By tower what runs once, and where members part.")
    cost: dict[str, Any] = Field(
        description="Of the first member (`single`), of all members run separately and of the fused model; parameters "
        "and mult-adds of the model with all heads; the ratio of mult-adds to that."
    )
    self_check: SelfCheck | None = Field(None, description="The check of the fused model.")
    averaging: Averaging | None = Field(None, description="What averaging does; not there with `--merge none`.")
    on_data: OnData | None = Field(None, description="What `--data` measured.")
    cascade: FittedCascade | None = Field(None, description="What `--cascade` fitted.")
    exports: list[dict[str, Any]] | None = Field(None, description="The exported files.")
    warnings: list[str] | None = Field(None, description="What makes the result less than it seems.")
    sha256: str | None = Field(None, description="SHA-256 of the fused checkpoint.")


# --- the answer of study ----------------------------------------------------------------------------------------------


Word = Literal["better", "slightly better", "worse", "slightly worse", "no difference", "cannot tell"]


class Finding(Form):
    """A paired difference on the test data: one row minus another."""

    metric: str = Field(description="Dotted key of the metric, as in an eval.")
    value: float = Field(description="The difference.")
    ci: list[float] = Field(min_length=2, max_length=2, description="Its 95 % bootstrap interval.")
    kind: Word = Field(description="What it says.")
    needed: Count | None = Field(None, description="About how many samples would tell; null where these do.")


class Verdict(Form):
    """What the test data say of the model to use."""

    answer: str = Field(description="The answer in a word or two.")
    lines: list[str] = Field(min_length=1, description="The same in sentences.")
    doubts: list[str] = Field(description="Of these, those that make it less sure.")
    footnote: str = Field(description="What the intervals leave out.")
    hardest: str | None = Field(None, description="The score of the single model that is the hardest rival.")
    rivals: dict[str, Finding] = Field(description="The differences to the rivals fixed beforehand, by score.")
    afterwards: dict[str, Finding] = Field(description="Other scores of the single model that did better.")
    sets: dict[str, Finding] = Field(description="Against the hardest rival, by test set.")
    against_hardest: list[Finding] = Field(description="Against the hardest rival, by metric.")
    against_baseline: list[Finding] = Field(description="Against the single model as it is, with MSP.")


class Use(Form):
    """The model to use, which is `best.st`."""

    row: str = Field(description="The row.")
    score: str = Field(description="The OOD score.")
    temperature: float = Field(description="What the log of the averaged prediction is divided by.")
    threshold: Threshold | None = Field(None, description="From which score on a sample counts as OOD.")
    mac_ratio: Number = Field(None, description="Its mult-adds over those of the single model.")
    param_ratio: Number = Field(None, description="Its stored parameters over those of the single model.")
    stepped_down: bool = Field(description="Whether the test data led from the choice to it.")


class Stability(Form):
    """How often resampled validation data lead to the same choice."""

    row: float = Field(description="Share of resamples with the same row.")
    score: float = Field(description="Share of resamples with the same score.")


class Choice(Form):
    """What was chosen on validation data."""

    row: str = Field(description="The row.")
    score: str = Field(description="The OOD score.")
    rule: str = Field(description="The rule in words.")
    telling: list[str] = Field(description="The OOD validation sets that had a vote.")
    blind: list[str] = Field(description="Those that had none.")
    stability: Stability = Field(description="How sure the choice is.")


class LadderRung(Form):
    """One step of what test data may lead down to."""

    row: str = Field(description="The row.")
    score: str = Field(description="The OOD score.")
    against_next: list[Finding] = Field(description="Its differences to the next one; empty for the last.")


class SearchState(Form):
    """What a search measured at one step, on its data."""

    score: float = Field(description="The objective.")
    accuracy: float = Field(description="Accuracy.")
    auroc: Number = Field(None, description="AUROC; null without OOD data.")


class SearchGain(Form):
    """How far a search came."""

    removed: Count = Field(description="How many heads it removed for this row.")
    before: SearchState = Field(description="With all heads.")
    after: SearchState = Field(description="Without those.")


class Validation(Form):
    """One row on validation data."""

    accuracy: float = Field(description="Accuracy.")
    nll: float = Field(description="NLL after temperature scaling.")
    mi: float = Field(description="Mutual information of the members, in nats.")
    auroc: dict[str, dict[str, Number]] = Field(description="By OOD score and OOD set the AUROC.")


class Tested(ByScore):
    """One row on the test data, with its score and temperature."""

    id: Labelled = Field(description="Metrics of the ID data.")
    ood_score: str = Field(description="The OOD score.")
    diversity: dict[str, Diversity] = Field(description="By data set how the members differ.")


class Detected(ByScore):
    """The detection of OOD samples under one score."""

    ood_score: str = Field(description="The OOD score.")


class StudyRow(Form):
    """One row of a study."""

    name: str = Field(description="Its name.")
    chosen: bool = Field(description="Whether validation data chose it.")
    used: bool = Field(description="Whether it is `best.st`.")
    members: Count = Field(description="Number of members.")
    macs: Count | None = Field(None, description="Multiply-adds of one sample.")
    params: Count | None = Field(None, description="Number of stored parameters.")
    mac_ratio: Number = Field(None, description="`macs` over those of the single model.")
    temperature: float = Field(description="The temperature that validation data gave it.")
    score: str = Field(description="The OOD score that validation data gave it.")
    search: SearchGain | None = Field(None, description="The search that it comes from, where there was one.")
    validation: Validation = Field(description="On validation data.")
    test: Tested = Field(description="On the test data, under its own score.")
    common: Detected | None = Field(None, description="The same under the score of the single model, if it has it.")


class StudiedModel(Form):
    """The model."""

    name: str = Field(description="Its name.")
    sha256: str = Field(description="SHA-256 of its file.")


class Study(Form):
    """What `hydractl study` found."""

    schema_: Literal["hydractl.study/2"] = Schema
    model: StudiedModel = Field(description="The model that was studied.")
    verdict: Verdict = Field(description="The answer.")
    use: Use = Field(description="The model to use.")
    choice: Choice = Field(description="What validation data chose.")
    ladder: list[LadderRung] = Field(min_length=1, description="The choice, and what test data may step down to.")
    common_score: str = Field(description="The OOD score under which all rows are compared.")
    baseline: Tested = Field(description="The single model as it is on the test data, with MSP and no temperature.")
    rows: list[StudyRow] = Field(min_length=1, description="All rows, the single model first.")
    steps: list[list[str]] = Field(description="The commands in order, without `hydractl`.")
    warnings: list[str] | None = Field(None, description="What makes the result less than it seems.")


# --- writing ----------------------------------------------------------------------------------------------------------

FORMS: tuple[type[Form], ...] = (Bench, Circuit, Eval, Fuse, Mask, PredictionsHeader, Scores, Study)


class Generator(GenerateJsonSchema):
    """Without the title of each field, which repeats its name, and without its default, which is null."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def default_schema(self, schema: Any) -> dict[str, Any]:
        return self.generate_inner(schema["schema"])

    def nullable_schema(self, schema: Any) -> dict[str, Any]:
        """``["number", "null"]`` is shorter than two alternatives."""
        inner = self.generate_inner(schema["schema"])
        plain = "type" in inner and "enum" not in inner
        return {**inner, "type": [inner["type"], "null"]} if plain else super().nullable_schema(schema)


def schemas() -> dict[str, dict[str, Any]]:
    """The JSON Schema of each form, by file name."""
    found = {}
    for form in FORMS:
        name = schema_of(form)
        schema = form.model_json_schema(schema_generator=Generator)
        own = {"$schema": Generator.schema_dialect, "$id": name, "title": name}
        found[f"{name.removeprefix('hydractl.').replace('/', '-')}.json"] = {**schema, **own}
    return found


def text(schema: dict[str, Any]) -> str:
    """The file of a schema."""
    return json.dumps(schema, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, schema in schemas().items():
        (FOLDER / name).write_text(text(schema), encoding="utf-8")
