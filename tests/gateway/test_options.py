"""Request headers: each bad one is refused by name."""

from __future__ import annotations

import time

import pytest

from cornstalk.errors import BadInput
from gateway.options import DEADLINE, read_options


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("Cornstalk-Deadline", "nan"),
        ("Cornstalk-Deadline", "inf"),
        ("Cornstalk-Deadline", "-1"),
        ("Cornstalk-Deadline", "0"),
        ("Cornstalk-Deadline", "soon"),
        ("Cornstalk-Deadline", "86401"),
        ("Cornstalk-Resume-Grace", "NaN"),
        ("Cornstalk-Resume-Grace", "601"),
        ("Cornstalk-Seed", "1.5"),
        ("Cornstalk-Seed", "-1"),
        ("Cornstalk-Durable", "yes"),
        ("Cornstalk-Lane", "express"),
        ("Cornstalk-Tenant", "a.b"),
        ("Cornstalk-Tenant", ">"),
    ],
)
def test_a_bad_header_is_named(header: str, value: str) -> None:
    with pytest.raises(BadInput) as error:
        read_options("app", {header.lower(): value})
    assert error.value.field == header
    assert error.value.status == 422


def test_defaults() -> None:
    options = read_options("app", {})
    assert len(options.request) == 32
    assert not options.durable
    assert options.lane == "interactive"
    assert 0 < options.deadline - time.time() <= DEADLINE
    assert options.trace.startswith("00-")


def test_an_idempotency_key_is_one_request_of_one_tenant_and_app() -> None:
    def request(app: str, tenant: str) -> str:
        return read_options(app, {"idempotency-key": "k", "cornstalk-tenant": tenant}).request

    assert request("a", "t") == request("a", "t")
    assert len({request("a", "t"), request("b", "t"), request("a", "u")}) == 3
