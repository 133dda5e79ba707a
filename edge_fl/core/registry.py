"""Code by name: ours, of installed packages, and what a person points at on this machine.

A name is a module of one of our packages, an entry point of the same group, or the ``name`` of an object that
:meth:`Registry.use` has loaded from ``file.py:OBJECT`` or ``module:OBJECT``. Names alone travel; files never do.
"""

import hashlib
import importlib
import importlib.util
import pkgutil
import sys
import traceback
from functools import cache
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, TypeVar

from edge_fl.core.errors import ConfigError, EdgeFLError, RunError, said

__all__ = [
    "Named",
    "Registry",
    "as_ours",
    "keep_place",
    "load_object",
    "loaded_digest",
    "of_own_code",
    "place_in_own_code",
]

_T = TypeVar("_T")
_PLACE = "edge_fl_place"  # an attribute of errors that came from another process
_SHARED = {"base", "capabilities"}  # modules of such packages that hold none of the kind
_loaded: set[str] = set()  # files of the code that is not ours
_digests: dict[Path, str] = {}  # SHA-256 of those that were named by their paths


class Named(Generic[_T]):
    """What there is of one kind, a module each.

    Parameters
    ----------
    kind
        What one is called in sentences, such as ``method``.
    package
        The package of ours, whose modules are found by their names (``__`` stands for ``+``).
    attribute
        What such a module defines.
    group
        The entry points of installed packages; None for those called as the package.
    error
        What is raised where there is none of a name, or it is not installed.
    """

    def __init__(
        self,
        kind: str,
        package: str,
        attribute: str,
        *,
        group: str | None = None,
        error: type[EdgeFLError] = ConfigError,
    ) -> None:
        self._kind, self._package, self._attribute = kind, package, attribute
        self._group, self._error = group or package, error
        self._used: dict[str, tuple[str, _T]] = {}  # by name: where it is from, and itself

    def names(self) -> list[str]:
        """All that can be found, without importing any."""
        return sorted({*_modules(self._package), *_entry_points(self._group), *self._used})

    def find(self, name: str) -> _T:
        """The one of this name.

        Raises
        ------
        EdgeFLError
            ``error`` when there is none, or it needs what is not installed.
        ConfigError
            When two packages have one, or an installed one cannot be imported.
        """
        if name in self._used:
            return self._used[name][1]
        self.check(name)
        points = _entry_points(self._group).get(name, ())
        if name in _modules(self._package):
            if points:
                raise ConfigError(
                    f"edge-fl and {points[0]} both bring a {self._kind} '{name}'; uninstall the latter."
                )
            return self.ours(name)
        if len(points) > 1:
            raise ConfigError(
                f"Two packages bring a {self._kind} '{name}': {' and '.join(points)}; uninstall one."
            )
        loaded = self._checked(load_object(points[0]), points[0])
        self._used[name] = points[0], loaded
        return loaded

    def used(self) -> list[str]:
        """The specs of those that are not ours and were used by now."""
        return [spec for spec, _ in self._used.values()]

    def check(self, name: str) -> None:
        """Raise ``error`` when there is none of this name, without importing any."""
        if name not in self.names():
            raise self._error(f"There is no {self._kind} '{name}'; there are {', '.join(self.names()) or 'none'}.")

    def ours(self, name: str) -> _T:
        """The one of our own package, whatever else is installed; raises ``error`` as :meth:`find`."""
        try:
            module = importlib.import_module(f"{self._package}.{_modules(self._package)[name]}")
        except ImportError as error:
            raise self._error(f"The {self._kind} '{name}' needs what is not installed here: {error}.") from error
        found: _T = getattr(module, self._attribute)
        return found

    def _checked(self, found: Any, spec: str) -> _T:
        if not callable(found):
            raise ConfigError(f"'{spec}' is no {self._kind}: it must be a function.")
        checked: _T = found
        return checked


class Registry(Named[type[_T]]):
    """Classes of one kind, those of a person's own files among them.

    Parameters
    ----------
    base
        The class that each must extend.
    needs
        What each must define besides the abstract methods.
    kind, package, attribute, group, error
        :class:`Named`'s.
    """

    def __init__(
        self,
        kind: str,
        package: str,
        attribute: str,
        base: Any,
        *,
        needs: tuple[str, ...] = (),
        group: str | None = None,
        error: type[EdgeFLError] = ConfigError,
    ) -> None:
        super().__init__(kind, package, attribute, group=group, error=error)
        self._base, self._needs = base, needs

    def use(self, spec: str) -> str:
        """Load ``file.py:OBJECT`` or ``module:OBJECT``, and make it known under its own ``name``, which is returned.

        Raises
        ------
        ConfigError
            When it cannot be had, is no class of this kind, or has the name of another.
        """
        loaded = self._checked(load_object(spec), spec)
        name = str(getattr(loaded, "name", ""))
        if not name or any(character in name for character in ":/+"):
            raise ConfigError(f"'{spec}' needs a name without ':', '/' and '+', and is called '{name}'.")
        if name in self._used and self._used[name][0] == spec:
            return name
        if name in self.names():
            raise ConfigError(f"There is a {self._kind} '{name}' already; give the one in '{spec}' another name.")
        self._used[name] = spec, loaded
        return name

    def is_one(self, found: object) -> bool:
        """Whether ``found`` is a class of this kind."""
        return isinstance(found, type) and issubclass(found, self._base)

    def _checked(self, found: Any, spec: str) -> type[_T]:
        if not self.is_one(found):
            raise ConfigError(f"'{spec}' is no {self._kind}: it must be a subclass of {self._base.__name__}.")
        unset = [name for name in self._needs if not hasattr(found, name)]
        missing = sorted([*getattr(found, "__abstractmethods__", ()), *unset])
        if missing:
            raise ConfigError(f"The {self._kind} '{spec}' lacks {', '.join(missing)}.")
        checked: type[_T] = found
        return checked


