"""A small server that speaks as much of the Hub's protocol as huggingface_hub needs to push and pull a repository."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote

import pytest

LARGE = 20_000  # bytes from which a file is a large one, of git LFS


class Hub:
    """Repositories as lists of commits, each a mapping from names to contents.

    Attributes:
        fails_at: a word of the address at which the server answers with an error; None: never.
    """

    def __init__(self) -> None:
        self.commits: dict[str, list[dict[str, bytes]]] = {}
        self.large: dict[str, bytes] = {}
        self.fails_at: str | None = None

    def sha(self, repo: str, number: int = -1) -> str:
        """The name of a commit: a hash of its place and its files."""
        number %= len(self.commits[repo])
        digests = []
        for name, content in self.files(repo, number):
            digests.append((name, hashlib.sha256(content).hexdigest()))
        text = repr((repo, number, digests))
        return hashlib.sha1(text.encode()).hexdigest()

    def files(self, repo: str, number: int = -1) -> list[tuple[str, bytes]]:
        return sorted(self.commits[repo][number].items())

    def number(self, repo: str, revision: str) -> int | None:
        shas = [self.sha(repo, n) for n in range(len(self.commits[repo]))]
        return len(shas) - 1 if revision == "main" else shas.index(revision) if revision in shas else None


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def answer(self, body: Any, code: int = 200, **headers: str) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(code)
        for name, value in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    @property
    def host(self) -> str:
        return f"http://{self.headers['Host']}"

    def handle_any(self) -> None:
        hub, path = self.hub, unquote(self.path.partition("?")[0]).strip("/")
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        host = self.host
        parts = path.split("/")
        if hub.fails_at is not None and hub.fails_at in path:
            return self.answer({"error": "the disk is full"}, 400)
        if path == "api/repos/create":
            asked = json.loads(body)
            repo = f"{asked['organization']}/{asked['name']}"
            if repo in hub.commits:
                return self.answer({"error": "exists", "url": f"{host}/{repo}"}, 409)
            hub.commits[repo] = [{".gitattributes": b"*.st filter=lfs\n"}]
            return self.answer({"url": f"{host}/{repo}"})
        if path == "api/validate-yaml":
            return self.answer({"errors": [], "warnings": []})
        if parts[0] == "large":
            hub.large[parts[1]] = body
            return self.answer({})
        if path.endswith(".git/info/lfs/objects/batch"):
            objects = [
                {**one, "actions": {"upload": {"href": f"{host}/large/{one['oid']}"}}}
                for one in json.loads(body)["objects"]
            ]
            return self.answer({"transfer": "basic", "objects": objects})
        repo = "/".join(parts[2:4] if parts[0] == "api" else parts[:2])
        if repo not in hub.commits:
            return self.answer({"error": "Repository not found"}, 404, X_Error_Code="RepoNotFound")
        return self.of_repository(repo, parts[4:] if parts[0] == "api" else parts[2:], body)

    def of_repository(self, repo: str, parts: list[str], body: bytes) -> None:
        hub, kind = self.hub, parts[0] if parts else "revision"
        revision = parts[1] if len(parts) > 1 else "main"
        number = hub.number(repo, revision)
        if number is None:
            return self.answer({"error": "Invalid rev id"}, 404, X_Error_Code="RevisionNotFound")
        files = dict(hub.files(repo, number))
        if kind == "resolve":
            return self.content(files, "/".join(parts[2:]), hub.sha(repo, number))
        if kind == "revision":
            names = [{"rfilename": name} for name in files]
            return self.answer({"id": repo, "sha": hub.sha(repo, number), "siblings": names})
        if kind == "paths-info":
            return self.answer([_described(n, files[n]) for n in parse_qs(body.decode())["paths"] if n in files])
        if kind == "tree":
            return self.answer([_described(name, content) for name, content in files.items()])
        if kind == "preupload":
            modes = {True: "lfs", False: "regular"}
            asked = [{**one, "uploadMode": modes[one["size"] >= LARGE]} for one in json.loads(body)["files"]]
            return self.answer({"files": [{**one, "shouldIgnore": False} for one in asked]})
        assert kind == "commit", self.path
        lines = [json.loads(line) for line in body.splitlines()]
        for line in lines[1:]:
            value = line["value"]
            large = line["key"] == "lfsFile"
            files[value["path"]] = hub.large[value["oid"]] if large else base64.b64decode(value["content"])
        hub.commits[repo].append(files)
        sha = hub.sha(repo)
        return self.answer({"success": True, "commitOid": sha, "commitUrl": f"{self.host}/{repo}/commit/{sha}"})

    def content(self, files: dict[str, bytes], name: str, commit: str) -> None:
        if name not in files:
            return self.answer({"error": "Entry not found"}, 404, X_Error_Code="EntryNotFound", X_Repo_Commit=commit)
        etag = hashlib.sha256(files[name]).hexdigest()
        return self.answer(files[name], X_Repo_Commit=commit, ETag=f'"{etag}"')

    do_GET = do_POST = do_PUT = do_HEAD = handle_any


def _described(name: str, content: bytes) -> dict[str, Any]:
    oid = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
    large = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 130}
    entry = {"type": "file", "path": name, "size": len(content), "oid": oid}
    return {**entry, "lfs": large} if len(content) >= LARGE else entry


@contextmanager
def serving() -> Iterator[tuple[Hub, str]]:
    """A hub, and its address."""
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield hub, f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def hub_in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a new folder whose subfolders the datasets library then takes for the sets ``org/...`` of the hub."""
    datasets = pytest.importorskip("datasets")
    load = datasets.load_dataset
    root = folder / "hub"
    root.mkdir()

    def load_dataset(name: str, config: str, split: str) -> Any:
        owner, _, rest = name.partition("/")
        return load(str(root / rest) if owner == "org" else name, config, split=split)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    return root
