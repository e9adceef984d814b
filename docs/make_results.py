"""Write the tables of studies into README.md and docs/, from the answers kept in docs/results/.

    python docs/make_results.py

A table stands between ``<!-- KIND: NAME ... -->`` and ``<!-- end -->``:

    study      rows of ``docs/results/NAME.json``, as ``hydractl study`` writes it, all of them where none is named;
               ``short`` with fewer columns, ``conclusion`` for its verdict in brief, ``answer`` for its first sentences
    recipe     ``scores`` or ``late``, of ``docs/results/recipe.json``, which ``examples/late_sites.py`` writes
    curve      a model of ``cost-curve.json``, which ``examples/cost_curve.py`` writes
    effort     a study of ``methods.json``, which ``examples/effort.py`` writes: what is ``said``, or the ``table``
    bayes      BayesVLM, of the same file, to which ``examples/methods.py`` adds
    seeds      trainings of ``seeds.json``, which ``examples/seeds.py`` writes; ``cifar10`` and ``elsewhere`` are others
    minilm     ``sst2-rows.json``, which ``examples/methods.py`` writes: rows of a study under the same scores
    rules      ``verdict-rules.json``, which ``benchmarks/verdict_rules.py`` writes
    words      ``verdict-words.json``, which ``benchmarks/verdict_words.py`` writes
    layers     ``layered-scores.json``, which ``benchmarks/layered_scores.py`` writes: what is ``said``, ``changes``,
               those of the ``hedge``; and the ``price``, of ``benchmarks/results/layers-price.json``
    paper      a table of the paper, of ``paper.json``
    papercost  what its tables cost to make, of ``paper-cost.json``

and of ``benchmarks/results/NAME.json`` those that ``hydractl bench`` writes (``bench``) and the scripts of benchmarks:
``memory`` (big_models), ``starting`` (start_up), ``making`` (ensemble_cost), ``files`` (eval_of_files) and ``gpu``
(gpu_cost). A test fails where a page differs from what this makes.
"""

from __future__ import annotations

import json
import re
import runpy
import statistics
import textwrap
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
MIB = 1 << 20
PAGES = (
    DOCS.parent / "README.md",
    DOCS / "study.md",
    DOCS / "ensembles.md",
    DOCS / "paper.md",
    *sorted((DOCS / "numbers").glob("*.md")),
)

_PLACE = re.compile(r"(<!-- (\w+): (\S+)((?: \S+)*) -->\n).*?(<!-- end -->)", re.DOTALL)
_COLUMNS = (
    ("accuracy", "id.accuracy"),
    ("NLL", "id.nll"),
    ("ECE", "id.ece"),
    ("OOD AUROC", "ood_avg.auroc"),
    ("FPR95", "ood_avg.fpr95"),
)


def value(row: Any, key: str) -> float:
    """The number at a dotted key."""
    for part in key.split("."):
        row = row[part]
    return float(row)


def label(row: dict[str, Any]) -> str:
    """A row by name; in bold the one to use."""
    text = "single model" if row["name"] == "single" else row["name"]
    return f"**{text}**" if row["used"] else text


def table(study: dict[str, Any], names: list[str]) -> str:
    """Rows of a study under one score on its test data, behind the single model as it is, and what was gained."""
    rows = [row for row in study["rows"] if not names or row["name"] in names]
    score, verdict = study["common_score"], study["verdict"]
    lines = [
        f"| test data, {score} | {' | '.join(title for title, _ in _COLUMNS)} | mult-adds |",
        f"|---|{'---:|' * 6}",
    ]
    lines.append(line("single model, as it is, MSP", [value(study["baseline"], key) for _, key in _COLUMNS], 1.0))
    for row in rows:
        on_test = {**row["test"], **row["common"]}
        lines.append(line(label(row), [value(on_test, key) for _, key in _COLUMNS], row["mac_ratio"]))
    used = "single model" if study["use"]["row"] == "single" else study["use"]["row"]
    differences = {finding["metric"]: finding for finding in verdict["against_baseline"]}
    cells = " | ".join(interval(differences.get(metric)) for _, metric in _COLUMNS)
    lines.append(f"| {used}, {study['use']['score']}, minus the single model as it is | {cells} | |")
    return "\n".join(lines)


def short_table(study: dict[str, Any], names: list[str]) -> str:
    """The single model as it is and under the study's score, and some other rows under that score."""
    columns = {"accuracy": "id.accuracy", "OOD AUROC": "ood_avg.auroc", "FPR95": "ood_avg.fpr95"}
    score = study["common_score"]
    rows = [("single model, MSP (now)", study["baseline"], 1.0)]
    for row in study["rows"]:
        if row["name"] in ("single", *names):
            rows.append((f"{label(row)}, {score}", {**row["test"], **row["common"]}, row["mac_ratio"]))
    made = []
    for title, under, cost in rows:
        made.append([title, *(f"{value(under, key):.3f}" for key in columns.values()), f"{cost:.2f}"])
    return markdown(["test data", *columns, "cost"], made)


def line(title: str, values: list[float], cost: float) -> str:
    """One row of the table."""
    return f"| {title} | {' | '.join(f'{one:.3f}' for one in values)} | {cost:.2f} |"


def interval(difference: dict[str, Any] | None) -> str:
    """A paired difference with its interval; none where a study has none, for another score cannot change it."""
    if difference is None:
        return "the same"
    low, high = difference["ci"]
    if difference["value"] == low == high == 0:
        return "the same"
    return f"{difference['value']:+.3f} ({low:+.3f} to {high:+.3f})"


def filled(text: str) -> str:
    """A page with its tables made anew."""
    return _PLACE.sub(lambda match: f"{match[1]}{KINDS[match[2]](match[3], *match[4].split())}\n{match[5]}", text)


def study(name: str, *rows: str) -> str:
    """Rows of a study under one score, ``short`` ones, or its verdict in brief: ``conclusion``, or ``answer`` alone."""
    document = json.loads((DOCS / "results" / f"{name}.json").read_text(encoding="utf-8"))
    if rows[:1] == ("short",):
        return short_table(document, list(rows[1:]))
    verdict = document["verdict"]
    shown = [verdict["lines"][0]]
    if rows == ("answer",):
        return f"> {shown[0]}"
    if rows != ("conclusion",):
        return table(document, list(rows))
    if verdict.get("next_best"):
        shown.append(verdict["next_best"]["line"])
    shown += [text for text in verdict["lines"] if text.startswith("A free score ")]
    shown += verdict.get("doubts", [])
    reasons = [f"{row['name']} ({row['reason']})" for row in document.get("ruled_out", [])]
    if reasons:
        shown.append(f"Ruled out on validation data: {'; '.join(reasons)}.")
    return "\n>\n".join(f"> {text}" for text in shown)


# --- recipes and late sites -------------------------------------------------------------------------------------------


def recipe(name: str) -> str:
    """One table of ``recipe.json``: ``scores`` or ``late``."""
    document = json.loads((DOCS / "results/recipe.json").read_text(encoding="utf-8"))
    return late(document["late"]) if name == "late" else scores(document["recipes"])


def marked(figure: float, difference: dict[str, Any] | None) -> str:
    """A figure, in bold where its paired difference to what it is compared with has an interval that excludes 0."""
    low, high = difference["ci"] if difference else (0, 0)
    return f"**{figure:.3f}**" if low > 0 or high < 0 else f"{figure:.3f}"


