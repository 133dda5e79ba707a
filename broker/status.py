"""How a run stands, read from its record while a coordinator is at work on it, or after."""

from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Literal

import msgspec

from broker.client_selection import ClientSelection
from broker.database import local_url
from broker.presence import read_presence
from broker.run_folder import FINAL, run_of
from broker.settings import Begun, read_settings
from broker.store import Rejected, Store, UnderWay
from edge_fl.runs.config import RunConfig
from edge_fl.runs.metrics import RoundMetrics

__all__ = ["RunStatus", "status_of"]


_LATEST = 10  # rounds


class DeviceStatus(msgspec.Struct, frozen=True):
    """A device as it registered last, the last round whose update was taken (0: none), and its part in the open one.

    ``tier`` is the one it was asked in last, or registered with. ``clipped`` counts the rounds in which the norm bound
    scaled its update down, and it ``rests`` until that round (0: it does not). ``connected`` and
    ``heard``, the Unix time of its last message, are as the coordinator wrote them last; None where it has not.
    ``connected`` is None, too, where no coordinator is at work.
    """

    client: str
    tier: int
    runtime: str
    platform: str
    samples: int
    accepted: int
    now: str
    clipped: int
    rests: int
    connected: bool | None
    heard: float | None


class RunStatus(msgspec.Struct, frozen=True):
    """A run: its settings, its last finished round (None before the first), the latest of them, devices, and what was
    turned away.

    Its ``state`` is ``stopped`` where it has not ended and no process is at work on it, as after a kill. ``command`` of
    edge-fl began it.
    """

    run: str
    method: str
    rounds: int
    finished: int
    state: Literal["running", "stopped", "ended"]
    command: Literal["serve", "simulate"]
    last: RoundMetrics | None
    latest: list[RoundMetrics]
    devices: list[DeviceStatus]
    rejected: list[Rejected]

    def figures(self) -> Mapping[str, Any]:
        """The same as plain values."""
        return msgspec.to_builtins(self)  # type: ignore[no-any-return]


class _Settings(Begun, frozen=True):
    """What a fleet's settings and a simulation's have in common."""

    config: RunConfig


def status_of(root: Path, database: str | None = None) -> RunStatus:
    """Look at the run in ``root``, whose record is in ``database`` (None: in ``root``).

    Raises
    ------
    StateError
        When there is no such run, or not one of this version.
    """
    run = None if database is None else run_of(root)
    with closing(Store(database or local_url(root), run, watch=True)) as store:
        settings = read_settings(store.settings, _Settings, root)
        config = settings.config
        rounds = store.rounds()
        open_round = store.under_way(len(rounds) + 1)
        tiers = {client: tier for metrics in rounds for client, tier in metrics.tiers.items()}
        tiers |= {} if open_round is None else {client: task.tier for client, task in open_round.tasks.items()}
        clipped = Counter(client for metrics in rounds for client in metrics.clipped)
        selection = ClientSelection(config.selection, config.seed)
        for metrics in rounds:
            selection.learn(metrics)
        resting = {} if config.by_chance else selection.resting(len(rounds) + 1)
        running = store.at_work()  # before the final model is looked for, which a run writes before it lets go
        seen, ended = read_presence(root), (root / FINAL).exists()
        return RunStatus(
            run=config.run,
            method=config.method,
            rounds=config.rounds,
            finished=len(rounds),
            command=settings.kind,
            state="ended" if ended else "running" if running else "stopped",
            last=rounds[-1] if rounds else None,
            latest=rounds[-_LATEST:],
            devices=[
                DeviceStatus(
                    client=device.client,
                    tier=tiers.get(device.client, device.profile.tier),
                    runtime=device.profile.runtime,
                    platform=device.profile.platform,
                    samples=device.profile.samples,
                    accepted=device.accepted,
                    now=_part(open_round, device.client),
                    clipped=clipped[device.client],
                    rests=resting.get(device.client, 0),
                    connected=seen[device.client].connected
                    if running and not ended and device.client in seen
                    else None,
                    heard=seen[device.client].heard if device.client in seen else None,
                )
                for device in store.devices()
            ],
            rejected=store.rejected(),
        )


def _part(open_round: UnderWay | None, client: str) -> str:
    if open_round is None or client not in open_round.tasks:
        return ""
    judged = open_round.judged.get(client)
    if judged is None:
        return "asked"
    return f"rejected ({judged.code})" if judged.code else "accepted"
