"""The report in a real browser, where there is one: it is drawn, it fits a telephone, and dark is dark."""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from hydractl.report.eval_html import render
from tests.browsing import BROWSER, browse
from tests.report.examples import HOSTILE, answer_of, everything, sample

pytestmark = [pytest.mark.long, pytest.mark.skipif(BROWSER is None, reason="no Chromium or Chrome on this machine")]

# The report forbids scripts; this page holds it in a frame of the width asked for and measures it from outside.
MEASURE = """<!DOCTYPE html><body style="margin:0">
<iframe id=f style="width:%dpx;height:4000px;border:0" src="%s"></iframe>
<pre id=out></pre><script>
document.getElementById("f").onload = () => {
  const page = document.getElementById("f").contentDocument, box = e => e.getBoundingClientRect();
  const seen = [...page.querySelectorAll("img")].map(s => {
    return [box(s).width, box(s).height, box(s).right, s.naturalWidth];
  });
  const texts = [...page.querySelectorAll("p, li, h1, h2, h3, figcaption, dd, img")].map(e => box(e).right);
  document.getElementById("out").textContent = JSON.stringify({seen: seen, wide: page.documentElement.scrollWidth,
    right: Math.max(...texts), tall: page.body.scrollHeight,
    boxes: [...page.querySelectorAll(".scroll")].map(e => box(e).right)});
};</script>"""


def measured(page: Path, width: int) -> dict[str, Any]:
    """What a browser of this width says of a page."""
    frame = page.with_name("frame.html")
    frame.write_text(MEASURE % (width, page.name))
    dumped = browse(frame, "--dump-dom", "--allow-file-access-from-files", "--virtual-time-budget=5000")
    found = re.search(r"<pre id=\"out\">(.*?)</pre>", dumped, re.DOTALL)
    assert found and found[1], dumped[-500:]
    return dict(json.loads(unescape(found[1])))


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of an eval with every optional part: it takes longer to draw than to show."""
    page = tmp_path_factory.mktemp("everything") / "report.html"
    page.write_bytes(render(answer_of(everything())))
    return page


@pytest.mark.parametrize("width", [375, pytest.param(1440, marks=pytest.mark.release)])
def test_every_picture_is_drawn_and_nothing_is_wider_than_the_page(width: int, page: Path) -> None:
    found = measured(page, width)
    assert len(found["seen"]) == 2 + 2 + 3
    if width == 1440:
        assert found["tall"] <= 4 * 900  # four screens
    for wide, tall, right, natural_width in found["seen"]:
        assert wide >= 160 and tall >= 60 and right <= width
        assert natural_width > 0  # 0 is an image that could not be read
    assert found["wide"] <= width and found["right"] <= width and max(found["boxes"]) <= width


def test_the_longest_names_do_not_widen_a_telephones_page(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    page.write_bytes(render(answer_of(sample(dict.fromkeys(HOSTILE, 1), sets={"letters": "near"}, rounds=0))))
    found = measured(page, 390)
    assert found["wide"] <= 390 and found["right"] <= 390


def test_light_and_dark_pixels(page: Path, tmp_path: Path) -> None:
    shots = {}
    for name, scheme in (("light", 1), ("dark", 0)):
        shot = tmp_path / f"{name}.png"
        blink = f"--blink-settings=preferredColorScheme={scheme}"
        browse(page, f"--screenshot={shot}", "--window-size=1000,3000", blink)
        shots[name] = np.asarray(Image.open(shot).convert("RGB"))[:2000].reshape(-1, 3).astype(int)
    light, dark = (shots[name].sum(axis=1) for name in ("light", "dark"))
    assert np.median(light) == 3 * 255 and (dark < 200).mean() > 0.3
    assert (dark == 3 * 255).mean() > 0.2  # pictures stand on a light ground in the dark too
    for pixels in shots.values():
        for colour in ((0xE6, 0x9F, 0x00), (0x00, 0x72, 0xB2)):  # the outlines of OOD sets, and points
            assert (np.abs(pixels - colour).sum(axis=1) < 12).sum() > 200
