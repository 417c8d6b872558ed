// One panel with a chart: uPlot, a legend with values, and a summary in words.

import { byId, make, setText } from "./dom.js";
import { MOST_FRAMES, SHORT_FRAMES, WINDOW_SECONDS } from "./history.js";
import { colour, onThemeChange } from "./theme.js";

const DASHES = { dashed: [6, 4], dotted: [2, 3] };
const SUMMARY_SECONDS = 3; // for who listens; what is seen is as new as the legend

// Canvases take colours, not names: read them once per theme, not once per line and drawing.
const palette = new Map();
onThemeChange(() => palette.clear());

function ink(name) {
  let value = palette.get(name);
  if (value === undefined) {
    value = colour(name);
    palette.set(name, value);
  }
  return value;
}

/** What a chart draws.
 *
 * `series`: [{ label, colour: "--c1", line: "solid" | "dashed" | "dotted" | "none", fill, width,
 * isExact: not to be averaged in the legend, as a setting, or what is an average already }];
 * `values(frame, history)`: one number or null per series; `format(value)`; `least` and `most`: of
 * the top of the y axis; `bound`: { at, label } of a dashed line across; `bands`: names of what lies
 * between 0 and 1, 1 and 2 and so on; `isStacked`: areas on top of each other;
 * `summary(latest, columns, history)`: words, for everybody if `isSummarySeen`, else for screen
 * readers: the legend shows them to the others.
 */
export class Chart {
  #spec;
  #history;
  #root;
  #plot = null;
  #times = [];
  #xs = [];
  #columns = [];
  #legend = [];
  #hovered = null;
  #summaryAt = -Infinity;

  constructor(id, spec, history) {
    this.id = id;
    this.element = byId(id);
    this.#spec = spec;
    this.#history = history;
    this.#root = this.element.querySelector(".chart");
    this.#root.setAttribute("aria-describedby", `${id}-summary`);
    this.#columns = spec.series.map(() => []);
    this.#makeLegend();
    byId(`${id}-summary`).classList.toggle("unseen", !spec.isSummarySeen);
    onThemeChange(() => this.#plot?.redraw(false));
    new ResizeObserver(([entry]) => this.#resize(entry.contentRect)).observe(this.#root);
  }

  clear() {
    this.#times.length = 0;
    for (const column of this.#columns) {
      column.length = 0;
    }
    this.#summaryAt = -Infinity;
  }

  /** Take in one frame; draws nothing. */
  push(frame) {
    const values = this.#spec.values(frame, this.#history);
    this.#times.push(frame.t);
    this.#columns.forEach((column, index) => column.push(values[index] ?? null));
    if (this.#times.length > MOST_FRAMES) {
      this.#times.shift();
      this.#columns.forEach((column) => column.shift());
    }
  }

  draw() {
    if (this.#plot === null || this.#times.length === 0) {
      return;
    }
    const now = this.#times.at(-1);
    this.#xs = this.#times.map((time) => time - now);
    this.#plot.setData([this.#xs, ...this.#drawn()]);
    this.#showValues();
    if (this.#spec.isSummarySeen || now - this.#summaryAt >= SUMMARY_SECONDS) {
      this.#summaryAt = now;
      const latest = this.#columns.map((_column, index) => this.#latest(index));
      const words = this.#spec.summary(latest, this.#columns, this.#history);
      setText(byId(`${this.id}-summary`), words);
    }
  }

  #drawn() {
    if (!this.#spec.isStacked) {
      return this.#columns;
    }
    // From the top of the stack down: each area is painted over the foot of the one before.
    const sums = new Array(this.#times.length).fill(0);
    const stacked = this.#columns.map((column) =>
      column.map((value, at) => (sums[at] += value ?? 0)),
    );
    return stacked.reverse();
  }

  #makeLegend() {
    const list = this.element.querySelector(".legend");
    for (const { label, colour: name, line = "solid", fill } of this.#spec.series) {
      const swatch = make("span", {
        class: `swatch ${fill ? "filled" : line}`,
        "aria-hidden": "true",
      });
      swatch.style.setProperty("--colour", `var(${name})`);
      swatch.style.setProperty("--fill", `var(${fill ?? name})`);
      const value = make("span", { class: "value" }, "–");
      list.append(make("li", {}, swatch, label, " ", value));
      this.#legend.push(value);
    }
  }

  #showValues() {
    const at = this.#hovered;
    this.#legend.forEach((element, index) => {
      const { format = this.#spec.format } = this.#spec.series[index];
      setText(element, format(at === null ? this.#latest(index) : this.#columns[index][at]));
    });
  }

