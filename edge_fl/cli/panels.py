"""The groups in which the help of long commands shows their options."""

from typing import Any

__all__ = ["group_options"]

_LONG = 15  # options, from which on a command's help is in groups
_PANELS = {
    "Method": "method dropout widths mode rule set_",
    "Training": "initial_weights rounds clients_per_round fraction local_steps batch lr lr_drop lr_warmup "
    "statistics_every collect_statistics seed",
    "Data and scores": "data test_data partition score evaluate_every evaluate_on test_share keep_best patience",
    "Devices": "clients tiers tier_choice min_clients max_devices wait deadline quorum buffer selection "
    "id state tier once keep_model",
    "One client's weight": "max_samples samples_bound norm_bound robust attackers rollback exact_sums",
    "Privacy": "dp dp_epsilon dp_noise dp_delta dp_clip dp_quantile dp_devices "
    "secure secure_holders secure_threshold secure_reach secure_cohort",
    "Owner's conditions": "least_battery unmetered most_busy require_noise require_secure_aggregation",
    "Virtual time": "link step_seconds slowdown spread online stay failures",
    "Engine": "trainer runtime device threads processes",
    "Network": "broker host port identity ca cert key user password_file passwords insecure connect_timeout fleet",
    "Record": "output resume database models metrics log_level log_file log_format json config",
}


def group_options(command: Any) -> None:
    """Put the options of ``command`` into panels, where it has many."""
    if len(command.params) < _LONG:
        return
    panels = {name: panel for panel, names in _PANELS.items() for name in names.split()}
    for parameter in command.params:
        if parameter.param_type_name == "option":
            parameter.rich_help_panel = panels.get(parameter.name)
    order = [None, *_PANELS]
    command.params.sort(key=lambda parameter: order.index(getattr(parameter, "rich_help_panel", None)))
