"""Bytes that no processor changes, by their digests, next to what tests/vectors holds: whatever moves, they stay.

Numbers that go in are multiples of 1/256 of few bits, so that sums are exact in whatever order they are made.
`python tests/test_stored_digests.py` writes the digests anew. That changes what is computed: say why.
"""

import hashlib
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, get_args

import msgspec
import numpy as np
import pytest

from broker.client_selection import ClientSelection
from edge_fl.aggregation.rules import Accumulator, find_rule, rule_names
from edge_fl.aggregation.sums import CpuSumming
from edge_fl.compressors.base import DECODERS, SendsChanges, Shares, compressor_names
from edge_fl.core.pattern import Pattern
from edge_fl.core.randomness import Stream
from edge_fl.core.selection import Selection
from edge_fl.core.server_half import Weighting
from edge_fl.data.batcher import batches
from edge_fl.data.cuts import CUTS
from edge_fl.data.held_out import HeldOut
from edge_fl.data.partition import Kind, partition
from edge_fl.data.registry import load_dataset
from edge_fl.data.sources.base import open_source
from edge_fl.measure.models import mlp_layout
from edge_fl.methods.base import Ask, Job, method_names, open_method
from edge_fl.methods.capabilities import ClientReport, LearnsFromReports, SelectsEntries, TrainsSlots
from edge_fl.recipes.recipe import open_recipe
from edge_fl.wire.context import Context
from edge_fl.wire.frame import Header, encode_frame
from edge_fl.wire.values import flatten

STORED = Path(__file__).with_name("stored_digests.json")
LAYOUT = mlp_layout(20, 24, 10, 5)
CLIENTS, SEED = ("a", "b", "c"), 7
PATTERNS = {
    "prefix": Pattern.prefix(LAYOUT, 600),
    "seed": Pattern.seeded(LAYOUT, 400, 0x0123456789ABCDEF),
    "bitmask": Pattern(LAYOUT, Stream(3).uint32(LAYOUT.units) % 3 > 0),
}
METHODS: dict[str, dict[str, Any]] = {
    "fedbiad": {"dropout": [200, 500], "stage_boundary": 2, "tau_in": "steps"},
    "fedbiad, scores at each third step": {"score_every": "tau", "stage_boundary": 1, "tau_in": "steps"},
    "feddrop": {"dropout": [200, 500]},
    "afd": {"dropout": [200, 500]},
    "afd, one map": {"maps": "single"},
    "fedmp": {"dropout": [200, 500]},
    "fedmp, bandit": {"ratio": "bandit"},
    "fjord": {"widths": [1000, 500]},
    "fjord+kd": {"widths": [1000, 500]},
    "fjord+efd": {"widths": [1000, 500]},
    "efd": {"widths": [1000, 500], "width": 800},
    "heterofl": {"levels": ["a", "b"]},
    "heterofl, dynamic": {"levels": ["a", "b", "c"], "dynamic": True},
    "vardrop": {"threshold": -4.0},
}
UNDRAWN = {"fedavg", "hetlora", "flexlora"}
"""What drops nothing here, as no tensor is an adapter."""
SUMMED = [name for name in rule_names() if not find_rule(name).products]  # the bits of an SVD are the processor's
COMPRESSORS: dict[str, dict[str, Any]] = {
    "topk": {"ratio": 0.1},
    "topk, block": {"ratio": 0.1, "positions": "block"},
    "randk": {"ratio": 0.1},
    "stc": {"ratio": 0.1, "down": 0.1},
    "dgc": {},
    "fedpaq, 8": {},
    "fedpaq, 3": {"bits": 3},
    "signsgd": {},
    "signsgd, vote": {"step": 0.5},
    "fractional": {"bits": 4},
    "tcs": {"global_ratio": 0.1, "local_ratio": 0.02, "server.momentum": 0.5},
    "tcs, plf": {"global_ratio": 0.1, "local_ratio": 0.02, "fairness": "plf", "warmup": 1},
    "tcs, lf": {"global_ratio": 0.1, "local_ratio": 0.02, "fairness": "lf", "bits": 32},
}


