"""Run two checkouts on this machine, and compare what they compute, bit for bit.

Usage: python scripts/compare_commits.py OLD NEW [--only NAME] [--cache DIR] [--json]

OLD and NEW are folders. Both are driven by their command lines alone, so that modules may move in between. Where NEW
names an option or a field of its record otherwise, the tables below say so. The exit status is 1 when anything
differs, or cannot be run.
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import msgspec
from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion

# --- what may differ

RENAMED_OPTIONS: Mapping[str, Mapping[str, str]] = {}
"""By command, OLD's options and what NEW calls them: ``{"export": {"--dataset": "--data"}}``.

An option is renamed only for a checkout whose ``--help`` names the new one.
"""

NEEDED_OPTIONS: Mapping[str, Sequence[str]] = {
    "simulate": ("--data=digits", "--test-data=digits", "--samples-bound=0", "--norm-bound=0"),
    "serve": ("--test-data=digits", "--samples-bound=0", "--norm-bound=0", "--rollback=0"),
}
"""By command, options that NEW cannot do without. A checkout whose ``--help`` does not name one does not get it."""

CHANGED_ARGUMENTS: Mapping[str, tuple[str, str]] = {
    "--set=width=800": ("--config", "--set=width=0.8"),
    "--rule=delta": ("--config", "--rule=mean"),
}
"""Arguments that are written otherwise in a checkout whose ``--help`` names an option: that option, and how."""

RENAMED_FIELDS: Mapping[str, str] = {"accuracy": "scores.accuracy", "gathered": "collected"}
"""Fields of OLD's records, and what NEW calls them."""

NEW_FIELDS: frozenset[str] = frozenset(
    {"summary.loss", "summary.train_loss", "rounds[].averaged", "rounds[].left_out", "rounds[].privacy"}
)
"""Paths of fields that NEW has, and OLD has not; ``[]`` is any place in a list."""

IGNORED = frozenset({"seconds", "took", "run", "weights"})
"""Fields of either record that need not agree: times, ids, paths. (``weights`` is a path; its tensors are compared.)"""

_PLACE = re.compile(r"\[\d+\]")

# --- what is run

Kind = Literal["simulate", "resume", "fleet"]
MODELS = Path(__file__).resolve().parent / "compared_models.py"
WORKERS, NICE = 2, 10
TIMEOUT = 420.0  # seconds that a command may take
CLIENTS = 4  # of a fleet
FORMAT = 2  # of what is cached; count it up when results come to hold something else

_BOTH = ("--runtime=onnx", "--runtime=torch-eager")
_VARIANTS = tuple(f"--variant={name}" for name in ("plain", "noise", "distil", "vardrop"))
_NARROW = "--widths=1.0,0.5"
BUNDLES: Mapping[str, Sequence[str]] = {
    "mlp": ("zoo:digits-mlp", "--dataset=digits", *_BOTH, _NARROW, *_VARIANTS),
    "static": ("zoo:digits-mlp", "--dataset=digits", "--runtime=executorch", _NARROW),
    "rows": (f"{MODELS}:normalised", "--dataset=digits", *_BOTH, _NARROW, "--batch-norm=per-width"),
    "tracked": (
        f"{MODELS}:convolution",
        "--dataset=digits",
        *_BOTH,
        _NARROW,
        "--momentum=0.9",
        "--weight-decay=0.001",
    ),
    "recurrent": (f"{MODELS}:recurrent", "--dataset=digits", *_BOTH, _NARROW, "--optimizer=adam", "--clip-norm=1"),
}

