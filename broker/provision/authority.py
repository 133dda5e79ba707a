"""A fleet's certificate authority: it gives out identities, takes them back, and remembers both.

Its folder holds the authority (``ca.pem``, ``ca.key``), the list of revoked certificates (``revoked.pem``), what was
given out (``issued.json``), and a file for each identity. :mod:`broker.provision.issuer` signs what is given out.
"""

import datetime as dt
import logging
import os
import stat
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

from broker.provision.issuer import Issuer, PrivateKey, check_hosts, key_pem, pem_of
from broker.provision.site import Site, site_of
from edge_fl.core.atomic import write_atomically
from edge_fl.core.errors import ConfigError, StateError
from edge_fl.core.unreadable import UNREADABLE
from edge_fl.identity.certificates import BROKER, COORDINATOR, is_coordinators, worker_name
from edge_fl.identity.file import identity_part, identity_text, parse_identity
from edge_fl.identity.signing import SigningKey, newest_key, successor_of
from edge_fl.transport.address import is_loopback
from edge_fl.wire.messages import check_fleet, check_id
from edge_fl.wire.signed import MOST_SUCCESSORS, Successor

__all__ = ["BROKER", "COORDINATOR", "DAYS", "ENROL_PORT", "Authority", "Issued"]

DAYS = 365
"""How long an identity holds unless told otherwise."""
ENROL_PORT = 8884
"""Where devices enrol unless told otherwise."""

_SOON = dt.timedelta(days=30)
_Part = TypeVar("_Part")
_log = logging.getLogger(__name__)
_CA, _KEY, _REVOKED, _ISSUED = "ca.pem", "ca.key", "revoked.pem", "issued.json"


