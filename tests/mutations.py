"""Defects put into the product on purpose, one at a time: each is to be caught by the tests named beside it.

    python -m tests.mutations                # all of them
    python -m tests.mutations part labels    # those whose name holds one of these words

Each is made in a temporary copy of the repository, where the tests (of ``make test``, unless it says others) run until
the first failure. What survives is a missing test. Every name, file and text is checked by ``test_mutations.py``, so
that the list stays true.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COPIED = ("hydractl", "tests", "docs", "benchmarks", "examples", "pyproject.toml", "README.md", "constraints.txt")
LEFT_OUT = shutil.ignore_patterns("__pycache__", "results", "runs", "*.png", "*.svg")
LIMIT_S = 600


@dataclass(frozen=True)
class Mutation:
    """One defect.

    Attributes:
        name: what it breaks.
        file: of the product.
        old: a text that the file has once.
        new: what stands in its place.
        tests: arguments of pytest.
    """

    name: str
    file: str
    old: str
    new: str
    tests: str


MUTATIONS = (
    # --- heads, model, files ------------------------------------------------------------------------------------------
    Mutation(
        "ties among heads",
        "hydractl/heads/selection.py",
        "return sorted(heads, key=importance)",
        "return sorted(reversed(list(heads)), key=importance)",
        "tests/heads/test_selection.py",
    ),
    Mutation(
        "a tie of a search goes to the highest head",
        "hydractl/circuit/winners.py",
        "return counts.key(objective), -site, -position",
        "return counts.key(objective), -site, position",
        "tests/circuit/test_winners.py",
    ),
    Mutation(
        "a candidate given up that could still win a tie",
        "hydractl/circuit/race.py",
        "contestant.hope(objective) < lead:",
        "contestant.hope(objective)[0] <= lead[0]:",
        "tests/circuit/test_race.py",
    ),
    Mutation(
        "pooling in 16 bits",
        "hydractl/model/runtime.py",
        "logits = member_logits if member_logits.dtype == torch.float64 else member_logits.float()",
        "logits = member_logits",
        "tests/model/test_pooling.py",
    ),
    Mutation(
        "cost of another fused model",
        "hydractl/model/cost.py",
        'document["members"] = heads_of_members\n',
        'document["members"] = len(description.masks)\n',
        "tests/model/test_cost.py -k counted_once",
    ),
    Mutation(
        "a file renamed before it is on the disk",
        "hydractl/files/atomic.py",
        "                os.fsync(self._lock.fileno())\n",
        "",
        "tests/files/test_atomic.py -k disk",
    ),
    Mutation(
        "a file synchronised before it is flushed",
        "hydractl/files/atomic.py",
        "                self._lock.flush()\n",
        "",
        "tests/files/test_atomic.py -k disk",
    ),
    Mutation(
        "disk quota of an output",
        "hydractl/files/atomic.py",
        "_STORAGE_ERRNOS = {errno.ENOSPC, errno.EFBIG, errno.EDQUOT, errno.EIO}",
        "_STORAGE_ERRNOS = {errno.ENOSPC, errno.EFBIG, errno.EIO}",
        "tests/files/test_atomic.py -k disk",
    ),
    Mutation(
        "disk quota elsewhere",
        "hydractl/errors.py",
        "_STORAGE = {errno.ENOSPC, errno.EFBIG, errno.EIO, errno.EDQUOT}",
        "_STORAGE = {errno.ENOSPC, errno.EFBIG, errno.EIO}",
        "tests/cli/test_cli_exit_codes.py -k errors_of_verbs",
    ),
    # --- studies ------------------------------------------------------------------------------------------------------
    Mutation(
        "a step finished by one of its files",
        "hydractl/studies/steps.py",
        "return all(exists)",
        "return any(exists)",
        "tests/studies/test_steps.py",
    ),
    Mutation(
        "a folder's name that a shell expands",
        "hydractl/studies/steps.py",
        "shlex.quote(str(folder / purpose))",
        "str(folder / purpose)",
        "tests/studies/test_steps.py",
    ),
    Mutation(
        "a score on features of the first member",
        "hydractl/evaluation/predictions/store.py",
        "name: values.mean(axis=0) for name",
        "name: values[0] for name",
        "tests/studies/test_measured_rows.py",
    ),
    Mutation(
        "the token that is read counted among the others",
        "hydractl/model/layers.py",
        "weights_of_others = weights.scatter(1, positions, 0.0)",
        "weights_of_others = weights",
        "tests/model/test_model_layers.py -k class-token",
    ),
    Mutation(
        "the spread between classes left in the covariance of a layer",
        "hydractl/metrics/feature_scores/layers.py",
        "covariance = (self.products - between_classes) / samples",
        "covariance = self.products / samples",
        "tests/model/test_model_layers.py -k class-token",
    ),
    Mutation(
        "labels of samples that were skipped",
        "hydractl/evaluation/gathering.py",
        "labels = dataset.labels[list(batch.rows)]",
        "labels = dataset.labels[: len(batch.rows)]",
        "tests/studies/test_measured_rows.py",
    ),
    Mutation(
        "a row without heads",
        "hydractl/studies/plan.py",
        "return min(at_least_one, total - 1)",
        "return min(at_least_one, total)",
        "tests/studies/test_steps.py",
    ),
    # --- training -----------------------------------------------------------------------------------------------------
    Mutation(
        "weights before the average",
        "examples/more_methods/hydractl_more_methods/averaging.py",
        "        if steps_made <= 0:\n            return False\n",
        "",
        "tests/methods/test_more_methods.py -m long -k test_its_tests_pass",
    ),
    Mutation(
        "variance of SWAG",
        "examples/more_methods/hydractl_more_methods/averaging.py",
        "(self.squares[name] / (2 * self.count)).sqrt()",
        "(self.squares[name] / self.count).sqrt()",
        "tests/methods/test_more_methods.py -m long -k test_its_tests_pass",
    ),
    Mutation(
        "the low-rank half of SWAG",
        "examples/more_methods/hydractl_more_methods/averaging.py",
        "math.sqrt(2 * (self.rank - 1))",
        "math.sqrt(2 * self.rank)",
        "tests/methods/test_more_methods.py -m long -k test_its_tests_pass",
    ),
    Mutation(
        "the first step of a warm-up",
        "hydractl/training/course.py",
        "return (step + 1) / warmup",
        "return step / warmup",
        "tests/training/test_loop.py -k schedule",
    ),
    Mutation(
        "the last cycle",
        "examples/more_methods/hydractl_more_methods/snapshots.py",
        "return start, min(self.steps_per_cycle, steps_left)",
        "return start, self.steps_per_cycle",
        "tests/methods/test_more_methods.py -m long -k test_its_tests_pass",
    ),
    Mutation(
        "decay of norms and biases",
        "hydractl/training/start.py",
        '"weight_decay": 0.0},',
        '"weight_decay": options.weight_decay},',
        "tests/training/test_loop.py tests/training/test_start.py",
    ),
    Mutation(
        "losses in 16 bits",
        "hydractl/training/losses.py",
        "logits = _at_least_float32(logits)\n        options = self.options\n",
        "options = self.options\n",
        "tests/training/test_losses.py",
    ),
    Mutation(
        "pairs of the second part of a batch",
        "hydractl/training/losses.py",
        "signs.diagonal(start).fill_(1.0)",
        "signs.diagonal(0).fill_(1.0)",
        "tests/training/test_contrastive.py",
    ),
    Mutation(
        "a state whose tensors changed places",
        "hydractl/training/checkpointing.py",
        "        digest.update(title.encode())\n",
        "",
        "tests/training/test_resume.py -k damaged",
    ),
    Mutation(
        "the scale of LoRA",
        "hydractl/methods/lora/matrices.py",
        "self.scale = alpha / rank",
        "self.scale = alpha",
        "tests/methods/test_lora.py",
    ),
    # --- exports ------------------------------------------------------------------------------------------------------
    Mutation(
        "the calibration in a graph",
        "hydractl/exports/answer.py",
        "Block(logits, self._chosen.calibration, IN_GRAPH)",
        "Block(logits, None, IN_GRAPH)",
        "tests/exports/test_whole_answer.py",
    ),
    # --- data ---------------------------------------------------------------------------------------------------------
    Mutation(
        "a sample known by its mode",
        "hydractl/data/base.py",
        '        yield in_mode(strip, "RGB").tobytes()\n',
        "        yield strip.tobytes()\n",
        "tests/faults/test_samples_as_seen.py",
    ),
    Mutation(
        "a text known by its white space",
        "hydractl/data/base.py",
        'words = " ".join(unicodedata.normalize("NFC", text).split())',
        'words = unicodedata.normalize("NFC", text)',
        "tests/faults/test_samples_as_seen.py",
    ),
    Mutation(
        "older fingerprints compared with new ones",
        "hydractl/files/fingerprints.py",
        '        if "decoder" in use:\n            seen.update(_kept_digests(use))\n',
        "        seen.update(_kept_digests(use))\n",
        "tests/files/test_fingerprints.py",
    ),
    Mutation(
        "twelve bits of a TIFF taken for sixteen",
        "hydractl/families/pixels.py",
        "upper_bits = np.asarray(image) >> (bits - 8)",
        "upper_bits = np.asarray(image) >> 8",
        "tests/faults/test_deep_images.py",
    ),
    Mutation(
        "an orientation that is ignored for models of transformers",
        "hydractl/families/hf/images.py",
        "in_mode(upright(image), mode)",
        "in_mode(image, mode)",
        "tests/faults/test_orientation.py",
    ),
    Mutation(
        "a pickle that may name anything",
        "hydractl/files/state_dict.py",
        "if name not in _CALLED.get(module, ()):",
        "if module not in _CALLED:",
        "tests/files/test_state_dict.py",
    ),
    Mutation(
        "classes of a small fraction",
        "hydractl/data/part.py",
        "(np.arange(len(members)) + start) / len(members)",
        "np.arange(len(members)) / len(members)",
        "tests/data/test_part.py",
    ),
    Mutation(
        "lengths of a part",
        "hydractl/data/part.py",
        "return [lengths[row] for row in self._rows]",
        "return lengths",
        "tests/data/test_part.py",
    ),
    Mutation(
        "captions that run into each other",
        "hydractl/data/base.py",
        'pieces += [f"caption {len(content)}\\n".encode(), content]',
        "pieces.append(content)",
        "tests/data/test_captions.py",
    ),
    Mutation(
        "classes of one name",
        "hydractl/data/labels.py",
        "ambiguous = sorted({name for name in target_names if counts[name] > 1})",
        "ambiguous = sorted({name for name in target_names if counts[name] > 2})",
        "tests/data/test_labels.py",
    ),
    Mutation(
        "labels of 2^63",
        "hydractl/data/labels.py",
        "abs(value) < 2**63",
        "abs(value) <= 2**63",
        "tests/data/test_labels.py",
    ),
    Mutation(
        "the order of texts",
        "hydractl/data/batching.py",
        "order.sort(key=lambda i: -lengths[i])",
        "order.sort(key=lambda i: lengths[i])",
        "tests/data/test_batches.py",
    ),
    Mutation(
        "the rounding of a mixture",
        "hydractl/data/pseudo_ood.py",
        "mean = (total + 1) // 2",
        "mean = total // 2",
        "tests/data/test_pseudo_ood.py",
    ),
    Mutation(
        "arrays in Fortran's order",
        "hydractl/data/arrays.py",
        "    if header.fortran:\n",
        "    if header.fortran and not name:\n",
        "tests/data/test_arrays.py",
    ),
    # --- choosing, data in memory, options ----------------------------------------------------------------------------
    Mutation(
        "near ties of scores",
        "hydractl/evaluation/fitting.py",
        "if best_mean - mean < NEAR_TIE]",
        "if best_mean - mean <= 0]",
        "tests/evaluation/test_calibrate.py",
    ),
    Mutation(
        "the threshold of another score than the one chosen",
        "hydractl/evaluation/fitting.py",
        "{set_name: samples.scores[score] for",
        "{set_name: samples.scores[scores[0]] for",
        "tests/evaluation/test_calibrate.py",
    ),
    Mutation(
        "labels that a data set changes when it is read",
        "hydractl/data/held.py",
        'changes_labels = getattr(dataset, "target_transform", None) is not None',
        "changes_labels = False",
        "tests/api/test_data_in_memory.py",
    ),
    Mutation(
        "class names of a torch data set",
        "hydractl/data/held.py",
        "return HeldSamples(samples, labels, list(names))",
        "return HeldSamples(samples, labels)",
        "tests/api/test_data_in_memory.py",
    ),
    Mutation(
        "the format that an ending names",
        "hydractl/verbs/export.py",
        'formats = endings or ["onnx"]',
        'formats = ["onnx"]',
        "tests/exports/test_export.py",
    ),
    Mutation(
        "the interval of a small share",
        "hydractl/metrics/confidence.py",
        "spread / (4 * total)\n",
        "spread / (2 * total)\n",
        "tests/metrics/test_confidence.py",
    ),
    Mutation(
        "a range that an argument of a method has",
        "hydractl/errors.py",
        '("at least", at_least, operator.ge),',
        '("at least", at_least and 0, operator.ge),',
        "tests/methods/test_adding.py -k told",
    ),
    Mutation(
        "a progress bar that a program asked to be silent",
        "hydractl/api/progress.py",
        "    if _asked is not None:\n        return _asked\n",
        "    if _asked:\n        return True\n",
        "tests/api/test_progress.py",
    ),
    Mutation(
        "a requirement of the last row that is reported",
        "hydractl/verbs/report.py",
        'unmet = unmet_in(rows, values["require"])',
        'unmet = unmet_in(rows[:-1], values["require"])',
        "tests/evaluation/test_means.py",
    ),
    Mutation(
        "tables as large as a configuration asks for",
        "hydractl/families/meta_device.py",
        "if tables > min(",
        "if tables < 0 and tables > min(",
        "tests/faults/test_attacks.py -k fault_93",
    ),
    Mutation(
        "as many tokens as a configuration asks for",
        "hydractl/families/timm.py",
        "if tokens > _MOST_TOKENS:",
        "if tokens > 64 * _MOST_TOKENS:",
        "tests/faults/test_attacks.py -k fault_93",
    ),
    Mutation(
        "a resumed run replaces what another has written",
        "hydractl/files/atomic.py",
        "self._has_to_be_same = resumed and not force",
        "self._has_to_be_same = False",
        "tests/verbs/test_predict.py -k fault_105",
    ),
    Mutation(
        "one label that is taken for another is swapped",
        "hydractl/metrics/plausibility.py",
        "if min(lowest_shares) > 0.5:",
        "if max(lowest_shares) > 0.5:",
        "tests/metrics/test_plausibility.py -k fault_101",
    ),
    Mutation(
        "a few samples tell which pairs are rare",
        "hydractl/metrics/plausibility.py",
        "total < _SAMPLES_PER_CELL * classes**2",
        "total < 0",
        "tests/metrics/test_plausibility.py -k fault_101",
    ),
    Mutation(
        "labels of a weak model are doubted",
        "hydractl/metrics/plausibility.py",
        "if low <= _DRAWN or explained <= errors / 2:",
        "if low <= _DRAWN:",
        "tests/metrics/test_plausibility.py -k fault_101",
    ),
    Mutation(
        "classes that are a list have no names",
        "hydractl/families/hf/published.py",
        "    if isinstance(entry, list):\n        by_number = ",
        "    if isinstance(entry, list):\n        _ = ",
        "tests/faults/test_checkpoints_of_others.py -k 'fault_108 or fault_109'",
    ),
    Mutation(
        "a file is read however long it is",
        "hydractl/jsonio.py",
        "if len(content) <= MOST_BYTES:",
        "if len(content) > 0:",
        "tests/faults/test_huge_files.py -k device",
    ),
    Mutation(
        "heads that do not divide the width",
        "hydractl/families/hf/family.py",
        "if width % heads:",
        "if width % heads < 0:",
        "tests/faults/test_checkpoints_of_others.py -k fault_107",
    ),
    Mutation(
        "names of classes that begin with one",
        "hydractl/families/hf/published.py",
        "if sorted(by_number) != sorted(numbers):",
        "if len(by_number) != len(numbers):",
        "tests/faults/test_checkpoints_of_others.py -k fault_108",
    ),
    Mutation(
        "weights of open_clip whose activation nobody knows",
        "hydractl/families/open_clip/family.py",
        "if has_other_activation or prepares_otherwise:",
        "if prepares_otherwise and not has_other_activation:",
        "tests/families/test_open_clip_names.py -k fault_109",
    ),
    Mutation(
        "drawn weights are doubted as published ones",
        "hydractl/model/source.py",
        "return replace(source, drawn_by=seed, warnings=())",
        "return replace(source, drawn_by=seed)",
        "tests/families/test_open_clip_names.py -k drawn",
    ),
    Mutation(
        "a compiled model behind the prefix of its module",
        "hydractl/files/state_dict.py",
        "weights = _without_wrappers({name.removeprefix(self.prefix): weights[name] for name in weights})",
        "weights = {name.removeprefix(self.prefix): weights[name] for name in weights}",
        "tests/faults/test_checkpoints_of_others.py -k compiled",
    ),
    Mutation(
        "capitals that are meant to be lost are doubted",
        "hydractl/families/hf/texts.py",
        'if "tokenizer" not in preprocess or "do_lower_case" in settings:',
        'if "tokenizer" not in preprocess:',
        "tests/faults/test_checkpoints_of_others.py -k capitals",
    ),
    Mutation(
        "an unfinished file replaces what another command has written",
        "hydractl/verbs/predict.py",
        "Output(path, force=plan.options.force, ",
        "Output(path, force=plan.options.force or resume, ",
        "tests/verbs/test_predict.py -k fault_105",
    ),
    Mutation(
        "numbers of classes without a sample",
        "hydractl/metrics/plausibility.py",
        "elif classes_without_samples:",
        "elif classes_without_samples == classes:",
        "tests/metrics/test_plausibility.py -k fault_88",
    ),
    Mutation(
        "a score is fitted to one class without a word",
        "hydractl/evaluation/plausibility.py",
        "if eval_set.role in (ID, VAL, TRAIN) and",
        "if eval_set.role in (ID, VAL) and",
        "tests/evaluation/test_fitted_numbers.py -k one_class",
    ),
    Mutation(
        "a packed file is taken for one of another encoding",
        "hydractl/data/text_rows.py",
        "is_packed = number == 1 and",
        "is_packed = number == 0 and",
        "tests/data/test_text_faults.py -k fault_109",
    ),
)


def mutated(mutation: Mutation, folder: Path) -> None:
    """Put a defect into a copy of the repository.

    Raises:
        ValueError: the file does not have the text once.
    """
    path = folder / mutation.file
    text = path.read_text(encoding="utf-8")
    if text.count(mutation.old) != 1:
        raise ValueError(f"{mutation.name}: {mutation.file} has {text.count(mutation.old)} times: {mutation.old}")
    path.write_text(text.replace(mutation.old, mutation.new), encoding="utf-8")


def is_caught(mutation: Mutation) -> bool:
    """Whether the tests of a defect fail with it."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, folder / name, ignore=LEFT_OUT)
            else:
                shutil.copy2(source, folder / name)
        mutated(mutation, folder)
        command = f'"{sys.executable}" -m pytest -n 0 -x -p no:cacheprovider -m "not long" {mutation.tests}'
        environment = {**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            command, shell=True, cwd=folder, env=environment, capture_output=True, text=True, timeout=LIMIT_S
        )
    if done.returncode not in (0, 1):  # no test was run, or pytest itself failed
        said = done.stdout[-2000:] + done.stderr[-2000:]
        sys.exit(f"{mutation.name}: pytest ended with {done.returncode}\n{said}")
    return done.returncode == 1


def main(words: list[str]) -> int:
    """Try the defects, and name those that survive. Returns how many they are."""
    chosen = MUTATIONS
    if words:
        chosen = tuple(mutation for mutation in MUTATIONS if any(word in mutation.name for word in words))
    survivors = 0
    for mutation in chosen:
        caught = is_caught(mutation)
        if not caught:
            survivors += 1
        answer = "caught" if caught else "SURVIVED"
        print(f"{answer}: {mutation.name} ({mutation.tests})", flush=True)
    print(f"{len(chosen) - survivors} of {len(chosen)} caught")
    return survivors


if __name__ == "__main__":
    sys.exit(min(main(sys.argv[1:]), 100))