_LEVELS = "--set=levels=a,b"
_WIDTHS = "--widths=1,0.5"
RECIPES: Mapping[str, Sequence[str]] = {
    "fedavg": (),
    "fedbiad": ("--dropout=0.2,0.5", "--set=stage_boundary=2"),
    "fedbiad noise": ("--method=fedbiad", "--set=variance=0.0001", "--set=score_every=tau"),
    "fedbiad zeros": ("--method=fedbiad", "--rule=zeros", "--mode=units"),
    "fedbiad delta": ("--method=fedbiad", "--rule=delta", "--set=scale=false"),
    "feddrop": ("--dropout=0.2,0.5",),
    "feddrop delta": ("--method=feddrop", "--dropout=0.2,0.5", "--rule=delta", "--mode=rows"),
    "afd": ("--dropout=0.2,0.5",),
    "afd single": ("--method=afd", "--set=maps=single"),
    "fedmp": ("--dropout=0.2,0.5",),
    "fedmp bandit": ("--method=fedmp", "--set=ratio=bandit", "--rounds=5"),
    "fjord": (_WIDTHS,),
    "fjord+kd": (_WIDTHS,),
    "fjord+efd": (_WIDTHS,),
    "efd": (_WIDTHS, "--set=width=800"),
    "heterofl": (_LEVELS,),
    "heterofl dynamic": ("--method=heterofl", _LEVELS, "--set=dynamic=true"),
    "vardrop": ("--set=threshold=-4.0",),
    "fedavg+topk": ("--set=topk.ratio=0.05",),
    "fedavg+topk block": ("--method=fedavg+topk", "--set=topk.positions=block"),
    "fedavg+randk": (),
    "fedavg+stc": (),
    "fedavg+dgc": (),
    "fedavg+dgc clip": ("--method=fedavg+dgc", "--set=dgc.clip=0.1"),
    "fedavg+fedpaq": ("--set=fedpaq.bits=4",),
    "fedavg+fedpaq l2": ("--method=fedavg+fedpaq", "--set=fedpaq.norm=l2"),
    "fedavg+signsgd": (),
    "fedavg+signsgd vote": ("--method=fedavg+signsgd", "--set=signsgd.step=0.01"),
    "fedavg+fractional": (),
    "fedavg+tcs": ("--set=server.momentum=0.9",),
    "fedavg+tcs plf": ("--method=fedavg+tcs", "--set=tcs.fairness=plf", "--set=tcs.warmup=1"),
    "tcs": (),
    "fedbiad+dgc": (),
    "fedbiad+stc": ("--set=stc.down=0",),
    "fjord+kd+dgc": (_WIDTHS,),
    "heterofl+fedpaq": (_LEVELS,),
    "best-uplink": ("--set=tcs.warmup=1",),  # whatever the preset's own is
}
"""Every method and compressor, as ``--method`` names it (up to the first space), and what it is set to."""

SETTINGS: Mapping[str, tuple[str, Sequence[str]]] = {
    "labels": ("mlp", ("--partition=labels=5",)),
    "dirichlet": ("mlp", ("--method=fedbiad", "--partition=dirichlet=0.5")),
    "shards": ("mlp", ("--partition=shards=2",)),
    "sizes": ("mlp", ("--method=fedbiad+dgc", "--partition=sizes=1")),
    "lr drop": ("mlp", ("--lr-drop=0.3", "--lr-drop=0.6", "--evaluate-every=2")),
    "processes": ("mlp", ("--method=fedbiad+dgc", "--processes=2")),
    "static fjord": ("static", ("--method=fjord", _WIDTHS, "--runtime=executorch")),
    "static fedavg+topk": ("static", ("--method=fedavg+topk", "--runtime=executorch")),
    "gathered statistics": ("rows", ("--method=heterofl", _LEVELS)),
    "gathered statistics stacked": ("rows", ("--method=heterofl", _LEVELS, "--trainer=stacked")),
    "statistics by width": ("rows", ("--method=fjord", _WIDTHS)),
    "tracked fedbiad": ("tracked", ("--method=fedbiad", "--mode=units")),
    "tracked fedavg stacked": ("tracked", ("--trainer=stacked",)),
    "recurrent feddrop": ("recurrent", ("--method=feddrop",)),
    "recurrent fedbiad+dgc stacked": ("recurrent", ("--method=fedbiad+dgc", "--trainer=stacked")),
}
"""Simulations of other data, models and runtimes: the bundle, and the options."""

FLEETS: Mapping[str, tuple[str, Sequence[str]]] = {
    "fedavg": ("mlp", ("--method=fedavg", f"--evaluate-on={CLIENTS}")),
    "fedbiad+dgc": ("mlp", ("--method=fedbiad+dgc",)),
    "fjord": ("mlp", ("--method=fjord", _WIDTHS)),
    "stc": ("mlp", ("--method=fedavg+stc",)),
    "gathered statistics": ("rows", ("--method=heterofl", _LEVELS)),
}
"""Fleets of real agents, each over both brokers: the bundle, and the options."""

SIMULATED = ("--clients=6", "--fraction=0.67", "--tiers=2", "--rounds=3")
RESUMED = (*SIMULATED[:-1], "--rounds=60", "--local-steps=20", "--batch=20", "--lr=0.1", "--seed=7")
TRAINING = ("--local-steps=5", "--batch=20", "--lr=0.1", "--seed=7")
SERVED = ("--rounds=2", f"--clients-per-round={CLIENTS}", f"--min-clients={CLIENTS}", "--quorum=1", *TRAINING)


