// What the eight charts show.

import { Chart, top } from "./chart.js";
import { byId, setText } from "./dom.js";
import * as format from "./format.js";
import { SHORT_FRAMES, ended } from "./history.js";

export const CRITICALITIES = ["CRITICAL_PLUS", "CRITICAL", "SHEDDABLE_PLUS", "SHEDDABLE"];
const COLOURS = 8;

const REASONS = [
  { key: "throttled", label: "throttled in the client", colour: "--c1", fill: "--f1" },
  { key: "shed", label: "shed by a backend", colour: "--c2", fill: "--f2" },
  { key: "quota", label: "customer out of quota", colour: "--c3", fill: "--f3" },
  { key: "no_backend", label: "no backend left", colour: "--c4", fill: "--f4" },
];

/** The look of a backend, the same in every chart and table. */
export function lookOf(index) {
  const at = index % COLOURS;
  return { colour: `--c${at + 1}`, line: at < COLOURS / 2 ? "solid" : "dashed" };
}

/** Whether a backend can say anything: a process that is stopped has no utilization. */
export const isServing = (backend) => !["down", "starting", "stopped"].includes(backend.state);

function mostAndLeast(column) {
  const known = column.filter((value) => value !== null);
  return known.length === 0 ? null : { least: Math.min(...known), most: Math.max(...known) };
}

/** "goodput 138 /s (in two minutes 120 /s to 140 /s)" for a screen reader. */
function inWords(labels, show) {
  return (latest, columns) =>
    `${labels
      .map((label, at) => {
        const range = mostAndLeast(columns[at]);
        const now = `${label} ${show(latest[at])}`;
        return range === null
          ? now
          : `${now}, between ${show(range.least)} and ${show(range.most)}`;
      })
      .join("; ")}.`;
}

const perSecond = (value) => `${format.rate(value)}/s`;

function utilization(backends) {
  return {
    series: backends.map((name, at) => ({ label: name, ...lookOf(at), width: 1.75 })),
    values: (frame) => {
      const by = new Map(frame.backends.map((backend) => [backend.name, backend]));
      return backends.map((name) => {
        const backend = by.get(name);
        return backend !== undefined && isServing(backend) ? backend.utilization : null;
      });
    },
    format: format.wholePercent,
    least: 1.2,
    isSummarySeen: true,
    summary: (latest, _columns, history) => {
      const up = backends
        .map((name, at) => [name, latest[at]])
        .filter(([, value]) => value !== null);
      if (up.length === 0) {
        return "No backend is serving.";
      }
      up.sort((one, other) => one[1] - other[1]);
      const [least, most] = [up[0], up.at(-1)];
      const wasted = history.mean(SHORT_FRAMES, (one) => one.wasted);
      return (
        `Spread: from ${format.wholePercent(least[1])} (${least[0]}) to ` +
        `${format.wholePercent(most[1])} (${most[0]}); ` +
        `${format.wholePercent(wasted)} of the capacity wasted.`
      );
    },
  };
}

const requests = {
  series: [
    // Goodput is drawn first: its area hides what was drawn before.
    { label: "goodput", colour: "--c1", fill: "--f1", width: 2 },
    { label: "offered", colour: "--c8", line: "dashed", width: 1.5, isExact: true },
    { label: "capacity", colour: "--neutral", line: "dotted", width: 2, isExact: true },
    { label: "refused", colour: "--c5" },
    { label: "failed", colour: "--c2", width: 2.5 },
  ],
  values: ({ rates, ...frame }) => [
    rates.ok,
    frame.offered,
    frame.capacity_now ?? frame.capacity,
    rates.refused,
    rates.failed,
  ],
  format: perSecond,
  axis: format.tick,
  least: 100,
  summary: inWords(["goodput", "offered", "capacity", "refused", "failed"], perSecond),
};

const refusedWhere = {
  series: REASONS.map((reason) => ({ ...reason, width: 1 })),
  values: (frame) => REASONS.map(({ key }) => frame.refused_by[key] ?? 0),
  isStacked: true,
  format: perSecond,
  axis: format.tick,
  least: 10,
  summary: inWords(
    REASONS.map(({ label }) => label),
    perSecond,
  ),
};

