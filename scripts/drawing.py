"""SVG pictures of boxes, arrows and words, readable on light and on dark pages, with no script or font inside."""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape

STYLE = """
  svg { color-scheme: light dark; --ink: #16202c; --soft: #5a6675; --line: #8b97a6; --card: #ffffff; --page: #f6f7f9;
    --env: #0d8a7c; --rollout: #2563c9; --actor: #7a45c6; --driver: #5a6675; --bad: #b93a2b; --good: #12805c; }
  @media (prefers-color-scheme: dark) { svg { --ink: #e6ebf2; --soft: #96a3b3; --line: #64707f; --card: #171e27;
    --page: #0f141b; --env: #3cc3b2; --rollout: #6ea3f5; --actor: #b592f0; --driver: #96a3b3; --bad: #f08373;
    --good: #42c796; } }
  text { font: 13px system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; fill: var(--ink); }
  .soft { fill: var(--soft); } .head { font-weight: 600; }
  .code { font: 12px ui-monospace, "DejaVu Sans Mono", monospace; }
  .small { font-size: 11.5px; }
  .box { fill: var(--card); stroke-width: 1.6; } .flow { fill: none; stroke-width: 1.6; }
"""


@dataclass
class Picture:
    """One picture. Coordinates are pixels from the upper left corner.

    Example: Picture(600, 200, "Two workers").box(20, 20, 120, 60, ["env/0", "simulates"], "env").svg()
    """

    width: int
    height: int
    title: str  # for readers who cannot see it
    parts: list[str] = field(default_factory=list)
    colours: set[str] = field(default_factory=set)

    def box(
        self, x: float, y: float, width: float, height: float, lines: list[str], colour: str, dashed: bool = False
    ) -> Picture:
        """A rounded box with centred lines, of which the first is bold. `colour` is a name of STYLE, such as "env"."""
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        self.parts.append(
            f'<rect class="box" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="7" '
            f'stroke="var(--{colour})"{dash}/>'
        )
        first = y + height / 2 - (len(lines) - 1) * 8 + 4.5
        for row, line in enumerate(lines):
            self.text(x + width / 2, first + row * 16, line, "head" if row == 0 else "soft small", "middle")
        return self

    def bar(self, x: float, y: float, width: float, height: float, label: str, colour: str) -> Picture:
        """A filled interval of a timeline."""
        self.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="4" fill="var(--{colour})" '
            f'fill-opacity="0.18" stroke="var(--{colour})"/>'
        )
        return self.text(x + width / 2, y + height / 2 + 4, label, "small", "middle") if label else self

    def arrow(self, *points: tuple[float, float], colour: str = "line", dashed: bool = False) -> Picture:
        """A line through `points` with a head at its end."""
        self.colours.add(colour)
        path = "M" + " L".join(f"{x:g} {y:g}" for x, y in points)
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        self.parts.append(
            f'<path class="flow" d="{path}" stroke="var(--{colour})" marker-end="url(#to-{colour})"{dash}/>'
        )
        return self

    def dot(self, x: float, y: float, colour: str, radius: float = 5) -> Picture:
        """A filled circle."""
        self.parts.append(f'<circle cx="{x:g}" cy="{y:g}" r="{radius:g}" fill="var(--{colour})"/>')
        return self

    def line(self, x1: float, y1: float, x2: float, y2: float) -> Picture:
        """A thin line."""
        self.parts.append(
            f'<path class="flow" d="M{x1:g} {y1:g} L{x2:g} {y2:g}" stroke="var(--line)" stroke-opacity="0.45" '
            'style="stroke-width:1"/>'
        )
        return self

    def text(self, x: float, y: float, words: str, style: str = "", anchor: str = "start", turn: float = 0) -> Picture:
        """One line of text; `style` names classes of STYLE."""
        turned = f' transform="rotate({turn:g} {x:g} {y:g})"' if turn else ""
        self.parts.append(
            f'<text x="{x:g}" y="{y:g}" class="{style}" text-anchor="{anchor}"{turned}>{escape(words)}</text>'
        )
        return self

    def svg(self) -> str:
        """The whole file."""
        heads = "".join(
            f'<marker id="to-{colour}" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" markerHeight="8" '
            f'orient="auto-start-reverse"><path d="M0 1 L9 5 L0 9 z" fill="var(--{colour})"/></marker>'
            for colour in sorted(self.colours)
        )
        background = f'<rect width="{self.width}" height="{self.height}" rx="10" fill="var(--page)"/>'
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" role="img" '
            f'aria-label="{escape(self.title)}">'
        )
        return "\n".join([head, f"<style>{STYLE}</style>", f"<defs>{heads}</defs>", background, *self.parts, "</svg>"])
