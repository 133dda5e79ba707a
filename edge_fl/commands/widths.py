"""Costs and frame bytes at each width, as `export --check` and `inspect` tell them."""

from collections.abc import Iterable
from typing import Any

from edge_fl.commands.tables import show_table
from edge_fl.core.bundle import Cost
from edge_fl.core.layout import Layout
from edge_fl.wire.sizes import size_at

__all__ = ["describe_widths", "show_widths"]


def describe_widths(layout: Layout, costs: Iterable[Cost]) -> list[dict[str, Any]]:
    """What was counted, and the bytes of an uncompressed update with a bitmask in both modes; widths are shares."""
    return [
        {
            "width": cost.width / 1000,
            "parameters": cost.parameters,
            "macs": cost.macs,
            "frame_bytes": {"rows": size.rows, "units": size.units},
        }
        for cost, size in ((cost, size_at(layout, cost.width)) for cost in costs)
    ]


def show_widths(widths: Iterable[dict[str, Any]]) -> None:
    """The same as a table."""
    show_table(
        "Costs (MACs of one sample's forward pass, bytes of one uncompressed update)",
        ["width", "parameters", "MACs", "frame bytes (rows)", "frame bytes (units)"],
        [
            [
                f"{at['width']:g}",
                at["parameters"],
                "unknown" if at["macs"] is None else at["macs"],
                at["frame_bytes"]["rows"],
                at["frame_bytes"]["units"],
            ]
            for at in widths
        ],
    )
