"""`edge-fl provision`: identities for a fleet, so that its broker knows who comes."""

import json as json_module
import secrets
from pathlib import Path
from typing import Annotated

import typer
from msgspec.structs import replace

from edge_fl.commands.log import LogFormat, logging_to
from edge_fl.commands.options import Json
from edge_fl.commands.tables import show_table

__all__ = ["app"]

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode="markdown", help="Give a broker, a coordinator and devices identities."
)

Folder = Annotated[Path, typer.Option("--folder", help="The folder of the fleet's certificate authority.")]
Days = Annotated[int, typer.Option(min=1, max=3650, help="Days for which the certificate holds.")]
_FLEET = Path("fleet")


@app.command("init")
def init(
    *,
    host: Annotated[
        list[str],
        typer.Option(
            help="Name or IP address by which devices reach the broker; repeat for several, the first is the one "
            "that they use."
        ),
    ],
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port of the broker's TLS.")] = 8883,
    folder: Folder = _FLEET,
    fleet: Annotated[str, typer.Option(help="The fleet's name, as `edge-fl serve --fleet` has it.")] = "edge-fl",
    enrol_port: Annotated[
        int, typer.Option(min=1, max=65535, help="Port at which devices enrol by a token.")
    ] = 8884,
) -> None:
    """Make a certificate authority, the broker's and the coordinator's identities, and a Mosquitto configuration.

    Example: edge-fl provision init --host broker.example.org
    """
    from broker.provision.authority import Authority
    from broker.provision.mosquitto import write_mosquitto

    authority = Authority.create(folder, hosts=host, port=port, fleet=fleet, enrol_port=enrol_port)
    config = write_mosquitto(folder, port=port, fleet=fleet)
    typer.echo(
        f"{folder}/ca.key signs identities: keep it secret, and keep a copy.\n"
        f"A broker:      mosquitto -c {config}  (its user must be able to read {folder}/broker.pem)\n"
        f"The run:       edge-fl serve bundle/ --identity {folder}/coordinator.pem\n"
        f"Both in one:   edge-fl serve bundle/ --broker embedded --identity {folder}/broker.pem --host 0.0.0.0 "
        f"--port {port}\n"
        f"A device:      edge-fl provision device NAME --folder {folder}, which connects to {authority.broker}\n"
        f"By a token:    edge-fl provision token NAME --folder {folder}, and edge-fl provision listen "
        f"--folder {folder}, which is {authority.enrol}"
    )


@app.command("device")
def device(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="The devices' ids.")],
    *,
    folder: Folder = _FLEET,
    days: Days = 365,
) -> None:
    """Give devices identities, a file each; a name that has one gets a new one, and the old one is revoked.

    Example: edge-fl provision device tea coffee
    """
    from broker.provision.lock import locked_authority
    from broker.provision.tokens import Tokens

    with locked_authority(folder) as authority:
        tokens = Tokens(folder)
        for name in names:
            path = authority.device(name, days=days)
            tokens.revoke(name)  # nobody can enrol by one any more
            typer.echo(
                f"{path}: copy it to the device, and start edge-fl device --identity {path.name} --data ..."
            )


@app.command("workers")
def workers(
    *,
    count: Annotated[int, typer.Option(min=1, max=64, help="As many as `edge-fl serve --workers` has.")],
    folder: Folder = _FLEET,
    days: Days = 365,
) -> None:
    """Give the coordinator's workers identities, if they have none, beside its own, and let them in at Mosquitto.

    Example: edge-fl provision workers --count 2
    """
    from broker.provision.lock import locked_authority
    from broker.provision.mosquitto import let_workers_in
    from edge_fl.identity.certificates import worker_name

    with locked_authority(folder) as authority:
        for number in range(1, count + 1):
            file = folder / f"{worker_name(number)}.pem"
            if authority.holds(worker_name(number)) and file.exists():
                typer.echo(f"{file}: is there already; `edge-fl provision rotate {worker_name(number)}` renews it")
            else:
                typer.echo(f"{authority.worker(number, days=days)}: keep it beside coordinator.pem")
        if (listed := let_workers_in(folder, count=count, fleet=authority.fleet)) is not None:
            typer.echo(f"{listed}: send Mosquitto SIGHUP, so that it reads this list again")


