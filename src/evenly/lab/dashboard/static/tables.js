// The tables of backends, clients and customers.  Rows are made once and then only changed.

import { isServing, lookOf } from "./charts.js";
import { byId, make, setAttribute, setBar, setHidden, setOneClass, setText } from "./dom.js";
import * as format from "./format.js";
import { LONG_FRAMES, SHORT_FRAMES, ended } from "./history.js";

const MUCH_WAITING = 10; // per slot: more than a second of work stands in line

const STATES = {
  healthy: { sign: "●", class: "is-healthy" },
  "lame duck": { sign: "◐", class: "is-lame" },
  starting: { sign: "○", class: "is-starting" },
  stopped: { sign: "❚❚", class: "is-bad" },
  down: { sign: "✕", class: "is-bad" },
};
const STATE_CLASSES = ["is-healthy", "is-lame", "is-starting", "is-bad"];

const MARKS = {
  healthy: { sign: "●", class: "is-healthy", words: "sends to it" },
  "lame duck": { sign: "◐", class: "is-lame", words: "lame duck: sends nothing new" },
  refusing: { sign: "✕", class: "is-refusing", words: "refusing: leaves it out" },
  out: { sign: "·", class: "is-out", words: "not in its subset" },
};
const MARK_CLASSES = ["is-healthy", "is-lame", "is-refusing", "is-out", "is-other"];

// "stopped" is a state of its own.
const FAULTS = { slow: "slowed 4 ×", fail: "failing fast", stopped: null };

function chip(at) {
  const { colour, line } = lookOf(at);
  const element = make("span", { class: `chip ${line}`, "aria-hidden": "true" });
  element.style.setProperty("--colour", `var(${colour})`);
  return element;
}

function number(label, extra = "") {
  return make("td", { role: "cell", class: `number ${extra}`.trim(), "data-label": label }, "–");
}

function makeBar(look) {
  const fill = make("i");
  if (look !== null) {
    fill.style.setProperty("--colour", `var(${look.colour})`);
  }
  const value = make("span", { class: "bar-value" }, "–");
  return {
    fill,
    value,
    parts: [make("span", { class: "bar", "aria-hidden": "true" }, fill), value],
  };
}

/** Only an address of the web may become a link. */
const isWebAddress = (text) => typeof text === "string" && /^https?:\/\//.test(text);

class BackendRow {
  constructor({ name, slots = 1 }, at, order) {
    this.muchWaiting = MUCH_WAITING * slots;
    this.isStopped = false;
    this.pid = make("span", {}, "");
    this.metrics = make("a", { target: "_blank", rel: "noreferrer", hidden: true }, "metrics");
    this.sign = make("span", { "aria-hidden": "true" }, "");
    this.word = make("span", {}, "–");
    this.state = make("span", { class: "state" }, this.sign, " ", this.word);
    this.faults = make("span", { class: "faults" }, "");
    this.speed = number("speed");
    this.bar = makeBar(lookOf(at));
    this.active = number("active");
    this.waiting = number("waiting");
    this.share = number("share");
    this.#makeButtons(name, order);
    this.element = make(
      "tr",
      { role: "row" },
      make(
        "th",
        { scope: "row", role: "rowheader" },
        chip(at),
        name,
        make("span", { class: "sub" }, this.pid, " ", this.metrics),
      ),
      make("td", { role: "cell", class: "state-cell" }, this.state, this.faults),
      this.speed,
      make(
        "td",
        { role: "cell", class: "bar-cell", "data-label": "utilization" },
        ...this.bar.parts,
      ),
      this.active,
      this.waiting,
      this.share,
      make(
        "td",
        { role: "cell", class: "deeds-cell" },
        make("div", { class: "deeds" }, ...this.buttons),
      ),
    );
  }

