"""What lines of Mosquitto's log count, as versions 2.0.11 to 2.0.22 write them."""

import pytest

from broker.broker_log import is_broker_log, read_refusal


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b"1795576259: Client <unknown> disconnected, not authorised.", ("login", "not authorised")),
        (b"Client tea disconnected, not authorised.", ("login", "not authorised")),
        (
            b"1: OpenSSL Error[0]: error:0A0000C7:SSL routines::peer did not return a certificate",
            ("handshake", "peer did not return a certificate"),
        ),
        (b"1: OpenSSL Error[0]: error:14089086:SSL routines:f:certificate verify failed", ("handshake", "verify")),
        (b"1: Client \x1b[31m\n disconnected, not authorised.", ("login", "not authorised")),
    ],
)
def test_a_refusal(line: bytes, expected: tuple[str, str]) -> None:
    found = read_refusal(line)
    assert found is not None
    assert found.code == expected[0]
    assert expected[1] in found.reason
    assert found.reason.isprintable()
    assert len(found.reason) < 400


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\xff" * 1000,
        b"1: OpenSSL Error[1]: error:0A000086:SSL routines::certificate verify failed",
        b"1: New connection from 127.0.0.1:1 on port 2.",
        b"1: Client tea disconnected.",
    ],
)
def test_no_refusal(line: bytes) -> None:
    assert read_refusal(line) is None


def test_topics() -> None:
    assert is_broker_log("$SYS/broker/log/N")
    assert not is_broker_log("edge-fl/2/up/0/tea")