def markdown(columns: list[str], rows: list[list[str]]) -> str:
    """A table whose columns are numbers, but for the first."""
    lines = [f"| {' | '.join(cells)} |" for cells in (columns, *rows)]
    return "\n".join([lines[0], f"|---|{'---:|' * (len(columns) - 1)}", *lines[1:]])


_SCORES = ("msp", "gen", "energy", "mahalanobis", "knn", "vim")
"""The scores of the table of recipes: of those that the file has, the ones that are the best of some row, and MSP."""


def scores(rows: list[dict[str, Any]]) -> str:
    """Accuracy and mult-adds of every recipe, and its mean AUROC under some scores; the best of these in bold."""
    made = []
    for row in rows:
        aurocs = [row["auroc"][name] for name in _SCORES]
        cells = [f"**{auroc:.3f}**" if auroc == max(aurocs) else f"{auroc:.3f}" for auroc in aurocs]
        made.append([row["name"], f"{row['accuracy']:.3f}", f"{row['mac_ratio']:.2f}", *cells])
    return markdown(["", "accuracy", "mult-adds", *_SCORES], made)


def late(parts: dict[str, list[dict[str, Any]]]) -> str:
    """What circuits in the last sites give, with the score that validation data chose, on logits and of all."""
    columns = ["", "mult-adds", "accuracy", "score on logits", "AUROC", "score on any", "AUROC"]
    made = []
    for pair in zip(parts["logits"], parts["features"], strict=True):
        row = pair[0]
        accuracy = marked(row["accuracy"], row["accuracy_minus_single"])
        cells = [row["name"].replace("late", "last "), f"{row['mac_ratio']:.2f}", accuracy]
        for one in pair:
            ((score, value),) = one["auroc"].items()
            cells += [score, marked(value, one["auroc_minus_single"][score])]
        made.append(cells)
    return markdown(columns, made)


# --- cost curves ------------------------------------------------------------------------------------------------------


_ROWS_OF_A_CURVE = (
    "all, 4 heads, alone",
    "single",
    "that start and one, trained longer",
    "sharing 4, from one start",
    "last 2, 4 heads",
    "sharing 4, from one start, tuned",
    "last 3, 6 heads",
    "all, 4 heads",
    "three circuits",
)
"""The rows that the page speaks of; the picture and the file have all."""


def curve(name: str) -> str:
    """Rows of one model of ``cost-curve.json`` by what they cost: in bold what is told apart from the single model."""
    document = json.loads((DOCS / "results/cost-curve.json").read_text(encoding="utf-8"))
    rows = [row for row in document[name] if row["name"] in _ROWS_OF_A_CURVE]
    columns = ["", "mult-adds", "accuracy", "score on logits", "AUROC", "score on any", "AUROC"]
    made = []
    for row in sorted(rows, key=lambda row: row["mac_ratio"]):
        accuracy = marked(row["accuracy"], row["accuracy minus single"])
        cells = [row["name"], f"{row['mac_ratio']:.2f}", accuracy]
        for own in (row["logits"], row["any"]):
            cells += [own["score"], marked(own["auroc"], own["minus single"])]
        made.append(cells)
    return markdown(columns, made)


# --- methods ----------------------------------------------------------------------------------------------------------


def bayes(_name: str) -> str:
    """BayesVLM by its pseudo-data and its prior; an AUROC in bold that is told apart from the single model's."""
    rows = json.loads((DOCS / "results/methods.json").read_text(encoding="utf-8"))["bayes-vlm"]
    made = []
    for row in rows:
        figures = [f"{row[key]['value']:.3f}" for key in ("id.accuracy", "id.nll", "id.ece")]
        made.append([row["name"], *figures, marked(row["msp"]["value"], row["msp"]["minus single"])])
    return markdown(["", "accuracy", "NLL", "ECE", "AUROC by MSP"], made)


def effort(name: str, part: str = "said") -> str:
    """Studies whose rows each have the best of the same learning rates: their ``table``, or what is said of one."""
    studies = json.loads((DOCS / "results/methods.json").read_text(encoding="utf-8"))["equal effort"]
    return table_of_effort(studies) if part == "table" else said_of_effort(name, studies[name])


_STUDIES_OF_EFFORT = {"fashion-mnist": "ViT", "sst2": "MiniLM", "clip": "CLIP"}
_KEYS_OF_EFFORT = {"accuracy": "id.accuracy", "NLL": "id.nll", "AUROC": "common"}


def table_of_effort(studies: dict[str, Any]) -> str:
    """Every row in each of three studies: means over the seeds, in bold where they differ from those of ``trained``."""
    by_study = [{row["name"]: row for row in studies[name]["rows"]} for name in _STUDIES_OF_EFFORT]
    names = list(dict.fromkeys(name for rows in by_study for name in rows))
    columns = [""]
    for title in _STUDIES_OF_EFFORT.values():
        columns += [f"{title}, {figure}" for figure in _KEYS_OF_EFFORT]
    made = []
    for name in names:
        cells = [name]
        for rows in by_study:
            cells += [beside_trained(rows.get(name, {}).get(key)) for key in _KEYS_OF_EFFORT.values()]
        made.append(cells)
    return markdown(columns, made)


def beside_trained(figure: dict[str, Any] | None) -> str:
    """A mean, in bold where its difference to ``trained`` excludes 0; empty where a row has none."""
    return "" if figure is None else marked(figure["value"], figure["minus trained"])


_EFFORT_FIGURE = re.compile(r"\{(\S+) (\w+)(?: - (\w+))?\}")
_EFFORT_ROWS = re.compile(r"\{(more|less) (\w+) than (\w+)\}")
_EFFORT_KEYS = {"accuracy": "id.accuracy", "nll": "id.nll", "msp": "msp", "auroc": "common"}


def said_of_effort(name: str, document: dict[str, Any]) -> str:
    """What is said of a study, ``SAID_OF_EFFORT``, with its figures.

    ``{ROW FIGURE}`` is a figure of a row, ``{ROW FIGURE - ROW}`` a difference with its interval, ``{ROW higher}`` how
    many of its trainings kept more than the lowest learning rate, ``{more FIGURE than ROW}`` and ``{less FIGURE than
    ROW}`` the rows whose difference has an interval above or below 0, each with its difference.
    """
    rows = {row["name"]: row for row in document["rows"]}

    def measured(match: re.Match[str]) -> str:
        row, figure, other = match.groups()
        if figure == "mults":
            return f"{rows[row]['mac_ratio']:.2f}"
        if figure == "higher":
            kept = [rate for of_seed in rows[row]["lr"] for rate in of_seed or ()]
            above_lowest = [rate for rate in kept if rate > min(document["lr"])]
            return f"{len(above_lowest)} of {len(kept)}"
        found = rows[row][_EFFORT_KEYS[figure]]
        if other is None:
            return f"{found['value']:.3f}"
        return interval(found[f"minus {other}"])

    def rows_with_a_difference(match: re.Match[str]) -> str:
        direction, figure, other = match.groups()
        key = _EFFORT_KEYS[figure]
        found = []
        for row in document["rows"]:
            difference = row.get(key, {}).get(f"minus {other}")
            if difference is None:  # the row itself, or one without features
                continue
            low, high = difference["ci"]
            if low > 0 if direction == "more" else high < 0:
                found.append((difference["value"], f"`{row['name']}` {interval(difference)}"))
        found.sort(reverse=direction == "more")
        return ", ".join(text for _, text in found) or "none"

    paragraphs = []
    for paragraph in SAID_OF_EFFORT[name].split("\n\n"):
        words = " ".join(paragraph.split())
        text = _EFFORT_FIGURE.sub(measured, _EFFORT_ROWS.sub(rows_with_a_difference, words))
        paragraphs.append(textwrap.fill(text, 120, break_on_hyphens=False))
    return "\n\n".join(paragraphs)


