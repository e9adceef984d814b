"""What stands after ``--ensemble KIND:`` is read once, and refused with an example where it makes no sense."""

from __future__ import annotations

import pytest

from hydractl.cli.app import main


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("packed:1,2", "--ensemble packed: M must be at least 2, not 1; such as packed:3,2"),
        ("batch-ensemble:0.1,0", "--ensemble batch-ensemble: M must be at least 1, not 0"),
        ("lora:0,1", "--ensemble lora: RANK must be at least 1, not 0"),
        ("mimo:x", "--ensemble mimo: M must be a whole number, not 'x'"),
    ],
)
def test_an_argument_that_makes_no_sense_is_refused(
    capsys: pytest.CaptureFixture[str], text: str, message: str
) -> None:
    assert main(["finetune", "a.st", "--train", "train.npz", "--ensemble", text]) == 2
    assert message in capsys.readouterr().err
