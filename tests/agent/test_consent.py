"""When a device declines. A battery and NetworkManager are what no test machine has: folders and a program stand in."""

import os
from pathlib import Path

import pytest

from edge_fl.agent.consent import Conditions, Machine
from edge_fl.core.errors import ConfigError, DeclinedError


def supply(root: Path, name: str, **says: str) -> None:
    (root / name).mkdir(parents=True)
    for key, value in says.items():
        (root / name / key).write_text(f"{value}\n")


def busctl(folder: Path, answer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = folder / "busctl"
    program.write_text(f'#!/bin/sh\n[ "$5" = Metered ] && echo "{answer}"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def test_a_low_battery_declines(tmp_path: Path) -> None:
    supply(tmp_path, "AC", type="Mains", online="0")
    supply(tmp_path, "BAT0", type="Battery", status="Discharging", capacity="19")
    machine = Machine(supplies=tmp_path)

    Conditions(least_battery=19, machine=machine).check()
    Conditions(machine=machine).check()
    with pytest.raises(
        DeclinedError, match="The battery is at 19 %, below 20 %, and the device is not being charged"
    ):
        Conditions(least_battery=20, machine=machine).check()


@pytest.mark.parametrize(
    "power",
    [
        {"type": "Mains", "online": "1"},
        {"type": "USB", "online": "1"},
        {"type": "Battery", "status": "Charging", "capacity": "3"},
    ],
)
def test_a_charged_device_does_not_care_how_low_its_battery_is(power: dict[str, str], tmp_path: Path) -> None:
    supply(tmp_path, "BAT0", type="Battery", status="Discharging", capacity="2")
    supply(tmp_path, "other", **power)

    Conditions(least_battery=50, machine=Machine(supplies=tmp_path)).check()


def test_neither_a_machine_without_a_battery_nor_a_mouse_declines(tmp_path: Path) -> None:
    Conditions(least_battery=50, machine=Machine(supplies=tmp_path / "none")).check()
    supply(tmp_path, "hidpp_battery_0", type="Battery", scope="Device", status="Discharging", capacity="1")

    Conditions(least_battery=50, machine=Machine(supplies=tmp_path)).check()


def test_a_battery_that_is_full_does_not_charge_another(tmp_path: Path) -> None:
    supply(tmp_path, "BAT0", type="Battery", status="Full", capacity="100")
    supply(tmp_path, "BAT1", type="Battery", status="Discharging", capacity="4")

    with pytest.raises(DeclinedError, match="The battery is at 4 %"):
        Conditions(least_battery=20, machine=Machine(supplies=tmp_path)).check()


@pytest.mark.parametrize("answer", ["u 2", "u 4"])
def test_a_network_that_is_not_metered_will_do(
    answer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    busctl(tmp_path, answer, monkeypatch)

    Conditions(unmetered=True).check()


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [("u 1", "The network is metered"), ("u 3", "The network is metered"), ("u 0", "It is not known whether")],
)
def test_a_metered_network_declines_and_so_does_one_that_nobody_knows_of_yet(
    answer: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    busctl(tmp_path, answer, monkeypatch)
    conditions = Conditions(unmetered=True)

    with pytest.raises(DeclinedError, match=sentence):
        conditions.check()
    (tmp_path / "busctl").write_text("#!/bin/sh\nexit 1\n")  # NetworkManager is being restarted
    with pytest.raises(DeclinedError, match="It is not known whether"):
        conditions.check()


def test_a_machine_that_cannot_tell_is_refused_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "busctl").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "busctl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(ConfigError, match="No NetworkManager says here"):
        Conditions(unmetered=True)
    with pytest.raises(ConfigError, match="how busy the CPUs are"):
        Conditions(most_busy=0.5, machine=Machine(stat=tmp_path / "none"))


def test_cpus_that_others_use_decline(tmp_path: Path) -> None:
    stat = tmp_path / "stat"
    readings = iter(["cpu 100 0 0 900 0 0 0 0\n", "cpu 190 0 0 910 0 0 0 0\n"] * 3)

    class Counted(Machine):
        def _cpu_time(self) -> tuple[int, int]:
            stat.write_text(next(readings))
            return super()._cpu_time()

    conditions = Conditions(most_busy=0.8, machine=Counted(stat=stat))

    with pytest.raises(DeclinedError, match="Others use 90% of the CPUs, more than 80%"):
        conditions.check()


def test_this_machine_says_how_busy_it_is() -> None:
    busy = Machine().busy()

    assert busy is not None
    assert 0 <= busy <= 1
