// What happened, newest first.

import { byId, make } from "./dom.js";
import { clock } from "./format.js";

const MOST_EVENTS = 80;
const KINDS = { user: "You: ", story: "Story: ", fleet: "" };

export class Log {
  #list = byId("events");

  clear() {
    this.#list.replaceChildren();
    // What happened before the page was opened is not read aloud; what happens from now on is.
    this.#list.removeAttribute("aria-live");
  }

  announce() {
    this.#list.setAttribute("aria-live", "polite");
  }

  add(events) {
    for (const event of events) {
      this.#list.prepend(
        make(
          "li",
          {},
          make("time", {}, clock(event.t)),
          make("span", {}, make("span", { class: "kind" }, KINDS[event.kind] ?? ""), event.text),
        ),
      );
    }
    while (this.#list.childElementCount > MOST_EVENTS) {
      this.#list.lastElementChild.remove();
    }
  }
}