SAID_OF_EFFORT = {
    "fashion-mnist": """
        **With the same effort for every row, none is better than the control**, `trained`: the single model with the
        same training. On the ViT, each row with the best of three learning rates, better in accuracy: {more accuracy
        than trained}; in NLL: {less nll than trained}; in AUROC by the study's score: {more auroc than trained}. Nor is
        the control told from the single model: accuracy {trained accuracy - single}, NLL {trained nll - single}, AUROC
        {trained auroc - single}. What helps this model is its score.

        **One learning rate for all rows does not suit them all**: more than the lowest of three kept {deep higher}
        trainings of `deep`, {lora higher} of LoRA and {batch-ensemble higher} of BatchEnsemble, but {trained higher} of
        `trained`, {circuits-tuned higher} of circuits and {taylor-tuned higher} of Taylor members.
    """,
    "sst2": """
        **On MiniLM and SST-2**, better in accuracy: {more accuracy than trained}; in NLL: {less nll than trained}; in
        AUROC: {more auroc than trained}.
    """,
    "clip": """
        **On the small CLIP**, better in accuracy: {more accuracy than trained}; in NLL: {less nll than trained}; in
        AUROC: {more auroc than trained}.
    """,
    "digits": """
        **Trained long enough, a deep ensemble is the best row.** On the digits of `make demo`, five epochs of all
        images, `deep` has {deep accuracy - single} of accuracy, {deep nll - single} of NLL and {deep auroc - single} of
        AUROC beside the single model, in each more than any pruned row. The verdict does not take it: by the 150 images
        that choose it is not significantly better by more than 0.01.
    """,
    "fashion-mnist-deep": """
        On Fashion-MNIST, 8,000 images and two epochs, the verdict takes it: {deep auroc - single} of AUROC by
        `mahalanobis`, {deep accuracy - single} of accuracy, at {deep mults} times the mult-adds. Circuits gain as much
        AUROC ({circuits auroc - single}) at {circuits mults} times and lose accuracy ({circuits accuracy - single});
        the whole model with a circuit of the late sites has {whole-late@4 auroc - single} of AUROC at {whole-late@4
        mults} times and {whole-late@4 accuracy - single} of accuracy.
    """,
}
"""What the page says of studies with equal effort, by name."""


# --- cost -------------------------------------------------------------------------------------------------------------


def bench(name: str) -> str:
    """One ``bench.json``: each row's time over the first row's, at every batch size, and what it is made of.

    Of several number formats each has a first row of its own, so their times stand there too.
    """
    path = DOCS.parent / f"benchmarks/results/{name}.json"
    rows: dict[tuple[str, str], dict[int, dict[str, Any]]] = {}
    for row in json.loads(path.read_text(encoding="utf-8"))["results"]:
        rows.setdefault((row["model"], row["dtype"]), {})[row["batch_size"]] = row
    several = len({dtype for _, dtype in rows}) > 1
    batches = list(next(iter(rows.values())))
    made = []
    for (model, dtype), by_batch in rows.items():
        if model.endswith(".member0"):  # they are alike
            continue
        one = by_batch[batches[0]]
        cells = [f"{model}, {dtype}" if several else model, f"{one['mac_ratio']:.2f}"]
        cells.append(f"{one['params']:,}")
        for size in batches:
            low, high = by_batch[size]["ratio_ci"]
            cells += [f"{by_batch[size]['latency_ms']['median']:,.0f} ms"] if several else []
            cells.append(f"{by_batch[size]['ratio']:.2f} ({low:.2f} to {high:.2f})")
        made.append(cells)
    columns = ["", "mult-adds", "parameters"]
    for size in batches:
        columns += [f"batch {size}, median", "over single"] if several else [f"time, batch {size}"]
    return markdown(columns, made)


def memory(name: str) -> str:
    """What one checkpoint needed: the peak of each command above a process that has imported what it needs.

    Then its processor time over that of such a process and of one that reads, hashes and writes the same bytes.
    """
    document = json.loads((DOCS.parent / f"benchmarks/results/{name}.json").read_text(encoding="utf-8"))
    made = []
    for row in document["commands"]:
        # The second random member is as the first one, and of a plan the page says enough.
        if row["name"] == "prune random 1" or row["name"].endswith("--dry-run"):
            continue
        size, ratio, over_block = row["output_bytes"], row["peak_ratio"], row["peak_over_shard_and_block"]
        # Scores are hardly an output.
        written, over = ("", "") if size < MIB else (f"{size / MIB:,.0f}", f"{ratio:.2f}")
        time = row["cpu"] / (row["bare_cpu"] + row["reference_cpu"])
        memory = [f"{ratio * size / MIB:,.0f}", over, f"{over_block:.2f}"]
        made.append([row["name"], written, *memory, f"{time:.2f}"])
    columns = ["", "output, MiB", "peak, MiB", "over output", "over shard + block", "time over a copy"]
    return markdown(columns, made)


def start_up(name: str) -> str:
    """Processor time of each verb over that of an import of torch, of two versions of the source."""
    document = json.loads((DOCS.parent / f"benchmarks/results/{name}.json").read_text(encoding="utf-8"))
    ratios = document["ratios"]
    verbs = [row.removesuffix(", now") for row in ratios if row.endswith(", now")]
    made = []
    for verb in verbs:
        cells = [f"`{verb}`"]
        for version in ("before", "now"):
            figures = ratios[f"{verb}, {version}"]
            cells.append(f"{figures['median']:.2f} ({figures['smallest']:.2f} to {figures['largest']:.2f})")
        made.append(cells)
    return markdown(["", "before", "now"], made)


def making(name: str) -> str:
    """Time to make each ensemble over one training, and to run it over the model."""
    document = json.loads((DOCS.parent / f"benchmarks/results/{name}.json").read_text(encoding="utf-8"))
    batches = list(dict.fromkeys(row["batch_size"] for row in document["bench"]["results"]))
    made = []
    for row in document["rows"]:
        runs = [one for one in document["bench"]["results"] if one["model"] == row["name"].replace(", ", "-")]
        ratios = [row["make"]["ratio"], runs[0]["mac_ratio"], *(one["ratio"] for one in runs)]
        ratios.append(runs[0]["params"] / document["bench"]["results"][0]["params"])
        made.append([row["name"], *(f"{ratio:.2f}" for ratio in ratios)])
    columns = ["", "made in", "mult-adds", *(f"run in, batch {size}" for size in batches), "parameters"]
    return markdown(columns, made)


# --- rules of a verdict -----------------------------------------------------------------------------------------------


