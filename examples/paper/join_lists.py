"""Write several image lists as one.

    python examples/paper/join_lists.py test_imagenet.txt test_imagenet_v2.txt -o full-spectrum.txt

The paths of all lists have to start from the same folder.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from hydractl.files.atomic import Output, write_bytes


def main() -> None:
    """Read the arguments and write the list."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lists", type=Path, nargs="+", metavar="LIST.txt")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE.txt")
    asked = parser.parse_args()
    lines = [line for path in asked.lists for line in path.read_text(encoding="utf-8").splitlines()]
    with Output(asked.output, force=True) as output:
        write_bytes(output, "".join(f"{line}\n" for line in lines).encode())


if __name__ == "__main__":
    main()
