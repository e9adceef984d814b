"""The SPEC grammar, without any file."""

from __future__ import annotations

import pytest

from hydractl.errors import UsageError
from hydractl.expressions.data_sets import DataSpec
from tests.running import refused


@pytest.mark.parametrize(
    ("text", "kind", "path", "query"),
    [
        ("cal.npz", "npz", "cal.npz", {}),
        ("CAL.NPZ?x=images&y=targets", "npz", "CAL.NPZ", {"x": "images", "y": "targets"}),
        ("builtin:digits/train", "builtin", "digits/train", {}),
        ("torchvision:CIFAR10/test?root=/d", "torchvision", "CIFAR10/test", {"root": "/d"}),
        ("a folder/with spaces", "path", "a folder/with spaces", {}),
        ("list.txt?root=/a/b?c", "path", "list.txt", {"root": "/a/b?c"}),
        ("what?.txt", "path", "what?.txt", {}),
        ("what?.txt?root=r", "path", "what?.txt", {"root": "r"}),
        ("l.txt?root=a%26b%25", "path", "l.txt", {"root": "a&b%"}),
        ("100%25.npz", "npz", "100%25.npz", {}),
        ("odd:name", "path", "odd:name", {}),
        ("r.tsv.gz", "text", "r.tsv.gz", {}),
        ("hf:glue/sst2", "hf", "glue/sst2", {}),
        ("l.txt?root=a=b", "path", "l.txt", {"root": "a=b"}),
    ],
)
def test_parts(text: str, kind: str, path: str, query: dict[str, str]) -> None:
    spec = DataSpec.of_option("--data", text)
    assert (spec.kind, spec.path, dict(spec.query)) == (kind, path, query)


@pytest.mark.parametrize("text", ["", "builtin:", "?x=1"])
def test_nothing_named(text: str) -> None:
    with pytest.raises(UsageError, match="a name or a path"):
        DataSpec.of_option("--data", text)


def test_bad_settings_are_all_listed() -> None:
    error = refused(UsageError, DataSpec.of_option, "--data", "a.npz?x=&y&x=1&x=2")
    assert error.problems == ["'x=' is not key=value", "'y' is not key=value", "'x' is given twice"]


def test_unknown_setting_names_the_known() -> None:
    error = refused(UsageError, DataSpec.of_option("--ood", "a.npz?images=q").check_query, ["x", "y"])
    assert error.message == "--ood a.npz?images=q: unknown setting 'images' after '?'"
    assert error.hint == "known here: x, y"
