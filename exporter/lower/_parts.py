"""The parts of a program that go to XNNPACK, found as ExecuTorch finds them, in the memory of a bit a pair of nodes.

ExecuTorch keeps, for every node, the set of all that come after it, several times over: tens of gigabytes for a
recurrent step written out. Here a set of nodes is the bits of a whole number.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from executorch.exir.backend.canonical_partitioners.group_partitioner import GroupBasedPartitioner
from torch.fx.node import Node
from torch.fx.passes.infra.partitioner import Partition

__all__ = ["propose_parts"]


@dataclass
class _Part:
    """Nodes, and everything that they depend on and that depends on them, themselves included; bits of an order."""

    nodes: list[Node]
    own: int
    before: int
    after: int

    def take(self, other: "_Part") -> bool:
        """Take ``other`` in, unless a path would leave the two together and come back."""
        own, before, after = self.own | other.own, self.before | other.before, self.after | other.after
        if before & after & ~own:
            return False
        self.nodes += other.nodes
        self.own, self.before, self.after = own, before, after
        return True


def propose_parts(partitioner: GroupBasedPartitioner) -> list[Partition]:
    """What ``partitioner.propose_partitions()`` gives, greedily merged in the same order."""
    singles = _parts(list(partitioner.graph_module.graph.nodes), _groups(partitioner))
    found = {number: Partition(number, part.nodes) for number, part in enumerate(_merged(singles))}
    assignment = {node: number for number, part in found.items() for node in part.nodes}
    partitioner._process_getitem_nodes(found, assignment)
    partitioner._filter_single_node_partitions(found)
    return [part for part in found.values() if part.size()]


def _groups(partitioner: Any) -> list[list[Node]]:
    """Supported nodes, last ones first, each by itself or with those that it must not be parted from."""
    groups: list[list[Node]] = []
    seen: set[Node] = set()
    for node in reversed(partitioner.graph_module.graph.nodes):
        if node in seen or not partitioner._is_node_supported(node):
            continue
        grouped = node in partitioner.all_nodes_in_groups
        together = partitioner.node_groups[partitioner.node_to_group[node]] if grouped else [node]
        groups.append([other for other in together if partitioner._is_node_supported(other)])
        seen.update(groups[-1])
    return groups


def _parts(nodes: Sequence[Node], groups: Iterable[list[Node]]) -> list[_Part]:
    own = {node: 1 << number for number, node in enumerate(nodes)}
    before, after = dict(own), dict(own)
    for node in nodes:
        for needed in node.all_input_nodes:
            before[node] |= before[needed]
    for node in reversed(nodes):
        for user in node.users:
            after[node] |= after[user]
    return [_Part(group, _union(own, group), _union(before, group), _union(after, group)) for group in groups]


def _union(bits: dict[Node, int], group: Iterable[Node]) -> int:
    union = 0
    for node in group:
        union |= bits[node]
    return union


def _merged(parts: list[_Part]) -> list[_Part]:
    merged: list[_Part] = []
    while parts:
        first, *others = parts
        parts = [other for other in others if not first.take(other)]
        merged.append(first)
    return merged
