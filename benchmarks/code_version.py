"""Which code made a record: the package's version, and a hash of the file of each part of the recipe."""

import ast
import hashlib
import inspect
from functools import cache
from pathlib import Path

from edge_fl import __version__
from edge_fl.recipes.recipe import Recipe

__all__ = ["code_of"]

_HEX = 12


def code_of(recipe: Recipe) -> dict[str, str]:
    """``edge_fl`` and its version, and each part's name with the hash of its file (12 hexadecimal digits).

    Comments, docstrings and layout change no hash.
    """
    found = {"edge_fl": __version__, recipe.method.name: _hash(_file(recipe.method))}
    return (
        found if recipe.compressor is None else {**found, recipe.compressor.name: _hash(_file(recipe.compressor))}
    )


def _file(part: object) -> Path:
    return Path(inspect.getfile(type(part)))


@cache
def _hash(file: Path) -> str:
    tree = ast.parse(file.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:]
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest()[:_HEX]