def rules(_name: str) -> str:
    """The rules of ``verdict-rules.json`` in which one choice is changed, on all validation samples.

    Changes of one kind that follow each other and have the same figures are one row.
    """
    document = json.loads((DOCS / "results/verdict-rules.json").read_text(encoding="utf-8"))
    names, table = document["single_changes"], document["tables"]["all samples"]
    columns = ["", "lost", "minus the rule", "worst harm", "harmed", "mult-adds", "MSP kept"]
    made: list[list[str]] = []
    for name in names:
        row = table[name]
        mean, error = row["minus_first"]
        difference = f"{mean:+.4f} ± {error:.4f}"
        shares = [f"{100 * row[key]:.1f} %" for key in ("harmed", "kept_msp")]
        numbers = [
            f"{row['lost']:.4f}",
            difference,
            f"{row['worst']:+.3f}",
            shares[0],
            f"{row['price']:.2f}",
            shares[1],
        ]
        kind, _, changed = name.partition(": ")
        if made and changed and made[-1][0].startswith(f"{kind}: ") and made[-1][1:] == numbers:
            made[-1][0] += f"; {changed}"
        else:
            made.append([name, *numbers])
    return markdown(columns, made)


# --- words of a verdict -----------------------------------------------------------------------------------------------

_JUDGED = {
    "accuracy": "id.accuracy",
    "NLL": "id.nll",
    "AUROC": "ood_avg.auroc",
    "ECE": "id.ece",
    "FPR95": "ood_avg.fpr95",
}
_STRONG = ("better", "worse")
_SLIGHT = ("slightly better", "slightly worse")


def words(part: str) -> str:
    """One table of ``verdict-words.json``."""
    document = json.loads((DOCS / "results/verdict-words.json").read_text(encoding="utf-8"))
    pairs = document["pairs"]
    return said_of_words(pairs) if part == "said" else words_on_equal_models(pairs)


def share_of(counted: dict[str, int], kinds: tuple[str, ...]) -> float:
    """Return the share of some words among all that were said."""
    return sum(counted.get(kind, 0) for kind in kinds) / sum(counted.values())


def said_of_words(pairs: dict[str, Any]) -> str:
    """What the tables say, in sentences with their figures."""
    equal = [pair for pair in pairs.values() if set(pair["truth"]) == {"accuracy"}]
    wrong: dict[str, list[float]] = {title: [] for title in _JUDGED}  # in percent, of every pair and size
    strong: dict[str, list[float]] = {title: [] for title in _JUDGED}
    for pair in equal:
        for measured in pair["sizes"].values():
            for title, key in _JUDGED.items():
                if key in measured["words"]:
                    wrong[title].append(100 * share_of(measured["words"][key], _STRONG + _SLIGHT))
                    strong[title].append(100 * share_of(measured["words"][key], _STRONG))
    differ = [measured["differ"] for pair in equal for measured in pair["sizes"].values()]
    any_of_three = statistics.mean(100 * count / trials for count, trials in differ)
    fast = ("accuracy", "AUROC", "NLL")
    accuracy, auroc, nll = (statistics.mean(wrong[title]) for title in fast)
    most_strong = max(max(strong[title]) for title in fast)
    first = (
        f"**Where two models are equally good, accuracy is said to differ in {accuracy:.1f} % of test sets, AUROC in "
        f"{auroc:.1f} % and NLL in {nll:.1f} %**; 95 % intervals promise 5 %. The most of a pair and a size are "
        f"{max(wrong['accuracy']):.1f}, {max(wrong['AUROC']):.1f} and {max(wrong['NLL']):.1f} %, the last on few "
        "samples, as the terms of an NLL are skewed. The strong words, better and worse, which ask for more than the "
        f"margin, are wrong in at most {most_strong:.1f} %."
    )
    second = (
        f"* **Read a verdict metric by metric**: one or more of the three are said to differ in {any_of_three:.0f} % "
        "of test sets. The answer of a study rests on AUROC alone."
    )
    third = (
        f"* **ECE of few samples**: the slight words were wrong in up to {max(wrong['ECE']):.0f} %, of 100 samples "
        f"with two wrong answers; better and worse in at most {max(strong['ECE']):.0f} %. FPR95 is cautious, with at "
        f"most {max(wrong['FPR95']):.0f} %."
    )
    paragraphs = []
    for text, indent in ((first, ""), (second, "  "), (third, "  ")):
        together = text.replace(" %", "\u00a0%")  # a percent sign stays on the line of its number
        paragraphs.append(textwrap.fill(together, 120, subsequent_indent=indent).replace("\u00a0", " "))
    first_paragraph, *bullets = paragraphs
    return "\n".join([first_paragraph, "", *bullets])


def words_on_equal_models(pairs: dict[str, Any]) -> str:
    """How often equally good models are said to differ: the mean over pairs, the worst of them, and strong words."""
    equal = [pair for pair in pairs.values() if set(pair["truth"]) == {"accuracy"}]
    made = []
    for size in equal[0]["sizes"]:
        cells = []
        for key in _JUDGED.values():
            counted = [pair["sizes"][size]["words"].get(key) for pair in equal]
            if None in counted:
                cells.append("")
                continue
            wrong = [100 * share_of(words, _STRONG + _SLIGHT) for words in counted]
            strong = [100 * share_of(words, _STRONG) for words in counted]
            mean, mean_of_strong = (statistics.mean(shares) for shares in (wrong, strong))
            cells.append(f"{mean:.1f} (at most {max(wrong):.1f}), {mean_of_strong:.1f}")
        any_of_three = [pair["sizes"][size]["differ"] for pair in equal]
        cells.append(f"{statistics.mean(100 * differ / trials for differ, trials in any_of_three):.1f}")
        made.append([f"{int(size):,}", *cells])
    return markdown(["samples", *(f"{title}, %" for title in _JUDGED), "any of the first three, %"], made)


# --- trainings with several seeds -------------------------------------------------------------------------------------

_COMPARED = {"accuracy": "accuracy", "NLL": "nll"}
Trainings = list[dict[str, dict[str, Any]]]
"""For every seed its rows by name."""


def seeds(part: str, *names: str) -> str:
    """One table of the trainings on Fashion-MNIST: a part of ``SEED_TABLES``, with its arguments."""
    return over_seeds("seeds.json", part, *names)


def cifar10(part: str, *names: str) -> str:
    """One table of the trainings on CIFAR-10, likewise."""
    return over_seeds("seeds-cifar10.json", part, *names)


def elsewhere(part: str, *names: str) -> str:
    """One table of the trainings on Fashion-MNIST on another machine, likewise."""
    return over_seeds("seeds-elsewhere.json", part, *names)


def over_seeds(file: str, part: str, *names: str) -> str:
    """One table of a file that ``examples/seeds.py`` wrote."""
    document = json.loads((DOCS / "results" / file).read_text(encoding="utf-8"))
    if part == "advice":
        return advice(document)
    trainings = [{row["name"]: row for row in training["rows"]} for training in document.values()]
    return SEED_TABLES[part](trainings, *names)


def rows_of_trainings(trainings: Trainings) -> list[str]:
    """The rows of all trainings, in the order of the first in which they stand."""
    return list(dict.fromkeys(name for rows in trainings for name in rows))


def scores_of_trainings(trainings: Trainings) -> list[str]:
    """The scores that some row has."""
    rows = [row for by_name in trainings for row in by_name.values()]
    return list(dict.fromkeys(score for row in rows for score in row["auroc"]))