@dataclass(frozen=True)
class Case:
    """One run: its options are those of ``simulate``, or of ``serve`` over a ``broker``."""

    name: str
    kind: Kind
    bundle: str
    options: tuple[str, ...]
    broker: str = ""


def cases() -> Iterator[Case]:
    """Give every case, the cheapest kind first."""
    for name, options in RECIPES.items():
        method = f"--method={name.partition(' ')[0]}"
        for trainer in ("runtime", "stacked"):
            every = (*SIMULATED, *TRAINING, f"--trainer={trainer}", method, *options)
            yield Case(f"{trainer}: {name}", "simulate", "mlp", every)
    for name, (bundle, options) in SETTINGS.items():
        yield Case(f"setting: {name}", "simulate", bundle, (*SIMULATED, *TRAINING, *options))
    for method in ("fedbiad+dgc", "afd", "fedavg+stc"):
        yield Case(f"resume: {method}", "resume", "mlp", (*RESUMED, f"--method={method}"))
    for broker in ("mosquitto", "embedded"):
        for name, (bundle, options) in FLEETS.items():
            yield Case(f"{broker}: {name}", "fleet", bundle, (*SERVED, *options), broker)


# --- a checkout

SITE = """
import secrets, time
_strftime, _token_hex = time.strftime, secrets.token_hex

def strftime(form, *when):
    return "20000101-000000" if form == "%Y%m%d-%H%M%S" and not when else _strftime(form, *when)

def token_hex(nbytes=None):
    return "0000" if nbytes == 2 else _token_hex(nbytes)

time.strftime, secrets.token_hex = strftime, token_hex
"""
"""Every run gets the same id, which frames hold: Python imports this by itself, as sitecustomize."""