class Issued(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One certificate: whose it is, its serial number in hexadecimal, until when it holds, when it was revoked."""

    name: str
    serial: str
    until: dt.datetime
    revoked: dt.datetime | None = None


class _Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an authority remembers; ``broker`` is the address that devices connect to.

    ``coordinator`` is the coordinator's key in hexadecimal, and ``successors`` are the changes that led to it. Devices
    enrol on ``enrol_port``. ``authority`` is the authority's fingerprint in hexadecimal; early records have none.
    """

    broker: str
    hosts: tuple[str, ...]
    issued: tuple[Issued, ...] = ()
    coordinator: str = ""
    successors: tuple[Successor, ...] = ()
    fleet: str = "edge-fl"
    enrol_port: int = ENROL_PORT
    authority: str = ""
    sites: tuple[Site, ...] = ()


class Authority:
    """The authority in a folder: :meth:`create` makes one, :meth:`open` finds it again.

    It remembers a certificate before it gives that out, so that each can be revoked. Who is revoked is in
    ``revoked.pem`` and in the broker's own file from then on. The embedded broker sees that by itself; Mosquitto reads
    its list again on SIGHUP.
    """

    def __init__(self, folder: Path, issuer: Issuer, record: _Record) -> None:
        self.folder, self._issuer, self._record = folder, issuer, record

    @classmethod
    def create(
        cls,
        folder: Path,
        *,
        hosts: Sequence[str],
        port: int,
        fleet: str = "edge-fl",
        enrol_port: int = ENROL_PORT,
    ) -> "Authority":
        """Make an authority, and the identities of the broker and of the coordinator.

        ``hosts`` are the names and IP addresses by which devices reach the broker, the first the one that they are
        given; its TLS listens on ``port``. Devices of the ``fleet`` enrol on ``enrol_port``.

        Raises
        ------
        ConfigError
            When ``hosts`` is empty or holds what is no host, both ports are one, or ``fleet`` can stand in no topic.
        StateError
            When the folder holds an authority, or cannot be written.
        """
        if not hosts:
            raise ConfigError("A broker needs a name or an IP address by which devices reach it: give --host.")
        if port == enrol_port:
            raise ConfigError(
                f"The broker and the enrol listener need a port each, and {port} is one: see --enrol-port."
            )
        check_fleet(fleet)
        check_hosts(hosts)
        if there := _found(folder):
            raise StateError(
                f"'{there}' is of a certificate authority, and identities may hang on it: use it, or choose another "
                "folder."
            )
        issuer = Issuer.new(f"edge-fl fleet at {hosts[0]}")
        record = _Record(
            _address(hosts[0], port),
            tuple(hosts),
            fleet=fleet,
            enrol_port=enrol_port,
            authority=issuer.fingerprint.hex(),
        )
        authority = cls(folder, issuer, record)
        write_atomically(folder / _CA, pem_of(issuer.certificate))
        authority._issue(BROKER, days=DAYS)
        authority._issue(COORDINATOR, days=DAYS)
        write_atomically(folder / _KEY, key_pem(issuer.key), secret=True)  # last: only now is there an authority
        return authority

    @classmethod
    def open(cls, folder: Path) -> "Authority":
        """The authority in ``folder``; raises StateError where there is none, or it is damaged."""
        if _found(folder) is None:  # or an `init` that was broken off before anybody had anything
            raise StateError(
                f"'{folder}' holds no certificate authority: make one with `edge-fl provision init`, or name its "
                "folder with --folder."
            )
        certificate = _read(folder / _CA, x509.load_pem_x509_certificate)
        key = _read(folder / _KEY, lambda content: load_pem_private_key(content, password=None))
        record = _read(folder / _ISSUED, lambda content: msgspec.json.decode(content, type=_Record))
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
            raise StateError(
                f"'{folder / _KEY}' is not the key of '{folder / _CA}': restore both from one copy of the folder."
            )
        issuer = Issuer(certificate, key)
        if record.authority not in ("", issuer.fingerprint.hex()):
            raise StateError(
                f"'{folder / _ISSUED}' is of another authority than '{folder / _CA}': restore both from one copy of "
                "the folder."
            )
        return cls(folder, issuer, msgspec.structs.replace(record, authority=issuer.fingerprint.hex()))

    @property
    def broker(self) -> str:
        """The address that devices connect to."""
        return self._record.broker

    @property
    def fleet(self) -> str:
        """The fleet's name."""
        return self._record.fleet

    @property
    def enrol_port(self) -> int:
        """Where the enrol listener listens."""
        return self._record.enrol_port

    @property
    def enrol(self) -> str:
        """The address at which devices enrol."""
        return _address(self._record.hosts[0], self._record.enrol_port)

    @property
    def fingerprint(self) -> bytes:
        """SHA-256 of the authority's certificate (DER)."""
        return self._issuer.fingerprint

    @property
    def coordinator(self) -> bytes:
        """The coordinator's key, which devices believe: Ed25519, 32 bytes."""
        return bytes.fromhex(self._record.coordinator)

    @property
    def issued(self) -> tuple[Issued, ...]:
        """Every certificate that was given out, the newest last."""
        return self._record.issued

    @property
    def sites(self) -> tuple[Site, ...]:
        """The fleet's sites."""
        return self._record.sites

    @property
    def expiring(self) -> tuple[Issued, ...]:
        """Whose certificate holds, but not for another 30 days."""
        soon = dt.datetime.now(dt.UTC) + _SOON
        return tuple(held for held in self.issued if held.revoked is None and held.until < soon)

    def device(self, name: str, *, days: int = DAYS) -> Path:
        """Give a device an identity, and take an earlier one of that name back; the file is whose it is.

        Raises
        ------
        ConfigError
            When the name is no client's id, or the broker's or coordinator's.
        StateError
            When the folder cannot be written.
        """
        _check_device(name)
        return self._issue(name, days=days)

    def worker(self, number: int, *, days: int = DAYS) -> Path:
        """Give the coordinator's worker ``number`` an identity, as :meth:`device` does; the file is beside the
        coordinator's.
        """
        return self._issue(worker_name(number), days=days)

    def site(self, site: Site, *, days: int = DAYS) -> Path:
        """Remember a site, in place of an earlier one of its name, and give its broker an identity; returns that file.

        An identity that is there, and of the same hosts, stays.

        Raises
        ------
        ConfigError
            When a name or host of ``site`` is none, its host is the fleet's broker, a device is at another site, or the
            fleet's name has a space.
        StateError
            When the folder cannot be written.
        """
        if " " in self.fleet:
            raise ConfigError(
                f"Mosquitto bridges no topics with a space, and this fleet is called '{self.fleet}': make one without."
            )
        others = tuple(other for other in self.sites if other.name != site.name)
        site.check(others)
        check_hosts(site.hosts)
        for name in site.devices:
            _check_device(name)
        if twice := [host for host in site.hosts if host in self._record.hosts and not is_loopback(host)]:
            raise ConfigError(f"'{twice[0]}' is the fleet's broker: give --host of the site's own.")
        before, file = site_of(site.identity, self.sites), self.folder / site.file
        stays = before is not None and {*before.hosts} == {*site.hosts} and self._is_current(site.identity, file)
        self._record = msgspec.structs.replace(self._record, sites=(*others, site))
        if not stays:
            return self._issue(site.identity, days=days)
        self._keep(self.issued)
        return file

    def _is_current(self, name: str, file: Path) -> bool:
        """Whether ``file`` has the certificate that ``name`` was given last, and that is not revoked."""
        try:
            serial = f"{x509.load_pem_x509_certificate(file.read_bytes()).serial_number:x}"
        except (OSError, ValueError):
            return False
        return any(held.serial == serial and held.name == name and held.revoked is None for held in self.issued)

    def holds(self, name: str) -> bool:
        """Whether somebody has an identity of that name."""
        return any(held.name == name and held.revoked is None for held in self.issued)

    def check_free(self, name: str) -> None:
        """Raises ConfigError unless ``name`` may be a device's, and nobody has it."""
        _check_device(name)
        if self.holds(name):
            raise ConfigError(
                f"'{name}' has an identity: take another name, or `edge-fl provision revoke {name}` first."
            )

    def certify(self, name: str, key: Ed25519PublicKey, *, days: int = DAYS) -> bytes:
        """A certificate (DER) for a device that made its own ``key``: :meth:`remember` it before it is given out.

        Raises ConfigError unless the name is free.
        """
        self.check_free(name)
        return self._issuer.certify(name, key, days=days).public_bytes(Encoding.DER)

    def remembers(self, certificate: bytes) -> bool:
        """Whether that certificate (DER) of this authority is among those given out, revoked or not."""
        serial = f"{x509.load_der_x509_certificate(certificate).serial_number:x}"
        return any(held.serial == serial for held in self.issued)

    def remember(self, name: str, certificate: bytes) -> None:
        """Count a certificate (DER) of :meth:`certify` among those given out; it may be there already.

        Raises ConfigError where somebody else got the name meanwhile, StateError when the folder cannot be written.
        """
        if not self.remembers(certificate):
            self.check_free(name)
            self._give_out(name, x509.load_der_x509_certificate(certificate))

    def rotate(self, name: str, *, days: int = DAYS) -> Path:
        """Give whoever has an identity a new one, and take the earlier one back; ConfigError where nobody has it."""
        if not any(held.name == name for held in self.issued):
            raise ConfigError(f"Nobody is called '{name}' here; `edge-fl provision list` says who is.")
        if not self.holds(name):
            site = site_of(name, self.sites)
            again = f"device {name}" if site is None else f"site {site.name} ..."
            raise ConfigError(f"'{name}' is revoked: `edge-fl provision {again}` lets it in again.")
        return self._issue(name, days=days)

    def _follow(self, key: SigningKey) -> None:
        """Remember the coordinator's new ``key``, and have the one before say so: devices believe that one."""
        successors: tuple[Successor, ...] = ()
        if self._record.coordinator:
            before = self._coordinators_key()
            successors = (*self._record.successors, successor_of(before, key))[-MOST_SUCCESSORS:]
        self._record = msgspec.structs.replace(self._record, coordinator=key.public.hex(), successors=successors)

    def _coordinators_key(self) -> SigningKey:
        """The key that devices believe now; StateError where it is lost.

        Where a rotation was broken off, its key was remembered and never given out: it is forgotten.
        """
        file, advice = self._file(COORDINATOR), "restore it from your copy, or make a new fleet in another folder"
        try:
            found = SigningKey.read(file)
        except ConfigError as error:
            reason = str(error).partition(": ")[0]
            raise StateError(f"The key that devices believe is lost ({reason}): {advice}.") from error
        if found.public != self.coordinator == newest_key(found.public, self._record.successors[-1:]):
            kept = self._record.successors[:-1]
            self._record = msgspec.structs.replace(self._record, coordinator=found.public.hex(), successors=kept)
        if found.public != self.coordinator:
            raise StateError(f"'{file}' does not hold the key that devices believe: {advice}.")
        return found

    def revoke(self, name: str) -> None:
        """Take an identity back; the devices of a site whose it was may come to another.

        Raises ConfigError where nobody has it, or it is the broker's or the coordinator's.
        """
        if name in (BROKER, COORDINATOR):
            raise ConfigError(
                f"'{name}' is not revoked, as the fleet cannot do without: `edge-fl provision rotate {name}` replaces "
                "its certificate and key, and revokes the old ones."
            )
        if not self.holds(name):
            if any(held.name == name for held in self.issued):
                raise ConfigError(f"'{name}' is revoked already.")
            sites = (f": give '{site.identity}' to revoke that site" for site in self.sites if site.name == name)
            hint = next(sites, "; `edge-fl provision list` says who is")
            raise ConfigError(f"Nobody is called '{name}' here{hint}.")
        if (site := site_of(name, self.sites)) is not None:
            others = tuple(other for other in self.sites if other != site)
            free = msgspec.structs.replace(site, devices=())
            self._record = msgspec.structs.replace(self._record, sites=(*others, free))
        try:
            self._keep(_revoked(self.issued, name))
        finally:
            self._file(name).unlink(missing_ok=True)

    def _issue(self, name: str, *, days: int) -> Path:
        key: PrivateKey = Ed25519PrivateKey.generate()
        hosts = self._hosts(name)
        if hosts:
            key = ec.generate_private_key(ec.SECP256R1())
        if name == COORDINATOR:
            assert isinstance(key, Ed25519PrivateKey)
            self._follow(SigningKey(key))
        certificate = self._issuer.certify(name, key.public_key(), hosts=hosts, days=days)
        self._give_out(name, certificate)
        pem = b"".join((pem_of(certificate), key_pem(key), pem_of(self._issuer.certificate))).decode()
        text = self._text(name, pem)
        path = self._file(name)
        if name == BROKER:
            self._write_revoked(text)
        else:
            _write_secret(path, text)
        return path

    def _give_out(self, name: str, certificate: x509.Certificate) -> None:
        """Remember it, before anybody has it: what nobody remembers nobody can revoke."""
        held = Issued(name, f"{certificate.serial_number:x}", certificate.not_valid_after_utc)
        self._keep((*_revoked(self.issued, name), held))

    def _text(self, name: str, pem: str) -> str:
        """The content of an identity's file: who holds it, and whom it believes."""
        if self._hosts(name):
            return identity_text(name, None, pem=pem, fleet=self.fleet)
        if name == COORDINATOR:
            return identity_text(name, self.broker, pem=pem, fleet=self.fleet, successors=self._record.successors)
        return identity_text(name, self.broker, pem=pem, fleet=self.fleet, coordinator=self.coordinator)

    def _hosts(self, name: str) -> tuple[str, ...]:
        """By which clients reach it: a broker, or nobody."""
        if name == BROKER:
            return self._record.hosts
        site = site_of(name, self.sites)
        return () if site is None else site.hosts

    def _file(self, name: str) -> Path:
        if (site := site_of(name, self.sites)) is not None:
            return self.folder / site.file
        folder = self.folder if name == BROKER or is_coordinators(name) else self.folder / "devices"
        return folder / f"{name}.pem"

    def _keep(self, issued: tuple[Issued, ...]) -> None:
        before = {held for held in self.issued if held.revoked}
        self._record = msgspec.structs.replace(self._record, issued=issued)
        write_atomically(self.folder / _ISSUED, msgspec.json.format(msgspec.json.encode(self._record)))
        if before != {held for held in issued if held.revoked}:
            self._write_revoked()

    def _write_revoked(self, identity: str | None = None) -> None:
        """For Mosquitto, sites, and in the broker's own file, behind its new ``identity``, for the embedded broker."""
        revoked, broker = self._list(), self._file(BROKER)
        for folder in (self.folder, *(self.folder / site.folder for site in self.sites)):
            write_atomically(folder / _REVOKED, revoked.encode())
        if identity is None and broker.exists():
            identity = _identity_in(broker)
        if identity is not None:
            _write_secret(broker, identity + revoked)

    def _list(self) -> str:
        """Who is revoked, in a list that is later than the last one."""
        revoked = [(held.serial, held.revoked) for held in self.issued if held.revoked is not None]
        try:
            last = x509.load_pem_x509_crl((self.folder / _REVOKED).read_bytes()).last_update_utc
        except (OSError, ValueError):  # the first list, or a damaged one: this one takes its place
            last = None
        return self._issuer.revocations(revoked, after=last).decode()


def _found(folder: Path) -> Path | None:
    """A file of an authority in ``folder``, be it all that is left of one; None where nobody can have an identity."""
    if (folder / _KEY).exists():
        return folder / _KEY
    try:
        record = msgspec.json.decode((folder / _ISSUED).read_bytes(), type=_Record)
        given = any(held.name not in (BROKER, COORDINATOR) for held in record.issued)
    except FileNotFoundError:
        given = False
    except (OSError, *UNREADABLE):
        given = True
    if given or any((folder / name).exists() for name in ("devices", "tokens.json")):
        return folder / _ISSUED if (folder / _ISSUED).exists() else folder / _CA
    return None  # `init` writes the key last


def _read(path: Path, parse: Callable[[bytes], _Part]) -> _Part:
    try:
        return parse(path.read_bytes())
    except FileNotFoundError as error:
        raise StateError(
            f"'{path}' is missing, and identities hang on it: restore it from your copy of the folder."
        ) from error
    except OSError as error:
        raise StateError(f"'{path}' cannot be read: {error.strerror}.") from error
    except (ValueError, TypeError, *UNREADABLE) as error:
        raise StateError(f"'{path}' is damaged: restore it from your copy of the folder.") from error


def _identity_in(broker: Path) -> str | None:
    """The broker's identity, before the list of those revoked; None of a damaged one, which is told."""
    try:
        text = identity_part(broker.read_bytes())
        parse_identity(text, broker)
    except (OSError, UnicodeDecodeError, ConfigError):
        _log.warning(
            "'%s' cannot be read or is damaged, and learns of nobody who is revoked: make it anew with "
            "`edge-fl provision rotate broker`",
            broker,
        )
        return None
    return text


def _revoked(issued: tuple[Issued, ...], name: str) -> tuple[Issued, ...]:
    now = dt.datetime.now(dt.UTC)
    return tuple(
        msgspec.structs.replace(held, revoked=now) if held.name == name and held.revoked is None else held
        for held in issued
    )


def _check_device(name: str) -> None:
    if check_id(name) == BROKER or is_coordinators(name):
        raise ConfigError(f"'{name}' is not a device: `edge-fl provision rotate {name}` renews its certificate.")


def _address(host: str, port: int) -> str:
    return f"mqtts://[{host}]:{port}" if ":" in host else f"mqtts://{host}:{port}"


def _write_secret(path: Path, text: str) -> None:
    """Readable to its owner alone, or to whom the operator gave the file before: Mosquitto has a user for itself."""
    before = path.stat() if path.exists() else None
    write_atomically(path, text.encode(), secret=True)
    if before is not None:
        with suppress(PermissionError):  # who is not root gives nothing away
            os.chown(path, before.st_uid, before.st_gid)
        path.chmod(stat.S_IMODE(before.st_mode))
