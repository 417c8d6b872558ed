// Put the page together: frames come in, are remembered, and what is in sight is drawn.

import { makeCharts } from "./charts.js";
import { Controls, Orders } from "./controls.js";
import { byId, setHidden, setOneClass, setText } from "./dom.js";
import { Figures } from "./figures.js";
import { History } from "./history.js";
import { Log } from "./log.js";
import { Connection, TROUBLE, tokenOf } from "./stream.js";
import { BackendsTable, ClientsTable, CustomersTable } from "./tables.js";
import { startTheme } from "./theme.js";
import { Tour } from "./tour.js";

const LEAST_DRAW_MS = 400; // frames come every 500 ms; what comes faster is drawn together
const CALM_DRAW_SECONDS = 0.9; // while only figures change, every other frame is enough to read

const NO_TOKEN = ["This page needs its token", "The address in your browser has no token."];
const NOT_THIS_TOKEN = [
  "This token is not the right one",
  "The demo does not accept the token of this address. Most likely it was started again since.",
];
const NOT_THIS_ADDRESS = [
  "This is not the address of the demo",
  "The demo answers only under the very address that it printed, so that no other site can reach " +
    "it through your browser.",
];

const WHAT_IS_WRONG = {
  [TROUBLE.ended]: () => "The demo has closed the connection.",
  [TROUBLE.silent]: () =>
    "The demo does not answer: it was ended (Ctrl-C) or killed, or it hangs. " +
    "If it was started again, open its new address.",
  [TROUBLE.answered]: (words) => `The demo answers, but not with its figures: ${words}`,
  [TROUBLE.mute]: () =>
    "The demo answers, but makes no figures any more: look at the terminal in which it runs.",
};

class Page {
  #connection;
  #history = new History();
  #log = new Log();
  #charts = [];
  #parts = []; // all that has draw(frame, history)
  #inSight = new Set();
  #backends = null;
  #drawnAt = -Infinity;
  #isDrawPending = false;
  #drawnFrame = null;

  constructor(connection) {
    this.#connection = connection;
    document.addEventListener("visibilitychange", () => this.#askToDraw());
  }

  follow() {
    byId("banner-button").addEventListener("click", () => this.#connection.retryNow());
    return this.#connection.follow({
      trying: () => setText(byId("banner-when"), "Trying again now."),
      described: (description) => this.#described(description),
      live: () => this.#live(),
      history: (frames) => this.#replace(frames),
      frame: (frame) => this.#add(frame),
      lost: (trouble, seconds, words) => this.#lost(trouble, seconds, words),
      refused: (status) => explain(...(status === 403 ? NOT_THIS_ADDRESS : NOT_THIS_TOKEN)),
    });
  }

