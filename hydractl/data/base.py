"""The interface shared by all open data sets."""

from __future__ import annotations

import hashlib
import itertools
import operator
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import PIL
from PIL import Image, features

from hydractl.errors import InputError
from hydractl.families.pixels import in_mode, is_turned
from hydractl.log import Log

PAIRS = "image-caption pair"
"""The :attr:`Dataset.kind` of images with captions; an image with several captions makes several samples."""

MOST_LISTED = 1000
"""How many ids of skipped samples a document lists at most; it always gives their exact number."""

_MOST_SAID = 5
_PIXELS_AT_ONCE = 1 << 22


class UnreadableSample(InputError):
    """One sample cannot be read: its file is damaged, empty or gone. Other samples of the set may be fine."""


@dataclass(frozen=True, eq=False)
class RowIds(Sequence[str]):
    """The ids ``NAME#0``, ``NAME#1``, ... of the rows of a set, of which a file may claim to have very many."""

    name: str
    rows: int

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, row: Any) -> Any:
        row = range(self.rows)[operator.index(row)]
        return f"{self.name}#{row}"


@dataclass(eq=False, repr=False)
class Dataset(ABC):
    """A finite sequence of samples in a fixed order.

    Attributes:
        spec: the SPEC from which the set was opened.
        kind: what a sample is: ``"image"``, ``"text"`` or :data:`PAIRS`.
        is_encoded: whether samples are images that have to be decoded, as from JPEG files, which takes long.
        where: the name of this data set in messages (option and SPEC).
        ids: one id per sample, the same on every machine.
        captions: the caption of each image of a set of pairs; None for all other sets.
        labels: int64 ``[samples]``, or None if the set is unlabelled. If the checkpoint has class names, a label is an
            index into those names.
        label_names: the checkpoint's class names if there are any, else the data's own, else None.
        label_hint: how the user can say where the labels are; set when there are no labels.
        left_out: how many files of a folder are no images by the ending of their names, by that ending.
        skipped: None means that an unreadable sample is an error. A dict means that unreadable samples are left out of
            the batches; it maps the index of each sample skipped so far to the reason.
        turned: the indices of the images read so far that say by an EXIF orientation how they are to be turned.
        fingerprints: the fingerprints of the samples read so far, by id. Sets with the same samples may share them.
    """

    spec: str
    where: str
    ids: Sequence[str]
    kind = "image"
    is_encoded = False

    # Whoever opens the set fills these in afterwards.
    captions: Sequence[str] | None = field(default=None, init=False)
    labels: npt.NDArray[np.int64] | None = field(default=None, init=False)
    label_names: list[str] | None = field(default=None, init=False)
    label_hint: str | None = field(default=None, init=False)
    left_out: Mapping[str, int] = field(default_factory=dict, init=False)
    skipped: dict[int, str] | None = field(default=None, init=False)
    turned: set[int] = field(default_factory=set, init=False)
    fingerprints: dict[str, str] = field(default_factory=dict, init=False)

    def take_over(self, base: Dataset) -> None:
        """Take over what is known of the samples of a set of which these are made, one of each."""
        self.kind = base.kind
        self.is_encoded = base.is_encoded
        self.labels = base.labels
        self.label_names = base.label_names
        if base.skipped is not None:  # each set keeps its own record of the samples that cannot be read
            self.skipped = {}

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> Any:
        """Return the sample, fully loaded.

        It is a ``PIL.Image.Image`` in the mode in which it is stored (also where it has a caption), a ``str``, or a
        pair of ``str``.

        Raises:
            IndexError: if the index is outside the data set.
            UnreadableSample: if the file cannot be read; the message names it.
        """
        i = operator.index(index)
        total = len(self)
        if i < -total or i >= total:
            raise IndexError(f"sample {i} of {total}")
        return self._sample(i % total)  # a negative index counts from the end

    @abstractmethod
    def _sample(self, i: int) -> Any:
        """Return sample ``i``, where 0 <= i < len(self)."""

    def prepare(self, rows: Sequence[int]) -> None:  # noqa: B027 - most sets need nothing
        """Prepare for reading these samples and no others, which :func:`open_data` does once.

        Raises:
            InputError: if it is plain without reading them that they cannot be read.
        """

    def origins(self) -> list[Dataset]:
        """Return this set and the sets from which its samples were made: a model trained on it has seen all of them."""
        return [self]

    def lengths(self) -> list[int] | None:
        """Return each sample's length (for texts: in characters) if batches of similar length save time, else None."""
        return None

    def sample_fingerprints(self) -> list[str]:
        """Return the fingerprint of each sample, see :func:`fingerprint_of`. Neither its place nor its label counts.

        Those of samples that :func:`hydractl.data.batches` has read are known. The others are read now.

        Raises:
            UnreadableSample: if a sample cannot be read. If such samples are skipped, its id is hashed instead.
        """
        return [self.sample_fingerprint(i) for i in range(len(self))]

    def sample_fingerprint(self, i: int) -> str:
        """Return the fingerprint of sample ``i``, the hash of what a model sees of it.

        For an unreadable sample it is a hash of its id, if the set skips such samples (``skipped`` is then a dict, else
        None). What was learnt of the sample is kept in this set: its fingerprint in ``fingerprints``, the reason why it
        is unreadable in ``skipped``, and its index in ``turned`` if its file says that the image is to be turned.

        Raises:
            UnreadableSample: if the sample is unreadable, and the set does not skip such samples.
        """
        sample_id = self.ids[i]
        if sample_id in self.fingerprints:
            return self.fingerprints[sample_id]

        # Read the sample, unless it is already known to be unreadable.
        if self.skipped is None or i not in self.skipped:
            try:
                sample = self[i]
                fingerprint = self.fingerprint_of(sample)
            except UnreadableSample as error:
                if self.skipped is None:
                    raise
                self.skipped[i] = error.message
            else:
                self.fingerprints[sample_id] = fingerprint
                if has_orientation(sample):
                    self.turned.add(i)
                return fingerprint
        return _sha256([b"unreadable\n", sample_id.encode("utf-8", "backslashreplace")])

    def fingerprint_of(self, sample: Any) -> str:
        """Return the fingerprint of a sample that :meth:`__getitem__` has returned."""
        return fingerprint_of(sample)

    @property
    def decoder(self) -> str:
        """The versions of what decodes the samples, as decoders of JPEG differ in bits; empty if nothing does."""
        return decoder_version() if self.is_encoded else ""

    def fingerprint(self) -> str:
        """Return the SHA-256 in hex over the content of all samples, their order, ``labels``, and all captions.

        The fingerprint of a single sample does not cover its caption: once a model has been trained on an image, it is
        no test image any more under any caption.
        """
        header = f"hydractl.data/2 {self.kind} {len(self)}\n"
        samples_and_labels = [header.encode()]
        samples_and_labels += map(bytes.fromhex, self.sample_fingerprints())
        if self.labels is None:
            samples_and_labels.append(b"unlabelled")
        else:
            samples_and_labels.append(self.labels.astype("<i8").tobytes())  # little-endian on every machine
        without_captions = _sha256(samples_and_labels)
        if self.captions is None:
            return without_captions

        # With captions it is the hash of that hash and all captions.
        pieces = [without_captions.encode()]
        for caption in self.captions:
            content = caption.encode("utf-8")
            pieces += [f"caption {len(content)}\n".encode(), content]
        return _sha256(pieces)


