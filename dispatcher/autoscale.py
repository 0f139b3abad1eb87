"""How many workers a component shall have: the arithmetic of KEDA and of the HPA. Pure: no clock, no broker.

Written after KEDA's pkg/scaling/executor/scale_scaledobjects.go (zero and one) and Kubernetes'
pkg/controller/podautoscaler/horizontal.go (one and more), for a ScaledObject with one metric of type AverageValue.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Final, NamedTuple

from cornstalk.records import Rule, ScalePolicy

TOLERANCE: Final = 0.1
"""Share by which the items may miss what the workers are there for, before that changes anything (HPA)."""
PERIOD: Final = 15.0
"""Seconds in which workers may double or become `STEP` more, whichever is more (the HPA's default policies)."""
STEP: Final = 4


class Verdict(NamedTuple):
    """`rule` is what settled it:

    target     as many as the items ask for
    tolerance  within 10 % of what they ask for: no change
    window     fewer are asked for, but more were within the window
    rate       more are asked for than may start within 15 s
    max, min   the limit
    cooldown   nothing to do, and the last worker stays for a while
    idle       nothing to do for the cooldown: to zero
    start      something to do: from zero to one
    zero       nothing to do, and no worker
    slots      something to do, and no worker has said yet how many items it takes, which would be the target
    """

    replicas: int
    asked: int
    rule: Rule
    why: str


class Autoscaler:
    """One component. What it remembers is soft: a new one begins its windows anew, which can only delay a scale-in."""

    def __init__(self, now: float, replicas: int) -> None:
        """As if `replicas` had just been asked for; the HPA does so when it starts."""
        self._active = now
        self._asked: deque[tuple[float, int]] = deque([(now, replicas)])  # falling: the highest in the window is first
        self._changed: deque[tuple[float, int]] = deque()  # when, and how many more or fewer

    def step(self, policy: ScalePolicy, now: float, items: int, replicas: int) -> Verdict:
        """`policy` with `max` filled in, and `target` if it is known; `now` in seconds of any clock that only goes on;
        `items` waiting and running; `replicas` that are wanted until now.
        """
        if items > policy.activation:
            self._active = now
        elif policy.min == 0 and now - self._active >= policy.cooldown:
            rule: Rule = "idle" if replicas else "zero"
            return Verdict(0, 0, rule, f"{_idle(policy)} for {policy.cooldown} s: none")
        if replicas == 0:
            return self._from_zero(policy, items)
        verdict = self._between(policy, now, items, replicas)
        if verdict.replicas != replicas:
            self._changed.append((now, verdict.replicas - replicas))
        return verdict

    def _from_zero(self, policy: ScalePolicy, items: int) -> Verdict:
        """KEDA's part: the HPA does not touch what stands at zero."""
        if policy.min:
            return Verdict(policy.min, policy.min, "min", f"at least {policy.min}")
        if items > policy.activation:
            return Verdict(1, 1, "start", f"{_items(items)}, more than {policy.activation}: the first worker")
        return Verdict(0, 0, "zero", _idle(policy))

    def _between(self, policy: ScalePolicy, now: float, items: int, replicas: int) -> Verdict:
        """The HPA's part."""
        low, high = max(1, policy.min), policy.max
        if items and not policy.target:
            kept = max(low, min(high, replicas))
            return Verdict(kept, kept, "slots", "no worker has said yet how many items it takes at once")
        steady = items > 0 and abs(items / (policy.target * replicas) - 1) <= TOLERANCE
        asked = replicas if steady else math.ceil(items / policy.target) if items else 0
        rule: Rule = "tolerance" if steady else "target"
        highest = self._highest_asked(now, min(asked, high), policy.window)
        allowed = self._allowed(now, replicas)
        if asked > min(high, allowed):
            settled, rule = min(high, allowed), "rate" if allowed < high else "max"
        elif asked < replicas and (settled := min(replicas, high, highest)) > max(asked, low):
            rule = "window"
        elif asked < low:
            settled, rule = low, "min" if policy.min else "cooldown"
        else:
            settled = asked
        settled = max(low, settled)
        return Verdict(settled, asked, rule, _why(policy, items, replicas, asked, rule, settled))

    def _highest_asked(self, now: float, asked: int, window: int) -> int:
        """Within the window, this time included."""
        while self._asked and self._asked[-1][1] <= asked:
            self._asked.pop()
        self._asked.append((now, asked))
        while now - self._asked[0][0] >= window and len(self._asked) > 1:
            self._asked.popleft()
        return self._asked[0][1]

    def _allowed(self, now: float, replicas: int) -> int:
        """How many there may be at most now, counted from how many there were a period ago."""
        while self._changed and now - self._changed[0][0] >= PERIOD:
            self._changed.popleft()
        before = replicas - sum(change for _, change in self._changed)
        return max(replicas, 2 * before, before + STEP)


def _why(policy: ScalePolicy, items: int, replicas: int, asked: int, rule: Rule, settled: int) -> str:
    if rule == "tolerance":
        return f"{_items(items)}: within 10 % of {policy.target} for each of {replicas}"
    asks = f"{_items(items)}, {policy.target} for each worker: {asked}" if items else "no item: 0"
    more = {
        "window": f"; {settled} were asked for within {policy.window} s",
        "rate": f"; at most {settled} within {PERIOD:.0f} s",
        "max": f"; at most {settled}",
        "min": f"; at least {settled}",
        "cooldown": f"; the last one stays until there was {_idle(policy)} for {policy.cooldown} s",
    }
    return asks + more.get(rule, "")


def _items(count: int) -> str:
    return f"{count} item{'' if count == 1 else 's'}"


def _idle(policy: ScalePolicy) -> str:
    return f"no more than {_items(policy.activation)}" if policy.activation else "no item"