def spread(values: list[float], style: str = ".3f") -> str:
    """Mean and sample standard deviation; of a single value no deviation."""
    mean = format(statistics.fmean(values), style)
    return f"{mean} ± {statistics.stdev(values):.3f}" if len(values) > 1 else mean


def gained(differences: list[float]) -> str:
    """The mean of paired differences, their standard deviation, and how many of them are positive."""
    positive = sum(one > 0 for one in differences)
    return f"{spread(differences, '+.3f')} ({positive}/{len(differences)})"


def distinct(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows, and once a row that all trainings share."""
    if rows and all(row.get("shared") for row in rows):
        return rows[:1]
    return rows


def has_score(rows: dict[str, dict[str, Any]], name: str, score: str) -> bool:
    """Whether a training has a row, and that row a score."""
    return name in rows and score in rows[name]["auroc"]


def differences_over_seeds(trainings: Trainings, other: str) -> str:
    """What every row costs, and its figures minus those of another one of the same training, under the same score."""
    pairs = [rows for rows in trainings if other in rows]
    scores = [score for score in scores_of_trainings(pairs) if any(has_score(rows, other, score) for rows in pairs)]
    made = []
    for name in rows_of_trainings(pairs):
        if name == other:
            continue
        cells = [f"{statistics.fmean(rows[name]['mac_ratio'] for rows in pairs if name in rows):.2f}"]
        for key in _COMPARED.values():
            cells.append(gained([rows[name][key] - rows[other][key] for rows in pairs if name in rows]))
        for score in scores:
            both = [rows for rows in pairs if has_score(rows, name, score) and has_score(rows, other, score)]
            aurocs = [(rows[name]["auroc"][score]["mean"], rows[other]["auroc"][score]["mean"]) for rows in both]
            cells.append(gained([auroc - against for auroc, against in aurocs]) if aurocs else "")
        made.append([name, *cells])
    return markdown([f"minus {other}", "mult-adds", *_COMPARED, *scores], made)


def advice(document: dict[str, Any]) -> str:
    """How often the studies say to use which row."""
    rows = [training["verdict"]["use"]["row"] for training in document.values()]
    counts = [f"`{row}` in {rows.count(row)} of {len(rows)}" for row in dict.fromkeys(rows)]
    shares = ", ".join(counts)
    said = "The studies advise the same" if len(counts) == 1 else "What a study advises depends on the training"
    text = f"* **{said}**: to use {shares}, each with the score that it chose."
    return "\n".join(textwrap.wrap(text, 120, subsequent_indent="  ", break_on_hyphens=False))


_FIGURE = re.compile(r"\{(\S+) ([\w-]+)(?: - (\S+) ([\w-]+))?(?: on (\w+))?\}")


def said_over_seeds(trainings: Trainings, *names: str) -> str:
    """``SENTENCES`` by name, with what the trainings gave in the place of every figure.

    ``{ROW FIGURE}`` is a mean with its deviation, ``{ROW FIGURE - ROW FIGURE}`` that of paired differences, and
    ``on SET`` at its end means one OOD test set.
    """

    def measured(match: re.Match[str]) -> str:
        row, figure, other, against, part = match.groups()
        there = [rows for rows in trainings if row in rows and (other is None or other in rows)]
        values = [figure_of(rows[row], figure, part) for rows in there]
        if figure == "mac_ratio":
            text = f"{statistics.fmean(values):.2f}"
        elif other is None:
            different_rows = distinct([rows[row] for rows in there])
            text = spread([figure_of(different_row, figure, part) for different_row in different_rows])
        else:
            others = [figure_of(rows[other], against, part) for rows in there]
            text = change([value - less for value, less in zip(values, others, strict=True)])
        return text

    made = []
    for name in names:
        words = " ".join(SENTENCES[name].split())
        text = _FIGURE.sub(measured, words).replace("{trainings}", str(len(trainings)))
        indent = "  " if text.startswith("* ") else ""
        # A mean stays on one line with its deviation.
        whole = text.replace(" ± ", "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}")
        lines = textwrap.wrap(whole, 120, subsequent_indent=indent, break_on_hyphens=False)
        made += [line.replace("\N{NO-BREAK SPACE}", " ") for line in lines]
    return "\n".join(made)


def figure_of(row: dict[str, Any], name: str, part: str | None) -> float:
    """The AUROC under a score, on one OOD test set or in the mean of all, or another figure of a row."""
    return float(row["auroc"][name][part or "mean"] if name in row["auroc"] else row[name])


def change(differences: list[float]) -> str:
    """The mean of paired differences and their standard deviation; how many are positive if not all or none are."""
    positive = sum(one > 0 for one in differences)
    mixed = f" (positive in {positive} of {len(differences)})" if 0 < positive < len(differences) else ""
    return f"{spread(differences, '+.3f')}{mixed}"


SENTENCES = {
    "score": """
        * **The score first: it costs next to nothing.** On the single model `mahalanobis-layers` instead of MSP gains
        {single mahalanobis-layers - single msp} of mean AUROC, `mahalanobis` {single mahalanobis - single msp}, and
        `energy`, which is fitted to nothing, {single energy - single msp}. With MSP no row gains as much.
    """,
    "pays": """
        * **Under that score no ensemble of pruned members detects more than the single model, tuned after pruning or
        not.** `whole-late@4`, the whole model fused with one small circuit, has {whole-late@4 mahalanobis-layers -
        single mahalanobis-layers} of AUROC and {whole-late@4 accuracy - single accuracy} of accuracy, at {whole-late@4
        mac_ratio} times the mult-adds; the paper's three circuits {circuits mahalanobis-layers - single
        mahalanobis-layers} and {circuits accuracy - single accuracy}, at {circuits mac_ratio} times; the same tuned for
        an epoch {circuits-tuned mahalanobis-layers - single mahalanobis-layers} and {circuits-tuned accuracy - single
        accuracy}, where the same training of the single model gives {trained mahalanobis-layers - single
        mahalanobis-layers} and {trained accuracy - single accuracy}.
    """,
    "deep": """
        * **A deep ensemble of three trainings**, made for some of the seeds, **pays in accuracy**: {deep accuracy -
        single accuracy}, NLL {deep nll - single nll}, at 3 times the mult-adds and two more trainings; its AUROC is
        {deep mahalanobis-layers - single mahalanobis-layers} under that score.
    """,
    "weaker": """
        * **Under weaker scores pruned members do gain**: the three circuits {circuits msp - single msp} with MSP and
        {circuits mahalanobis - single mahalanobis} with `mahalanobis`, `whole-late@4` {whole-late@4 msp - single msp}
        and {whole-late@4 mahalanobis - single mahalanobis}, the deep ensemble {deep msp - single msp} and {deep
        mahalanobis - single mahalanobis}. Choosing the score gains more, and costs nothing.
    """,
    "seed": """
        * **The training matters too.** By nothing but the seed, the single model's mean AUROC is {single msp} with MSP,
        {single mahalanobis} with `mahalanobis` and {single mahalanobis-layers} with `mahalanobis-layers`.
    """,
    "cifar10": """
        **A weak model, and another score: `knn` is the best of these, the distances of all layers gain little, and
        under `knn` every ensemble of pruned members loses; a deep ensemble gains.** Over {trainings} trainings of a ViT
        with an accuracy of {single accuracy}, `knn` instead of MSP gains {single knn - single msp} of mean AUROC,
        `energy`, which is fitted to nothing, {single energy - single msp}, `mahalanobis-layers` {single
        mahalanobis-layers - single msp}. Under `knn`, minus the single model: `whole-late@4` {whole-late@4 knn - single
        knn} at {whole-late@4 mac_ratio} times the mult-adds; the three circuits {circuits knn - single knn} and
        {circuits accuracy - single accuracy} of accuracy at {circuits mac_ratio} times; the same tuned for an epoch
        {circuits-tuned knn - single knn} and {circuits-tuned accuracy - single accuracy}; a deep ensemble of the
        trainings {deep knn - single knn} and {deep accuracy - single accuracy}. Under `energy` and `vim`, which find
        fewer OOD samples, pruned members can gain: `whole-late@4` {whole-late@4 energy - single energy} and
        {whole-late@4 vim - single vim}, the tuned circuits {circuits-tuned energy - single energy} and {circuits-tuned
        vim - single vim}.
    """,
    "elsewhere": """
        Rounding differs between machines, and a training makes much of it: the same {trainings} seeds trained on
        another machine gave other models, with a mean AUROC of the single model of {single msp} with MSP and {single
        mahalanobis} with `mahalanobis`. Against it, under the same score, `whole-late@4` gained {whole-late@4 msp -
        single msp} with MSP and {whole-late@4 mahalanobis - single mahalanobis} with `mahalanobis`, the three circuits
        {circuits msp - single msp} and {circuits mahalanobis - single mahalanobis}.
    """,
    "first": """
        Over {trainings} trainings of one recipe ([all figures](docs/numbers/seeds.md), mean ± standard deviation) the
        score `mahalanobis-layers` instead of MSP gains {single mahalanobis-layers - single msp} of OOD AUROC. Under
        that score pruned members add nothing: the whole model fused with one small circuit {whole-late@4
        mahalanobis-layers - single mahalanobis-layers} at {whole-late@4 mac_ratio} times the cost, the paper's three
        circuits {circuits mahalanobis-layers - single mahalanobis-layers} at {circuits mac_ratio} times.
    """,
}
"""What pages say of all trainings, by name."""

SEED_TABLES = {
    "said": said_over_seeds,
    "minus": differences_over_seeds,
}
"""What makes a table over trainings, by the first word behind ``seeds:``."""


# --- one training, every row under the same scores --------------------------------------------------------------------


def minilm(_name: str) -> str:
    """Rows of the study of MiniLM minus the single model, whose own figures come first; bold: told apart from it."""
    single, *others = json.loads((DOCS / "results/sst2-rows.json").read_text(encoding="utf-8"))["sst2"]
    scores = list(single["scores"])
    own = [single["id.accuracy"], *(single["scores"][score] for score in scores)]
    made = [["single, itself", "1.00", *(f"{figure['value']:.3f}" for figure in own)]]
    for row in others:
        cells = [row["name"], f"{row['mac_ratio']:.2f}"]
        for figure in (row["id.accuracy"], *(row["scores"][score] for score in scores)):
            difference = figure["minus single"]
            low, high = difference["ci"]
            text = interval(difference)
            cells.append(f"**{text}**" if low > 0 or high < 0 else text)
        made.append(cells)
    return markdown(["minus single", "mult-adds", "accuracy", *scores], made)


# --- circuit search ---------------------------------------------------------------------------------------------------


# --- eval on files ----------------------------------------------------------------------------------------------------


def files(_name: str) -> str:
    """What ``eval`` on image files takes, by ``benchmarks/eval_of_files.py``: each side over each other one."""
    path = DOCS.parent / "benchmarks/results/eval-of-files.json"
    rounds = json.loads(path.read_text(encoding="utf-8"))["seconds"]
    made = []
    for side in ("bare loop", "eval", "eval before"):
        cells = [f"`{side}`" if side == "eval" else side]
        cells.append(f"{statistics.median(of_round[side] for of_round in rounds):.1f} s")
        for other in ("bare loop", "eval before"):
            ratios = [of_round[side] / of_round[other] for of_round in rounds]
            middle = statistics.median(ratios)
            cells.append("" if side == other else f"{middle:.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
        made.append(cells)
    return markdown(["", "seconds", "over the bare loop", "over eval before"], made)


# --- on a GPU ---------------------------------------------------------------------------------------------------------


def gpu(part: str, *words: str) -> str:
    """Times on a GPU: ``ARCH DTYPE MODE`` by model and batch, ``padding``, or a sentence of GPU_SENTENCES."""
    rows = gpu_rows("gpu-cost")
    if part == "padding":
        return gpu_padding()
    if part in GPU_SENTENCES:
        return filled_sentence(GPU_SENTENCES[part], rows)
    dtype, mode = words
    rows = [row for row in rows if (row["arch"], row["dtype"], row["mode"]) == (part, dtype, mode)]
    rows.sort(key=lambda row: not row["model"].startswith(("single", "whole")))  # the others stay in order behind them
    batches = sorted({row["batch_size"] for row in rows} & _SHOWN_BATCHES)
    made = []
    for model in dict.fromkeys(row["model"] for row in rows if row["model"] not in _LEFT_OUT):
        by_batch = {row["batch_size"]: row for row in rows if row["model"] == model}
        any_row = next(iter(by_batch.values()))
        cells = [f"`{model}`", str(any_row["operators"]), f"{any_row['mac_ratio']:.2f}"]
        for batch in batches:
            if model == "single":
                cells.append(gpu_single([row for row in rows if row["batch_size"] == batch]))
            else:
                cells.append(gpu_cell(by_batch.get(batch)))
        made.append(cells)
    return markdown(["", "operators", "mult-adds", *(f"batch {batch}" for batch in batches)], made)


_SHOWN_BATCHES = {1, 4, 128}
"""The file has batches of 32, too."""

_LEFT_OUT = ("fused, 10 shared, not batched", "fused, 6 shared, not batched")
"""Rows of the file between two that are shown."""

GPU_SENTENCES = {
    "opening": (
        "On an H200, ViT-B/16 in bfloat16 at batch 4, time over that of the single model in the same mode: the whole "
        "model with a circuit {eager 4 whole ratio} run operator by operator and {graphs 4 whole ratio} in CUDA "
        "graphs; three members that share 10 of 12 sites {eager 4 fused10 ratio} and {graphs 4 fused10 ratio}; three "
        "that share none {eager 4 fused0 ratio} (the paper: 1.07) and {graphs 4 fused0 ratio}, with {eager 4 fused0 "
        "mac_ratio} times the mult-adds, and one after another {eager 4 apart ratio}. At batch 128 these take {eager "
        "128 fused0 ratio} times as long side by side. At batch 1 CUDA graphs answer in {graphs 1 single ms} ms "
        "instead of {eager 1 single ms}, with three members that share none in {graphs 1 fused0 ms}."
    ),
    "waiting": (
        "Up to batch 4 the GPU waits for the processor, so time follows operators rather than mult-adds: the kernels "
        "of the single model take {eager 4 single kernel_ms} of its {eager 4 single ms} ms, and those of three members "
        "that share none {eager 4 fused0 kernel_ms} of {eager 4 fused0 ms}. At batch 32 it still waits for the single "
        "model ({eager 32 single kernel_ms} of {eager 32 single ms} ms), and is busy with the three members ({eager 32 "
        "fused0 kernel_ms} of {eager 32 fused0 ms}). These have {eager 4 fused0 operators} operators instead of {eager "
        "4 single operators}, but {eager 4 fused0 kernels} kernels instead of {eager 4 single kernels}, as a batched "
        "product with a bias copies the bias first, and each member is read out by itself. At batch 128 the single "
        "model computes {eager 128 single tera} x 10^12 operations a second, two for each mult-add, and {float32 eager "
        "128 single tera} in float32."
    ),
}
"""``{[DTYPE] MODE BATCH MODEL KEY}`` is a figure of a row of ViT-B/16, in bfloat16 where none is named.

