// The six big figures, each with a verdict in a word, a sign and a colour.

import { byId, make, setHidden, setOneClass, setText } from "./dom.js";
import * as format from "./format.js";
import { LONG_FRAMES, SHORT_FRAMES, ended } from "./history.js";

const VERDICTS = { good: "✓ good", warn: "! watch", bad: "✕ bad" };
const WILD = "wild"; // the customer that asks for more than its quota

/** Judge: good up to a bound, worth watching up to another; nothing if it is not known. */
const upTo = (value, good, warn) =>
  value === null ? null : value <= good ? "good" : value <= warn ? "warn" : "bad";
const from = (value, good, warn) => (value === null ? null : upTo(-value, -good, -warn));

const capacityOf = (frame) => frame.capacity_now ?? frame.capacity;

/** The share that is answered of what could be: what is asked for within quota, up to capacity. */
function servedShare(frame, history) {
  const beyondQuota = frame.settings.is_wild
    ? (history.mean(SHORT_FRAMES, (one) => one.customers[WILD]?.refused) ?? 0)
    : 0;
  const possible = Math.min(frame.offered - beyondQuota, capacityOf(frame));
  return history.mean(SHORT_FRAMES, (one) => one.rates.ok) / Math.max(1, possible);
}

const MOST_KINDS = 3; // More would make the card grow.

/** What failed per second, the most frequent kinds first: "timeout 1.5, connection lost 0.5". */
function failedBy(history) {
  const kinds = new Set(
    history.frames.slice(-LONG_FRAMES).flatMap((one) => Object.keys(one.failed_by ?? {})),
  );
  return [...kinds]
    .map((kind) => [kind, history.mean(LONG_FRAMES, (one) => one.failed_by?.[kind] ?? 0)])
    .sort((one, other) => other[1] - one[1] || one[0].localeCompare(other[0]))
    .slice(0, MOST_KINDS)
    .map(([kind, mean]) => `${kind.replaceAll("_", " ")} ${format.rate(mean)}`)
    .join(", ");
}

// `of(frame, history, plan)`: the value as text, a verdict or null, and a note in small print.
const FIGURES = [
  {
    name: "Goodput",
    unit: "/s",
    of: (frame, history) => {
      const asked = history.mean(SHORT_FRAMES, (one) => one.rates.asked);
      return {
        value: format.count(history.mean(SHORT_FRAMES, (one) => one.rates.ok)),
        verdict: from(servedShare(frame, history), 0.85, 0.7),
        note:
          `answered in time, of ${format.count(asked)} asked; ` +
          `capacity is ${format.rate(capacityOf(frame))} /s`,
      };
    },
  },
  {
    name: "CRITICAL_PLUS success",
    of: (_frame, history) => {
      const share = history.share(
        LONG_FRAMES,
        (one) => one.of.CRITICAL_PLUS?.ok,
        (one) => ended(one.of.CRITICAL_PLUS),
      );
      return {
        value: format.percent(share),
        verdict: from(share, 0.99, 0.95),
        note: "the most important requests, within quota, over 10 s",
      };
    },
  },
  {
    name: "Wasted capacity",
    of: (frame, history) => {
      const wasted = history.mean(SHORT_FRAMES, (one) => one.wasted);
      // Backends that are all equally busy with what nobody waits for any more are no good sign.
      const isTelling = servedShare(frame, history) >= 0.5;
      return {
        value: format.wholePercent(wasted),
        verdict: isTelling ? upTo(wasted, 0.25, 0.45) : null,
        note: isTelling
          ? "idle, while the busiest backend is full"
          : "idle, while the busiest is full; says nothing while so little is answered",
      };
    },
  },
  {
    name: "Latency, p99",
    of: (frame, history, plan) => {
      const isAnswered = history.total(SHORT_FRAMES, (one) => one.rates.ok) > 0;
      if (!isAnswered && history.total(SHORT_FRAMES, (one) => ended(one.rates)) > 0) {
        return { value: format.milliseconds(null), verdict: "bad", note: "nothing is answered" };
      }
      const p99 =
        frame.latency_ms === null ? null : history.mean(SHORT_FRAMES, (one) => one.latency_ms?.p99);
      const timeout = plan.timeout_seconds * 1000;
      return {
        value: format.milliseconds(p99),
        verdict: upTo(p99, 0.5 * timeout, 0.9 * timeout),
        note: `99 of 100 answers are faster; the timeout is ${format.seconds(plan.timeout_seconds)}`,
      };
    },
  },
  {
    name: "Retry ratio",
    of: (_frame, history) => {
      const ratio = history.retryRatio();
      return {
        value: format.percent(ratio),
        verdict: upTo(ratio, 0.12, 0.2),
        note: "retries per first attempt, over 10 s; at first what was saved may be spent",
      };
    },
  },
  {
    name: "Failed",
    unit: "/s",
    of: (_frame, history) => {
      const kinds = failedBy(history);
      const share = history.share(
        SHORT_FRAMES,
        (one) => one.rates.failed,
        (one) => ended(one.rates),
      );
      return {
        value: format.rate(history.mean(SHORT_FRAMES, (one) => one.rates.failed)),
        verdict: upTo(share, 0.01, 0.05),
        note: kinds === "" ? "errors, timeouts and lost requests" : `over 10 s: ${kinds}`,
      };
    },
  },
];

export class Figures {
  id = "figures";
  element = byId("figures");
  #plan;
  #parts = [];

  constructor(plan) {
    this.#plan = plan;
    const list = this.element.querySelector("dl");
    for (const figure of FIGURES) {
      const verdict = make("span", { class: "verdict" }, "");
      const value = make("span", {}, "–");
      const note = make("dd", { class: "note" }, "");
      const unit = figure.unit === undefined ? "" : make("span", { class: "unit" }, figure.unit);
      const card = make(
        "div",
        { class: "figure" },
        make("dt", {}, figure.name),
        make("dd", { class: "value" }, value, unit, verdict),
        note,
      );
      list.append(card);
      this.#parts.push({ figure, verdict, value, note, card });
    }
  }

  draw(frame, history) {
    setHidden(byId("unprotected"), frame.settings.is_protected);
    for (const { figure, verdict, value, note, card } of this.#parts) {
      const now = figure.of(frame, history, this.#plan);
      setText(value, now.value);
      setText(note, now.note);
      setText(verdict, now.verdict === null ? "" : VERDICTS[now.verdict]);
      setOneClass(
        card,
        ["is-good", "is-warn", "is-bad"],
        now.verdict === null ? null : `is-${now.verdict}`,
      );
    }
  }
}
