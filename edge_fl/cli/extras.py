"""Which extra brings a package that is missing."""

__all__ = ["extra_of"]

_EXTRAS = {
    "export": ("onnx", "onnxscript", "torch_pruning", "torchao"),
    "serve": (
        "amqtt",
        "array_api_compat",
        "matplotlib",
        "numba",
        "prometheus_client",
        "safetensors",
        "sqlalchemy",
        "torch",
    ),
    "device": ("onnxruntime", "paho", "typer"),
    "executorch": ("executorch",),
    "images": ("PIL",),
    "parquet": ("pyarrow",),
    "postgres": ("psycopg",),
    "privacy": ("dp_accounting",),
    "s3": ("s3fs",),
    "secure": ("cryptography", "segno"),
    "sim": ("yaml",),
}


def extra_of(module: str) -> str:
    """What pip is to install for ``module``: ``edge-fl[EXTRA]``, or the module's own name."""
    package = module.partition(".")[0]
    extra = next((extra for extra, packages in _EXTRAS.items() if package in packages), None)
    return package if extra is None else f"edge-fl[{extra}]"
