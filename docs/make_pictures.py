"""Draw the picture of each study whose answer is kept in docs/results/, as reports do: OOD detection against cost.

    python docs/make_pictures.py

The pages of the studies and README.md show them. Whoever runs it looks at what changed: other versions of matplotlib
write other bytes.
"""

from __future__ import annotations

import io
from pathlib import Path

from matplotlib.figure import Figure
from PIL import Image

from hydractl.files.study_answer import StudyAnswer
from hydractl.report.eval_pictures import Reached, drawn_overview
from hydractl.report.pictures import styled

DOCS = Path(__file__).resolve().parent
STUDIES = ("clip", "digits", "fashion-mnist", "sst2")


def main() -> None:
    """Write ``docs/numbers/study-NAME.png`` of each study."""
    for name in STUDIES:
        study = StudyAnswer.read(str(DOCS / "results" / f"{name}.json"))
        single = study.rows[0]
        reached = []
        for row in study.rows:
            reached.append(Reached(row.name, row.mac_ratio, row.common or row.test, chosen=row.used))
        picture = drawn_overview(reached, {f"{single.name}, MSP": study.baseline, single.name: single.test}, "")
        assert picture is not None  # rows of a study have mult-adds
        drawn = io.BytesIO()
        with styled():
            figure = Figure(figsize=(9.2, 3.3), layout="constrained")
            for axes, panel in zip(figure.subplots(1, 2), picture.panels, strict=True):
                panel.draw(axes)
            figure.suptitle(picture.title)
            figure.savefig(drawn, format="png")
        few_colours = Image.open(drawn).convert("RGB").quantize(128, method=Image.Quantize.MAXCOVERAGE)
        few_colours.save(DOCS / "numbers" / f"study-{name}.png", optimize=True)


if __name__ == "__main__":
    main()