  #makeButtons(name, order) {
    const deed = (label, spoken, orderOf) => {
      const button = make("button", { type: "button", "aria-label": `${spoken} ${name}` }, label);
      button.addEventListener("click", () => order({ ...orderOf(button), backend: name }, button));
      return button;
    };
    const toggle = (label, spoken, control) => {
      const button = deed(label, spoken, () => ({
        do: control,
        is_on: button.getAttribute("aria-pressed") !== "true",
      }));
      button.setAttribute("aria-pressed", "false");
      return button;
    };
    this.stop = deed("STOP", "STOP: freeze", () => ({ do: this.isStopped ? "cont" : "stop" }));
    this.slow = toggle("slow", "slow: four times slower,", "slow");
    this.fail = toggle("fast-fail", "fast-fail: answer with errors at once,", "fail");
    this.buttons = [
      deed("kill −9", "kill −9: end at once", () => ({ do: "kill" })),
      deed("SIGTERM", "SIGTERM: drain and restart", () => ({ do: "terminate" })),
      this.stop,
      this.slow,
      this.fail,
    ];
  }

  /** Show a backend; `share` is its part of the attempts that reached any. */
  show(backend, share) {
    const state = STATES[backend.state] ?? { sign: "?", class: "is-starting" };
    const faults = backend.faults ?? [];
    const isUp = isServing(backend);
    this.isStopped = backend.state === "stopped" || faults.includes("stopped");
    setText(this.pid, backend.pid ? `pid ${backend.pid}` : "no process");
    setHidden(this.metrics, !isWebAddress(backend.metrics));
    if (!this.metrics.hidden) {
      setAttribute(this.metrics, "href", backend.metrics);
    }
    setText(this.sign, state.sign);
    setText(this.word, backend.state);
    setOneClass(this.state, STATE_CLASSES, state.class);
    const shown = faults.map((fault) => (fault in FAULTS ? FAULTS[fault] : fault));
    setText(this.faults, shown.filter((fault) => fault !== null).join(", "));
    setText(this.speed, format.times(backend.speed));
    setBar(this.bar.fill, isUp ? backend.utilization : 0);
    setText(this.bar.value, isUp ? format.wholePercent(backend.utilization) : "–");
    setText(this.active, isUp ? format.count(backend.active) : "–");
    setText(this.waiting, isUp ? format.count(backend.waiting) : "–");
    const isMuch = isUp && backend.waiting > this.muchWaiting;
    setOneClass(this.waiting, ["is-much"], isMuch ? "is-much" : null);
    setText(this.share, isUp ? format.percent(share) : "–");
    // Not a toggle that is pressed: its name says what it does next.
    setText(this.stop, this.isStopped ? "CONT" : "STOP");
    setAttribute(
      this.stop,
      "aria-label",
      `${this.isStopped ? "CONT: go on with" : "STOP: freeze"} ${backend.name}`,
    );
    setOneClass(this.stop, ["primary"], this.isStopped ? "primary" : null);
    setAttribute(this.slow, "aria-pressed", String(faults.includes("slow")));
    setAttribute(this.fail, "aria-pressed", String(faults.includes("fail")));
  }
}

export class BackendsTable {
  id = "backends";
  element = byId("backends");
  #rows = new Map();

  constructor(plans, order) {
    const body = this.element.querySelector("tbody");
    plans.forEach((plan, at) => {
      const row = new BackendRow(plan, at, order);
      this.#rows.set(plan.name, row);
      body.append(row.element);
    });
    for (const at of [2, 4, 5, 6]) {
      this.element.querySelectorAll("thead th")[at].classList.add("number");
    }
  }

  draw(frame, history) {
    const reached = reachedOf(history);
    const all = [...reached.values()].reduce((sum, one) => sum + one, 0);
    for (const backend of frame.backends) {
      const share = all > 0 ? (reached.get(backend.name) ?? 0) / all : null;
      this.#rows.get(backend.name)?.show(backend, share);
    }
  }
}

/** How many attempts reached each backend in ten seconds. */
function reachedOf(history) {
  const reached = new Map();
  for (const { backends, seconds } of history.frames.slice(-LONG_FRAMES)) {
    for (const { name, ok, failed, rejected } of backends) {
      reached.set(name, (reached.get(name) ?? 0) + (ok + failed + rejected) * seconds);
    }
  }
  return reached;
}

export class ClientsTable {
  id = "clients";
  element = byId("clients");
  #names;
  #rows = new Map();

