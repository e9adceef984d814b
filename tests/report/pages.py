"""Reading a page back with the standard library's parser."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser

_EMPTY = {"meta", "br", "path", "img", "link", "hr", "input"}


@dataclass
class Node:
    tag: str
    attrs: dict[str, str]
    children: list[Node | str] = field(default_factory=list)

    def all(self, tag: str, kind: str = "") -> list[Node]:
        """Every element below with this tag and class, in order."""
        return [n for n in self.walk() if n.tag == tag and (not kind or kind in n.attrs.get("class", "").split())]

    def walk(self) -> Iterator[Node]:
        for child in self.children:
            if isinstance(child, Node):
                yield child
                yield from child.walk()

    def text(self) -> str:
        return "".join(child if isinstance(child, str) else child.text() for child in self.children)

    def by_id(self, name: str) -> Node:
        return next(node for node in self.walk() if node.attrs.get("id") == name)


class _Reader(HTMLParser):
    """Builds the tree; every element that is opened must be closed, in the right order."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.stack = [Node("", {})]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        node = Node(tag, {key: value or "" for key, value in attrs})
        self.stack[-1].children.append(node)
        if tag not in _EMPTY:
            self.stack.append(node)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.stack[-1].children.append(Node(tag, {key: value or "" for key, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.stack[-1].tag == tag, f"</{tag}> closes <{self.stack[-1].tag}>"
        self.stack.pop()

    def handle_data(self, data: str) -> None:
        self.stack[-1].children.append(data)


def parse(page: bytes) -> Node:
    """The tree of a page whose every element is closed."""
    reader = _Reader()
    reader.feed(page.decode("utf-8"))
    reader.close()
    assert len(reader.stack) == 1, f"<{reader.stack[-1].tag}> is never closed"
    return reader.stack[0]
