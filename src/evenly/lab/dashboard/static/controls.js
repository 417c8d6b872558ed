// The controls of the whole fleet, and the one place from which orders are sent.

import {
  byId,
  make,
  makeToggle,
  setAttribute,
  setHidden,
  setOneClass,
  setText,
  setToggle,
} from "./dom.js";
import * as format from "./format.js";

const LOADS = [0.5, 0.7, 1, 2, 3, 5, 10];
// After a choice the frames still tell the old setting for a moment: do not jump back to it.
const SETTLE_MS = 1500;

const NOTES = {
  policy: "How a client chooses a backend.",
  throttle: "When a client refuses by itself, to spare the backends.",
};
const WITHOUT_EFFECT = "Without effect while the protection is off.";

/** Send orders, and tell the person if one was not carried out. */
export class Orders {
  #connection;

  constructor(connection) {
    this.#connection = connection;
    byId("problem-close").addEventListener("click", () => setHidden(byId("problem"), true));
  }

  /** Return whether it was done. */
  async send(order, button = null) {
    button?.setAttribute("aria-busy", "true");
    try {
      await this.#connection.control(order);
      setHidden(byId("problem"), true);
      return true;
    } catch (error) {
      this.#complain(error.message, button);
      return false;
    } finally {
      button?.removeAttribute("aria-busy");
    }
  }

  /** Show the message beside the button that was pressed: the controls may be out of sight. */
  #complain(text, button) {
    const problem = byId("problem");
    const panel = button?.closest(".panel") ?? byId("controls");
    panel.querySelector("h2").after(problem);
    setText(byId("problem-text"), `Not done: ${text}`);
    setHidden(problem, false);
  }
}

function field(id, label, control, note) {
  const text = make("label", { class: "control-label", for: id }, label);
  control.id = id;
  control.setAttribute("aria-describedby", `${id}-note`);
  return make(
    "div",
    {},
    text,
    control,
    make("p", { class: "control-note", id: `${id}-note` }, note),
  );
}

function select(names, standard) {
  return make(
    "select",
    {},
    ...names.map((name) => {
      const shown = name.replaceAll("_", " ") + (name === standard ? " (default)" : "");
      return make("option", { value: name }, shown);
    }),
  );
}

export class Controls {
  id = "controls";
  element = byId("controls");
  #orders;
  #loads;
  #load = make("span", {}, "");
  #policy;
  #throttle;
  #protection = makeToggle("Protection", { class: "line", "aria-describedby": "protection-note" });
  #wild = makeToggle("Wild customer", { class: "line", "aria-describedby": "wild-note" });
  #touched = new Map();

  constructor(description, orders) {
    this.#orders = orders;
    this.#loads = new Map(LOADS.map((load) => [load, this.#loadButton(load)]));
    this.#policy = select(description.policies, description.settings?.policy);
    this.#throttle = select(description.throttles, description.settings?.throttle);
    this.#choose(this.#policy, (policy) => ({ do: "policy", policy }));
    this.#choose(this.#throttle, (throttle) => ({ do: "throttle", throttle }));
    this.#flip(this.#protection, (isOn) => ({ do: "protect", is_on: isOn }));
    this.#flip(this.#wild, (isOn) => ({ do: "wild", is_on: isOn }));
    byId("control-list").append(
      make(
        "fieldset",
        {},
        make("legend", {}, make("span", { class: "control-label" }, "Load", this.#load)),
        make("div", { class: "loads" }, ...this.#loads.values()),
        make("p", { class: "control-note" }, "× 1 is all that the fleet can serve."),
      ),
      make(
        "div",
        {},
        this.#protection.button,
        make(
          "p",
          { class: "control-note", id: "protection-note" },
          "Off: plain round robin, no throttle, retries without a budget; backends refuse nothing.",
        ),
      ),
      make(
        "div",
        {},
        this.#wild.button,
        make(
          "p",
          { class: "control-note", id: "wild-note" },
          "On: one customer asks for twice the capacity on top; it has paid for a tenth.",
        ),
      ),
      field("policy", "Policy", this.#policy, NOTES.policy),
      field("throttle", "Throttle", this.#throttle, NOTES.throttle),
      make(
        "div",
        { class: "pair" },
        this.#button("Rolling restart", { do: "rolling_restart" }),
        this.#button("Reset all", { do: "reset" }),
      ),
    );
  }

  draw({ settings, capacity }) {
    // Not what is offered: that may be more, by what a wild customer asks for.
    const rate = format.rate(settings.load * capacity);
    setText(this.#load, `now × ${Number(settings.load.toFixed(2))} = ${rate}/s`);
    for (const [load, button] of this.#loads) {
      setAttribute(button, "aria-pressed", String(Math.abs(load - settings.load) < 0.001));
    }
    this.#follow(this.#policy, settings.policy);
    this.#follow(this.#throttle, settings.throttle);
    for (const [name, note] of Object.entries(NOTES)) {
      setText(byId(`${name}-note`), settings.is_protected ? note : WITHOUT_EFFECT);
    }
    setToggle(this.#protection, settings.is_protected);
    const warning = settings.is_protected ? null : "is-warning";
    setOneClass(this.#protection.button, ["is-warning"], warning);
    setToggle(this.#wild, settings.is_wild);
  }

  #follow(element, value) {
    const isSettled = performance.now() - (this.#touched.get(element) ?? -Infinity) > SETTLE_MS;
    if (isSettled && element.value !== value) {
      element.value = value;
    }
  }

  #loadButton(load) {
    const button = make(
      "button",
      {
        type: "button",
        "aria-pressed": "false",
        "aria-label": `load ${load} times the capacity`,
      },
      `×${load}`,
    );
    button.addEventListener("click", () => this.#orders.send({ do: "load", load }, button));
    return button;
  }

  #button(label, order) {
    const button = make("button", { type: "button" }, label);
    button.addEventListener("click", () => this.#orders.send(order, button));
    return button;
  }

  #choose(element, orderOf) {
    element.addEventListener("change", async () => {
      this.#touched.set(element, performance.now());
      if (!(await this.#orders.send(orderOf(element.value), element))) {
        this.#touched.delete(element); // the next frame puts the old value back
      }
    });
  }

  #flip(toggle, orderOf) {
    toggle.button.addEventListener("click", () => {
      const isOn = toggle.button.getAttribute("aria-pressed") !== "true";
      this.#orders.send(orderOf(isOn), toggle.button);
    });
  }
}
