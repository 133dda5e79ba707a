"""What a run trains on and is scored on: a spec of the user's, or the data set that the bundle was made for."""

from edge_fl.core.bundle import Bundle, Manifest
from edge_fl.core.errors import ConfigError, DataError
from edge_fl.data.fit import fitted
from edge_fl.data.registry import Samples, dataset_info, dataset_names, load_dataset
from edge_fl.data.sources.base import open_source

__all__ = ["papers_top", "test_samples", "train_samples"]


def train_samples(data: str | Samples | None, bundle: Bundle) -> Samples:
    """The samples that a simulation cuts over its clients.

    Parameters
    ----------
    data
        As ``--data`` has it: a source, or a data set, whose train split it is. None: the bundle's data set. Samples are
        taken as they are.

    Raises
    ------
    ConfigError
        When there is neither.
    DataError
        When the samples cannot be had, or do not fit the model.
    """
    if data is None and not bundle.manifest.dataset:
        raise ConfigError(
            "This bundle was not made for a data set: say what to cut over the clients, as in "
            "--data 'csv:all.csv?label=state'."
        )
    samples = data if isinstance(data, Samples) else open_source(data or bundle.manifest.dataset).samples()
    return _fitted(samples, bundle, f"'{data}': " if isinstance(data, str) else "")


def test_samples(data: str | Samples | None, bundle: Bundle) -> Samples | None:
    """The samples that models are scored on: None where there are none.

    Parameters
    ----------
    data
        As ``--test-data`` has it: a source, or a data set, whose test split it is. None: the bundle's data set, if any.
        Samples are taken as they are.

    Raises
    ------
    DataError
        When the samples cannot be had, or do not fit the model.
    """
    samples = data if isinstance(data, Samples) else _test_split(data or bundle.manifest.dataset)
    named = f" '{data}'" if isinstance(data, str) else ""
    return None if samples is None else _fitted(samples, bundle, f"Test data{named}: ")


def _fitted(samples: Samples, bundle: Bundle, whose: str) -> Samples:
    try:
        return fitted(samples, bundle)
    except DataError as error:
        raise DataError(f"{whose}{error}") from error


def _test_split(name: str) -> Samples | None:
    if not name:
        return None
    return load_dataset(name).test if name in dataset_names() else open_source(name).samples()


def papers_top(manifest: Manifest) -> int:
    """Among how many largest outputs a target counts as right in the papers of the bundle's data set; 1 without."""
    return dataset_info(manifest.dataset).top if manifest.dataset in dataset_names() else 1
