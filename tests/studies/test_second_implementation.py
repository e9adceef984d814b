"""The rule of a study decides as that of ``benchmarks/verdict_rules.py``, which shares no code with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from hydractl.metrics.bootstrap import Resampled
from hydractl.studies.rule import Candidate, Decision, Evidence
from hydractl.studies.words import ACCURACY, NLL
from tests.running import script

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "verdict_rules.py"
ROWS, SCORES, SETS, ROUNDS = 4, ("msp", "energy", "vim"), 3, 40
MAX_DROP = 0.01


class Drawn:
    """AUROCs, accuracies and NLLs of rows whose differences are about as large as the limits of the rule."""

    def __init__(self, seed: int) -> None:
        random = np.random.default_rng(seed)
        of_set = random.uniform(0.55, 0.9, SETS)[None, None, :]
        of_row = random.normal(0, 0.01, (ROWS, 1, 1))
        of_score = random.normal(0, 0.03, (1, len(SCORES), 1))
        of_all = random.normal(0, 0.008, (ROWS, len(SCORES), SETS))
        self.aurocs = (of_set + of_row + of_score + of_all).reshape(-1, SETS)
        common = random.normal(0, 0.02, (1, SETS, ROUNDS))
        noise = random.normal(0, 0.006, (len(self.aurocs), SETS, ROUNDS))
        self.resampled = self.aurocs[..., None] + common + noise
        self.accuracies = 0.9 + random.normal(0, 0.008, ROWS)
        self.nlls = 0.3 + random.normal(0, 0.015, ROWS)
        # Of each row and round, how accuracy and NLL differ from those of the data; they differ little between rows.
        self.moved = random.normal(0, 0.01, (1, ROUNDS)) + random.normal(0, 0.004, (ROWS, ROUNDS))
        self.macs = [100, *random.choice([110, 110, 150, 200], ROWS - 1).tolist()]
        self.members = [1, *random.choice([2, 3], ROWS - 1).tolist()]
        self.places = [(row, score) for row in range(ROWS) for score in SCORES]
        self.names = ["single", *(f"row{row}" for row in range(1, ROWS))]

    def evidence(self) -> Evidence:
        """What the product decides by."""
        found = []
        for place, (row, score) in enumerate(self.places):
            inside = {ACCURACY: self.accuracies[row], NLL: self.nlls[row]}
            moved = {name: value + self.moved[row] for name, value in inside.items()}
            outside = {f"set{number}": self.aurocs[place, number] for number in range(SETS)}
            found.append(
                Candidate(
                    row=self.names[row],
                    score=score,
                    members=self.members[row],
                    macs=self.macs[row],
                    inside=Resampled(inside, moved),
                    outside=Resampled(outside, {f"set{i}": self.resampled[place, i] for i in range(SETS)}),
                )
            )
        return Evidence(found)

    def validation(self, rules: Any) -> object:
        """What the script decides by."""
        prices = [(macs, members, row) for row, (macs, members) in enumerate(zip(self.macs, self.members, strict=True))]
        within = []
        for row in range(ROWS):
            moved = self.moved[row] - self.moved[0]
            lost, gained = self.accuracies[0] - self.accuracies[row], self.nlls[0] - self.nlls[row]
            of_accuracy = rules.keeps_to(MAX_DROP, lost, lost - moved)
            within.append(of_accuracy and rules.keeps_to(rules.NLL_LIMIT, -gained, moved - gained))
        candidates = [rules.Candidate(row, score) for row, score in self.places]
        return rules.Validation(candidates, prices, within, self.aurocs, self.resampled)


def test_both_decide_alike() -> None:
    rules = script(SCRIPT)
    setting = rules.Setting(scores="one")
    taken = set()
    for seed in range(100):
        drawn = Drawn(seed)
        ours = Decision(drawn.evidence(), MAX_DROP).chosen
        theirs = rules.decide(drawn.validation(rules), range(SETS), setting, {})
        row, score = drawn.places[theirs]
        assert (ours.row, ours.score) == (drawn.names[row], score), f"seed {seed}"
        taken.add(drawn.places[theirs])
    assert len(taken) > 6  # the cases are not all alike
