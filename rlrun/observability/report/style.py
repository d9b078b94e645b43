"""The style of the report page; follows the reader's light or dark setting."""

STYLE = """
:root { color-scheme: light dark;
  --bg: #f6f7f9; --card: #ffffff; --ink: #16202c; --soft: #5a6675; --line: #dfe4ea; --shade: #eef1f5;
  --c1: #2563c9; --c2: #0d8a7c; --c3: #d07a06; --c4: #7a45c6; --c5: #cc3558; --c6: #4d7c0f; --c7: #0e7aa8;
  --c8: #8a6d4b; --wait: #c9d0d9; --good: #12805c; --bad: #b93a2b; }
@media (prefers-color-scheme: dark) { :root {
  --bg: #0f141b; --card: #171e27; --ink: #e6ebf2; --soft: #96a3b3; --line: #2a3442; --shade: #1f2833;
  --c1: #6ea3f5; --c2: #3cc3b2; --c3: #f0a83c; --c4: #b592f0; --c5: #f2748f; --c6: #a3cf4f; --c7: #57bce6;
  --c8: #c8a882; --wait: #3a4655; --good: #42c796; --bad: #f08373; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--bg); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
main { max-width: 1180px; margin: 0 auto; padding: 28px 24px 64px; }
header { display: flex; flex-wrap: wrap; align-items: baseline; gap: 4px 14px; margin-bottom: 18px; }
header h1 { font-size: 24px; margin: 0; letter-spacing: -.01em; }
header .brand { font-weight: 700; color: var(--c1); letter-spacing: .02em; }
header .where { color: var(--soft); font-size: 13px; margin-left: auto; overflow-wrap: anywhere; }
h2 { font-size: 17px; margin: 34px 0 12px; letter-spacing: -.005em; }
h2 small { font-weight: 400; color: var(--soft); font-size: 13px; margin-left: 8px; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 16px 18px; }
.hero { display: grid; grid-template-columns: minmax(300px, 1.15fr) 1fr; gap: 28px; align-items: center; }
.hero .rate { font-size: 50px; font-weight: 700; letter-spacing: -.03em; line-height: 1.1; white-space: nowrap; }
.hero .rate .from { color: var(--soft); font-weight: 500; }
.hero .rate .to { color: var(--good); } .hero .rate .to.worse { color: var(--bad); }
.hero p { margin: 6px 0 0; color: var(--soft); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(140px, 1fr)); gap: 10px; margin-top: 12px; }
.tile { padding: 11px 14px; } .tile b { display: block; font-size: 20px; letter-spacing: -.01em; }
.tile span { color: var(--soft); font-size: 12.5px; }
.grid { display: grid; grid-template-columns: repeat(auto-fill, minmax(330px, 1fr)); gap: 14px; }
.grid .card { padding: 12px 12px 8px; }
.grid h3 { font-size: 14px; margin: 0 4px 4px; font-weight: 600; overflow-wrap: anywhere; }
.grid h3 small { float: right; font-weight: 500; color: var(--soft); font-size: 12.5px; }
.grid .card p { margin: 0 4px 6px; } .missing { color: var(--soft); border-style: dashed; }
svg { display: block; width: 100%; height: auto; }
.grid-line, .chart .grid { stroke: var(--line); } .chart .axis { stroke: var(--soft); }
.tick { fill: var(--soft); font-size: 13px; } .chart path { fill: none; }
.chart .raw { stroke-width: 1; opacity: .35; }
.chart .line { stroke-width: 2; stroke-linejoin: round; stroke-linecap: round; } .area { opacity: .85; }
.band { opacity: .16; } .wide { overflow-x: auto; } .soft { color: var(--soft); font-size: 13px; margin: 8px 0 0; }
.dot { display: inline-block; width: 10px; height: 10px; border-radius: 3px; margin-right: 7px; }
svg.interval { width: 160px; height: 18px; } .wide th, .wide td { white-space: nowrap; padding-right: 18px; }
a { color: var(--c1); }
.mark path { stroke: var(--ink); stroke-width: 1.4; }
.mark circle { fill: var(--card); stroke: var(--ink); stroke-width: 2; }
.hover rect { fill: transparent; } .hover line { stroke: var(--soft); stroke-dasharray: 2 2; opacity: 0; }
.hover:hover line { opacity: 1; }
.legend { display: flex; flex-wrap: wrap; gap: 2px 14px; padding: 4px; color: var(--soft); font-size: 12.5px; }
.legend i { display: inline-block; width: 10px; height: 10px; border-radius: 3px; margin-right: 5px; }
.nodes { display: flex; flex-wrap: wrap; gap: 14px; }
.node { border: 1px solid var(--line); border-radius: 8px; padding: 10px 12px; flex: 1 1 300px; background: var(--bg); }
.node h4 { margin: 0 0 8px; font-size: 14px; } .node h4 small { color: var(--soft); font-weight: 400; float: right; }
.node > div { display: flex; flex-wrap: wrap; gap: 8px; }
.device { background: var(--card); border: 1px solid var(--line); border-radius: 6px; padding: 6px 8px;
  min-width: 92px; }
.device .free { color: var(--soft); font-size: 12px; }
.device b { display: block; font-size: 11.5px; color: var(--soft); font-weight: 600; }
.chip { display: inline-block; margin: 3px 4px 0 0; padding: 1px 8px; border-radius: 20px; font-size: 12px; color: #fff;
  background: var(--c8); } @media (prefers-color-scheme: dark) { .chip { color: #10161d; } }
.chip.env { background: var(--c2); } .chip.rollout { background: var(--c1); } .chip.actor { background: var(--c4); }
.bars { display: grid; grid-template-columns: max-content 1fr max-content; gap: 6px 12px; align-items: center; }
.bars .name { font-weight: 600; font-size: 13.5px; } .bars .total { color: var(--soft); font-size: 13px; }
.bar { display: flex; height: 20px; border-radius: 5px; overflow: hidden; background: var(--shade); }
.bar i { display: block; height: 100%; min-width: 1px; }
.videos { display: grid; grid-template-columns: repeat(auto-fill, minmax(340px, 1fr)); gap: 14px; }
figure { margin: 0; } video { width: 100%; border-radius: 8px; background: #000; display: block; }
figcaption { font-size: 13px; color: var(--soft); padding-top: 6px; }
.two { display: grid; grid-template-columns: repeat(auto-fit, minmax(330px, 1fr)); gap: 14px; align-items: start; }
pre { margin: 0; font: 12.5px/1.55 ui-monospace, "SF Mono", Menlo, "DejaVu Sans Mono", monospace; overflow-x: auto; }
table.narrow { width: auto; } table.narrow td, table.narrow th { padding-right: 34px; } .lead { margin: 0 0 8px; }
table { border-collapse: collapse; width: 100%; font-size: 13.5px; }
th { text-align: left; color: var(--soft); font-weight: 500; } th, td { padding: 4px 10px 4px 0; vertical-align: top; }
tr + tr td { border-top: 1px solid var(--line); }
td.num, th.num { text-align: right; font-variant-numeric: tabular-nums; }
details { margin-top: 14px; } summary { cursor: pointer; color: var(--soft); margin-bottom: 10px; }
footer { margin-top: 40px; color: var(--soft); font-size: 12.5px; }
@media (max-width: 760px) { .hero { grid-template-columns: 1fr; } .hero .rate { font-size: 38px; } }
td code { overflow-wrap: anywhere; }
@media print { body { background: #fff; } .card { break-inside: avoid; } h2, h3 { break-after: avoid; }
  .two { grid-template-columns: 1fr; } video { display: none; } pre { white-space: pre-wrap; overflow-wrap: anywhere; }
  details::details-content { content-visibility: visible; height: auto; } }
"""
