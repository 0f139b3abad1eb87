"""The arithmetic of autoscaling: KEDA's and the HPA's rules one by one, and against a model of both."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cornstalk.records import ScalePolicy
from dispatcher.autoscale import PERIOD, STEP, Autoscaler, Verdict
from tests.dispatcher.keda import Keda


def policy(**given: Any) -> ScalePolicy:
    return ScalePolicy(**{"min": 0, "max": 10, "target": 4, "cooldown": 60, "window": 30, **given})


def first(items: int, replicas: int, **given: Any) -> Verdict:
    """What a new autoscaler says at once, without a window."""
    return Autoscaler(0.0, replicas).step(policy(**{"window": 0, **given}), 0.0, items, replicas)


@pytest.mark.parametrize(
    ("items", "replicas", "given", "then", "rule"),
    [
        (9, 2, {"target": 2}, 5, "target"),
        (9, 2, {}, 3, "target"),
        (8, 2, {}, 2, "tolerance"),
        (43, 10, {"max": 20}, 10, "tolerance"),
        (44, 10, {"max": 20}, 11, "target"),  # 1.1 - 1 is over 0.1 in floats, for the HPA as well
        (36, 10, {"max": 20}, 10, "tolerance"),
        (35, 10, {"max": 20}, 9, "target"),
        (400, 2, {}, 6, "rate"),  # + 4
        (400, 5, {"max": 99}, 10, "rate"),  # doubled
        (400, 5, {"max": 7}, 7, "max"),
        (400, 2, {"max": 6}, 6, "max"),
        (3, 9, {}, 1, "target"),
        (0, 1, {"min": 1}, 1, "min"),
        (0, 2, {"min": 1}, 1, "min"),
        (8, 2, {"min": 3}, 3, "min"),
        (8, 2, {"max": 1}, 1, "max"),
        (0, 1, {}, 1, "cooldown"),
        (0, 1, {"cooldown": 0}, 0, "idle"),
        (0, 0, {}, 0, "zero"),
        (1, 0, {}, 1, "start"),
        (400, 0, {}, 1, "start"),
        (5, 0, {"activation": 5}, 0, "zero"),
        (6, 0, {"activation": 5}, 1, "start"),
        (0, 0, {"min": 2}, 2, "min"),
        (400, 2, {"target": 0}, 2, "slots"),
        (400, 1, {"target": 0, "min": 2}, 2, "slots"),
        (1, 0, {"target": 0}, 1, "start"),
        (0, 2, {"target": 0}, 1, "cooldown"),
    ],
)
def test_one_step(items: int, replicas: int, given: dict[str, int], then: int, rule: str) -> None:
    verdict = first(items, replicas, **given)
    assert (verdict.replicas, verdict.rule) == (then, rule), verdict


def test_a_reason_has_the_figures() -> None:
    assert first(9, 2).why == "9 items, 4 for each worker: 3"
    assert first(400, 2).why == "400 items, 4 for each worker: 100; at most 6 within 15 s"
    assert first(1, 0).why == "1 item, more than 0: the first worker"
    assert first(0, 1, cooldown=0).why == "no item for 0 s: none"
    assert first(0, 1).why == "no item: 0; the last one stays until there was no item for 60 s"


def test_the_highest_number_of_the_window_holds() -> None:
    one, rules = Autoscaler(0.0, 1), policy(min=1)
    assert one.step(rules, 0.0, 20, 1).replicas == 5
    assert one.step(rules, 1.0, 16, 5).replicas == 5
    assert one.step(rules, 2.0, 2, 5)[:3] == (5, 1, "window")
    assert one.step(rules, 29.9, 2, 5).rule == "window"
    assert one.step(rules, 30.0, 2, 5)[:3] == (4, 1, "window")  # 16 items, a second later
    assert one.step(rules, 31.0, 2, 4)[:3] == (1, 1, "target")


def test_a_new_one_begins_its_window_with_what_is_there() -> None:
    one, rules = Autoscaler(100.0, 5), policy(min=1)
    assert one.step(rules, 129.0, 0, 5).replicas == 5
    assert one.step(rules, 130.0, 0, 5).replicas == 1


def test_to_zero_only_after_a_cooldown_without_a_break() -> None:
    one, rules = Autoscaler(0.0, 1), policy(window=0)
    assert one.step(rules, 59.0, 0, 1).rule == "cooldown"
    assert one.step(rules, 59.5, 1, 1).replicas == 1
    assert one.step(rules, 119.0, 0, 1).replicas == 1
    assert one.step(rules, 119.5, 0, 1)[:3] == (0, 0, "idle")
    assert one.step(rules, 500.0, 0, 0)[:3] == (0, 0, "zero")
    assert one.step(rules, 501.0, 1, 0).replicas == 1
    assert one.step(rules, 560.9, 0, 1).replicas == 1


def test_steps_closer_than_15_seconds_add_up_to_one_limit() -> None:
    one, rules, replicas = Autoscaler(0.0, 2), policy(max=100), 2
    seen = []
    for now in range(31):
        replicas = one.step(rules, float(now), 4000, replicas).replicas
        seen.append(replicas)
    assert seen == [6] * 15 + [12] * 15 + [24]


# ------------------------------------------------------------ against the model

POLICIES = st.builds(
    lambda lo, more, **rest: ScalePolicy(min=lo, max=max(1, lo + more), **rest),
    lo=st.integers(0, 4),
    more=st.integers(0, 12),
    target=st.integers(1, 9),
    activation=st.integers(0, 5),
    cooldown=st.integers(0, 200),
    window=st.integers(0, 200),
)
ITEMS = st.one_of(st.just(0), st.integers(0, 12), st.integers(0, 300))


@given(POLICIES, st.integers(0, 20), st.lists(st.tuples(st.integers(15, 90), ITEMS), min_size=1, max_size=40))
def test_it_does_what_keda_and_the_hpa_do(rules: ScalePolicy, replicas: int, looks: list[tuple[int, int]]) -> None:
    ours = Autoscaler(0.0, replicas)
    model = Keda(
        rules.min, rules.max, rules.target, rules.activation, rules.cooldown, rules.window, now=0.0, cur=replicas
    )
    now = 0.0
    for after, items in looks:
        now += after
        expected = model.step(now, items, replicas)
        verdict = ours.step(rules, now, items, replicas)
        assert verdict.replicas == expected, (now, items, replicas, verdict)
        replicas = expected


@given(POLICIES, st.integers(0, 20), st.lists(st.tuples(st.floats(0.1, 40), ITEMS), min_size=2, max_size=60))
def test_whatever_comes_the_limits_hold(rules: ScalePolicy, replicas: int, looks: list[tuple[float, int]]) -> None:
    ours, now = Autoscaler(0.0, replicas), 0.0
    seen = [(0.0, 0, replicas)]
    for after, items in looks:
        now += after
        replicas = ours.step(rules, now, items, replicas).replicas
        seen.append((now, items, replicas))
        assert rules.min <= replicas <= rules.max
        assert replicas > 0 or items <= rules.activation
    for (_, _, before), (at, _, then) in pairwise(seen):
        if 0 < before < then:  # the limit of the rate, however close the looks are
            most = max(n for (_, _, n), (until, _, _) in pairwise(seen) if at - PERIOD < until <= at)
            assert then <= max(rules.min, 2 * most, most + STEP)
        if then == 0 < before:
            assert all(items <= rules.activation for t, items, _ in seen if at - rules.cooldown < t <= at)