  constructor(names) {
    this.#names = names;
    const head = this.element.querySelector("thead tr");
    const column = (attributes, ...children) =>
      head.append(make("th", { scope: "col", role: "columnheader", ...attributes }, ...children));
    names.forEach((name) => column({ class: "cell" }, name));
    column({ class: "number optional" }, "asked");
    column({ class: "number optional" }, "answered");
    column({ class: "number" }, "throttles");
    const legend = this.element.querySelector(".marks");
    for (const { sign, class: kind, words } of Object.values(MARKS)) {
      legend.append(
        make("li", {}, make("span", { class: `mark ${kind}`, "aria-hidden": "true" }, sign), words),
      );
    }
    legend.append(make("li", {}, "throttles: share of SHEDDABLE refused in the client"));
  }

  draw(frame, history) {
    for (const client of frame.clients) {
      const mean = (value) =>
        history.mean(SHORT_FRAMES, (one) => {
          const then = one.clients.find(({ name }) => name === client.name);
          return then === undefined ? null : value(then);
        });
      const row = this.#rows.get(client.name) ?? this.#add(client.name);
      const subset = new Set(client.subset);
      this.#names.forEach((name, at) => {
        const state = subset.has(name) ? (client.states?.[name] ?? "healthy") : "out";
        const mark = MARKS[state] ?? { sign: "?", class: "is-other", words: state };
        const { sign, spoken } = row.cells[at];
        setText(sign, mark.sign);
        setOneClass(sign, MARK_CLASSES, mark.class);
        setText(spoken, mark.words);
      });
      setText(row.asked, `${format.rate(mean(({ asked }) => asked))}/s`);
      setText(row.ok, `${format.rate(mean(({ ok }) => ok))}/s`);
      const throttled = mean((then) => then.throttle_probability?.SHEDDABLE ?? 0);
      setText(row.throttled, format.wholePercent(throttled));
    }
  }

  #add(name) {
    const cells = this.#names.map(() => ({
      sign: make("span", { class: "mark", "aria-hidden": "true" }, ""),
      spoken: make("span", { class: "unseen" }, ""),
    }));
    const row = {
      cells,
      asked: number("asked", "optional"),
      ok: number("answered", "optional"),
      throttled: number("throttles"),
    };
    this.element
      .querySelector("tbody")
      .append(
        make(
          "tr",
          { role: "row" },
          make("th", { scope: "row", role: "rowheader" }, name),
          ...cells.map(({ sign, spoken }) =>
            make("td", { role: "cell", class: "cell" }, sign, spoken),
          ),
          row.asked,
          row.ok,
          row.throttled,
        ),
      );
    this.#rows.set(name, row);
    return row;
  }
}

export class CustomersTable {
  id = "customers";
  element = byId("customers");
  #rows = new Map();

  constructor() {
    for (const head of [...this.element.querySelectorAll("thead th")].slice(1, 4)) {
      head.classList.add("number");
    }
  }

  draw(frame, history) {
    for (const [name, row] of this.#rows) {
      setHidden(row.element, frame.customers[name] === undefined);
    }
    for (const name of Object.keys(frame.customers)) {
      const row = this.#rows.get(name) ?? this.#add(name);
      const mean = (key) => history.mean(SHORT_FRAMES, (one) => one.customers[name]?.[key]);
      // Of what came to an end: what is asked for now is answered later.
      const answered = history.share(
        SHORT_FRAMES,
        (one) => one.customers[name]?.ok,
        (one) => ended(one.customers[name]),
      );
      setText(row.asked, `${format.rate(mean("asked"))}/s`);
      setText(row.refused, `${format.rate(mean("refused"))}/s`);
      setText(row.failed, `${format.rate(mean("failed"))}/s`);
      setBar(row.bar.fill, answered ?? 0);
      setText(row.bar.value, format.wholePercent(answered));
    }
  }

  #add(name) {
    const bar = makeBar(null);
    const row = {
      asked: number("asked"),
      refused: number("refused"),
      failed: number("failed"),
      bar,
    };
    row.element = make(
      "tr",
      { role: "row" },
      make("th", { scope: "row", role: "rowheader" }, name),
      row.asked,
      row.refused,
      row.failed,
      make("td", { role: "cell" }, ...bar.parts),
    );
    this.element.querySelector("tbody").append(row.element);
    this.#rows.set(name, row);
    return row;
  }
}