@app.command("site")
def site(
    name: Annotated[str, typer.Argument(help="What the site is called.")],
    *,
    host: Annotated[
        list[str],
        typer.Option(help="Name or IP address by which devices reach the site's broker; repeat for several."),
    ],
    device: Annotated[list[str], typer.Option(help="The id of a device of the site; repeat for each.")],
    port: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=65535,
            help="Port of the site's broker [default: as before, at first 8883].",
            show_default=False,
        ),
    ] = None,
    folder: Folder = _FLEET,
    days: Days = 365,
) -> None:
    """Write what a site's Mosquitto needs, so that devices reach it in place of the fleet's broker.

    A second call replaces the site's devices. The identity stays, unless the hosts change.

    Example: edge-fl provision site plant --host broker.plant.example --device tea --device coffee
    """
    from broker.provision.lock import locked_authority
    from broker.provision.mosquitto import let_site_in, site_access, write_site
    from broker.provision.site import Site, site_of
    from edge_fl.transport.address import BrokerAddress

    made = Site(name, tuple(host), port or 8883, tuple(dict.fromkeys(device)))
    with locked_authority(folder) as authority:
        before = site_of(made.identity, authority.sites)
        if port is None and before is not None:
            made = replace(made, port=before.port)
        authority.site(made, days=days)
        own = write_site(folder, made, fleet=authority.fleet, broker=BrokerAddress.parse(authority.broker))
        listed = let_site_in(folder, made, fleet=authority.fleet)
        unknown = [each for each in made.devices if not authority.holds(each)]
    address = BrokerAddress(made.hosts[0], made.port, "mqtts")
    typer.echo(
        f"{own}: copy it to the site's machine, and start there, in that folder: mosquitto -c mosquitto.conf"
    )
    typer.echo(f"A device there:  edge-fl device --broker {address} --identity NAME.pem --data ...")
    if listed is not None:
        typer.echo(f"{listed}: send the fleet's Mosquitto SIGHUP, so that it reads this list again")
    else:
        typer.echo("\n".join(["The fleet's broker must know:", *site_access(made, fleet=authority.fleet)]))
    if unknown:
        typer.echo(
            f"Nobody is called {', '.join(unknown)} yet: `edge-fl provision token` or `device` lets them in."
        )