const refusedCriticality = {
  series: [
    { label: "CRITICAL_PLUS", colour: "--c2", width: 2.5, isExact: true },
    { label: "CRITICAL", colour: "--c7", isExact: true },
    { label: "SHEDDABLE_PLUS", colour: "--c3", line: "dashed", isExact: true },
    { label: "SHEDDABLE", colour: "--c6", line: "dotted", isExact: true },
  ],
  values: (_frame, history) =>
    CRITICALITIES.map((name) =>
      history.share(
        SHORT_FRAMES,
        (one) => one.of[name]?.refused,
        (one) => ended(one.of[name]),
      ),
    ),
  format: format.wholePercent,
  least: 1,
  summary: inWords(CRITICALITIES, format.wholePercent),
};

/** From the lowest of some lines to the highest: "S+ 31 % to S+ 44 %". */
function range(lines) {
  const [least, most] = [format.below(lines?.least), format.below(lines?.most)];
  return least === most ? most : `${least} to ${most}`;
}

const isRunning = (client) => client.pid !== null;

/** The levels at which backends cut, and below which clients do not send. */
function refusedNow(backends, clients) {
  const lines = (rows, names, value) => {
    const by = new Map(rows.map((row) => [row.name, row]));
    return names.map((name) => (by.has(name) ? value(by.get(name)) : null));
  };
  return {
    series: [
      ...backends.map((name, at) => ({ label: name, ...lookOf(at), width: 1.25 })),
      ...clients.map((name) => ({ label: name, colour: "--neutral", line: "dotted", width: 1.5 })),
    ],
    values: (frame) => [
      ...lines(frame.backends, backends, (one) => (isServing(one) ? one.cut : null)),
      ...lines(frame.clients, clients, (one) => (isRunning(one) ? one.line : null)),
    ],
    format: format.below,
    axis: format.tick,
    bands: [...CRITICALITIES].reverse(),
    least: CRITICALITIES.length,
    most: CRITICALITIES.length,
    isSummarySeen: true,
    summary: (latest) => {
      const cuts = mostAndLeast(latest.slice(0, backends.length));
      const held = mostAndLeast(latest.slice(backends.length));
      return cuts === null
        ? "No backend is serving."
        : `Backends refuse ${range(cuts)}; clients hold back ${range(held)}.`;
    },
  };
}

function latency(timeoutSeconds) {
  const timeout = timeoutSeconds * 1000;
  return {
    series: [
      { label: "p50", colour: "--c3" },
      { label: "p95", colour: "--c7", line: "dashed" },
      { label: "p99", colour: "--c2", width: 2.5 },
    ],
    values: ({ latency_ms: known }) => [known?.p50, known?.p95, known?.p99],
    format: format.milliseconds,
    least: 300,
    // Whatever is beyond the timeout is too slow: that need not crush all the rest.
    most: top(1.1 * timeout),
    bound: { at: timeout, label: `timeout ${format.seconds(timeoutSeconds)}` },
    summary: inWords(["p50", "p95", "p99"], format.milliseconds),
  };
}

const active = {
  series: [{ label: "active requests", colour: "--c1", fill: "--f1" }],
  values: (frame) => [frame.active],
  format: format.count,
  axis: format.tick,
  least: 40,
  summary: inWords(["active requests"], format.count),
};

const attempts = {
  series: [
    { label: "attempts", colour: "--c1", width: 2 },
    { label: "of these retries", colour: "--c2", fill: "--f2" },
    {
      label: "retry ratio",
      colour: "--neutral",
      line: "none",
      format: format.percent,
      isExact: true,
    },
  ],
  values: ({ rates }, history) => [rates.attempts, rates.retries, history.retryRatio()],
  format: perSecond,
  axis: format.tick,
  least: 100,
  summary: (latest, columns) =>
    `${inWords(["attempts", "retries"], perSecond)(latest, columns)} ` +
    `Retry ratio ${format.percent(latest[2])}.`,
};

export function makeCharts(plan, history) {
  const backends = plan.backends.map(({ name }) => name);
  const specs = {
    utilization: utilization(backends),
    requests,
    "refused-now": refusedNow(backends, plan.clients),
    "refused-where": refusedWhere,
    "refused-criticality": refusedCriticality,
    latency: latency(plan.timeout_seconds),
    active,
    attempts,
  };
  setText(byId("latency-timeout"), format.seconds(plan.timeout_seconds));
  return Object.entries(specs).map(([id, spec]) => new Chart(id, spec, history));
}
