"""Every code block of the pages is run, and prints what the page says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.blocks import Block, blocks
from tests.docs.guide import Guide

PAGES = ["quickstart", "first-app", "record-and-replay", "streaming", "errors"]
UP = "cornstalk up --detach hello.py\n"
DOWN = "cornstalk down\n"


def of_quickstart(code: str) -> Block:
    [found] = [block for block in blocks("quickstart") if block.code == code]
    return found


@pytest.fixture(scope="module")
def guide(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guide]:
    """The tree that quickstart.md starts, and stops in the end: the other pages use it meanwhile."""
    guide = Guide(tmp_path_factory.mktemp("docs"))
    guide.follow(next(block for block in blocks("quickstart") if block.file == "hello.py"))
    guide.follow(of_quickstart(UP))
    yield guide
    guide.follow(of_quickstart(DOWN))


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_says_is_so(guide: Guide, page: str) -> None:
    for block in blocks(page):
        if not block.models and block.code not in (UP, DOWN):
            guide.follow(block)


@pytest.mark.models
@pytest.mark.parametrize("page", [page for page in PAGES if any(block.models for block in blocks(page))])
def test_what_a_page_says_of_real_models_is_so(tmp_path: Path, page: str) -> None:
    guide = Guide(tmp_path)
    for block in blocks(page):
        if block.models or block.file:
            guide.follow(block)


@pytest.mark.parametrize("page", PAGES)
def test_no_file_of_a_page_is_left_unused(page: str) -> None:
    for block in blocks(page):
        if block.file:
            stem = block.file.partition(".")[0]
            assert any(stem in other.code for other in blocks(page) if other is not block), str(block)
