"""A sample of the sweep over all of timm: one model of each kind that is opened, and some that are refused."""

from __future__ import annotations

import pytest

from tests.families.sweep import main

EQUAL = ["vit_base_patch16_siglip_224", "deit3_small_patch16_224", "vitamin_small_224", "eva02_tiny_patch14_224"]
EQUAL += [
    "vit_small_patch16_dinov3_qkvb",
    "vit_base_patch16_rope_reg1_gap_256",
    "swin_s3_tiny_224",
    "beitv2_base_patch16_224",
]
REFUSED = ["resnet18", "cait_xxs24_224", "naflexvit_base_patch16_gap", "vit_base_patch16_xp_224"]


@pytest.mark.long
def test_a_sample_says_what_the_library_says(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*EQUAL, *REFUSED]) == 0
    assert capsys.readouterr().out == f"{{'equal': {len(EQUAL)}, 'refused': {len(REFUSED)}}}\n"
