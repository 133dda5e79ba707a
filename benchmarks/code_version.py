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
    if recipe.compressor is not None:
        found[recipe.compressor.name] = _hash(_file(recipe.compressor))
    if recipe.server is not None:
        found["server"] = _hash(_file(recipe.server))
    return found


def _file(part: object) -> Path:
    return Path(inspect.getfile(type(part)))


class _Bare(ast.NodeTransformer):
    """Leaves out what only tells: strings that stand alone."""

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        told = isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        return ast.Pass() if told else node


@cache
def _hash(file: Path) -> str:
    bare = ast.unparse(ast.fix_missing_locations(_Bare().visit(ast.parse(file.read_text()))))
    return hashlib.sha256(bare.encode()).hexdigest()[:_HEX]