def part(name: str) -> str:
    """What a case is named after; what it is set to follows a comma."""
    return name.partition(",")[0]


def numbers(purpose: str, *shape: int, round: int = 0) -> np.ndarray:
    """Multiples of 1/256, of magnitude 2 at the most."""
    words = Stream.of(seed=SEED, purpose=purpose, round=round).uint32(int(np.prod(shape)))
    return ((words % 1025).astype(np.float32) / 256 - 2).reshape(shape)


def model(purpose: str, round: int = 0) -> dict[str, np.ndarray]:
    return {t.name: numbers(f"{purpose} {t.name}", *t.shape, round=round) for t in LAYOUT.tensors}


def draws() -> Iterator[np.ndarray]:
    for purpose in ("batches", "weights"):
        stream = Stream.of(seed=SEED, purpose=purpose, client="a", round=3, index=1)
        yield from (stream.uint32(1001), stream.permutation(1000), stream.subset(1000, 300))


def split_of_digits() -> Iterator[np.ndarray]:
    data = load_dataset("digits")
    for samples in (data.train, data.test):
        yield from (samples.x, samples.y)


def partitions(example: str) -> Iterator[np.ndarray]:
    yield from partition(load_dataset("digits").train, 12, Kind.parse(example))


def held_out() -> Iterator[np.ndarray]:
    for client in CLIENTS:
        parts = HeldOut(open_source("digits:0/3"), 0.25, client).split()
        yield from (parts.train.x, parts.train.y, parts.test.x, parts.test.y)


def order_of_batches(count: int, whole: bool) -> Iterator[np.ndarray]:
    samples = load_dataset("digits").train.take(np.arange(count))
    stream = Stream.of(seed=SEED, purpose="batches", client="a", round=2)
    for batch in batches(samples, steps=9, size=20, stream=stream, whole=whole):
        yield from (batch.x, batch.y, batch.weight)


def selection_of_clients() -> Iterator[bytes]:
    policy, clients = ClientSelection("random", SEED), [f"client-{i}" for i in range(40)]
    for attempt in (0, 1):
        for number in range(1, 20):
            yield ",".join(policy.pick(clients, 9, round=number, attempt=attempt)).encode()


def patterns_of(name: str) -> Iterator[np.ndarray]:
    """Three rounds of three clients: what is assigned, trained at each step, uploaded, and remembered."""
    server = open_method(part(name), METHODS.get(name, {}))
    states: dict[str, Any] = {client: {} for client in CLIENTS}
    for number in (1, 2, 3):
        weights, heard = model("start", number), []
        for tier, client in enumerate(CLIENTS):
            assigned = server.assign(Ask(LAYOUT, client, tier, number, SEED, weights))
            device = open_method(server.name, msgspec.to_builtins(server.parameters))
            noise = {"samples": 50, "batch": 4, "output_noise": LAYOUT.parameters}
            job = Job(LAYOUT, client, number, SEED, weights, states[client], assigned, tier, **noise)
            local = device.local(job)
            yield from local.slots.values() if isinstance(local, TrainsSlots) else ()
            for step in range(9):
                yield local.step.pattern.mask
                local.after_step(step, float(numbers("loss", 1, round=10 * number + step)[0]) + 3)
            server.check(local.upload, tier, assigned)
            yield local.upload.mask
            yield from local.sent.values() if isinstance(local, SelectsEntries) else ()
            states[client] = local.state()
            loss = 3 - (number + tier) / 4
            heard.append(ClientReport(client, tier, 10 + tier, loss, local.upload, seconds=1.0 + tier / 2))
        if isinstance(server, LearnsFromReports):
            server.learn(number, heard)