WARM = """
import importlib, json, os, runpy, sys, traceback

for name in ("torch.export", "torch._dynamo", "torch.func", "matplotlib.pyplot", "onnxruntime", "safetensors.numpy",
             "sqlalchemy", "fsspec", "typer", "rich.console", "rich.live", "msgspec", "tqdm", "paho.mqtt.client"):
    try:
        importlib.import_module(name)
    except ImportError:
        pass

def run(arguments, out, error):
    for path, number in ((out, 1), (error, 2)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    sys.argv, code = ["edge_fl", *arguments], 0
    try:
        runpy.run_module("edge_fl", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)

for line in sys.stdin:
    child = os.fork()
    if child == 0:
        run(*json.loads(line))
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
"""Runs one command of edge-fl after another, each in a process that has all other packages imported already: these
take longer than a small simulation. Nothing of edge-fl is imported before the fork.
"""


class Failed(Exception):  # noqa: N818
    """A command that did not do what it should."""


class Checkout:
    """Runs the command line of one checkout, in folders of its own below ``work``."""

    def __init__(self, root: Path, python: str, work: Path) -> None:
        self.root, self._python, self.work = root.resolve(), python, work
        site = work / "site"
        site.mkdir(parents=True)
        (site / "sitecustomize.py").write_text(SITE)
        self._environment = {
            **os.environ,
            "PYTHONPATH": f"{self.root}{os.pathsep}{site}",
            "OMP_NUM_THREADS": "1",
            "NUMBA_CACHE_DIR": str(work / "numba"),
            "HOME": str(work),
            "XDG_STATE_HOME": str(work / "state"),
            "COLUMNS": "300",
            "TERM": "dumb",
        }
        self._helps: dict[str, str] = {}
        self._lock, self._own = threading.Lock(), threading.local()
        self._check()

    def _check(self) -> None:
        """Refuse a checkout that Python does not import from."""
        code = "import edge_fl, secrets; print(edge_fl.__file__, secrets.token_hex(2))"
        found = self._run([self._python, "-c", code]).split()
        if not Path(found[0]).is_relative_to(self.root) or found[1] != "0000":
            raise SystemExit(f"'{self._python}' imports {found[0]} rather than what is in {self.root}.")

    @cached_property
    def commit(self) -> str | None:
        """Its commit; None where it holds something else, too."""
        try:
            dirty = _output(["git", "-C", str(self.root), "status", "--porcelain"])
            return None if dirty else _output(["git", "-C", str(self.root), "rev-parse", "HEAD"]).strip()
        except (OSError, subprocess.CalledProcessError):
            return None

    def machine(self) -> str:
        """Name what bits may hang on besides the commit: packages and processor."""
        packages = "numpy", "torch", "onnxruntime", "executorch", "numba"
        code = f"import sys, importlib.metadata as m; print(sys.version, *(m.version(p) for p in {packages}))"
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return self._run([self._python, "-c", code]) + next((x for x in lines if x.startswith("model name")), "")

    def command(self, name: str, *arguments: str) -> list[str]:
        """Give a command line of edge-fl, with its options as this checkout has them."""
        known = self._help(name)
        renamed = {old: new for old, new in RENAMED_OPTIONS.get(name, {}).items() if new in known}
        needed = [] if "--resume" in arguments else NEEDED_OPTIONS.get(name, ())
        changed = {old: new for old, (option, new) in CHANGED_ARGUMENTS.items() if option in known}
        split = [changed.get(argument, argument).partition("=") for argument in arguments]
        adapted = [renamed.get(option, option) + equals + value for option, equals, value in split]
        adapted += [option for option in needed if option.partition("=")[0] in known]
        return [self._python, "-m", "edge_fl", name, *adapted]

    def run(self, name: str, *arguments: str) -> str:
        """Run a command of edge-fl to its end, and give what it prints."""
        return self._run(self.command(name, *arguments))

    def run_warm(self, name: str, *arguments: str) -> str:
        """Run a command as :meth:`run` does, but quicker (:data:`WARM`)."""
        server: Warm | None = getattr(self._own, "warm", None)
        if server is None:
            server = self._own.warm = Warm([self._python, "-c", WARM], self._environment, self.work)
        return server.run(self.command(name, *arguments)[3:])

    @contextmanager
    def started(self, name: str, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
        """Run a command meanwhile; it is killed where it has not ended by then."""
        with tempfile.TemporaryFile("w+") as said:  # a pipe that nobody reads would stop it
            command = self.command(name, *arguments)
            process = subprocess.Popen(
                command, env=self._environment, cwd=self.work, stdout=subprocess.PIPE, stderr=said, text=True
            )
            try:
                yield process
            except Failed as failure:
                said.seek(0)
                raise Failed(f"{failure} {said.read()[-500:]}") from failure
            finally:
                process.kill()
                process.communicate()

    def _help(self, name: str) -> set[str]:
        with self._lock:
            if name not in self._helps:
                self._helps[name] = self._run([self._python, "-m", "edge_fl", name, "--help"])
            return {word.strip(",│") for word in self._helps[name].split() if word.startswith("--")}

    def _run(self, command: Sequence[str]) -> str:
        try:
            done = subprocess.run(
                command,
                env=self._environment,
                cwd=self.work,
                capture_output=True,
                text=True,
                timeout=TIMEOUT,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise Failed(f"No end after {TIMEOUT:.0f} s: {' '.join(command[2:])}") from error
        if done.returncode:
            raise Failed(f"Exit status {done.returncode} of {' '.join(command[2:])}: {done.stderr[-500:]}")
        return done.stdout


class Warm:
    """A process that runs commands one after another, for one thread; it ends with its standard input."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], work: Path) -> None:
        self._folder = Path(tempfile.mkdtemp(dir=work, prefix="warm-"))
        self._process = subprocess.Popen(
            command, env=environment, cwd=work, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self, arguments: Sequence[str]) -> str:
        """Run a command to its end, and give what it prints."""
        out, error = self._folder / "out", self._folder / "error"
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([arguments, str(out), str(error)]) + "\n")
        self._process.stdin.flush()
        timer = threading.Timer(TIMEOUT, self._process.kill)
        timer.start()
        code = self._process.stdout.readline().strip()
        timer.cancel()
        if code != "0":
            raise Failed(f"Exit status {code or 'none'} of {' '.join(arguments)}: {error.read_text()[-500:]}")
        return out.read_text()


