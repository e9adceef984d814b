"""Write an image list with the class names of zero-shot classification in the place of the names of class folders.

    python examples/paper/name_classes.py "$IMAGENET/val?fraction=0:0.01" --labels imagenet -o imagenet-val.txt

A search over several ID sets takes the classes of each from its data, and the folders of ImageNet have WordNet's
numbers for names. The list has a line for each image of the data: path, tab, name.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from hydractl.data import open_data
from hydractl.data.names import read_labels
from hydractl.files.atomic import Output, write_bytes


def main() -> None:
    """Read the arguments and write the list."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", metavar="SPEC", help="a folder of class folders, or a part of one")
    parser.add_argument("--labels", required=True, metavar="NAME", help="the class names, in the order of the data")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE.txt")
    asked = parser.parse_args()
    names = read_labels(asked.labels)
    dataset = open_data(asked.data, labels=names, need_labels=True)
    assert dataset.labels is not None
    lines = [f"{path}\t{names[label]}\n" for path, label in zip(dataset.ids, dataset.labels, strict=True)]
    with Output(asked.output, force=True) as output:
        write_bytes(output, "".join(lines).encode())


if __name__ == "__main__":
    main()