  #live() {
    connectionIs("live", "live");
    setHidden(byId("banner"), true);
    byId("page").classList.remove("is-old");
  }

  #described(description) {
    const backends = description.plan.backends.map(({ name }) => name);
    if (this.#backends === null) {
      setHidden(byId("page"), false);
      this.#build(description, backends);
    } else if (this.#backends.join() !== backends.join()) {
      location.reload(); // another fleet answers at this address now
    }
    this.#backends = backends;
  }

  #build(description, backends) {
    const orders = new Orders(this.#connection);
    this.#charts = makeCharts(description.plan, this.#history);
    this.#parts = [
      new Figures(description.plan),
      new Tour(description, orders),
      new Controls(description, orders),
      new BackendsTable(description.plan.backends, (order, button) => orders.send(order, button)),
      new CustomersTable(),
      new ClientsTable(backends),
      ...this.#charts,
    ];
    const sight = new IntersectionObserver((entries) => this.#see(entries), {
      rootMargin: "100px",
    });
    for (const part of this.#parts) {
      sight.observe(part.element);
    }
    byId("explanation").textContent =
      `Here ${backends.length} real backend processes of unequal speed serve ` +
      `${description.plan.clients.length} clients on this machine: evenly spreads the requests ` +
      "so that all backends are equally busy and, when there are too many requests, refuses " +
      "the least important ones first.";
  }

  #see(entries) {
    for (const { target, isIntersecting } of entries) {
      const part = this.#parts.find(({ element }) => element === target);
      if (isIntersecting) {
        this.#inSight.add(part);
      } else {
        this.#inSight.delete(part);
      }
    }
    this.#drawnAt = -Infinity;
    this.#askToDraw();
  }

  #replace(frames) {
    this.#drawnFrame = null; // of another fleet, perhaps, whose clock was ahead
    this.#history.clear();
    this.#charts.forEach((chart) => chart.clear());
    this.#log.clear();
    frames.forEach((frame) => this.#remember(frame));
    this.#log.announce();
    this.#askToDraw();
  }

  #add(frame) {
    this.#remember(frame);
    const drawn = this.#drawnFrame;
    if (
      drawn === null ||
      frame.t - drawn.t >= CALM_DRAW_SECONDS ||
      newsOf(frame) !== newsOf(drawn)
    ) {
      this.#askToDraw();
    }
  }

  #remember(frame) {
    this.#history.push(frame);
    this.#charts.forEach((chart) => chart.push(frame));
    this.#log.add(frame.events ?? []);
  }

  #askToDraw() {
    if (document.hidden || this.#isDrawPending) {
      return;
    }
    this.#isDrawPending = true;
    const wait = Math.max(0, this.#drawnAt + LEAST_DRAW_MS - performance.now());
    setTimeout(() => requestAnimationFrame(() => this.#draw()), wait);
  }

  #draw() {
    this.#isDrawPending = false;
    this.#drawnAt = performance.now();
    const frame = this.#history.last;
    if (frame === null) {
      return;
    }
    this.#drawnFrame = frame;
    for (const part of this.#parts) {
      if (this.#inSight.has(part) || part instanceof Tour) {
        part.draw(frame, this.#history);
      }
    }
    if (typeof frame.demo_cores === "number") {
      setText(
        byId("cost"),
        `All processes of the demo together use ${frame.demo_cores.toFixed(1)} CPU cores now.`,
      );
    }
  }

  #lost(trouble, seconds, words) {
    connectionIs("lost", trouble === TROUBLE.mute ? "no new figures" : "not connected");
    setText(byId("banner-text"), `${WHAT_IS_WRONG[trouble](words)} What you see is old.`);
    setText(byId("banner-when"), whenAgain(seconds));
    setHidden(byId("banner"), false);
    byId("page").classList.add("is-old");
  }
}

function whenAgain(seconds) {
  if (seconds === null) {
    return "This page goes on as soon as there are new ones.";
  }
  return `Trying again in ${seconds < 1 ? "a moment" : `${Math.round(seconds)} s`}.`;
}

/** What must be shown at once: a setting, a step of a story, the state of a backend. */
function newsOf({ settings, story, backends, events }) {
  const states = backends.map(({ state, faults }) => [state, faults]);
  return JSON.stringify([settings, story?.name, story?.step, states, events.length > 0]);
}

function connectionIs(state, text) {
  setOneClass(byId("connection"), ["is-live", "is-lost"], `is-${state}`);
  setText(byId("connection-text"), text);
}

function explain(title, why) {
  connectionIs("lost", "not connected");
  setText(byId("no-token-title"), title);
  setText(byId("no-token-why"), why);
  setHidden(byId("no-token"), false);
  setHidden(byId("banner"), true);
  setHidden(byId("page"), true);
}

/** Jump within the page without touching the address: its fragment is the token. */
function keepTokenInAddress() {
  document.addEventListener("click", (event) => {
    const link = event.target.closest?.('a[href^="#"]');
    const target = link ? byId(link.getAttribute("href").slice(1)) : null;
    if (target === null) {
      return;
    }
    event.preventDefault();
    if (!target.hasAttribute("tabindex")) {
      target.setAttribute("tabindex", "-1");
    }
    target.scrollIntoView();
    target.focus({ preventScroll: true });
  });
  addEventListener("hashchange", () => location.reload());
}

function start() {
  startTheme();
  keepTokenInAddress();
  const token = tokenOf(location.hash);
  if (token === null) {
    explain(...NO_TOKEN);
  } else {
    new Page(new Connection(token)).follow();
  }
}

start();