@app.command("token")
def token(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="The devices' ids.")],
    *,
    folder: Folder = _FLEET,
    hours: Annotated[float, typer.Option(min=0.001, max=8760, help="Hours for which the token holds.")] = 24.0,
    qr: Annotated[bool, typer.Option("--qr", help="Draw each token as a QR code, too.")] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="Write NAME.token, and with --qr NAME.svg, in this folder in place of printing.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Make one-time tokens, by which devices enrol at `edge-fl provision listen`.

    A token is a secret. It holds once, for one device, and replaces an earlier one of that name.

    Example: edge-fl provision token tea -o tokens
    """
    from broker.provision.lock import locked_authority
    from broker.provision.show_token import print_token, write_token
    from broker.provision.tokens import Tokens

    for name in names:
        with locked_authority(folder) as authority:
            made = Tokens(folder).make(authority, name, hours=hours)
        if output is None:
            print_token(made, qr=qr)
        else:
            path = write_token(made, output, qr=qr)
            typer.echo(
                f"{path}: copy it to the device, and run there: edge-fl device enrol --token-file {path.name} -o "
                f"{name}.pem"
            )


@app.command("listen")
def listen(
    *,
    folder: Folder = _FLEET,
    host: Annotated[str, typer.Option(help="Interface to listen on.")] = "0.0.0.0",
    once: Annotated[bool, typer.Option("--once", help="Exit when no token waits.")] = False,
) -> None:
    """Let devices with a token enrol, over TLS, until this command is ended.

    It signs with the authority's key, so run it where that lies, and for as long as devices enrol.

    Example: edge-fl provision listen --once
    """
    from broker.provision.listener import listen as listen_at

    with logging_to(None, LogFormat.TEXT):
        listen_at(folder, host=host, once=once)


@app.command("rotate")
def rotate(
    name: Annotated[str, typer.Argument(help="A device's id, or broker, coordinator or site:NAME.")],
    *,
    folder: Folder = _FLEET,
    days: Days = 365,
) -> None:
    """Renew the certificate and key of a name, and revoke the old ones.

    Example: edge-fl provision rotate broker
    """
    from broker.provision.lock import locked_authority
    from broker.provision.site import site_of

    with locked_authority(folder) as authority:
        path = authority.rotate(name, days=days)
        is_site = site_of(name, authority.sites) is not None
    use = {
        "broker": "restart the broker, or the `edge-fl serve` that has it embedded",
        "coordinator": "restart `edge-fl serve` with it",
    }
    if is_site:
        use[name] = "copy its folder to the site's machine, and restart Mosquitto there"
    otherwise = f"give it to '{name}', who needs it from now on"
    typer.echo(f"{path}: {use.get(name, otherwise)}.")


@app.command("revoke")
def revoke(
    name: Annotated[str, typer.Argument(help="The device's id, or site:NAME.")], *, folder: Folder = _FLEET
) -> None:
    """Take an identity back, or a token that waits: the broker lets it in no more.

    Example: edge-fl provision revoke tea
    """
    from broker.provision.lock import locked_authority
    from broker.provision.mosquitto import let_site_out
    from broker.provision.site import site_of
    from broker.provision.tokens import Tokens

    with locked_authority(folder) as authority:
        if holds := authority.holds(name):  # at once, whatever became of the tokens
            authority.revoke(name)
            if site_of(name, authority.sites) is not None:
                # Its session may last for months, and no list of certificates ends that.
                let_site_out(folder, name)
            typer.echo(f"'{name}' is revoked. Mosquitto reads that after: systemctl reload mosquitto (SIGHUP).")
            for site in (each for each in authority.sites if authority.holds(each.identity)):
                typer.echo(
                    f"Copy {folder / site.folder / 'revoked.pem'} to site '{site.name}', and reload Mosquitto there."
                )
        if Tokens(folder).revoke(name):
            typer.echo(f"The token of '{name}' is revoked.")
        elif not holds:
            authority.revoke(name)  # which says why it cannot


@app.command("list")
def list_(*, folder: Folder = _FLEET, json: Json = False) -> None:
    """Show who has an identity, until when, who had one, what expires within 30 days, and which tokens wait.

    Example: edge-fl provision list
    """
    from broker.provision.authority import Authority
    from broker.provision.tokens import Tokens

    authority = Authority.open(folder)
    issued = authority.issued
    if json:
        rows = [
            {
                "name": held.name,
                "serial": held.serial,
                "until": held.until.isoformat(),
                "revoked": bool(held.revoked),
            }
            for held in issued
        ]
        typer.echo(json_module.dumps(rows))
        return
    rows_shown = [
        [held.name, f"{held.until:%Y-%m-%d}", f"revoked {held.revoked:%Y-%m-%d}" if held.revoked else "holds"]
        for held in issued
    ]
    show_table(f"identities of {folder}", ["name", "until", ""], rows_shown)
    if waiting := Tokens(folder).waiting:
        said = ", ".join(f"{kept.name} (until {kept.until:%Y-%m-%d %H:%M} UTC)" for kept in waiting)
        typer.echo(f"Tokens wait for: {said}.")
    if expiring := authority.expiring:
        said = ", ".join(f"{held.name} ({held.until:%Y-%m-%d})" for held in expiring)
        typer.echo(f"Expired, or soon: {said}. Renew each with edge-fl provision rotate NAME.")


@app.command("password")
def password(
    name: Annotated[str, typer.Argument(help="The device's id, which is its user name.")],
    *,
    file: Annotated[Path, typer.Option(help="The password file, for serve --passwords or Mosquitto.")] = Path(
        "passwords"
    ),
) -> None:
    """Give a device a new password, print it once, and keep its hash.

    Example: edge-fl provision password tea > tea.password
    """
    from broker.doors import has_hash, hashed
    from edge_fl.core.atomic import write_atomically
    from edge_fl.core.errors import StateError
    from edge_fl.wire.messages import check_id

    check_id(name)
    made = secrets.token_urlsafe(24)
    try:
        lines = file.read_text().splitlines() if file.exists() else []
    except (OSError, UnicodeDecodeError) as error:
        raise StateError(f"'{file}' cannot be read as a password file: {error}.") from error
    kept = [line for line in lines if line.strip() and line.partition(":")[0] != name]
    if damaged := [line for line in kept if not has_hash(line)]:
        raise StateError(
            f"Line {lines.index(damaged[0]) + 1} of '{file}' is no user with a hash, so all are kept out: remove it."
        )
    write_atomically(
        file, "".join(f"{line}\n" for line in [*kept, f"{name}:{hashed(made)}"]).encode(), secret=True
    )
    typer.echo(made)
