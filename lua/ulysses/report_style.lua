-- report_style.lua - how the page about a run looks, in light and in dark.
return [[
:root { --page: #fbfbfa; --card: #ffffff; --edge: #e4e3df; --text: #1d1d1f; --quiet: #6a6a6f;
  --grid: #ecebe7; --first: #2563b8; --faint: #a9c4e8; --second: #b4530a; --bad: #c0262d; }
@media (prefers-color-scheme: dark) { :root { --page: #16171a; --card: #1e2024; --edge: #32353b;
  --text: #ececee; --quiet: #a0a3aa; --grid: #2b2e33; --first: #77b0ff; --faint: #3b5f92;
  --second: #f3a15c; --bad: #ff7a7a; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--text);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
main { max-width: 1160px; margin: 0 auto; padding: 32px 20px 64px; }
h1 { font-size: 26px; margin: 0 0 18px; letter-spacing: -0.01em; overflow-wrap: anywhere; }
h2 { font-size: 18px; margin: 32px 0 10px; }
h3 { font-size: 14px; margin: 0; font-weight: 600; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(135px, 1fr)); gap: 12px;
  margin: 0 0 16px; }
.tiles > div, figure, article, table { background: var(--card); border: 1px solid var(--edge);
  border-radius: 8px; }
.tiles > div { padding: 10px 14px; }
dt, .note { color: var(--quiet); font-size: 13px; }
dd { margin: 0; font-size: 21px; font-weight: 600; font-variant-numeric: tabular-nums; }
dd.note { font-weight: 400; min-height: 1.5em; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 460px), 1fr));
  gap: 16px; }
.charts figure:first-child { grid-column: 1 / -1; }
figure { margin: 0; padding: 12px 14px 8px; }
figcaption { display: flex; flex-wrap: wrap; gap: 4px 18px; align-items: baseline; }
.legend { margin: 0; display: flex; gap: 14px; color: var(--quiet); font-size: 13px; }
.key { display: inline-block; width: 16px; height: 0; border-top: 3px solid; margin: 0 6px 4px 0; }
.key.first { border-color: var(--first); } .key.faint { border-color: var(--faint); }
.key.second { border-color: var(--second); border-top-style: dotted; }
.key.skipped { width: 3px; height: 11px; border: 0; background: var(--bad); margin-bottom: -1px; }
svg { display: block; width: 100%; height: auto; }
.grid { stroke: var(--grid); } .axis { stroke: var(--edge); }
.tick { fill: var(--quiet); font-size: 12px; font-variant-numeric: tabular-nums; }
.line { fill: none; stroke-width: 2; stroke-linejoin: round; stroke-linecap: round; }
.line.first { stroke: var(--first); } .line.faint { stroke: var(--faint); stroke-width: 1.2; }
.line.second { stroke: var(--second); stroke-dasharray: 2 5; }
.dot.first { fill: var(--first); } .dot.faint { fill: var(--faint); }
.dot.second { fill: var(--second); stroke: var(--card); stroke-width: 1.5; r: 4px; }
.skip { stroke: var(--bad); stroke-width: 2; }
.tip { fill: transparent; } .tip:hover { fill: var(--quiet); fill-opacity: 0.12; }
details { margin-top: 16px; } summary { cursor: pointer; color: var(--quiet); }
table { border-collapse: separate; border-spacing: 0; width: 100%; margin-top: 8px;
  overflow: hidden; }
th, td { text-align: left; padding: 5px 14px; border-top: 1px solid var(--grid);
  font-weight: 400; vertical-align: top; overflow-wrap: anywhere; }
tr:first-child > * { border-top: 0; }
th { color: var(--quiet); }
td { font-variant-numeric: tabular-nums; }
.numbers th, .numbers td { text-align: right; }
.tables { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 400px), 1fr));
  gap: 0 24px; align-items: start; }
article { padding: 12px 16px; margin-bottom: 12px; }
pre { margin: 8px 0 0; white-space: pre-wrap; overflow-wrap: anywhere;
  font: 13.5px/1.55 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
pre b { color: var(--first); font-weight: 600; }
@media (max-width: 600px) { .charts figure:first-child .tick { font-size: 19px; } }
@media print { body { background: #fff; } figure, article { break-inside: avoid; } }
]]