  /** What a series is now, on average over two seconds; null if it is unknown now. */
  #latest(index) {
    const column = this.#columns[index];
    const last = column.at(-1) ?? null;
    if (last === null || this.#spec.series[index].isExact) {
      return last;
    }
    const known = column.slice(-SHORT_FRAMES).filter((value) => value !== null);
    return known.reduce((sum, value) => sum + value, 0) / known.length;
  }

  #resize({ width, height }) {
    if (width < 50 || height < 50) {
      return; // not laid out yet, or hidden
    }
    const size = { width: Math.floor(width), height: Math.floor(height) };
    if (this.#plot === null) {
      this.#plot = new globalThis.uPlot(
        this.#options(size),
        [[], ...this.#columns.map(() => [])],
        this.#root,
      );
      this.draw();
    } else {
      this.#plot.setSize(size);
    }
  }

  #options(size) {
    const series = this.#spec.series.map((one) => this.#seriesOptions(one));
    const axis = {
      stroke: () => ink("--soft"),
      font: "12px system-ui, sans-serif",
      ticks: { show: false },
    };
    const grid = { stroke: () => ink("--grid"), width: 1 };
    return {
      ...size,
      padding: [10, 14, 0, 0],
      legend: { show: false },
      cursor: {
        sync: { key: "evenly", setSeries: false },
        drag: { x: false, y: false, setScale: false },
        points: { show: false },
        y: false,
      },
      scales: {
        x: { time: false, range: [-WINDOW_SECONDS, 0] },
        y: { range: (_plot, _least, most) => [0, this.#top(most ?? 0)] },
      },
      axes: [
        {
          ...axis,
          grid,
          size: 32,
          gap: 9,
          splits: () => [-120, -90, -60, -30, 0],
          values: (_plot, splits) => splits.map((at) => (at === 0 ? "now" : `−${-at} s`)),
        },
        {
          ...axis,
          grid,
          size: 56,
          gap: 4,
          space: 36,
          splits: this.#spec.bands && (() => [0, ...this.#spec.bands.map((_name, at) => at + 1)]),
          values: (_plot, splits) => splits.map((at) => (this.#spec.axis ?? this.#spec.format)(at)),
        },
      ],
      series: [{}, ...(this.#spec.isStacked ? series.reverse() : series)],
      hooks: {
        drawClear: [(plot) => this.#drawBands(plot)],
        drawAxes: [(plot) => this.#drawMarks(plot), (plot) => this.#drawBound(plot)],
        setCursor: [(plot) => this.#hover(plot.cursor.idx)],
      },
    };
  }

  #top(most) {
    const { least, most: highest = Infinity } = this.#spec;
    return Math.min(highest, top(Math.max(least, most)));
  }

  #seriesOptions({ colour: name, line = "solid", fill, width = 2 }) {
    return {
      show: line !== "none",
      stroke: () => ink(name),
      fill: fill === undefined ? undefined : () => ink(fill),
      width,
      dash: DASHES[line],
      points: { show: false },
    };
  }

  #hover(index) {
    const hovered = index ?? null;
    if (hovered !== this.#hovered) {
      this.#hovered = hovered;
      this.#showValues();
    }
  }

  /** Shade every other band, and write its name into each. */
  #drawBands(plot) {
    const { ctx, bbox } = plot;
    const scale = globalThis.uPlot.pxRatio;
    ctx.save();
    ctx.font = `${11 * scale}px system-ui, sans-serif`;
    ctx.textAlign = "left";
    ctx.textBaseline = "middle";
    (this.#spec.bands ?? []).forEach((name, at) => {
      const [bottom, top] = [at, at + 1].map((level) => plot.valToPos(level, "y", true));
      if (at % 2 === 1) {
        ctx.fillStyle = ink("--hover");
        ctx.fillRect(bbox.left, top, bbox.width, bottom - top);
      }
      ctx.fillStyle = ink("--soft");
      ctx.fillText(name, bbox.left + 4 * scale, (bottom + top) / 2);
    });
    ctx.restore();
  }

  /** Draw a dotted line where a person or a story did something. */
  #drawMarks(plot) {
    const { ctx, bbox } = plot;
    const now = this.#times.at(-1);
    ctx.save();
    ctx.strokeStyle = ink("--soft");
    ctx.lineWidth = 1;
    ctx.setLineDash([1, 3]);
    ctx.beginPath();
    for (const at of this.#history.marks) {
      if (at - now > -WINDOW_SECONDS) {
        const x = Math.round(plot.valToPos(at - now, "x", true)) + 0.5;
        ctx.moveTo(x, bbox.top);
        ctx.lineTo(x, bbox.top + bbox.height);
      }
    }
    ctx.stroke();
    ctx.restore();
  }

  /** Draw a dashed line across, with its name, if the axis goes so far. */
  #drawBound(plot) {
    const { bound } = this.#spec;
    if (bound === undefined || plot.scales.y.max < bound.at) {
      return;
    }
    const { ctx, bbox } = plot;
    const scale = globalThis.uPlot.pxRatio;
    const y = Math.round(plot.valToPos(bound.at, "y", true)) + 0.5;
    ctx.save();
    ctx.strokeStyle = ink("--soft");
    ctx.fillStyle = ink("--soft");
    ctx.lineWidth = scale;
    ctx.setLineDash([5 * scale, 4 * scale]);
    ctx.beginPath();
    ctx.moveTo(bbox.left, y);
    ctx.lineTo(bbox.left + bbox.width, y);
    ctx.stroke();
    ctx.font = `${11 * scale}px system-ui, sans-serif`;
    ctx.textAlign = "left";
    ctx.textBaseline = "bottom";
    ctx.fillText(bound.label, bbox.left + 4 * scale, y - 2 * scale);
    ctx.restore();
  }
}

/** The next of 1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8 × 10ⁿ: an axis that rarely jumps. */
export function top(most) {
  const unit = 10 ** Math.floor(Math.log10(most));
  for (const step of [1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8]) {
    if (most <= step * unit * 1.0001) {
      return step * unit;
    }
  }
  return 10 * unit;
}
