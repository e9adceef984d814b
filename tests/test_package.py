"""What is published: dependencies, addresses, versions, and the files that build, check and cite the package."""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import yaml

from hydractl import __version__
from hydractl.data import open_data
from hydractl.errors import EXTRAS as EXTRA_OF
from hydractl.errors import UsageError, distribution_of, failure_of
from tests.sources import parsed, statements

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
EXTRAS = PROJECT["project"]["optional-dependencies"]


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[\[>=]", requirement)[0] for requirement in requirements}


@cache
def imported() -> frozenset[str]:
    """The packages that any module of hydractl imports."""
    found = set()
    for tree in parsed(ROOT / "hydractl").values():
        for node in statements(tree):
            modules = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            modules += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            found |= {module.partition(".")[0] for module in modules}
    return frozenset(found - set(sys.stdlib_module_names) - {"hydractl"})


def test_what_is_imported_is_declared_and_nothing_else_is_needed() -> None:
    needed = names(PROJECT["project"]["dependencies"])
    extras = set().union(*(names(packages) for name, packages in EXTRAS.items() if name not in ("test", "dev", "docs")))
    distributions = set(map(distribution_of, imported()))
    assert distributions <= needed | extras
    assert needed <= distributions | {"safetensors"}  # which users read the files with


@pytest.mark.fault(71)
def test_a_hint_names_what_pip_takes_for_every_package_that_may_be_missing() -> None:
    needed = names(PROJECT["project"]["dependencies"])
    optional = {module for module in imported() if distribution_of(module) not in needed}
    imported_by_torch = {"onnx", "onnxscript"}
    assert optional <= set(EXTRA_OF) <= optional | imported_by_torch
    for module, extra in EXTRA_OF.items():
        assert distribution_of(module) in names(EXTRAS[extra]), module
    for module in imported():
        failure = failure_of(ModuleNotFoundError("No module", name=module))
        required = module not in optional
        hint = f"pip install {distribution_of(module)}" if required else f"pip install 'hydractl[{EXTRA_OF[module]}]'"
        assert (failure.message, failure.hint) == (f"the package {distribution_of(module)} is not installed", hint)


@pytest.mark.fault(71)
@pytest.mark.parametrize("name", ["digits/val", "photos"])
def test_builtin_data_of_scikit_learn_name_it_as_pip_does(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    there = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda module: None if module == "sklearn" else there(module))
    with pytest.raises(UsageError, match="needs scikit-learn, which is not installed") as refused:
        open_data(f"builtin:{name}")
    assert refused.value.hint == "pip install 'hydractl[demo]'"
    assert len(open_data("builtin:letters")), "which are not of scikit-learn"


def test_extras_that_are_spoken_of_exist() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "hydractl").rglob("*.py")]
    said = "".join(page.read_text(encoding="utf-8") for page in pages)
    extras = {name for listed in re.findall(r"(?:hydractl|'\.)\[([a-z,]+)\]", said) for name in listed.split(",")}
    assert extras and extras <= set(EXTRAS)
    (everything,) = EXTRAS["all"]
    others = {"all", "dev", "docs", "test", "notebook"}  # who wants a notebook has one
    assert set(everything[len("hydractl[") : -1].split(",")) == set(EXTRAS) - others


def test_the_readme_of_a_package_index_has_whole_addresses() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for rule in PROJECT["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]["substitutions"]:
        text = re.sub(rule["pattern"], rule["replacement"], text)
    here = PROJECT["project"]["urls"]["Repository"]
    targets = re.findall(r"\]\(([^)\s]+)\)", text)
    assert not [target for target in targets if not target.startswith(("https://", "#"))]
    own = [target.removeprefix(f"{here}/") for target in targets if target.startswith(f"{here}/")]
    assert len(own) > 30
    for target in own:
        kind, branch, path = target.split("/", 2)
        assert (kind, branch) == ("raw" if path.endswith((".svg", ".png")) else "blob", "main")
        assert (ROOT / path.partition("#")[0]).exists(), target


def test_the_version_and_the_address_are_the_same_everywhere() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    urls = PROJECT["project"]["urls"]
    assert citation["repository-code"] == urls["Repository"]
    assert all(url.startswith(urls["Repository"]) for url in urls.values())
    newest = re.search(r"^## (\d\S*)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert newest and citation["version"] == newest.group(1) == __version__


def commands() -> Iterator[str]:
    """What the workflow and the hooks of commits run, for every entry of a matrix."""
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))
    for job in workflow["jobs"].values():
        for entry in job.get("strategy", {}).get("matrix", {}).get("include", [{}]):
            for step in job["steps"]:
                if "run" in step:
                    yield re.sub(r"\$\{\{ matrix\.(\w+) \}\}", lambda match, e=entry: e[match.group(1)], step["run"])
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    yield from (hook["entry"] for repo in hooks["repos"] for hook in repo["hooks"])


@pytest.mark.parametrize("command", sorted(set(commands())))
def test_what_a_workflow_runs_is_a_target_of_the_makefile(command: str) -> None:
    phony = re.search(r"^\.PHONY: (.*)", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert phony
    called = re.fullmatch(r"make (\S+)( PYTHON=python)?", command)
    assert called and called.group(1) in phony.group(1).split()


def test_every_action_is_pinned_by_a_commit() -> None:
    text = (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")
    used = re.findall(r"uses: (.*)$", text, flags=re.MULTILINE)
    assert used
    for action in used:
        assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action), action


def test_no_two_indexes_are_asked_at_once() -> None:
    for name in ("Makefile", "Containerfile", ".github/workflows/ci.yml", "README.md"):
        text = (ROOT / name).read_text(encoding="utf-8")
        assert not re.search(r"extra.index", text, flags=re.IGNORECASE), name


def canonical(name: str) -> str:
    """The one spelling of the name of a package."""
    return re.sub(r"[-_.]+", "-", name).lower()


def test_the_lock_has_the_versions_of_the_constraints_and_hashes_of_all() -> None:
    pin = re.compile(r"^([\w.-]+)==([^\s;]+)", flags=re.MULTILINE)
    text = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    constraints = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    locked = {canonical(name): version for name, version in pin.findall(text)}
    pinned = {canonical(name): version for name, version in pin.findall(constraints)}
    assert locked.items() <= pinned.items()
    asked = names(PROJECT["project"]["dependencies"]) | names(PROJECT["build-system"]["requires"])
    asked |= set().union(*(names(EXTRAS[extra]) for extra in ("test", "demo", "dev", "docs", "deploy", "cahp", "hub")))
    assert {canonical(name) for name in asked} - {"hydractl"} <= locked.keys()
    for requirement in re.split(r"^(?=\w)", text, flags=re.MULTILINE)[1:]:
        assert re.search(r"--hash=sha256:[0-9a-f]{64}\b", requirement), requirement


def test_the_workflow_tests_every_python_of_the_classifiers() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))
    classified = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["project"]["classifiers"]))
    assert workflow["jobs"]["test"]["strategy"]["matrix"]["python"] == classified
    assert PROJECT["project"]["requires-python"] == f">={classified[0]}"


def test_the_container_copies_what_there_is() -> None:
    copied = re.findall(r"^COPY (.*) \S+$", (ROOT / "Containerfile").read_text(encoding="utf-8"), re.MULTILINE)
    assert copied and all((ROOT / path).exists() for line in copied for path in line.split())