def fingerprint_of(sample: Any) -> str:
    """Return the SHA-256 in hex of what a model would see of a sample, in whatever form it is stored.

    ===========================  ======================================================================================
    sample                       what is hashed
    ===========================  ======================================================================================
    image                        its size and its pixels in RGB, so that a grey image and the same one in colour are one
    text, or tuple of texts      each text in Unicode's form NFC, with one space for each run of white space
    ===========================  ======================================================================================
    """
    if isinstance(sample, Image.Image):
        return _sha256(itertools.chain([f"image {sample.width}x{sample.height}\n".encode()], _pixels_in_rgb(sample)))

    # The lengths are hashed, too, so that the pair ("ab", "c") differs from the pair ("a", "bc").
    pieces = []
    texts = (sample,) if isinstance(sample, str) else sample
    for text in texts:
        words = " ".join(unicodedata.normalize("NFC", text).split())
        content = words.encode("utf-8", "surrogatepass")
        pieces += [f"text {len(content)}\n".encode(), content]
    return _sha256(pieces)


def _pixels_in_rgb(image: Image.Image) -> Iterator[bytes]:
    """Yield the pixels of an image in RGB, strip by strip from the top: of a huge image no second copy is held.

    A pixel is three bytes. A strip has as many whole rows as keep it below a fixed number of pixels, and at least one.
    """
    rows = max(1, _PIXELS_AT_ONCE // image.width)  # in a strip
    for top in range(0, image.height, rows):
        bottom = min(top + rows, image.height)
        strip = image if rows >= image.height else image.crop((0, top, image.width, bottom))
        yield in_mode(strip, "RGB").tobytes()


def has_orientation(sample: Any) -> bool:
    """Return whether a sample, or one with an index, is an image with an EXIF orientation."""
    parts = sample if isinstance(sample, tuple) else (sample,)
    return any(isinstance(part, Image.Image) and is_turned(part) for part in parts)


@cache
def decoder_version() -> str:
    """Return the versions of Pillow and of the library by which it decodes JPEG."""
    turbo = features.version("libjpeg_turbo")
    library = f"libjpeg {features.version('jpg')}" if turbo is None else f"libjpeg-turbo {turbo}"
    return f"Pillow {PIL.__version__}, {library}"


def _sha256(pieces: Iterable[bytes]) -> str:
    """Return the SHA-256 in hex of the concatenated pieces."""
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()


def seeded_by(digest: bytes) -> np.random.RandomState:
    """Return a random generator seeded by a digest. RandomState's stream never changes between numpy versions."""
    little_endian = np.frombuffer(digest, dtype="<u4")  # the same numbers on every machine
    return np.random.RandomState(little_endian.astype(np.uint32))


def reason(error: Exception) -> str:
    """Return one line that says why the system or a library failed.

    The text of an error may quote bytes of a damaged file, so unprintable characters are escaped.
    """
    words = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    first_line, _, _ = words.strip().partition("\n")
    if not first_line:
        return type(error).__name__
    return visible(first_line)


def visible(text: str) -> str:
    """Return a text with an escape sequence for each character that cannot be printed."""
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in text)


