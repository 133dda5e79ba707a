"""A site of a fleet: its devices come to a broker of the site, which is bridged to the fleet's."""

from pathlib import Path

import msgspec

from edge_fl.core.errors import ConfigError
from edge_fl.wire.messages import check_id

__all__ = ["Site", "site_of"]

_PREFIX = "site:"  # no device's id has a colon, so a site passes for no device
_LONGEST = 64 - len(_PREFIX)  # characters: a certificate takes 64


class Site(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The site ``name``: its ``devices`` reach its broker at ``hosts``, with TLS on ``port``.

    One whose identity is revoked has no devices.
    """

    name: str
    hosts: tuple[str, ...]
    port: int
    devices: tuple[str, ...]

    @property
    def identity(self) -> str:
        """The name in its certificate."""
        return f"{_PREFIX}{self.name}"

    @property
    def folder(self) -> Path:
        """What its machine needs, below the authority's folder."""
        return Path("sites") / self.name

    @property
    def file(self) -> Path:
        """Its identity, below the authority's folder."""
        return self.folder / "site.pem"

    def check(self, others: tuple["Site", ...]) -> None:
        """Raises ConfigError where the name is none, nobody can reach it, or a device is at another site."""
        if len(check_id(self.name)) > _LONGEST:
            raise ConfigError(f"A site's name has at most {_LONGEST} characters, unlike '{self.name}'.")
        if not self.hosts:
            raise ConfigError(
                "A site's broker needs a name or an IP address by which devices reach it: give --host."
            )
        for other in others:
            if twice := sorted(set(self.devices) & set(other.devices)):
                raise ConfigError(
                    f"'{twice[0]}' is a device of site '{other.name}': first run `edge-fl provision site {other.name}` "
                    f"without that device, or `edge-fl provision revoke {other.identity}`."
                )


def site_of(identity: str, sites: tuple[Site, ...]) -> Site | None:
    """Whose ``identity`` that is; None where it is no site's."""
    return next((site for site in sites if site.identity == identity), None)