@cache
def _modules(package: str) -> dict[str, str]:
    """Our modules by the names they are asked for by."""
    folders = importlib.import_module(package).__path__
    names = [module.name for module in pkgutil.iter_modules(folders)]
    return {name.replace("__", "+"): name for name in names if name not in _SHARED and not name.startswith("_")}


@cache
def _entry_points(group: str) -> dict[str, tuple[str, ...]]:
    """Specs of what installed packages bring, by name."""
    found: dict[str, tuple[str, ...]] = {}
    for point in metadata.entry_points(group=group):
        found[point.name] = (*found.get(point.name, ()), f"{point.module}:{point.attr}")
    return found


@cache
def load_object(spec: str) -> Any:
    """What ``file.py:OBJECT`` or ``module:OBJECT`` names; a file's folder is importable from then on.

    Raises
    ------
    ConfigError
        When there is none, or its module raises as it is imported.
    """
    module, colon, name = spec.rpartition(":")
    if not colon or not module or not name.isidentifier():
        raise ConfigError(
            f"'{spec}' names no object: write it as path/to/file.py:OBJECT or package.module:OBJECT."
        )
    try:
        imported = _of_file(Path(module)) if module.endswith(".py") else importlib.import_module(module)
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:  # the user's code may raise anything
        raise ConfigError(f"'{module}' cannot be imported: {type(error).__name__}: {said(error)}.") from error
    if not hasattr(imported, name):
        raise ConfigError(f"'{module}' has no '{name}'.")
    _loaded.add(getattr(imported, "__file__", None) or "")
    return getattr(imported, name)


def loaded_digest(path: Path) -> str | None:
    """The SHA-256 of a Python file as :func:`load_object` loaded it; None of a file that something else imported."""
    return _digests.get(path.resolve())


def as_ours(error: Exception) -> EdgeFLError:
    """The error itself, or a RunError that says what another is, with the place in its owner's code."""
    if isinstance(error, EdgeFLError):
        return error
    place = place_in_own_code(error)
    return RunError(f"{type(error).__name__}{f' in {place}' if place else ''}: {said(error)}.")


def keep_place(error: Exception) -> None:
    """Have an error that goes to another process keep what :func:`place_in_own_code` says of it."""
    place = place_in_own_code(error)
    if place is not None:
        vars(error)[_PLACE] = place


def of_own_code(error: Exception) -> ConfigError | None:
    """The sentence of an error that code which :func:`load_object` loaded raised; None of another's."""
    place = place_in_own_code(error)
    return ConfigError(f"Your code in {place}, raises {type(error).__name__}: {said(error)}.") if place else None


def place_in_own_code(error: BaseException) -> str | None:
    """The file and line, the innermost, at which code that :func:`load_object` loaded raised ``error``."""
    if _PLACE in vars(error):
        return str(vars(error)[_PLACE])
    frames = traceback.extract_tb(error.__traceback__)
    return next((f"'{f.filename}', line {f.lineno}" for f in reversed(frames) if f.filename in _loaded), None)


def _of_file(path: Path) -> ModuleType:
    """The module of a file, the same one however often it is named."""
    if not path.is_file():
        raise ConfigError(f"There is no Python file '{path}'.")
    place = path.resolve()
    known = next((m for m in list(sys.modules.values()) if getattr(m, "__file__", None) == str(place)), None)
    if known is not None:
        return known
    name = place.stem if place.stem not in sys.modules else f"{place.stem}_{abs(hash(place))}"
    spec = importlib.util.spec_from_file_location(name, place)
    if spec is None or spec.loader is None:
        raise ConfigError(f"'{path}' is no Python file.")
    module = importlib.util.module_from_spec(spec)
    _digests[place] = hashlib.sha256(place.read_bytes()).hexdigest()
    sys.path.insert(0, str(place.parent))
    sys.modules[name] = module  # dataclasses look their module up there
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
