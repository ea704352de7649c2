#!/usr/bin/env python3
"""Draws headline.svg from headline.json: five headline figures of RESULTS.md as points on a logarithmic scale.

    chart.py            writes headline.svg beside this script
    chart.py --check    changes nothing; exits 1 unless headline.svg is what would be written and RESULTS.md states each ratio

A ratio of headline.json names its row of RESULTS.md by the beginnings of the cells "Job" and "against"; `place` is the place of the
number in the cell "ratio", 0 where it is absent. Standard library only.
"""
import decimal
import html
import json
import math
import os
import re
import sys

FOLDER = os.path.dirname(os.path.abspath(__file__))
LEFT, RIGHT, TOP, ROW, WIDTH = 280, 640, 56, 46, 860
LOWEST, HIGHEST = 0.8, 32
TICKS = (1, 2, 4, 8, 16, 32)
STYLE = """  <style>
    text { fill: #1d2433 } .small { font-size: 11px; fill: #475069 } .dot { fill: #2f55b5 }
    .range { stroke: #9db4ea; stroke-width: 6; stroke-linecap: round } .grid { stroke: #d5dae6 } .equal { stroke: #5b6b8c; stroke-width: 2 }
    @media (prefers-color-scheme: dark) {
      text { fill: #e8ecf5 } .small { fill: #b4bdd2 } .dot { fill: #8fb0ff }
      .range { stroke: #3d5391 } .grid { stroke: #363d4d } .equal { stroke: #8fa0c6 }
    }
  </style>"""


def check(condition, problem):
    if not condition:
        raise SystemExit(f"chart: {problem}")


def read(name):
    with open(os.path.join(FOLDER, name), encoding="utf-8") as file:
        return file.read()


def place_of(ratio):
    """The horizontal place of a ratio."""
    return LEFT + (RIGHT - LEFT) * math.log(float(ratio) / LOWEST) / math.log(HIGHEST / LOWEST)


def ratios_of(figure):
    return [item["ratio"] for item in figure["ratios"]]


def stated(figure):
    return ", ".join(str(ratio) for ratio in ratios_of(figure))


def draw_figure(figure, y):
    ratios = ratios_of(figure)
    check(all(LOWEST <= ratio <= HIGHEST for ratio in ratios), f"{figure['name']}: a ratio is outside the scale of {LOWEST} to {HIGHEST}")
    yield f'  <text x="20" y="{y - 3}">{html.escape(figure["name"])}</text>'
    yield f'  <text class="small" x="20" y="{y + 13}">{html.escape(figure["beside"])}</text>'
    yield f'  <line class="range" x1="{place_of(min(ratios)):.1f}" y1="{y}" x2="{place_of(max(ratios)):.1f}" y2="{y}"/>'
    for ratio in ratios:
        yield f'  <circle class="dot" cx="{place_of(ratio):.1f}" cy="{y}" r="5"/>'
    yield f'  <text x="{RIGHT + 24}" y="{y + 5}">{stated(figure)}</text>'


def draw(summary):
    figures = summary["figures"]
    bottom = TOP + ROW * len(figures)
    label = "; ".join(f"{figure['name']} beside {figure['beside']}: {stated(figure)}" for figure in figures)
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {bottom + 10}" font-family="sans-serif" font-size="13" role="img" '
             f'aria-label="{html.escape(summary["title"] + " " + label)}">', STYLE,
             f'  <text x="20" y="24">{html.escape(summary["title"])}</text>']
    for tick in TICKS:
        x = place_of(tick)
        lines.append(f'  <line class="{"equal" if tick == 1 else "grid"}" x1="{x:.1f}" y1="32" x2="{x:.1f}" y2="{bottom - 12}"/>')
        lines.append(f'  <text class="small" text-anchor="middle" x="{x:.1f}" y="24">{tick}</text>')
    for number, figure in enumerate(figures):
        lines += draw_figure(figure, TOP + 8 + ROW * number)
    return "\n".join([*lines, "</svg>", ""])


def check_stated(item, rows):
    """RESULTS.md has exactly one row that the item names, and the row states the item's ratio."""
    name = f"{item['job']} | {item['against']}"
    found = [row for row in rows if row[0].startswith(item["job"]) and row[1].startswith(item["against"])]
    check(len(found) == 1, f"RESULTS.md has {len(found)} rows that begin with {name}, not 1")
    numbers = re.findall(r"\d+(?:\.\d+)?", found[0][2])
    place = item.get("place", 0)
    check(place < len(numbers) and numbers[place] == str(item["ratio"]),
          f"headline.json says {item['ratio']} where RESULTS.md says {found[0][2]!r}, in the row {name}")


def main():
    summary = json.loads(read("headline.json"), parse_float=decimal.Decimal)   # 5.0 stays 5.0
    check(len(summary["figures"]) == 5, f"headline.json has {len(summary['figures'])} figures, not 5")
    rows, columns = [], []
    for line in read("RESULTS.md").splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if cells[:2] == ["Job", "against"]:
            columns = cells
        elif columns and cells:
            rows.append([*cells[:2], cells[columns.index("ratio")]])
        else:
            columns = []
    for figure in summary["figures"]:
        for item in figure["ratios"]:
            check_stated(item, rows)
    drawn = draw(summary)
    if sys.argv[1:] == ["--check"]:
        check(read("headline.svg") == drawn, "headline.svg is not what headline.json makes; run tests/bench/chart.py")
        return
    check(not sys.argv[1:], "usage: chart.py [--check]")
    with open(os.path.join(FOLDER, "headline.svg"), "w", encoding="utf-8") as file:
        file.write(drawn)


if __name__ == "__main__":
    sys.exit(main())