def _output(command: Sequence[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


# --- what a case computes

Result = dict[str, Any]


def export(checkout: Checkout, name: str, folder: Path) -> Result:
    """Export a bundle; its result are digests of its weights, and of its files."""
    checkout.run("export", *BUNDLES[name], f"--output={folder}")
    files = {
        str(path.relative_to(folder)): digest(path.read_bytes()) for path in folder.rglob("*") if path.is_file()
    }
    return {"weights": tensors(folder / "weights.safetensors"), "files": files}


def simulate(checkout: Checkout, case: Case, bundle: Path, folder: Path) -> Result:
    """Run a simulation."""
    printed = checkout.run_warm("simulate", str(bundle), *case.options, f"--output={folder}", "--json")
    return outcome(folder, printed)


def resume(checkout: Checkout, case: Case, bundle: Path, folder: Path) -> Result:
    """Run a simulation that is killed after a few rounds, and goes on."""
    lines = folder / "metrics.jsonl"
    with checkout.started("simulate", str(bundle), *case.options, f"--output={folder}", "--json") as process:
        wait(lambda: process.poll() is not None or (lines.exists() and lines.read_bytes().count(b"\n") >= 2))
        if process.poll() is not None:
            raise Failed("The simulation ended before it was killed.")
        process.send_signal(signal.SIGKILL)
        process.wait()
    return outcome(folder, checkout.run_warm("simulate", "--resume", str(folder), "--json"))


def serve(checkout: Checkout, case: Case, bundle: Path, folder: Path) -> Result:
    """Run a fleet, and listen to all that goes over the broker."""
    port, state = free_port(), folder.with_name(f"{folder.name}-devices")
    address = f"mqtt://127.0.0.1:{port}"
    with ExitStack() as stack:
        where = f"--port={port}"
        if case.broker == "mosquitto":
            stack.enter_context(mosquitto(port, state))
            where = f"--broker={address}"
        options = (*case.options, where, f"--output={folder}", "--json")
        server = stack.enter_context(checkout.started("serve", str(bundle), *options))
        wait(lambda: server.poll() is not None or listens(port))
        tap = stack.enter_context(Tap(port))
        devices = [stack.enter_context(device(checkout, i, address, state)) for i in range(CLIENTS)]
        printed = ended(server)
        for process in devices:
            ended(process)
        time.sleep(0.2)  # what is still on its way to the tap
    found = outcome(folder, printed)
    for client, size in tap.other().items():
        found["rounds"][0]["downlink"][client] -= size  # programs need not be the same to the byte
        found["summary"]["downlink_bytes"] -= size
    return {**found, "frames": tap.frames()}


@contextmanager
def device(checkout: Checkout, number: int, address: str, state: Path) -> Iterator["subprocess.Popen[str]"]:
    """Run one agent of a fleet; a fifth of its data is held out."""
    name = f"client-{number}"
    options = (f"--broker={address}", f"--id={name}", f"--tier={number % 2}", f"--state={state / name}")
    data = (f"--data=digits:{number}/{CLIENTS}", "--test-share=0.2", "--once")
    with checkout.started("device", *options, *data) as process:
        yield process


def ended(process: "subprocess.Popen[str]") -> str:
    """Wait for a process, and give what it printed."""
    try:
        printed, _ = process.communicate(timeout=TIMEOUT)
    except subprocess.TimeoutExpired as error:
        raise Failed(f"No end after {TIMEOUT:.0f} s.") from error
    if process.returncode:
        raise Failed(f"Exit status {process.returncode}.")
    return printed


def outcome(folder: Path, printed: str) -> Result:
    """Read what a run left in its folder, and what it printed."""
    rounds = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {"weights": tensors(folder / "weights.safetensors"), "rounds": rounds, "summary": json.loads(printed)}


def tensors(path: Path) -> dict[str, str]:
    """Give each tensor of a safetensors file: type, shape and digest."""
    content = path.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    found = {}
    for name, tensor in json.loads(content[8:start]).items():
        if name != "__metadata__":
            first, last = tensor["data_offsets"]
            found[name] = f"{tensor['dtype']}{tensor['shape']} {digest(content[start + first : start + last])}"
    return found


def digest(content: bytes) -> str:
    """Give the first half of a SHA-256."""
    return hashlib.sha256(content).hexdigest()[:32]


RUNNERS: Mapping[Kind, Callable[[Checkout, Case, Path, Path], Result]] = {
    "simulate": simulate,
    "resume": resume,
    "fleet": serve,
}


# --- a broker, and what goes over it


@contextmanager
def mosquitto(port: int, folder: Path) -> Iterator[None]:
    """Run Debian's Mosquitto, which drops nothing that waits."""
    program = shutil.which("mosquitto", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if program is None:
        raise Failed("Mosquitto is not installed.")
    folder.mkdir(parents=True)
    config = folder / "mosquitto.conf"
    lines = (f"listener {port} 127.0.0.1", "allow_anonymous true", "persistence false", "max_queued_messages 0")
    config.write_text("\n".join((*lines, "")))
    process = subprocess.Popen([program, "-c", str(config)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait(lambda: listens(port))
        yield
    finally:
        process.kill()
        process.wait()


class Tap:
    """Hears all that goes over a broker, and puts contents together from their chunks (docs/protocol.md, 5)."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._chunks: dict[tuple[str, str, str], dict[int, bytes]] = {}
        self._sent: dict[tuple[str, str, str], int] = {}
        self._messages: list[tuple[str, bytes]] = []
        self._ready = threading.Event()
        self._client = Client(CallbackAPIVersion.VERSION2, client_id="tap")
        self._client.on_message = self._heard
        self._client.on_subscribe = lambda *_: self._ready.set()

    def __enter__(self) -> "Tap":
        """Subscribe; raises Failed where the broker does not answer."""
        self._client.connect("127.0.0.1", self._port)
        self._client.subscribe("#", qos=1)
        self._client.loop_start()
        if not self._ready.wait(30):
            raise Failed("The broker lets nobody listen.")
        return self

    def __exit__(self, *_exception: object) -> None:
        """Leave the broker."""
        self._client.disconnect()
        self._client.loop_stop()

    def _heard(self, _client: Client, _data: object, message: MQTTMessage) -> None:
        steps = message.topic.split("/")
        if len(steps) == 7 and steps[4] == "chunk":
            content = (steps[2], steps[3], steps[5])
            self._chunks.setdefault(content, {})[int(steps[6])] = bytes(message.payload)
            self._sent[content] = self._sent.get(content, 0) + len(message.payload)
        elif len(steps) == 4 and steps[2] in ("up", "down"):
            self._messages.append((steps[3], bytes(message.payload)))

    def frames(self) -> dict[str, Any]:
        """Give every frame, by its direction, client, kind and round."""
        found: dict[str, Any] = {}
        for (side, client, _), content in sorted(self._contents().items()):
            if content.startswith(b"EFLF"):
                frame = parts_of(content)
                found[f"{side} {client} {frame['header']['kind']} {frame['header']['round']}"] = frame
        for client, message in self._messages:
            told = msgspec.msgpack.decode(message[4:]) if len(message) > 4 else {}
            if told.get("type") in ("gathered", "collected_statistics"):
                found[f"up {client} statistics"] = parts_of(told["frame"])
        return found

    def other(self) -> dict[str, int]:
        """Give the bytes that devices were sent besides frames, by client."""
        sizes: dict[str, int] = {}
        for content, whole in self._contents().items():
            if content[0] == "down" and not whole.startswith(b"EFLF"):
                sizes[content[1]] = sizes.get(content[1], 0) + self._sent[content]
        return sizes

    def _contents(self) -> dict[tuple[str, str, str], bytes]:
        whole = {key: b"".join(chunks[i] for i in sorted(chunks)) for key, chunks in self._chunks.items()}
        for (side, client, name), content in whole.items():
            if hashlib.sha256(content).hexdigest() != name:
                raise Failed(f"What went {side} for {client} as {name} was not heard whole.")
        return whole


def parts_of(frame: bytes) -> dict[str, Any]:
    """Take a frame apart (docs/protocol.md, 2), so that a difference has a place."""
    header, mask, values = struct.unpack_from("<IIQ", frame, 8)
    mask_at = (32 + header + 7) // 8 * 8
    values_at = (mask_at + mask + 7) // 8 * 8
    told = msgspec.msgpack.decode(frame[32 : 32 + header])
    shared = {"shared": digest(told["shared"])} if "shared" in told else {}
    return {
        "content": hashlib.sha256(frame).hexdigest(),
        "size": len(frame),
        "header": {**told, **shared},
        "mask": frame[mask_at : mask_at + mask].hex(),
        "values": digest(frame[values_at : values_at + values]),
    }


def wait(ready: Callable[[], bool]) -> None:
    """Wait until that is so; raises Failed after a while."""
    until = time.monotonic() + TIMEOUT
    while not ready():
        if time.monotonic() > until:
            raise Failed("What was waited for did not happen.")
        time.sleep(0.01)


def listens(port: int) -> bool:
    """Say whether somebody listens on a port of this machine."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


_ports: set[int] = set()
_ports_lock = threading.Lock()


def free_port() -> int:
    """Find a TCP port that nobody listens on, and that was not given to another case."""
    with _ports_lock:
        while True:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                port: int = probe.getsockname()[1]
            if port not in _ports:
                _ports.add(port)
                return port


# --- running all of it


class Side:
    """One checkout's results, from the cache where they are there already."""

    def __init__(self, name: str, checkout: Checkout, cache: Path | None) -> None:
        self.name, self.checkout = name, checkout
        self._cache = cache if checkout.commit else None
        self._about = [FORMAT, checkout.commit, SITE, digest(MODELS.read_bytes())]
        self._about += [checkout.machine()] if self._cache else []
        self._bundles = (cache if cache and checkout.commit else checkout.work) / "bundles"
        if cache and not checkout.commit:
            print(f"{name} holds changes that are not committed: nothing of it is cached.", file=sys.stderr)

    def key(self, *definition: object) -> str:
        """Name a result by all that it hangs on."""
        return digest(json.dumps([*self._about, *definition], sort_keys=True).encode())

    def _bundle_key(self, name: str) -> str:
        return self.key(name, [argument.replace(str(MODELS), "models") for argument in BUNDLES[name]])

    def bundle(self, name: str) -> Result:
        """Export a bundle, unless that was done."""
        key = self._bundle_key(name)
        return self._kept(key, lambda: self._exported(name, self._bundles / key))

    def _exported(self, name: str, folder: Path) -> Result:
        shutil.rmtree(folder, ignore_errors=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        return export(self.checkout, name, folder)

    def result(self, case: Case, bundle: "Future[Result]") -> Result:
        """Run a case, unless that was done; a bundle that could not be made is this case's failure."""
        made = bundle.result()
        if "failed" in made:
            return {"failed": f"There is no bundle '{case.bundle}'."}
        name = self._bundle_key(case.bundle)
        folder = self.checkout.work / case.name.replace(": ", "-").replace(" ", "-")
        run = RUNNERS[case.kind]
        return self._kept(
            self.key(name, asdict(case)), lambda: run(self.checkout, case, self._bundles / name, folder)
        )

    def _kept(self, key: str, run: Callable[[], Result]) -> Result:
        path = None if self._cache is None else self._cache / f"{key}.json"
        if path is not None and path.exists():
            return {**json.loads(path.read_text()), "cached": True}
        try:
            result = run()
        except (Failed, OSError, KeyError, ValueError) as error:
            return {"failed": f"{type(error).__name__}: {error}"}
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(result))
        return json.loads(json.dumps(result))  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Compared:
    """One line of the table: what differs, and what only may be told."""

    name: str
    differs: list[str]
    notes: list[str]


def compare(name: str, old: Result, new: Result) -> Compared:
    """Compare two results, field by field."""
    failed = [f"{side}: {result['failed']}" for side, result in (("OLD", old), ("NEW", new)) if "failed" in result]
    if failed:
        return Compared(name, failed, [])
    differs = []
    for part in ("weights", "rounds", "summary", "frames"):
        record = part in ("rounds", "summary")
        one = dict(flat(old.get(part), part, renamed=RENAMED_FIELDS if record else {}, ignored=_ignored(part)))
        found = flat(new.get(part), part, renamed={}, ignored=_ignored(part))
        other = {path: value for path, value in found if _PLACE.sub("[]", path) not in NEW_FIELDS}
        paths = [*one, *(path for path in other if path not in one)]
        differs += [
            f"{path}: {one.get(path, 'nothing')} != {other.get(path, 'nothing')}"
            for path in paths
            if path not in one or path not in other or one[path] != other[path]
        ]
    files, others = old.get("files", {}), new.get("files", {})
    notes = [path for path in sorted({*files, *others}) if files.get(path) != others.get(path)]
    return Compared(name, differs, [f"other bytes in {path}" for path in notes])


def _ignored(part: str) -> frozenset[str]:
    return IGNORED if part in ("rounds", "summary") else frozenset()


def flat(
    value: Any, path: str, *, renamed: Mapping[str, str], ignored: frozenset[str]
) -> Iterator[tuple[str, object]]:
    """Give every field of a record that is neither ignored nor empty, with its path."""
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            if key not in ignored:
                yield from flat(inner, f"{path}.{renamed.get(key, key)}", renamed=renamed, ignored=ignored)
    elif isinstance(value, list) and value:
        for i, inner in enumerate(value):
            yield from flat(inner, f"{path}[{i}]", renamed=renamed, ignored=ignored)
    elif value not in (None, {}, []):
        yield path, value


class Progress:
    """Says what is done, a line each."""

    def __init__(self, count: int) -> None:
        self._count, self._done, self._start, self._lock = count, 0, time.monotonic(), threading.Lock()

    def timed(self, what: str, run: Callable[[], Result]) -> Result:
        """Run something, and say how long it took."""
        started = time.monotonic()
        result = run()
        with self._lock:
            self._done += 1
            now = time.monotonic()
            how = "failed" if "failed" in result else "cached" if "cached" in result else f"{now - started:.1f} s"
            at = f"{now - self._start:5.0f} s  {self._done:3}/{self._count}"
            print(f"{at}  {what}  {how}", file=sys.stderr, flush=True)
        return result


@contextmanager
def pool_of(workers: int) -> Iterator[ThreadPoolExecutor]:
    """Give threads that start nothing more once this one is interrupted."""
    with ThreadPoolExecutor(workers) as pool:
        try:
            yield pool
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def run_all(sides: Sequence[Side], chosen: Sequence[Case]) -> list[Compared]:
    """Run the cases and the bundles that they need on both sides, and compare them."""
    bundles = [name for name in BUNDLES if any(case.bundle == name for case in chosen)]
    progress = Progress(len(sides) * (len(bundles) + len(chosen)))
    with pool_of(WORKERS) as pool:  # first come, first served: no case waits for a bundle behind it
        made = {
            (side.name, name): pool.submit(
                progress.timed, f"{side.name} bundle: {name}", _later(side.bundle, name)
            )
            for name in bundles
            for side in sides
        }
        found = {
            (side.name, case.name): pool.submit(
                progress.timed,
                f"{side.name} {case.name}",
                _later(side.result, case, made[side.name, case.bundle]),
            )
            for case in chosen
            for side in sides
        }
        compared = [
            compare(f"bundle: {name}", *(made[side.name, name].result() for side in sides)) for name in bundles
        ]
        for case in chosen:
            one = compare(case.name, *(found[side.name, case.name].result() for side in sides))
            if one.differs:
                print(f"{case.name} differs: {one.differs[0]}", file=sys.stderr, flush=True)
            compared.append(one)
    return compared


def _later(run: Callable[..., Result], *arguments: object) -> Callable[[], Result]:
    return lambda: run(*arguments)


def show(compared: Sequence[Compared]) -> None:
    """Print the table."""
    width = max(len(one.name) for one in compared)
    for one in compared:
        print(f"{one.name:{width}}  {'differs' if one.differs else 'same'}")
        for line in (*shortened(one.differs), *(f"({note})" for note in one.notes)):
            print(f"{'':{width}}    {line}")
    differing = sum(bool(one.differs) for one in compared)
    print(f"{len(compared) - differing} of {len(compared)} are the same")


def shortened(lines: Sequence[str], most: int = 2) -> Iterator[str]:
    """Give the first lines of each part of a result, and say how many others there are."""
    parts: dict[str, list[str]] = {}
    for line in lines:
        parts.setdefault(line.partition(".")[0].partition("[")[0], []).append(line)
    for part, own in parts.items():
        yield from own[:most]
        if len(own) > most:
            yield f"... and {len(own) - most} more of {part}"


def main() -> int:
    """Compare two checkouts as the command line says."""
    parser = argparse.ArgumentParser(description="Run two checkouts, and compare what they compute.")
    parser.add_argument("old", type=Path, help="the folder of the checkout that is right")
    parser.add_argument("new", type=Path, help="the folder of the other")
    parser.add_argument("--python", default=sys.executable, help="the interpreter that runs both")
    parser.add_argument("--only", action="append", help="cases with this in their names; repeat for several")
    parser.add_argument("--cache", type=Path, help="keeps OLD's results in this folder")
    parser.add_argument("--work", type=Path, help="keeps all that is made in this new folder")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--list", action="store_true", help="name the cases, and run none")
    options = parser.parse_args()
    chosen = [case for case in cases() if not options.only or any(word in case.name for word in options.only)]
    if options.list or not chosen:
        print("\n".join(case.name for case in chosen) or "No case has that name; see --list.")
        return 0 if chosen else 1
    os.nice(NICE)
    with tempfile.TemporaryDirectory(prefix="compare-") as temporary:
        work = (options.work or Path(temporary)).resolve()
        cache = options.cache and options.cache.resolve()
        sides = [
            Side(name, Checkout(root, options.python, work / name), kept)
            for name, root, kept in (("OLD", options.old, cache), ("NEW", options.new, None))
        ]
        compared = run_all(sides, chosen)
    if options.json:
        print(json.dumps([asdict(one) for one in compared], indent=1))
    else:
        show(compared)
    return int(any(one.differs for one in compared))


if __name__ == "__main__":
    sys.exit(main())
