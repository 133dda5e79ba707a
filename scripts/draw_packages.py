"""Draw the packages of the house by their imports, as plain SVG: `scripts/draw_packages.py docs/assets/packages.svg`.

The graph is grimp's, which import-linter checks the contracts of pyproject.toml against; layers are those contracts'.
An arrow stands for at least one import statement. Imports that a longer way down already implies are left out.
"""

import itertools
import sys
import tomllib
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[1]
WIDTH, ROW, BOX, HEIGHT, GAP = 1080, 84, 128, 40, 16
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
        box: (WIDTH * (column + 1) / (len(row) + 1), 34 + ROW * depth)
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
    lanes: dict[str, int] = {}
    for source, target in sorted(edges):
        lanes[target] = lanes.get(target, -1) + 1
        lines.append(way(at[source], at[target], at, lanes[target] * 4.0))
    for box, (x, y) in at.items():
        fill = "#dbeafe" if box.startswith("edge_fl.") else "#ffedd5"
        size = f'width="{BOX}" height="{HEIGHT}" rx="8"'
        lines += [
            f'<rect x="{x - BOX / 2:.0f}" y="{y}" {size} fill="{fill}" stroke="#64748b"/>',
            f'<text x="{x:.0f}" y="{y + 26}" font-size="15" text-anchor="middle" fill="#0f172a">'
            f"{box.removeprefix('edge_fl.')}</text>",
        ]
    return "\n".join([*lines, "</svg>", ""])


def way(
    start: tuple[float, float], end: tuple[float, float], at: dict[str, tuple[float, float]], lane: float
) -> str:
    """An arrow down, past the boxes between its ends; dashed where it passes a layer."""
    (x1, y1), (x2, y2) = start, end
    points = [(x1, y1 + HEIGHT)]
    for y in sorted({y for _, y in at.values() if y1 < y < y2}):
        straight = x1 + (x2 - x1) * (y - y1) / (y2 - y1)
        x = free(straight, [x for x, other in at.values() if other == y], lane)
        points += [(x, y - 6), (x, y + HEIGHT + 6)]
    points.append((x2, y2))
    path = f"M{points[0][0]:.0f} {points[0][1]:.0f}" + "".join(
        f"C{xa:.0f} {(ya + yb) / 2:.0f} {xb:.0f} {(ya + yb) / 2:.0f} {xb:.0f} {yb:.0f}"
        for (xa, ya), (xb, yb) in itertools.pairwise(points)
    )
    dash = ' stroke-dasharray="5 4"' if len(points) > 2 else ""
    return f'<path d="{path}" fill="none" stroke="#475569" stroke-width="1.4"{dash} marker-end="url(#a)"/>'


def free(x: float, boxes: list[float], lane: float) -> float:
    """The place nearest to ``x`` in a row that is beside its boxes; ``lane`` keeps arrows apart."""
    near = min(boxes, key=lambda box: abs(box - x))
    if abs(near - x) >= BOX / 2 + GAP:
        return x + lane
    return near + (BOX / 2 + GAP + lane) * (1 if x + lane >= near else -1)


def main() -> None:
    """Write the drawing at the path given."""
    sys.path.insert(0, str(ROOT))
    rows, roots = layers()
    edges = arrows([box for row in rows for box in row], roots)
    Path(sys.argv[1]).write_text(drawing(rows, edges))


if __name__ == "__main__":
    main()