``ms`` is the time of a call, ``tera`` how many 10^12 operations a second it takes, two for each mult-add.
"""

GPU_MODELS = {
    "single": "single",
    "whole": "whole + circuit, last 2",
    "fused10": "fused, 10 shared",
    "fused0": "fused, 0 shared",
    "apart": "members one after another",
}


def filled_sentence(sentence: str, rows: list[dict[str, Any]]) -> str:
    """A sentence of a page with its figures."""

    def figure(match: re.Match[str]) -> str:
        *perhaps_dtype, mode, batch, model, key = match[1].split()
        dtype = perhaps_dtype[0] if perhaps_dtype else "bfloat16"
        place = ("vit_base_patch16_224", dtype, mode, int(batch), GPU_MODELS[model])
        keys = ("arch", "dtype", "mode", "batch_size", "model")
        (row,) = [row for row in rows if tuple(row[one] for one in keys) == place]
        if key == "tera":
            return f"{2 * row['macs'] * row['throughput_per_s'] / 1e12:.0f}"
        value = row["latency_ms"]["median"] if key == "ms" else row[key]
        return str(value) if isinstance(value, int) else f"{value:.2f}"

    return textwrap.fill(re.sub(r"{([^}]*)}", figure, sentence), 120)


def gpu_rows(name: str) -> list[dict[str, Any]]:
    """The rows of a file of ``benchmarks/gpu_cost.py``."""
    path = DOCS.parent / f"benchmarks/results/{name}.json"
    rows: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["rows"]
    return rows


def gpu_cell(row: dict[str, Any] | None) -> str:
    """The time of a row over that of the single model in the same rounds."""
    if row is None:
        return ""
    return f"{row['ratio']:.2f}{' ~' if row['noisy'] else ''}"


def gpu_single(rows: list[dict[str, Any]]) -> str:
    """The least and the most milliseconds that the single model took in the rounds of the rows of a batch."""
    taken = [row["latency_ms"]["median"] / row["ratio"] for row in rows]
    return f"{min(taken):.2f} to {max(taken):.2f} ms"


def gpu_padding() -> str:
    """A fused model whose members have unequal heads: with products of each member, and with one for both."""
    whole = GPU_MODELS["whole"]
    by_place: dict[tuple[str, int], dict[str, dict[str, Any]]] = {}
    for row in gpu_rows("gpu-cost-padding"):
        of_place = by_place.setdefault((row["mode"], row["batch_size"]), {})
        of_place[row["model"]] = row
    made = []
    for (mode, batch), of_place in by_place.items():
        single = of_place["single"]
        padded = of_place[whole]
        apart = of_place[f"{whole}, not batched"]
        kernels = f"{apart['kernels']} and {padded['kernels']}"
        made.append(
            [mode, str(batch), f"{single['ms']:.2f} ms", f"{apart['ratio']:.2f}", f"{padded['ratio']:.2f}", kernels]
        )
    return markdown(["mode", "batch", "single", "apart, over single", "padded, over single", "kernels"], made)


# --- the paper's tables -----------------------------------------------------------------------------------------------


def paper(name: str) -> str:
    """A table of the paper, without the lines for one's own figures and without some columns."""
    made: str = runpy.run_path(str(DOCS.parent / "examples" / "paper" / "beside.py"))["markdown"](name)
    rows = [line.split("|")[1:-1] for line in made.splitlines() if not line.startswith("| *yours*")]
    shown = [place for place, title in enumerate(rows[0]) if title.strip() not in _NOT_SHOWN]
    return "\n".join(f"|{'|'.join(row[place] for place in shown)}|" for row in rows)


