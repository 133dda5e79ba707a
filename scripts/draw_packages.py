"""Draw the packages of the house by their imports, as plain SVG: `scripts/draw_packages.py docs/assets/packages.svg`.

The graph is grimp's, which import-linter checks the contracts of pyproject.toml against; layers are those contracts'.
An arrow stands for at least one import statement. Imports that a longer way down already implies are left out.
"""

import sys
import tomllib
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[1]
WIDTH, ROW, BOX, HEIGHT, SHIFT = 1080, 80, 128, 40, 150
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"


def layers() -> tuple[list[list[str]], list[str]]:
    """Boxes, layer by layer from the top, and the root packages: those of `edge_fl` stand in its place."""
    linter = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    outer, rooms = ([split(layer) for layer in contract["layers"]] for contract in linter["contracts"][:2])
    return [*(layer for layer in outer if layer != ["edge_fl"]), *rooms], linter["root_packages"]


def split(layer: str) -> list[str]:
    """The modules of one layer, which contracts write with bars or colons between them."""
    return [name.strip(" ()") for name in layer.replace(":", "|").split("|")]


def arrows(boxes: list[str], roots: list[str]) -> set[tuple[str, str]]:
    """Who imports whom, without what a longer way implies."""
    graph = grimp.build_graph(*roots)
    edges: set[tuple[str, str]] = set()
    for module in graph.modules:
        importer = box_of(module, boxes)
        for imported in graph.find_modules_directly_imported_by(module):
            target = box_of(imported, boxes)
            if importer and target and importer != target:
                edges.add((importer, target))
    return {edge for edge in edges if not implied(edge, edges)}


def box_of(module: str, boxes: list[str]) -> str | None:
    """The box that a module is in."""
    return next((box for box in boxes if module == box or module.startswith(f"{box}.")), None)


def implied(edge: tuple[str, str], edges: set[tuple[str, str]]) -> bool:
    """Whether another way leads from one end to the other."""
    start, end = edge
    seen, left = set(), [target for source, target in edges if source == start and target != end]
    while left:
        box = left.pop()
        if box == end:
            return True
        if box not in seen:
            seen.add(box)
            left += [target for source, target in edges if source == box]
    return False


def drawing(rows: list[list[str]], edges: set[tuple[str, str]]) -> str:
    """The SVG."""
    at = {
        box: (WIDTH * (column + 1) / (len(row) + 1) + beside(row, depth), 34 + ROW * depth)
        for depth, row in enumerate(rows)
        for column, box in enumerate(row)
    }
    if wrong := sorted(edge for edge in edges if at[edge[0]][1] >= at[edge[1]][1]):
        raise SystemExit(f"These imports do not point down: {wrong}.")
    height = 34 + ROW * (len(rows) - 1) + HEIGHT + 34
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" font-family="{FONT}">',
        "<title>Packages of edge-fl by their imports</title>",
        '<defs><marker id="a" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0L10 5L0 10z" fill="#475569"/></marker></defs>',
        f'<rect x="1" y="1" width="{WIDTH - 2}" height="{height - 2}" rx="14" fill="#f8fafc" stroke="#cbd5e1"/>',
    ]
    for source, target in sorted(edges):
        (x1, y1), (x2, y2) = at[source], at[target]
        lines.append(curve(x1, y1 + HEIGHT, x2, y2, far=y2 - y1 > ROW))
    for box, (x, y) in at.items():
        fill = "#dbeafe" if box.startswith("edge_fl.") else "#ffedd5"
        lines += [
            f'<rect x="{x - BOX / 2:.0f}" y="{y}" width="{BOX}" height="{HEIGHT}" rx="8" fill="{fill}" '
            'stroke="#64748b"/>',
            f'<text x="{x:.0f}" y="{y + 26}" font-size="15" text-anchor="middle" fill="#0f172a">'
            f"{box.removeprefix('edge_fl.')}</text>",
        ]
    return "\n".join([*lines, "</svg>", ""])


def beside(row: list[str], depth: int) -> int:
    """How far a box alone in its row stands from the middle, so that long arrows pass it."""
    return (SHIFT if depth % 2 else -SHIFT) if len(row) == 1 else 0


def curve(x1: float, y1: float, x2: float, y2: float, *, far: bool) -> str:
    """An arrow down; dashed where it passes a layer."""
    bend = (y2 - y1) / 2
    dash = ' stroke-dasharray="5 4"' if far else ""
    path = f"M{x1:.0f} {y1:.0f}C{x1:.0f} {y1 + bend:.0f} {x2:.0f} {y2 - bend:.0f} {x2:.0f} {y2:.0f}"
    return f'<path d="{path}" fill="none" stroke="#475569" stroke-width="1.4"{dash} marker-end="url(#a)"/>'


def main() -> None:
    """Write the drawing at the path given."""
    sys.path.insert(0, str(ROOT))
    rows, roots = layers()
    edges = arrows([box for row in rows for box in row], roots)
    Path(sys.argv[1]).write_text(drawing(rows, edges))


if __name__ == "__main__":
    main()