def frames_of(name: str, mask: str) -> Iterator[bytes]:
    """Three rounds of a client: its updates, what it remembers, and what the server sends."""
    own = {k if "." in k else f"{part(name)}.{k}": value for k, value in COMPRESSORS[name].items()}
    recipe, pattern = open_recipe(part(name), own), PATTERNS[mask]
    compressor = recipe.compressor
    assert compressor is not None
    selection = Selection.of(pattern, "units")
    memory = {name: np.zeros_like(flatten(selection, model("update"))) for name in compressor.memory}
    for number in (1, 2, 3):
        shared = compressor.shared() if isinstance(compressor, Shares) else b""
        context = Context(selection, number, shared)
        values = flatten(selection, model("update", number))
        stream = Stream.of(seed=SEED, purpose=compressor.name, client="a", round=number)
        done = compressor.compress(values, memory, context, stream)
        memory = done.memory
        yield encode_frame(header(compressor.name, number), pattern, {}, done.section)
        yield DECODERS[compressor.name](memoryview(done.section), context).tobytes()
        yield from memory.values()
        if isinstance(compressor, SendsChanges) and compressor.sends_changes:
            yield compressor.encode_change(numbers("sent", 300))
        change = {name: array.astype(np.float64) for name, array in model("change", number).items()}
        yield from recipe.server_update(number, change).values()
        yield compressor.shared() if isinstance(compressor, Shares) else b""


def header(values: str, round: int) -> Header:
    return Header(
        kind="update",
        run="run-1",
        round=round,
        version=round - 1,
        layout=LAYOUT.digest,
        method="fedavg",
        client="a",
        samples=9,
        loss=0.625,
        values=values,
    )


def frames_of_all(mask: str) -> Iterator[bytes]:
    yield encode_frame(header("float32", 1), PATTERNS[mask], model("update"))


def aggregated(rule: str, weighting: Weighting) -> Iterator[np.ndarray]:
    """A pattern each, and weights of 1/4 and more: all sums are exact."""
    sums = Accumulator(LAYOUT, find_rule(rule, weighting), CpuSumming())
    for i, pattern in enumerate(PATTERNS.values()):
        selection = Selection.of(pattern, "units")
        sums.add(selection, selection.gather(model("update", i)), samples=10 + i, discount=1 - i / 4)
    yield from sums.change(model("start")).values()


CASES: dict[str, Callable[[], Iterator[np.ndarray | bytes]]] = {
    "draws": draws,
    "digits": split_of_digits,
    "held out": held_out,
    "clients": selection_of_clients,
    "batches": lambda: order_of_batches(70, False),
    "batches, whole": lambda: order_of_batches(70, True),
    "batches, whole, of few": lambda: order_of_batches(7, True),
    **{f"partition {c.example}": partial(partitions, c.example) for c in CUTS.values() if c.example != "owners"},
    **{f"method {name}": partial(patterns_of, name) for name in METHODS},
    **{f"frame {mask}": partial(frames_of_all, mask) for mask in PATTERNS},
    **{f"frame {name}, {mask}": partial(frames_of, name, mask) for name in COMPRESSORS for mask in PATTERNS},
    **{f"rule {name}, {by}": partial(aggregated, name, by) for name in SUMMED for by in get_args(Weighting)},
}


def digest_of(name: str) -> str:
    hashed = hashlib.sha256()
    for piece in CASES[name]():
        content = piece if isinstance(piece, bytes) else np.ascontiguousarray(piece).tobytes()
        hashed.update(len(content).to_bytes(8, "little") + content)
    return hashed.hexdigest()[:32]


def test_every_method_compressor_and_case_has_a_digest() -> None:
    assert {part(name) for name in METHODS} == set(method_names()) - UNDRAWN
    assert {part(name) for name in COMPRESSORS} == set(compressor_names())
    assert set(json.loads(STORED.read_text())) == set(CASES)


@pytest.mark.parametrize("name", CASES)
def test_the_bytes_are_those_of_the_stored_digest(name: str) -> None:
    assert digest_of(name) == json.loads(STORED.read_text())[name]


if __name__ == "__main__":
    STORED.write_text(json.dumps({name: digest_of(name) for name in CASES}, indent=1) + "\n")
