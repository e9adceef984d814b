"""The metrics of a watch as text: read back by the rules of the format, and the numbers of the watch."""

from __future__ import annotations

import re

import numpy as np

from hydractl.metrics.watching import WINDOW, Watch, reference_of
from hydractl.report.prometheus import prometheus_text, watch_families

LINE = re.compile(r'(hydractl_[a-z_]+)(\{(?:[a-z]+="(?:[^"\\\n]|\\["\\n])*",?)*\})? (-?[0-9.e+-]+)')
NAME = 'a "cat"\nor\\two'


def parsed(text: str) -> dict[str, float]:
    """The numbers, by name and labels; every line has the form, and every name is declared once before it."""
    values: dict[str, float] = {}
    kinds: dict[str, str] = {}
    assert text.endswith("\n")
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name not in kinds
            kinds[name] = kind
            continue
        if line.startswith("# HELP "):
            continue
        match = LINE.fullmatch(line)
        assert match is not None, line
        assert (kinds[match[1]] == "counter") == match[1].endswith("_total")
        values[match[1] + (match[2] or "")] = float(match[3])
    return values


def test_the_numbers_are_those_of_the_watch() -> None:
    scores = np.linspace(0, 1, 500)
    watch = Watch(reference_of(scores, scores, {NAME: 250, "dog": 250}, 25))
    assert parsed(prometheus_text(watch_families(watch)))["hydractl_inputs_total"] == 0
    for place in range(WINDOW + 5):
        watch.add(place % 100 / 100 + 0.3, place % 3 == 0, NAME if place % 2 else "dog")
    values = parsed(prometheus_text(watch_families(watch)))
    escaped = r"a \"cat\"\nor\\two"
    assert values["hydractl_inputs_total"] == WINDOW + 5 and values["hydractl_flagged_total"] == 335
    assert values[f'hydractl_predicted_total{{class="{escaped}"}}'] == 502
    assert values["hydractl_windows_total"] == values["hydractl_alarms_total"] == 1
    assert values["hydractl_reference_samples"] == 500
    window = watch.latest
    assert window is not None and window.share is not None and window.auroc is not None
    assert values['hydractl_flagged_share_difference{bound="estimate"}'] == window.share.difference
    assert values['hydractl_score_shift_auroc{bound="low"}'] == window.auroc.ci[0]
    assert values['hydractl_alarm{figure="share"}'] == 1 and values['hydractl_alarm{figure="classes"}'] == 0


def test_without_a_reference_there_are_counters_alone() -> None:
    watch = Watch(None)
    watch.add(None, None, 4)
    assert set(parsed(prometheus_text(watch_families(watch)))) == {
        "hydractl_inputs_total",
        "hydractl_flagged_total",
        'hydractl_predicted_total{class="4"}',
        "hydractl_windows_total",
        "hydractl_alarms_total",
    }
