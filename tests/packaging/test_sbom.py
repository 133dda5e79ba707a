"""The list of packages that a release names."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.packaging
def test_the_list_has_the_versions_that_we_name() -> None:
    listed = json.loads((ROOT / "dist" / "sbom.json").read_bytes())  # make sbom
    assert (listed["bomFormat"], listed["metadata"]["component"]["name"]) == ("CycloneDX", "edge-fl")
    versions = {_plain(one["name"]): one["version"] for one in listed["components"]}
    pinned = dict(re.findall(r"^([\w.-]+)==([\w.+-]+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    named = {_plain(name): version for name, version in pinned.items()}
    for name in ("numpy", "msgspec", "torch", "onnxruntime", "paho-mqtt", "amqtt", "cryptography"):
        assert versions[name].partition("+")[0] == named[name]
    assert all(one.get("licenses") for one in listed["components"] if _plain(one["name"]) in ("numpy", "msgspec"))


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
