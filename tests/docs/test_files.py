"""docs/files.md: every block is run, and prints what the page says."""

from __future__ import annotations

from pathlib import Path

from tests.docs.blocks import blocks
from tests.docs.guide import Guide


def test_what_the_page_says_of_files_is_so(tmp_path: Path) -> None:
    guide = Guide(tmp_path)
    *page, down = blocks("files")
    assert down.code == "cornstalk down\n"
    try:
        for block in page:
            guide.follow(block)
    finally:
        guide.follow(down)