def one_class_warning(dataset: Dataset) -> str | None:
    """Return a sentence if all samples of a labelled set have the same class; None if they do not.

    Such a set says nothing about the other classes.
    """
    labels = dataset.labels
    if labels is None or len(labels) < 2:
        return None
    if (labels != labels[0]).any():
        return None

    # Name the class, if classes have names.
    label = int(labels[0])
    name = str(label) if dataset.label_names is None else dataset.label_names[label]
    return (
        f"{dataset.where}: all {len(labels)} samples are of one class, {name}: give samples of every class; with "
        "--limit, a file that is sorted by class is to be shuffled first"
    )


def left_out_warnings(dataset: Dataset) -> list[str]:
    """Return a sentence about files of a folder that are left out for their names; an empty list if there are none."""
    total = sum(dataset.left_out.values())
    if not total:
        return []
    files = "1 file is" if total == 1 else f"{total} files are"
    return [
        f"{dataset.where}: {files} left out, as no ending of an image that is read: {listed_endings(dataset.left_out)}"
    ]


def listed_endings(left_out: Mapping[str, int]) -> str:
    """Return the most frequent endings of files, with their numbers, as text; equally frequent ones by name."""
    most_first = sorted(left_out.items(), key=lambda item: (-item[1], item[0]))
    listed = [f"{count} {ending}" for ending, count in most_first[:_MOST_SAID]]
    if len(most_first) > _MOST_SAID:
        listed.append("...")
    return ", ".join(listed)


def skipped_document(dataset: Dataset) -> dict[str, object] | None:
    """Return how many samples were skipped, and the ids of the first :data:`MOST_LISTED`; None if none was."""
    if not dataset.skipped:
        return None
    indices = sorted(dataset.skipped)
    return {"n": len(indices), "ids": [dataset.ids[i] for i in indices[:MOST_LISTED]]}


def report_skipped(dataset: Dataset, log: Log) -> None:
    """Warn how many samples were skipped and name the first few; log the reason of each one as a detail."""
    ids = reasons_of_skipped(dataset, log)
    if ids:
        log.warn(warning_of_skipped(dataset, len(ids), ids))


def orientation_warnings(dataset: Dataset) -> list[str]:
    """Return a sentence about images read so far that say how they are to be turned; an empty list without any."""
    count = len(dataset.turned)
    if not count:
        return []
    have = "image has" if count == 1 else "images have"
    return [
        f"{dataset.where}: {count} {have} an EXIF orientation, by which models of transformers see them turned and all "
        "others do not, as their libraries have it: ?exif=1 behind the SPEC turns them for all"
    ]


def reasons_of_skipped(dataset: Dataset, log: Log) -> list[str]:
    """Log, as details, why samples were skipped so far; return their ids."""
    ids = []
    for index, why in sorted((dataset.skipped or {}).items()):
        sample_id = dataset.ids[index]
        ids.append(sample_id)
        log.detail(f"skipped {sample_id}: {why}")
    return ids


def warning_of_skipped(dataset: Dataset, count: int, ids: Sequence[str]) -> str:
    """Return the warning of skipped samples, which names the first few.

    Args:
        dataset: the data set.
        count: how many of its samples were skipped, at least one.
        ids: the ids of the first of them.
    """
    verb = "is" if count == 1 else "are"
    left_out = f"{count} of {len(dataset)} {dataset.kind}s {verb} left out, as they cannot be read"
    return f"{dataset.where}: {left_out}: {first_ids(ids, count)}"


def first_ids(ids: Sequence[str], count: int) -> str:
    """Return the first few ids of so many samples as text, e.g. ``a.png, b.png`` or ``..., e.png and 3 more``."""
    listed = ", ".join(ids[:_MOST_SAID])
    unlisted = count - _MOST_SAID
    if unlisted > 0:
        listed += f" and {unlisted} more"
    return listed
