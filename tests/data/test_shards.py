"""Shards of ``captions:``: which samples, in which order, with which captions, and what is wrong with damaged ones."""

from __future__ import annotations

import gzip
import io
import tarfile
from pathlib import Path

import pytest

from hydractl.data import open_data
from hydractl.errors import InputError, UsageError
from tests.image_data import first_pixels, png, shard
from tests.running import refused


def captioned(path: Path, members: dict[str, bytes]) -> str:
    """The SPEC of a shard with these images, each with a caption."""
    files = {}
    for name, content in members.items():
        files[name] = content
        files[f"{name.partition('.')[0]}.txt"] = b"a caption"
    return f"captions:{shard(path, files)}"


def colours(spec: str) -> list[int]:
    """The first pixel of every image."""
    return first_pixels(open_data(spec))


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """Two shards of two samples."""
    for s in range(2):
        members: dict[str, bytes] = {}
        for i in range(2):
            n = 2 * s + i
            members[f"val/{n:03}.png"] = png(n)
            members[f"val/{n:03}.txt"] = f"{3 - n}\n".encode()
            members[f"val/{n:03}.json"] = b"{}"
        shard(tmp_path / f"val-{s:02}.tar", members)
    return tmp_path


@pytest.mark.parametrize("spec", ["val-*.tar", "val-0[01].tar", ""])
def test_samples(shards: Path, spec: str) -> None:
    data = open_data(f"captions:{shards}/{spec}")
    assert data.ids == ["val-00.tar/val/000", "val-00.tar/val/001", "val-01.tar/val/002", "val-01.tar/val/003"]
    assert data.captions == ["3", "2", "1", "0"]
    assert first_pixels(data) == first_pixels(data, workers=2) == [0, 1, 2, 3]


def test_limit_reads_no_further_shard(shards: Path) -> None:
    (shards / "val-01.tar").write_bytes(b"no tar file")
    assert len(open_data(f"captions:{shards}", limit=2)) == 2 and len(open_data(f"captions:{shards}", limit=1)) == 1
    with pytest.raises(InputError, match="these shards cannot be used"):
        open_data(f"captions:{shards}", limit=3)


def test_a_caption_that_is_no_text(tmp_path: Path) -> None:
    file = shard(tmp_path / "a.tar", {"0.txt": b"\xff", "0.jpg": png(0)})
    error = refused(InputError, open_data, f"captions:{file}")
    assert error.problems == ["a.tar: the text of 0 is not UTF-8 text"]


def test_shards_of_one_name_in_two_folders(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        shard(tmp_path / folder / "0.tar", {"0.txt": b"an oak", "0.png": png(len(folder))})
    assert open_data(f"captions:{tmp_path}/*/0.tar").ids == ["0.tar/0", "0.tar/0#2"]


def test_which_image(tmp_path: Path) -> None:
    images = {"0.png": png(1), "0.seg.png": png(2), "0.jpg": png(3)}
    spec = captioned(tmp_path / "a.tar", images)
    with pytest.raises(InputError) as error:
        open_data(spec)
    assert error.value.problems == ["a.tar: 0 has several images (png, jpg): choose with ?image="]
    assert colours(f"{spec}?image=JPG") == [3] and colours(f"{spec}?image=seg.png") == [2]
    with pytest.raises(InputError, match="cannot be used") as error:
        open_data(f"{spec}?image=webp")
    assert error.value.problems == ["a.tar: 0 has no image"]


def test_every_bad_shard_is_named(tmp_path: Path) -> None:
    good = shard(tmp_path / "0.tar", {"0.png": png(0), "1.png": png(1)})
    content = Path(good).read_bytes()
    (tmp_path / "1.tar").write_bytes(content[:1600])  # within the second header
    (tmp_path / "2.tar").write_bytes(content[:1024] + b"x" * 512 + bytes(2048))  # where the second header should be
    (tmp_path / "3.tar").write_bytes(gzip.compress(content))
    (tmp_path / "4.tar").write_bytes(b"")
    shard(tmp_path / "5.tar", {"0.png": png(0), "1.png": png(1), "0.cls": b"1"})
    (tmp_path / "6.tar").write_bytes(content[:2048])  # whole members, no end mark
    with tarfile.open(tmp_path / "7.tar", "w") as archive:
        link = tarfile.TarInfo("0.png")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    error = refused(InputError, open_data, f"captions:{tmp_path}")
    found = {problem.partition(":")[0]: problem for problem in error.problems}
    assert sorted(found) == [f"{i}.tar" for i in range(1, 8)]
    assert found["1.tar"] == "1.tar: unexpected end of data" and found["2.tar"] == "2.tar: it is damaged at byte 1024"
    assert "compressed ones" in str(error.hint) and "cut off" in found["6.tar"]
    assert "the files of 0 do not stand together" in found["5.tar"] and "0.png is no plain file" in found["7.tar"]


@pytest.mark.fault(48)
@pytest.mark.parametrize("how", ["sparse", "size", "sparse size"])
def test_a_tar_of_odd_members(how: str, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "s.tar", "w", format=tarfile.PAX_FORMAT) as archive:
        for name, content in (("a.png", png(1)), ("a.txt", b"an oak")):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            if how == "sparse":
                member.type = tarfile.GNUTYPE_SPARSE
            else:
                member.pax_headers = {"GNU.sparse.size" if "sparse" in how else "size": "9" * 12}
            archive.addfile(member, io.BytesIO(content))
    with pytest.raises(InputError, match="these shards cannot be used"):
        open_data(f"captions:{tmp_path}/s.tar")


def test_a_damaged_image_is_one_sample(tmp_path: Path) -> None:
    spec = captioned(tmp_path / "a.tar", {"0.png": png(0), "1.png": b"", "2.png": png(2)[:40], "3.png": png(3)})
    with pytest.raises(InputError, match=r"cannot read image 1\.png of .*a\.tar: the file is empty"):
        colours(spec)
    data = open_data(spec)
    Path(spec.removeprefix("captions:")).unlink()
    with pytest.raises(InputError, match="No such file"):
        data[0]


def test_missing_and_empty(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no \.tar files") as error:
        open_data(f"captions:{tmp_path}/s-*.tar")
    assert error.value.hint is not None and "pattern" in error.value.hint
    shard(tmp_path / "none.tar", {"README": b"x", ".hidden.png": png(0)})
    with pytest.raises(InputError, match="no images in 1 shard"):
        open_data(f"captions:{tmp_path}/none.tar")
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputError, match="no .tar files"):
        open_data(f"captions:{tmp_path}/folder")
    for spec in ("captions:https://x/a.tar", "captions:pipe:cat a.tar"):
        with pytest.raises(UsageError, match="local files only"):
            open_data(spec)


def test_a_name_is_no_pattern_where_there_is_such_a_file(tmp_path: Path) -> None:
    odd = tmp_path / "[0]"
    odd.mkdir()
    shard(odd / "a[1].tar", {"0.png": png(4), "0.txt": b"an oak"})
    shard(odd / "a1.tar", {"0.png": png(5), "0.txt": b"an elm"})
    assert colours(f"captions:{odd}/a[1].tar") == [4]
    assert colours(f"captions:{odd}") == [5, 4]