_NOT_SHOWN = ("Brier", "aECE", "OOD AUPR")
"""What the tables of the paper have besides; the script prints it."""


def paper_cost(part: str) -> str:
    """A table of ``paper-cost.json``, which ``examples/paper/cost.py`` has counted."""
    document = json.loads((DOCS / "results/paper-cost.json").read_text(encoding="utf-8"))
    return {"scripts": costs_of_scripts, "rows": costs_of_rows}[part](document[part])


def costs_of_scripts(scripts: list[dict[str, Any]]) -> str:
    """What each script takes, alone and after ``table1.sh``."""
    made = []
    for script in scripts:
        after = script["after_table1"]
        counts = [str(script["counts"][kind]) for kind in ("training", "search", "prediction")]
        hours = [gpu_hours(one["operations"]) for one in (script, after)]
        cells = [*counts, operations_text(script["operations"]), *hours]
        made.append([f"`{script['script']}.sh`", *cells, gigabytes(script["memory"]), gigabytes(script["disk"])])
    counted = ["trainings", "searches", "predictions", "operations"]
    return markdown(["", *counted, "hours", "after `table1.sh`", "GPU memory", "disk"], made)


def costs_of_rows(rows: list[dict[str, Any]]) -> str:
    """What each row of Tables 1, 2 and 3 takes to make and to run."""
    made = []
    for row in rows:
        weights = gigabytes(4 * row["parameters"])
        run = [f"{row['parameters'] / 1e6:.0f} M", weights, f"{row['mac_ratio']:.2f}", measured_times(row)]
        make = [str(row["trainings"]), operations_text(row["operations"]), gpu_hours(row["operations"])]
        made.append([f"{_SETS[row['set']]}: {row['row']}", *run, *make, gigabytes(row["memory"])])
    titles = ["", "parameters", "weights", "mult-adds", "time", "trainings", "operations", "hours", "GPU memory"]
    return markdown(titles, made)


_SETS = {"imagenet": "ImageNet-1K", "cifar100": "CIFAR-100", "sst2": "SST-2", "clip": "CLIP"}

_MEASURED = {
    "deep": "deep ensemble",
    "taylor": "first member alone",
    "circ-avg": "first member alone",
    "hydra-taylor": "fused, 0 shared",
    "hydra-circ": "fused, 0 shared",
}
"""Rows of ImageNet whose like was measured on a GPU."""


def measured_times(row: dict[str, Any]) -> str:
    """The measured times of a row over those of the single model, at batch 4 and 128; empty where there are none."""
    if row["set"] != "imagenet" or row["row"] not in _MEASURED:
        return ""
    place = ("vit_base_patch16_224", "bfloat16", "eager", _MEASURED[row["row"]])
    keys = ("arch", "dtype", "mode", "model")
    like = {one["batch_size"]: one for one in gpu_rows("gpu-cost") if tuple(one[key] for key in keys) == place}
    return f"{like[4]['ratio']:.2f}, {like[128]['ratio']:.2f}"


