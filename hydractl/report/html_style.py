"""The style sheet of a report: one column on a telephone, light and dark, and plain on paper."""

from __future__ import annotations

from hydractl.report.chart import COLOURS

_SERIES = "\n".join(f".s{number} {{ --c: {colour} }}" for number, colour in enumerate(COLOURS))

STYLE = f"""
:root {{ color-scheme: light dark; --bg: #fff; --fg: #1b1f24; --soft: #59636e; --line: #d5dae0; --band: #f4f6f8 }}
{_SERIES}
.kept {{ --c: #0072B2 }}
@media screen and (prefers-color-scheme: dark) {{
  :root {{ --bg: #15181c; --fg: #e6e9ed; --soft: #a3adb8; --line: #3a424b; --band: #1e2329 }}
  .s0, .kept {{ --c: #3390d0 }} /* the blue is too dark on black */
}}
* {{ box-sizing: border-box }}
html {{ -webkit-text-size-adjust: 100%; text-size-adjust: 100% }}
body {{ margin: 0 auto; max-width: 82rem; padding: 1rem; background: var(--bg); color: var(--fg);
  font: 16px/1.5 system-ui, "Segoe UI", "Liberation Sans", "DejaVu Sans", sans-serif; overflow-wrap: anywhere }}
h1 {{ font-size: 1.6rem; line-height: 1.25; margin: .5rem 0 }}
h2 {{ font-size: 1.25rem; margin: 2.2rem 0 .4rem; padding-top: .4rem; border-top: 2px solid var(--line) }}
h3 {{ font-size: 1rem; margin: 1.2rem 0 .3rem }}
p {{ margin: .4rem 0; max-width: 46rem }}
ul {{ margin: .4rem 0; padding-left: 1.2rem; max-width: 46rem }}
.note {{ color: var(--soft); font-size: .9rem }}
nav ul {{ list-style: none; display: flex; flex-wrap: wrap; gap: .2rem 1rem; padding: 0; max-width: none }}
a {{ color: inherit }}
.scroll {{ overflow-x: auto; margin: .5rem 0 }}
table {{ border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums }}
th, td {{ padding: .3rem .45rem; text-align: right; vertical-align: top; border-bottom: 1px solid var(--line);
  overflow-wrap: normal; white-space: nowrap }}
th {{ font-weight: 600 }}
thead th {{ background: var(--band); vertical-align: bottom }}
th[scope=row], .text {{ text-align: left }}
th[scope=row] {{ position: sticky; left: 0; background: var(--bg); min-width: 6rem; max-width: 12rem;
  overflow-wrap: anywhere; white-space: normal; font-weight: 400 }}
thead th:first-child {{ position: sticky; left: 0; text-align: left }}
.wrap {{ white-space: normal; overflow-wrap: anywhere; min-width: 9rem; max-width: 34rem }}
.best {{ font-weight: 700 }}
.second > span {{ text-decoration: underline; text-underline-offset: 3px }}
small {{ display: block; color: var(--soft); font-size: .86em; font-weight: 400 }}
.grid {{ display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 20rem), 1fr)); gap: 1rem 1.4rem }}
.grid.tables {{ grid-template-columns: repeat(auto-fill, minmax(min(100%, 29rem), 1fr)) }}
figure {{ margin: .6rem 0; min-width: 0 }}
figure.wide {{ grid-column: 1 / -1 }}
figcaption {{ font-weight: 600; font-size: .95rem }}
.panels {{ display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 20rem), 1fr)); gap: .4rem 1.4rem }}
.panels > svg {{ max-width: 30rem }}
.stacked {{ display: block; max-width: 30rem }}
svg {{ display: block; width: 100%; height: auto }}
svg text {{ font-size: 11px; fill: var(--soft); text-anchor: middle }}
svg .left {{ text-anchor: end }}
svg .tally, svg .start {{ text-anchor: start }}
svg .head {{ fill: var(--fg); font-weight: 600; font-size: 12px }}
svg .name {{ fill: var(--fg) }}
svg .count {{ font-size: 9px }}
.mesh, .axis, .guide, .line, .whisker {{ fill: none }}
.mesh {{ stroke: var(--line); stroke-width: .6 }}
.axis {{ stroke: var(--soft) }}
.guide {{ stroke: var(--soft); stroke-dasharray: 4 3 }}
.line {{ stroke: var(--c); stroke-width: 1.8; stroke-linejoin: round }}
.whisker {{ stroke: var(--c); stroke-width: 1.3 }}
.bar {{ fill: var(--c); fill-opacity: .45; stroke: var(--c); stroke-width: .6 }}
.mark {{ fill: var(--c); stroke: var(--bg); stroke-width: .7 }}
.cross {{ fill: none; stroke: var(--c); stroke-width: 2.4 }}
.kept {{ fill: var(--c) }}
.gone {{ fill: none; stroke: var(--soft); stroke-width: .8 }}
.legend {{ display: flex; flex-wrap: wrap; gap: .1rem 1rem; padding: 0; margin: .2rem 0; list-style: none;
  font-size: .85rem; max-width: none }}
.legend li {{ display: flex; align-items: center; gap: .35rem; min-width: 0 }}
.legend svg {{ flex: none; width: 28px; height: 12px }}
dl {{ display: grid; grid-template-columns: minmax(6rem, max-content) 1fr; gap: .25rem 1rem; font-size: .9rem }}
dt {{ font-weight: 600 }}
dd {{ margin: 0; min-width: 0 }}
code {{ font-size: .85em }}
@media (max-width: 30rem) {{ dl {{ display: block }} dd {{ margin: 0 0 .5rem }} }}
@media print {{
  :root {{ color-scheme: light }}
  body {{ max-width: none; padding: 0; font-size: 10pt; print-color-adjust: exact; -webkit-print-color-adjust: exact }}
  nav {{ display: none }}
  h2, h3, .note {{ break-after: avoid }}
  figure, tr, li, .tables > div {{ break-inside: avoid }}
  .scroll {{ overflow: visible }}
  table {{ font-size: 7.5pt }}
  th, td {{ padding: .15rem .3rem }}
  th[scope=row], thead th:first-child {{ position: static }}
  .grid, .grid.tables, .panels {{ grid-template-columns: repeat(2, minmax(0, 1fr)) }}
}}
"""
