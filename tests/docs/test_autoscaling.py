"""docs/autoscaling.md: its blocks are run on a tree of their own, its tables are those of the sources."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

from cornstalk.records import Rule, ScalePolicy
from tests.cli.tool import cornstalk
from tests.docs.blocks import DOCS, blocks
from tests.docs.guide import Guide

PAGE = (DOCS / "autoscaling.md").read_text()


def test_what_the_page_says_is_so(tmp_path: Path) -> None:
    guide = Guide(tmp_path)
    try:
        for block in blocks("autoscaling"):
            guide.follow(block)
    finally:
        cornstalk("down", "--store", tmp_path / ".cornstalk")


def test_every_setting_stands_there_with_its_default() -> None:
    told = dict(re.findall(r"^\| `--(\w+)` \| (\d+) \|", PAGE, re.MULTILINE))
    policy = ScalePolicy()
    assert told == {name: str(getattr(policy, name)) for name in policy.__struct_fields__ if name != "v"}


def test_every_rule_stands_there() -> None:
    table = PAGE[PAGE.index("| rule |") : PAGE.index("## What scale-in")]
    told = {name for row in re.findall(r"^\| (`[^|]*) \|", table, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)}
    assert told | {"zero"} == set(get_args(Rule))  # nothing is told of what stays at zero
