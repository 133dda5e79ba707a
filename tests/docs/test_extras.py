"""The page that lists what can be installed lists all of it."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_page_lists_every_extra_and_says_which_all_has() -> None:
    page = (ROOT / "docs" / "start.md").read_text(encoding="utf-8")
    listed = dict(re.findall(r"^\| `([a-z0-9-]+)` \| .* \| (yes|no) \|$", page, re.MULTILINE))
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
        "optional-dependencies"
    ]
    (everything,) = extras.pop("all")
    in_all = everything.partition("[")[2].rstrip("]").split(",")
    assert listed == {name: "yes" if name in in_all else "no" for name in extras}
