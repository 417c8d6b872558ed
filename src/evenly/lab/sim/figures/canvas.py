"""Give every picture the same look: wide or narrow, light or dark.

The colours are those of Okabe and Ito, which people with any one kind of colour blindness can tell
apart; the dark ones are lighter, in the same order.  Nothing is said by colour alone.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, final

# The object interface draws without a display or a global state.
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

__all__ = ["PICTURES", "Canvas", "Picture", "Theme"]

_Corner: TypeAlias = Literal["upper left", "upper center", "upper right", "lower right"]
_DPI = 150
_COLOURS = 64
_WIDE_INCHES = 9.0
_NARROW_INCHES = 4.2


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Theme:
    """Name the colours."""

    paper: str
    ink: str
    faint: str
    grid: str
    blue: str
    red: str
    green: str


_LIGHT: Final = Theme(
    paper="#ffffff",
    ink="#1b1f24",
    faint="#66707c",
    grid="#e3e6ea",
    blue="#0072b2",
    red="#d55e00",
    green="#009e73",
)
_DARK: Final = Theme(
    paper="#14171c",
    ink="#e6e9ee",
    faint="#8f99a6",
    grid="#2c323b",
    blue="#56b4e9",
    red="#f28e3c",
    green="#35d0a4",
)


@final
@dataclass(frozen=True, slots=True)
class Picture:
    """Name one of the four pictures of a figure: which screen it is for."""

    shape: Literal["wide", "narrow"]
    shade: Literal["light", "dark"]


PICTURES: Final = (
    Picture("wide", "light"),
    Picture("wide", "dark"),
    Picture("narrow", "light"),
    Picture("narrow", "dark"),
)


@final
class Canvas:
    """Hold one picture while it is drawn."""

    def __init__(self, picture: Picture, *, height: float) -> None:
        self.theme = _LIGHT if picture.shade == "light" else _DARK
        self.is_narrow = picture.shape == "narrow"
        width = _NARROW_INCHES if self.is_narrow else _WIDE_INCHES
        self.figure = Figure(
            figsize=(width, height), dpi=_DPI, layout="constrained", facecolor=self.theme.paper
        )
        FigureCanvasAgg(self.figure)

    def panels(self, count: int, *, columns: int = 0, share: bool = True) -> list[Axes]:
        """Return panels side by side, or below one another where that is too narrow.

        `columns` are so many in a row, of the wide picture; `share` lets all have one scale.
        """
        across = columns or count
        if self.is_narrow:
            across = 2 if columns else 1
        rows = -(-count // across)
        grid = self.figure.subplots(rows, across, sharey=share, sharex=share, squeeze=False)
        panels = [axes for row in grid for axes in row]
        for axes in panels[:count]:
            self.dress(axes)
        return panels[:count]

    def dress(self, axes: Axes) -> None:
        """Take away what only frames, and set the colours."""
        theme = self.theme
        axes.set_facecolor(theme.paper)
        axes.tick_params(colors=theme.faint, labelcolor=theme.ink, labelsize=8.5)
        axes.grid(visible=True, axis="y", color=theme.grid, lw=0.7)
        axes.set_axisbelow(True)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        for side in ("left", "bottom"):
            axes.spines[side].set_color(theme.faint)

    def title(self, axes: Axes, text: str, detail: str = "") -> None:
        """Write a panel's name, and what to see in it below."""
        lines = detail.count("\n") + 1 if detail else 0
        axes.set_title(text, loc="left", color=self.theme.ink, fontsize=10.5, pad=6 + 13 * lines)
        if detail:
            self.write(axes, 0.0, 1.02, detail, va="bottom", ha="left", faint=True)

    def label(self, axes: Axes, *, x: str = "", y: str = "") -> None:
        """Name the axes."""
        axes.set_xlabel(x, color=self.theme.ink, fontsize=9)
        axes.set_ylabel(y, color=self.theme.ink, fontsize=9)

    def write(
        self,
        axes: Axes,
        x: float,
        y: float,
        text: str,
        *,
        va: Literal["top", "bottom", "center"] = "center",
        ha: Literal["left", "right", "center"] = "left",
        color: str = "",
        faint: bool = False,
        where: Literal["panel", "data", "across"] = "panel",
    ) -> None:
        """Write into a panel, at a part of its width and height.

        `data` is a place in its data instead; `across` a place in its data and a part of its
        height.
        """
        theme = self.theme
        places = {
            "panel": axes.transAxes,
            "data": axes.transData,
            "across": axes.get_xaxis_transform(),
        }
        axes.text(
            x,
            y,
            text,
            in_layout=False,  # A long line must not squeeze the panel that it stands above.
            transform=places[where],
            va=va,
            ha=ha,
            color=color or (theme.faint if faint else theme.ink),
            fontsize=8.5,
        )

    def legend(self, axes: Axes, *, place: _Corner) -> None:
        """Explain what is labelled, inside the panel."""
        axes.legend(
            loc=place,
            fontsize=8.5,
            frameon=True,
            facecolor=self.theme.paper,
            edgecolor=self.theme.grid,
            labelcolor=self.theme.ink,
            framealpha=0.9,
        )

    def legend_above(self, axes: Axes) -> None:
        """Explain what is labelled, in a row above the panel."""
        axes.legend(
            loc="lower left",
            bbox_to_anchor=(0.0, 1.0),
            ncols=2 if self.is_narrow else 4,
            columnspacing=1.2,
            handlelength=2.4,
            fontsize=8.5,
            frameon=False,
            labelcolor=self.theme.ink,
        )

    def png(self) -> bytes:
        """Return the picture, in as few colours as it takes: a quarter of the bytes."""
        drawn, buffer = io.BytesIO(), io.BytesIO()
        self.figure.savefig(drawn, format="png", facecolor=self.theme.paper)
        image = Image.open(drawn).convert("RGB").quantize(_COLOURS, dither=Image.Dither.NONE)
        image.save(buffer, format="PNG", optimize=True, dpi=(_DPI, _DPI))
        return buffer.getvalue()
