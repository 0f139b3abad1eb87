"""Example apps, loaded as a gateway loads them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cornstalk.app import App, load_app
from cornstalk.cli.paths import examples


@pytest.fixture
def load() -> Callable[[str], App]:
    return lambda name: load_app((examples() / f"{name}.py").read_text(), f"{name}.py")
