# SPDX-License-Identifier: Apache-2.0
"""The page of an explanation: HTML, styles and drawings in one text, without scripts or anything fetched."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tensorbackend.explain import Explanation, Statement, Step

__all__ = ["highlighted", "page", "roofline"]

STYLE = """
:root { --paper: #fbfbf9; --ink: #20242b; --faint: #6b7280; --line: #dfe1e5; --card: #ffffff; --accent: #1f6feb;
  --word: #8250df; --number: #0a6c4a; --note: #6b7280; --type: #953800; --good: #1a7f37; --poor: #bc4c00; }
@media (prefers-color-scheme: dark) { :root { --paper: #14161a; --ink: #e3e6ea; --faint: #9aa3af; --line: #30343b;
  --card: #1b1e23; --accent: #6ea8fe; --word: #c297ff; --number: #6bd3a4; --note: #8a929e; --type: #f0a36b;
  --good: #6bd38a; --poor: #f0a36b; } }
body { margin: 2rem auto; max-width: 70rem; padding: 0 1.5rem; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: 0; } h2 { font-size: 1rem; margin: 2.2rem 0 .5rem; }
h2 small { color: var(--faint); font-weight: 400; }
h3 { font: 600 1rem ui-monospace, monospace; margin: 0 0 .5rem; }
p.machine { color: var(--faint); margin: .2rem 0 1.5rem; }
section.step { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 1rem 1.2rem;
  margin: 1rem 0; }
a { color: var(--accent); text-decoration: none; } a:hover { text-decoration: underline; }
table { border-collapse: collapse; } td, th { text-align: left; padding: .2rem 1.4rem .2rem 0;
  vertical-align: top; } th { color: var(--faint); font-weight: 500; white-space: nowrap; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
section.step th { width: 7rem; } h2 code { font-weight: 600; display: block; overflow-wrap: anywhere; }
pre { font: 13px/1.45 ui-monospace, monospace; overflow-x: auto; background: var(--paper); border-radius: 6px;
  padding: .7rem .9rem; margin: .5rem 0; }
details > summary { cursor: pointer; color: var(--accent); margin-top: .5rem; }
code { font-family: ui-monospace, monospace; } svg { max-width: 100%; height: auto; }
.k { color: var(--word); } .d { color: var(--number); } .c { color: var(--note); } .t { color: var(--type); }
.bar { display: inline-block; width: 8rem; height: .6rem; background: var(--line); border-radius: 3px; }
.bar i { display: block; height: 100%; border-radius: 3px; background: var(--good); } .bar i.poor {
  background: var(--poor); }
"""
_TOKENS = re.compile(
    r"(?P<c>//.*$|/\*[\s\S]*?\*/|^\s*#.*$)"
    r"|(?P<k>\b(?:for|if|else|while|return|const|void|static|inline|struct|do|break|continue)\b)"
    r"|(?P<t>\b(?:float|double|int|char|unsigned|tb_[iu]\d+|T|U)\b)"
    r"|(?P<d>\b\d[\w.]*)",
    re.MULTILINE,
)
WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 760, 320, 64, 44, 16, 24


def page(explanation: Explanation) -> str:
    """The whole page."""
    notes = [explanation.machine, *([explanation.about] if explanation.about else [])]
    parts = ["<h1>What it becomes</h1>", *(f'<p class="machine">{html.escape(note)}</p>' for note in notes)]
    parts += [_overview(explanation), roofline(explanation.steps)]
    number = 1
    for statement in explanation.statements:
        parts.append(_statement(number, statement))
        number += len(statement.steps)
    body = "\n".join(parts)
    head = f'<meta charset="utf-8"/><title>tensorbackend: what it becomes</title><style>{STYLE}</style>'
    viewport = '<meta name="viewport" content="width=device-width"/>'
    return f'<!DOCTYPE html>\n<html lang="en"><head>{head}{viewport}</head><body>\n{body}\n</body></html>\n'


def highlighted(source: str) -> str:
    """C text as HTML with its words marked."""
    pieces, at = [], 0
    for found in _TOKENS.finditer(source):
        pieces.append(html.escape(source[at : found.start()]))
        pieces.append(f'<span class="{found.lastgroup}">{html.escape(found[0])}</span>')
        at = found.end()
    return "".join([*pieces, html.escape(source[at:])])


def _overview(explanation: Explanation) -> str:
    rows = "".join(
        f'<tr><td class="n">{number}</td><td><a href="#k{number}"><code>{html.escape(step.name)}</code></a></td>'
        f'<td>{html.escape(step.reason)}</td><td class="n">{step.microseconds()}</td><td>{_bar(step)}</td></tr>'
        for number, step in enumerate(explanation.steps, start=1)
    )
    heads = '<tr><th></th><th>kernel</th><th>because of</th><th class="n">µs</th><th>share of the roof</th></tr>'
    return f"<table>{heads}{rows}</table>"


def _bar(step: Step) -> str:
    if step.share is None:
        return ""
    width = min(100.0, 100 * step.share)
    poor = "" if _is_good(step) else ' class="poor"'
    return f'<span class="bar"><i{poor} style="width:{width:.0f}%"></i></span> {step.share:.0%}'


def _is_good(step: Step) -> bool:
    return step.share is not None and step.share >= 0.5


def _statement(first: int, statement: Statement) -> str:
    """A statement and its kernels, the first of which has the number `first`."""
    title = "".join(f"<code>{html.escape(text)}</code>" for text in statement.texts) or "A group of statements"
    again = f" <small>{statement.runs} runs</small>" if statement.runs > 1 else ""
    trees = "\n".join("\n".join(lines) for lines in statement.trees)
    shown = f"<details><summary>tree</summary><pre>{html.escape(trees)}</pre></details>" if trees else ""
    steps = "".join(_step(number, step) for number, step in enumerate(statement.steps, start=first))
    return f"<h2>{title}{again}</h2>{shown}{steps}"


def _step(number: int, step: Step) -> str:
    space = f"{step.space}" + (f", reduced over {step.axes}" if step.axes else "")
    facts = {
        "because of": step.reason, "space": space, "loops": step.form, "reads": "; ".join(step.reads) or "nothing",
        "writes": "; ".join(step.writes), "least work": step.least(),
        "measured": step.measured().replace("  ", " · "),
    }  # fmt: skip
    rows = "".join(f"<tr><th>{k}</th><td>{html.escape(v)}</td></tr>" for k, v in facts.items() if v)
    nest = html.escape("\n".join(step.loops))
    loops = f'<details open="open"><summary>loop nest</summary><pre>{nest}</pre></details>'
    source = f"<details><summary>source</summary><pre>{highlighted(step.source)}</pre></details>"
    tail = (loops if step.loops else "") + (source if step.source else "")
    head = f'<section class="step" id="k{number}"><h3>{number}. {html.escape(step.name)}</h3>'
    return f"{head}<table>{rows}</table>{tail}</section>"


# The drawing


def roofline(steps: Sequence[Step], numbered: bool = True) -> str:
    """Operations a second over operations a byte, both logarithmic, with the measured limits; empty without times.
    A point shows its line of text when pointed at, and its number beside it if `numbered`."""
    shown = [(n, s) for n, s in enumerate(steps, start=1) if s.seconds and s.roof and s.flops]
    if not shown:
        return ""
    roof = max((s.roof for _, s in shown), key=lambda r: r.bandwidth)
    found = [s.flops / max(s.nbytes, 1) for _, s in shown]
    ridge = roof.compute / roof.bandwidth
    x_from, x_to = math.floor(math.log10(min(*found, ridge) / 2)), math.ceil(math.log10(max(*found, ridge) * 2))
    rates = [s.flops / s.seconds for _, s in shown]
    y_from, y_to = math.floor(math.log10(min(rates) / 2)), math.ceil(math.log10(max(*rates, roof.compute)))

    def x(value: float) -> float:
        return LEFT + (math.log10(value) - x_from) / (x_to - x_from) * (WIDTH - LEFT - RIGHT)

    def y(value: float) -> float:
        share = (math.log10(max(value, 10.0**y_from)) - y_from) / (y_to - y_from)
        return HEIGHT - BOTTOM - share * (HEIGHT - BOTTOM - TOP)

    parts = [_grid(x, y, (x_from, x_to), (y_from, y_to))]
    lowest = max(10.0**x_from, 10.0**y_from / roof.bandwidth)
    corners = [(lowest, roof.bandwidth * lowest), (ridge, roof.compute), (10.0**x_to, roof.compute)]
    path = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in corners)
    parts.append(f'<polyline points="{path}" fill="none" stroke="var(--accent)" stroke-width="2"/>')
    for (number, step), intensity, rate in zip(shown, found, rates):
        at = f'cx="{x(intensity):.1f}" cy="{y(rate):.1f}"'
        colour = "good" if _is_good(step) else "poor"
        parts.append(f'<circle {at} r="6" fill="var(--{colour})"><title>{html.escape(step.line())}</title></circle>')
        if numbered:
            parts.append(_text(x(intensity) + 9, y(rate) + 4, str(number)))
    limits = f"{roof.bandwidth / 1e9:.3g} GB/s, {roof.compute / 1e9:.3g} GFLOP/s measured beside"
    parts.append(_text(LEFT + 8, TOP + 12, limits))
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" role="img">{"".join(parts)}</svg>'


def _grid(x, y, across: tuple[int, int], up: tuple[int, int]) -> str:
    parts = []
    for power in range(across[0], across[1] + 1):
        at = x(10.0**power)
        parts.append(f'<path d="M{at:.1f} {TOP}V{HEIGHT - BOTTOM}" stroke="var(--line)"/>')
        parts.append(_text(at, HEIGHT - BOTTOM + 16, f"{10.0**power:g}", "middle"))
    for power in range(up[0], up[1] + 1):
        at = y(10.0**power)
        parts.append(f'<path d="M{LEFT} {at:.1f}H{WIDTH - RIGHT}" stroke="var(--line)"/>')
        parts.append(_text(LEFT - 8, at + 4, f"{10.0 ** (power - 9):g}", "end"))
    parts.append(_text((LEFT + WIDTH) / 2, HEIGHT - 8, "operations a byte", "middle"))
    turned = f'<g transform="translate(14 {HEIGHT / 2}) rotate(-90)">{_text(0, 0, "GFLOP/s", "middle")}</g>'
    return "".join([*parts, turned])


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    style = 'fill="var(--faint)" font-size="12" font-family="system-ui, sans-serif"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style} text-anchor="{anchor}">{html.escape(text)}</text>'
