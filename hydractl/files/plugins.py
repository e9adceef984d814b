"""Registries: the declarations in the modules of a folder, by the names of the files, and those of other packages."""

from __future__ import annotations

import functools
import importlib
import pkgutil
import sys
from collections.abc import Collection, Iterable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from hydractl.errors import InputError
from hydractl.files.collecting import importing

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

T = TypeVar("T")


class Registry(Generic[T]):
    """The declarations in a folder of modules. A module is imported when its declaration is first asked for.

    Another package adds a declaration by an entry point: its group is the folder's name, its name the declaration's.

    Args:
        package: the name of the folder as a module, e.g. ``hydractl.criteria``.
        path: the ``__path__`` of the folder.
        variable: the variable that has the declaration in every module, e.g. ``METHOD``: an object with a ``name``.
        helpers: the modules of the folder that declare nothing.
        before_models: whether there is no model in memory before the first declaration is imported.
    """

    def __init__(
        self,
        package: str,
        path: Iterable[str],
        variable: str,
        helpers: Iterable[str],
        *,
        before_models: bool = False,
    ) -> None:
        """List the modules of the folder; none of them is imported."""
        self.package = package
        self.variable = variable
        self._before_models = before_models
        modules = {module.name for module in pkgutil.iter_modules(path)}
        declaring = modules - set(helpers)
        # `random_.py` declares `random`: the underscore avoids the name of a module of the standard library.
        self._own = {module.rstrip("_"): module for module in sorted(declaring)}
        self._loaded: dict[str, T] = {}

    @functools.cached_property
    def _foreign(self) -> dict[str, EntryPoint]:
        """The entry points of other packages by the names of their declarations, sorted.

        Raises:
            InputError: an entry point has the name of a declaration in this folder, or of another entry point.
        """
        return named_entry_points(self.package, self._own)

    @property
    def names(self) -> list[str]:
        """The names of all declarations, without importing them."""
        return [*self._own, *self._foreign]

    def get(self, name: str) -> T | None:
        """Return the declaration of that name, or None if there is none; it is imported when first asked for.

        Raises:
            InputError: the declaration of another package cannot be imported, or has another name.
        """
        if name not in self._loaded:
            is_declared = name in self._own or name in self._foreign
            if not is_declared:
                return None
            with self._importing():
                self._loaded[name] = self._load(name)
        return self._loaded[name]

    def _importing(self) -> AbstractContextManager[None]:
        """Return a block for imports, see :func:`importing`."""
        is_first = not self._loaded
        return importing(before_models=self._before_models and is_first)

    def _load(self, name: str) -> T:
        """Import the declaration of a name, of this folder or of another package.

        Raises:
            InputError: the declaration cannot be imported, or has another name.
        """
        declared: Any
        if name in self._own:
            origin = f"{self.package}.{self._own[name]}"
            module = importlib.import_module(origin)
            declared = getattr(module, self.variable)
        else:
            point = self._foreign[name]
            origin = _origin(point)
            declared = load_entry_point(point, object)  # of any class, since only its name counts here

        # A declaration must have the name by which it is found.
        declared_name = getattr(declared, "name", None)
        if declared_name != name:
            raise InputError(f"{origin} declares {name!r} as {declared_name!r} in {self.package}")
        return declared

    def all(self) -> list[T]:
        """Return every declaration, sorted by name, with those of other packages last."""
        with self._importing():
            for name in self.names:
                self.get(name)
        return [self._loaded[name] for name in self.names]


def entry_points_of(group: str) -> list[EntryPoint]:
    """Return the entry points of a group that the installed packages have, sorted by name."""
    path = tuple(sys.path)
    return sorted(_entry_points_on(path).select(group=group), key=lambda point: point.name)


def named_entry_points(group: str, taken: Collection[str]) -> dict[str, EntryPoint]:
    """Return the entry points of a group that the installed packages have, by their names, which are sorted.

    Args:
        group: the group.
        taken: names that no entry point may have.

    Raises:
        InputError: an entry point has a name that is taken, or that of another entry point.
    """
    points: dict[str, EntryPoint] = {}
    for point in entry_points_of(group):
        # A package that is on the path twice offers the same value twice, which is no conflict.
        earlier = points.get(point.name)
        is_other_offer = earlier is not None and earlier.value != point.value
        if point.name in taken or is_other_offer:
            raise InputError(
                f"{_origin(point)} offers {point.name!r} in {group}, a name that is taken",
                hint="give its entry point another name",
            )
        points.setdefault(point.name, point)
    return points


@functools.cache
def _entry_points_on(_path: tuple[str, ...]) -> Any:
    """Return all entry points of the packages on the module search path, which is read once for all groups."""
    # Imported only here: listing what is installed takes a tenth of a second, too long for `hydractl --help`.
    from importlib.metadata import entry_points

    return entry_points()


def load_entry_point(point: EntryPoint, kind: type[T]) -> T:
    """Import the declaration of another package, which must be of a class.

    Raises:
        InputError: the declaration cannot be imported, or is of another class.
    """
    try:
        declared = point.load()
    except Exception as error:  # the code of another package may raise anything
        raise InputError(
            f"{point.name!r} of {_origin(point)} cannot be imported: {type(error).__name__}: {error}",
            hint="install a version of that package that fits this hydractl, or uninstall it",
        ) from error
    if not isinstance(declared, kind):
        raise InputError(
            f"{point.name!r} of {_origin(point)} is no {kind.__name__}",
            hint=f"declare it as {kind.__module__} says",
        )
    return declared


def _origin(point: EntryPoint) -> str:
    """Return the name and version of the package that an entry point belongs to, or the module that it names."""
    if point.dist is None:
        return point.value
    return f"{point.dist.name} {point.dist.version}"
