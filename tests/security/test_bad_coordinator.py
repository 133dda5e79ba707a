"""A coordinator gone bad, against real agents over TLS on both brokers: each deed costs its task or its message.

Afterwards the same three processes serve an honest coordinator, and end in the bits of a run that nobody disturbed.
"""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from broker.provision.authority import Authority
from device_sim.emulation.mosquitto import free_port
from edge_fl.core.bundle import MANIFEST, Bundle
from edge_fl.core.content import Ref
from edge_fl.wire.messages import Registered, Verdict, Want
from tests.security import hostile_coordinator as deeds
from tests.security.conftest import ServedFleet
from tests.security.hostile_coordinator import HostileCoordinator, task_of
from tests.security.hostile_sum import spy_on_a_sum
from tests.security.test_fleet import RUN, agents, edge_fl, ended, run, same, weights
from tests.security.test_large_message import memory
from tests.security.test_programs import HOSTILE, crashing, endless, hungry, step_of, with_program
from tests.worker.hostile import DEEDS

RUNTIMES = {"tea": "onnx", "coffee": "torch_eager", "milk": "executorch"}
SECURE = ["--clients-per-round=3", "--min-clients=3", "--quorum=1", "--secure-aggregation", "--secure-holders=2"]
MOST_RESIDENT = 150_000_000  # bytes of an agent, seen to take 73 MB; its programs have a process of their own


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, digits_bundle: Bundle) -> dict[str, np.ndarray]:
    folder, port = tmp_path_factory.mktemp("undisturbed"), free_port()
    devices: dict[str, list[str | Path]] = {
        name: ["--broker", f"mqtt://127.0.0.1:{port}", "--id", name, "--runtime", runtime]
        for name, runtime in RUNTIMES.items()
    }
    run(folder, [digits_bundle.root, "--port", str(port)], devices, options=SECURE)
    return weights(folder)


@pytest.fixture(scope="module")
def crashes(tmp_path_factory: pytest.TempPathFactory, digits_bundle: Bundle) -> Bundle:
    return crashing(digits_bundle, tmp_path_factory.mktemp("crashing"))


def attack(hostile: HostileCoordinator, bundle: Bundle, crashes: Bundle, folder: Path) -> None:
    """All that a coordinator can do to its devices, but end them: that it may."""
    hostile.gather(*RUNTIMES)
    evil, files = folder / "evil", {name: step_of(bundle, runtime).file for name, runtime in RUNTIMES.items()}
    pickled = deeds.with_a_pickle(bundle.read(files["coffee"]), evil)
    reading = deeds.reading_a_file(bundle.read(files["tea"]))
    made = {
        "pickle": with_program(bundle, files["coffee"], pickled, folder / "pickle"),
        "reading": with_program(bundle, files["tea"], reading, folder / "reading"),
        "endless": with_program(bundle, files["tea"], endless(bundle), folder / "endless"),
        "hungry": with_program(bundle, files["tea"], hungry(bundle), folder / "hungry"),
        "crashes": crashes,
    }
    for held in (bundle, *made.values()):
        for runtime in RUNTIMES.values():
            for file in held.manifest.program_files(runtime):
                hostile.give(held.read(file))
    lacking = deeds.lacking_a_tensor(bundle, "onnx")
    for number, (client, manifest, sentence) in enumerate(
        [
            ("tea", deeds.no_manifest(bundle), "is no manifest"),
            ("coffee", deeds.of_a_huge_layout(bundle), "The layout makes no sense"),
            ("tea", lacking, "Required inputs (['tensor.1.weight']) are missing"),
            ("tea", made["reading"].read(MANIFEST), "reads another file, which no program may"),
            ("coffee", made["pickle"].read(MANIFEST), "step-plain.pt2"),
            ("tea", made["endless"].read(MANIFEST), "took longer than 25 s"),
            ("tea", made["hungry"].read(MANIFEST), "onnx cannot run 'onnx/step"),
            ("milk", crashes.read(MANIFEST), "ended by SIGSEGV"),
        ]
    ):
        hostile.fails(client, f"hostile-{number}", bundle, manifest, sentence)
    assert not evil.exists()
    segfault = [deed.__name__ for deed in DEEDS].index("segfault")
    deed = {"method": "hostile", "parameters": {}, "seed": segfault}
    hostile.fails("tea", "hostile-crash", bundle, bundle.read(MANIFEST), "ended by SIGSEGV", **deed)
    nowhere = Ref("4" * 64, 1000)
    for client in RUNTIMES:
        hostile.say(client, Registered("old", nowhere), old=True)  # a rollback
        for message in deeds.out_of_range(f"hostile-{client}"):
            hostile.say(client, message)
        hostile.say(client, Want("5" * 64, (0,)))
        hostile.say(client, Verdict("hostile", 1, "5" * 64, accepted=True))
        hostile.say(client, Registered("last", hostile.give(bundle.read(MANIFEST))))
        hostile.say(client, task_of("last", nowhere, round=2**31 - 1))  # fetched until something else is wanted
        hostile.until(lambda client=client: wants(hostile, client, nowhere))
        hostile.say(client, Registered("nowhere", Ref("6" * 64, 1000)))
        hostile.until(lambda client=client: wants(hostile, client, Ref("6" * 64, 1000)))


def wants(hostile: HostileCoordinator, client: str, ref: Ref) -> bool:
    return any(c == client and isinstance(m, Want) and m.digest == ref.digest for c, m in hostile.heard)


@pytest.fixture
def attacked(
    served: ServedFleet, digits_bundle: Bundle, crashes: Bundle, other_authority: Authority
) -> Iterator[tuple[list[subprocess.Popen[str]], list[str]]]:
    """The agents, once all was done to them, and why `tea` did not help to spy on it."""
    hostile_code = ["--method", f"{HOSTILE}:Hostile"]  # which runs where it is asked for
    devices = {
        name: [*identity, "--runtime", RUNTIMES[name], "--task-limit", "25", *hostile_code]
        for name, identity in served.devices(*RUNTIMES).items()
    }
    own, started = served.authority.folder / "coordinator.pem", agents(served.folder, devices)
    try:
        with served.before_serve() as address, HostileCoordinator(address, own) as hostile:
            attack(hostile, digits_bundle, crashes, served.folder)
            reasons = spy_on_a_sum(hostile, digits_bundle, own=own, foreign=other_authority.device("spy"))
        yield started, reasons
    except BaseException:
        for process in started:
            process.kill()
            print(process.communicate()[0])
        raise
    finally:
        for process in started:
            process.kill()


@pytest.mark.matrix
def test_agents_outlive_a_bad_coordinator_and_serve_the_next(
    served: ServedFleet,
    attacked: tuple[list[subprocess.Popen[str]], list[str]],
    digits_bundle: Bundle,
    undisturbed: dict[str, np.ndarray],
) -> None:
    started, reasons = attacked
    for process in started:
        assert process.poll() is None
        assert memory(process.pid, "VmHWM") < MOST_RESIDENT
    serve = [digits_bundle.root, *served.serve, *RUN, *SECURE, "-o", "run"]
    *said, _ = ended([*started, edge_fl("serve", *serve, folder=served.folder)])
    printed = dict(zip(RUNTIMES, said, strict=True))
    for name in RUNTIMES:
        assert "ignored a message: The message is an old one" in printed[name], printed[name]
        assert printed[name].count("ignored a message: The message cannot be read") >= 11, printed[name]
        assert "Traceback" not in printed[name]
    assert all(f"{reason}\n" in printed["tea"] for reason in reasons)
    assert same(weights(served.folder), undisturbed)