def gpu_hours(operations: dict[str, float]) -> str:
    """The hours of operations at the rates of the measured GPU, by number format; empty for none."""
    place = ("vit_base_patch16_224", "eager", 128, "single")
    keys = ("arch", "mode", "batch_size", "model")
    hours = 0.0
    for row in gpu_rows("gpu-cost"):
        if tuple(row[key] for key in keys) == place:
            a_second = 2 * row["macs"] * row["throughput_per_s"]
            hours += operations.get(row["dtype"], 0) / a_second / 3600
    if hours < 0.05:
        return "< 0.1" if hours else ""
    return f"{hours:.1f}" if hours < 10 else f"{hours:,.0f}"


def operations_text(operations: dict[str, float]) -> str:
    """The sum of operations, in 10^15; empty for none."""
    total = sum(operations.values()) / 1e15
    if total == 0:
        return ""
    return f"{total:.1f}" if total < 10 else f"{total:,.0f}"


def gigabytes(count: int) -> str:
    """A number of bytes; empty for none."""
    if count == 0:
        return ""
    return f"{count / 1e9:.1f} GB" if count < 10e9 else f"{count / 1e9:.0f} GB"


_CHANGES = {
    "": "`mahalanobis-layers`",
    "tokens: read": "the tokens that are read alone",
    "tokens: rest": "the mean of the others alone",
    "tokens: all": "the mean of all tokens alone",
    "tokens: read and all": "the tokens that are read, and the mean of all",
    "last_read: False": "the others of the last block, too",
    "gaussian: one": "one Gaussian instead of one a class",
    "inverse: oas": "covariances shrunk by OAS",
    "inverse: ridge": "covariances shrunk by 1 %",
    "length: 1": "vectors scaled to length 1 (Mahalanobis++)",
    "blocks: last half": "the last half of the blocks",
    "classifier: False": "without the features of the classifier",
    "sum: distance": "sum of distances, not squared",
    "sum: log": "sum of their logarithms",
    "sum: standard": "sum of standardised logarithms",
    "sum: positive": "sum of the positive standardised ones",
    "sum: squares": "sum of the squares of the positive ones",
    "sum: highest": "the highest standardised one",
}


def layers(part: str) -> str:
    """What ``layered-scores.json`` says, or its table: each variant, in one choice another score than hydractl's."""
    document = json.loads((DOCS / "results/layered-scores.json").read_text(encoding="utf-8"))
    if part == "said":
        return said_of_layers(document)
    if part == "hedge":
        return hedge_with_layers(document)
    if part == "price":
        return price_of_layers()
    rows = []
    for change in document["changes"]:
        title = ", ".join(f"{choice}: {value}" for choice, value in change["changes"].items())
        difference, error = change["minus"]
        cells = [f"{change['mean']:.3f}"]
        if title:
            cells += [f"{difference:+.3f} ± {error:.3f}", f"{change['lowest']:+.3f}", f"{change['highest']:+.3f}"]
        rows.append([_CHANGES[title], *cells, *[""] * (4 - len(cells))])
    return markdown(["", "mean AUROC", "difference", "lowest", "highest"], rows)


def price_of_layers() -> str:
    """What the score adds to the processor time of ``eval``: what ``benchmarks/eval_overhead.py --layers`` measured."""
    results = json.loads((DOCS.parent / "benchmarks/results/layers-price.json").read_text(encoding="utf-8"))
    names = {"vit_small_patch16_224": "ViT-S/16", "vit_base_patch16_224": "ViT-B/16"}
    prices = []
    for measured in results:
        ratios = [of_round["with"] / of_round["without"] for of_round in measured["rounds"]]
        model = measured["model"].removeprefix("timm:").partition("?")[0]
        prices.append(
            f"{statistics.median(ratios):.2f} for a {names[model]} ({min(ratios):.2f} to {max(ratios):.2f} in "
            f"{len(ratios)} rounds, {measured['samples']} images each to fit to, to test on and OOD)"
        )
    text = (
        "Its price: processor time of `eval` with it, over that with `mahalanobis` alone, in turns beside other work, "
        f"of models of 1,000 classes: {', '.join(prices)}."
    )
    return textwrap.fill(text, 120)


def said_of_layers(document: dict[str, Any]) -> str:
    """The figures of the score beside others, and what is chosen with each model left out."""
    models = document["models"]
    own = [model["mean"] for model in models]
    last = [model["references"]["mahalanobis"] for model in models]
    mean = statistics.mean(own)
    mean_of = {
        score: statistics.mean(model["references"][score] for model in models) for score in ("msp", "mahalanobis")
    }
    above = sum(one > other for one, other in zip(own, last, strict=True))
    lowest = min(one - other for one, other in zip(own, last, strict=True))
    left_out = document["left_out"]
    chosen = statistics.mean(one["mean"] for one in left_out)
    first = (
        f"**`mahalanobis-layers` has a mean AUROC of {mean:.3f} on {len(models)} small models, the last layer alone "
        f"{mean_of['mahalanobis']:.3f}, MSP {mean_of['msp']:.3f}.** It is above the last layer on {above} of them, and "
        f"at worst {lowest:+.3f} from it."
    )
    second = (
        f"* **Nothing less plain is better**: the variant chosen on all models but one has {chosen:.3f} on the one "
        "left out, in the mean over all of them."
    )
    third = f"* **`hedge`, the sum that needs no OOD data, gains with it**: {gain_of_hedge(document['hedge'])}."
    paragraphs = [textwrap.fill(text, 120, subsequent_indent="  " * text.startswith("*")) for text in (second, third)]
    return "\n".join([textwrap.fill(first, 120), "", *paragraphs])


def gain_of_hedge(models: list[dict[str, Any]]) -> str:
    """What the sum gains by the score of all layers, on the models that were looked at and on the others."""
    parts = []
    for held_out, name in ((False, "models that were looked at"), (True, "others")):
        measured = [model["all"] for model in models if model["held_out"] == held_out]
        before, after = (statistics.mean(one[key] for one in measured) for key in ("without", "with"))
        above = sum(one["with"] > one["without"] for one in measured)
        parts.append(f"{before:.3f} to {after:.3f}, more on {above} of {len(measured)} {name}")
    return "; ".join(parts)


def hedge_with_layers(document: dict[str, Any]) -> str:
    """The sum of standardised scores on each model that was held out, with the score of all layers and without."""
    rows = []
    for model in document["hedge"]:
        if model["held_out"]:
            figures, few = model["all"], model["few"]
            cells = [f"{figures[key]:.3f}" for key in ("msp", "without", "with")]
            lowest = f"{figures['lowest']:+.3f}"
            rows.append([model["name"], *cells, lowest, f"{few['without']:.3f}", f"{few['with']:.3f}"])
    titles = ["", "MSP", "without", "with", "lowest - MSP", "300 samples: without", "with"]
    return markdown(titles, rows)


KINDS = {
    "paper": paper,
    "papercost": paper_cost,
    "study": study,
    "recipe": recipe,
    "curve": curve,
    "bayes": bayes,
    "effort": effort,
    "bench": bench,
    "memory": memory,
    "starting": start_up,
    "making": making,
    "rules": rules,
    "words": words,
    "layers": layers,
    "files": files,
    "gpu": gpu,
    "seeds": seeds,
    "cifar10": cifar10,
    "minilm": minilm,
    "elsewhere": elsewhere,
}
"""What makes a table, by the first word of the place where it stands."""

if __name__ == "__main__":
    for page in PAGES:
        page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")
