"""What a broker lets a worker in by: the coordinator's password, or an identity of the worker's own."""

from dataclasses import replace

from edge_fl.core.errors import ConfigError
from edge_fl.identity.certificates import worker_name
from edge_fl.identity.file import read_identity
from edge_fl.transport.address import BrokerAddress

__all__ = ["worker_address"]


def worker_address(address: BrokerAddress, number: int) -> BrokerAddress:
    """How worker ``number`` reaches the broker that the coordinator reaches at ``address``.

    A broker that knows sessions by identities would end the coordinator's for a second one. So a worker has an identity
    beside the coordinator's.

    Raises
    ------
    ConfigError
        When that is missing, or another's.
    """
    access = address.access
    if access.signing is None or access.user is not None:  # whoever comes by a password may come again
        return address
    own = access.signing.with_name(f"{worker_name(number)}.pem")
    if not own.exists():
        raise ConfigError(
            f"'{own}' is missing, by which the broker lets worker {number} in: make it with `edge-fl provision workers "
            f"--count {number} --folder {own.parent}`, and send Mosquitto SIGHUP."
        )
    identity = read_identity(own)
    if identity.name != worker_name(number):
        raise ConfigError(f"'{own}' is the identity of '{identity.name}', not of '{worker_name(number)}'.")
    if identity.authorities.isdisjoint(read_identity(access.signing).authorities):
        raise ConfigError(
            f"'{own}' is of another fleet than '{access.signing}': take both from one fleet's folder."
        )
    return replace(address, access=replace(access, cert=own, key=None, name=identity.name))
