"""Tests of apps in one process, with plain functions in the place of models (docs/testing.md)."""

from cornstalk.testing.assertions import assert_runs_side_by_side, assert_uses
from cornstalk.testing.check import CheckFailed, check
from cornstalk.testing.engines import Engines, upload
from cornstalk.testing.graph import Graph, GraphNode, Source
from cornstalk.testing.plain import run_plain
from cornstalk.testing.recorded import Run, inspect, run_recorded
from cornstalk.testing.turns import Order

__all__ = [
    "CheckFailed",
    "Engines",
    "Graph",
    "GraphNode",
    "Order",
    "Run",
    "Source",
    "assert_runs_side_by_side",
    "assert_uses",
    "check",
    "inspect",
    "run_plain",
    "run_recorded",
    "upload",
]
