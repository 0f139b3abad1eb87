"""A request as one page that needs nothing but itself: no script, no font, no picture from anywhere."""

from __future__ import annotations

import math
from collections.abc import Mapping
from html import escape
from typing import Any, Final

from cornstalk.cli.spans import Span, Timeline, View, causes
from cornstalk.cli.waterfall import milliseconds

TICKS: Final = 8
"""Marks on the time axis, at most."""

_STYLE: Final = """
:root { color-scheme: light dark; --ink: #1c2430; --soft: #66707d; --line: #dfe3e8; --back: #fff; --lane: #f3f5f7;
  --run: #2b7de9; --read: #8fbcf5; --wait: #b9c1cb; --bad: #cf3a3a; --open: #e0a200; --lost: #a25bd1 }
@media (prefers-color-scheme: dark) { :root { --ink: #d9dfe7; --soft: #8d98a6; --line: #2a323d; --back: #10151c;
  --lane: #171e27; --run: #4b93f1; --read: #2f5f9e; --wait: #4c5665 } }
body { font: 14px/1.45 system-ui, sans-serif; color: var(--ink); background: var(--back); margin: 24px auto;
  max-width: 1280px; padding: 0 20px }
h1 { font-size: 18px; margin: 0 } p { margin: 4px 0 } .soft, code.at { color: var(--soft) } .bad { color: var(--bad) }
summary, .axis { display: grid; grid-template-columns: minmax(180px, 26%) 1fr 84px; gap: 12px; align-items: center }
summary { list-style: none; cursor: pointer; padding: 3px 0; border-top: 1px solid var(--line) }
summary::-webkit-details-marker { display: none } summary:hover { background: var(--lane) }
summary b { font-weight: 500; overflow: hidden; text-overflow: ellipsis; white-space: nowrap }
code { font: 12px ui-monospace, monospace } code.at { text-align: right }
.lane { position: relative; height: 18px; background: var(--lane); border-radius: 3px; overflow: hidden }
.lane i { position: absolute; top: 3px; bottom: 3px; min-width: 1px }
.wait { background: repeating-linear-gradient(45deg, var(--wait) 0 3px, transparent 3px 6px) }
.read { background: var(--read) } .run { background: var(--run) }
.open { background: repeating-linear-gradient(90deg, var(--open) 0 6px, transparent 6px 10px) }
.failed .run, .expired .run, .cancelled .run, .failed .open, .expired .open, .cancelled .open { background: var(--bad) }
.lost .run, .lost .open { background: var(--lost) }
.lane i.first { width: 2px; top: 0; bottom: 0; background: var(--ink) }
.axis .lane { background: none; height: 16px } .axis code { position: absolute; color: var(--soft) }
.key i { display: inline-block; width: 22px; height: 10px; margin: 0 5px 0 14px; vertical-align: middle }
.key i.first { width: 2px; background: var(--ink) }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 2px 16px; margin: 6px 0 12px 14px }
dt { color: var(--soft) } dd { margin: 0; overflow-wrap: anywhere }
"""


def page(view: View, line: Timeline) -> str:
    """The whole page. Shows no input and no output of the request."""
    title = f"{view['app']} {view['request']}"
    figures = [
        view["status"],
        f"{milliseconds(line.total)} ms",
        f"{len(view['nodes'])} nodes",
        f"{view['facts']} facts",
    ]
    figures += [f"{view['cuts']} guesses given up"] if view["cuts"] else []
    failures = "".join(f'<p class="bad">{escape(cause)}</p>' for cause in causes(view, line.spans))
    names = {span.token: span.name for span in line.spans}
    rows = "\n".join(_row(span, line.total, names) for span in line.spans)
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>
<meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<style>{_STYLE}</style></head><body>
<h1>{escape(view["app"])} <span class="soft">{escape(view["request"])}</span></h1>
<p>{escape(" · ".join(figures))}</p>
{failures}
<p class="key soft"><i class="wait"></i>waits in the queue<i class="read"></i>fetches its inputs<i class="run"></i>runs\
<i class="first"></i>first piece<i class="open"></i>waits or runs</p>
<div class="axis"><span></span><div class="lane">{_axis(line.total)}</div><code class="at">ms</code></div>
{rows}
</body></html>
"""


def _row(span: Span, total: float, names: Mapping[str, str]) -> str:
    parts = "".join(
        f'<i class="{kind}" style="{_left(begin, total)};width:{_share(end - begin, total)}"></i>'
        for kind, begin, end in span.parts
        if end > begin
    )
    if span.first is not None:
        parts += f'<i class="first" style="{_left(span.first, total)}"></i>'
    took = milliseconds(span.ended - span.published) if span.parts else ""
    details = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in _details(span, names))
    return (
        f'<details class="{escape(span.outcome or "running")}"><summary><b>{escape(span.label)}</b>'
        f'<div class="lane">{parts}</div><code class="at">{took}</code></summary><dl>{details}</dl></details>'
    )


def _details(span: Span, names: Mapping[str, str]) -> list[tuple[str, str]]:
    about = span.about
    usage: Mapping[str, Any] = about.get("usage", {})
    pairs = [
        ("outcome", span.outcome or "has not ended"),
        ("cause", span.cause),
        ("queue", _ms(span.wait)),
        ("fetch", _ms(span.read)),
        ("run", _ms(span.run)),
        ("first piece at", _ms(span.first)),
        ("pieces", ", ".join(f"{total} of {name}" for name, total in about.get("chunks", {}).items())),
        ("called at", about.get("line", "")),
        ("component", about.get("component", "")),
        ("worker", about.get("worker", "")),
        ("attempt", about.get("attempt", "")),
        ("restarts", str(span.restarts or "")),
        ("needs", ", ".join(names.get(token, token) for token in about.get("needs", ()))),
        ("tokens in, out", _pair(usage.get("tokens_in", 0), usage.get("tokens_out", 0))),
        ("bytes of tensors", f"{usage.get('tensor_bytes', 0):,}" if usage.get("tensor_bytes") else ""),
        ("token", span.token),
    ]
    return [(name, text) for name, text in pairs if text]


def _ms(seconds: float | None) -> str:
    return "" if seconds is None else f"{milliseconds(seconds)} ms"


def _pair(one: int, other: int) -> str:
    return f"{one}, {other}" if one or other else ""


def _axis(total: float) -> str:
    """Round numbers of milliseconds."""
    span = total * 1000
    if span <= 0:
        return ""
    step = 10 ** math.floor(math.log10(span / TICKS))
    step *= next(factor for factor in (1, 2, 5, 10) if span / (step * factor) <= TICKS)
    ticks = (step * index for index in range(math.ceil(span / step)))
    return "".join(f'<code style="{_left(at, span)}">{at:g}</code>' for at in ticks)


def _left(at: float, total: float) -> str:
    return f"left:{_share(max(0.0, at), total)}"


def _share(part: float, total: float) -> str:
    return f"{part / total * 100 if total > 0 else 0:.3f}%"
