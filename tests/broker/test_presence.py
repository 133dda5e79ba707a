"""Who is connected, and since when nobody heard of a device."""

import time
from pathlib import Path

from broker.presence import read_presence
from edge_fl.core.bundle import Bundle
from edge_fl.wire.messages import Gone, Registered
from tests.broker.test_gateway import CLIENT, Wire, register


def test_a_file_of_the_run_says_who_is_connected(digits_bundle: Bundle, tmp_path: Path) -> None:
    wire = Wire(digits_bundle, tmp_path)
    began = time.time()
    wire.answer(Registered, register())
    root = wire.folder.root
    wire.until(lambda: CLIENT in read_presence(root))
    assert read_presence(root)[CLIENT].connected
    assert began <= read_presence(root)[CLIENT].heard <= time.time()
    wire.send(Gone())
    wire.send(Gone(), "stranger")
    wire.until(lambda: not read_presence(root)[CLIENT].connected)
    assert read_presence(root).keys() == {CLIENT}
    wire.close()


def test_a_damaged_file_says_nothing(tmp_path: Path) -> None:
    assert read_presence(tmp_path) == {}
    (tmp_path / "presence.json").write_bytes(b'{"device": {"connected": 3')
    assert read_presence(tmp_path) == {}
