"""`edge-fl bench`: what can be measured on this machine, and, in a checkout, the papers' experiments."""

import typer

from edge_fl.cli.lazy import Named, group_of

__all__ = ["COMMANDS", "app"]

COMMANDS = {
    "codec": Named("edge_fl.commands.measure:codec", "Encode and decode frames, against a memory copy."),
    "aggregate": Named("device_sim.commands.measure:aggregate", "Sum a round's updates, against a memory copy."),
    "step": Named("exporter.commands.measure:step", "One training step in each runtime, against torch eager."),
    "process": Named(
        "exporter.commands.measure:process",
        "A device's task in a process of its own, against one in this process.",
    ),
    "parity": Named(
        "benchmarks.commands.programs:parity", "How closely each runtime trains each model as torch does."
    ),
    "support": Named("benchmarks.commands.programs:support", "Which layers and operations each runtime trains."),
    "fine-tuning-step": Named(
        "benchmarks.commands.programs:fine_tuning_step", "A transformer's step: all of it, adapters, its head."
    ),
    "fine-tuning": Named(
        "benchmarks.commands.fine_tuning:fine_tuning", "A pretrained model tuned whole, by its head, by adapters."
    ),
    "frozen": Named(
        "benchmarks.commands.programs:frozen", "A large frozen model with small adapters on real agents."
    ),
    "methods": Named("benchmarks.commands.methods:methods", "Methods and compressors side by side."),
    "engines": Named(
        "benchmarks.commands.simulator:engines", "Rounds of simulation on Ray, against processes of one machine."
    ),
    "simulator": Named(
        "benchmarks.commands.simulator:simulator", "Rounds of simulation, against a plain torch loop."
    ),
    "population": Named(
        "benchmarks.commands.simulator:population", "Simulations of up to 100,000 clients: time and memory."
    ),
    "table1": Named("benchmarks.commands.grids:table1", "FedBIAD's Table I: methods by accuracy and uplink."),
    "table2": Named("benchmarks.commands.grids:table2", "FedBIAD's Table II: compressors on top of methods."),
    "tta": Named("benchmarks.commands.grids:tta", "Time to accuracy over a link."),
    "dropout-rate": Named("benchmarks.commands.grids:dropout_rate", "Accuracy against the dropout rate."),
    "uplink": Named("benchmarks.commands.grids:uplink", "Accuracy against uplink bytes, every method."),
    "aggregation-rule": Named(
        "benchmarks.commands.grids:aggregation_rule", "FedBIAD under each aggregation rule."
    ),
    "readings": Named("benchmarks.commands.grids:readings", "FedBIAD's text read in several ways."),
    "regime": Named(
        "benchmarks.commands.grids:regime", "FedAvg in the settings that FedBIAD's paper leaves open."
    ),
    "attack": Named("benchmarks.commands.grids:attack", "Accuracy under attack, with each robust rule."),
    "privacy": Named("benchmarks.commands.grids:privacy", "Accuracy against epsilon, with noise and without."),
    "bound": Named("benchmarks.commands.bound:bound", "FedBIAD's bound against what runs show."),
    "chaos": Named("benchmarks.commands.chaos:chaos", "A fleet whose processes and links fail, bit for bit."),
    "fleet": Named("benchmarks.commands.fleet:fleet", "Methods on emulated devices of four classes."),
    "load": Named("benchmarks.commands.load:load", "Thousands of devices on one coordinator."),
    "brokers": Named("benchmarks.commands.brokers:brokers", "Rounds over Mosquitto, NATS and amqtt."),
    "scale": Named("benchmarks.commands.scale:scale", "What each part takes as devices and workers grow."),
    "secure": Named("benchmarks.commands.secure:secure", "Sums that nobody sees, against Flower's SecAgg+."),
    "transfer": Named("benchmarks.commands.transfer:transfer", "A large model to devices on slow links."),
    "wire": Named("benchmarks.commands.transfer:wire", "What the wire carries beside the updates."),
    "heterogeneous": Named("benchmarks.commands.grids:heterogeneous", "FjORD's tiers, width by width."),
    "od": Named("benchmarks.commands.grids:od", "Ordered dropout against models of one width."),
    "tcs": Named("benchmarks.commands.grids:tcs", "Time-correlated sparsification, against top-k."),
    "vardrop": Named("benchmarks.commands.grids:vardrop", "Variational dropout: sparsity and accuracy."),
}

app = typer.Typer(cls=group_of(COMMANDS), no_args_is_help=True, rich_markup_mode="markdown")


@app.callback()
def bench() -> None:
    """Measure edge-fl against its floor and its peers, in the same run."""
