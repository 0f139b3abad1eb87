"""A second, shorter statement of KEDA's and the HPA's arithmetic: the model that dispatcher/autoscale.py is held to.

It agreed step by step with the real HPA controller of Kubernetes 1.20. Exact for steps of 15 s and more, the HPA's own.
"""

from __future__ import annotations

import math


class Keda:
    """As it starts when `replicas` are there: nothing is known of before."""

    def __init__(
        self, lo: int, hi: int, threshold: int, activation: int, cooldown: int, down_window: int, now: float, cur: int
    ) -> None:
        self.lo, self.hi, self.threshold, self.activation = lo, hi, threshold, activation
        self.cooldown, self.down_window = cooldown, down_window
        self.last_active = now
        self.recs = [(now, cur)]

    def step(self, now: float, lag: int, cur: int) -> int:
        """How many replicas there shall be."""
        if lag > self.activation:
            self.last_active = now
        elif self.lo == 0 and now - self.last_active >= self.cooldown:
            return 0  # KEDA: to zero
        if cur == 0:
            return max(1, self.lo) if self.lo or lag > self.activation else 0  # KEDA: from zero
        steady = abs(lag / (self.threshold * cur) - 1) <= 0.1
        want = cur if steady else math.ceil(lag / self.threshold)
        self.recs = [(t, r) for t, r in self.recs if now - t < self.down_window] + [(now, want)]
        if want < cur:
            want = min(cur, max(r for _, r in self.recs))  # scaleDown.stabilizationWindowSeconds
        if want > cur:
            want = min(want, max(2 * cur, cur + 4))  # the default scaleUp policies, per 15 s
        return max(1, self.lo, min(self.hi, want))
