// The guided tour: six stories, and the text of the one that runs.

import { byId, make, setAttribute, setHidden, setText } from "./dom.js";

export class Tour {
  id = "tour";
  element = byId("tour");
  #stories = new Map();
  #watched = [];
  #shown = null;

  constructor(description, orders) {
    const list = byId("stories");
    description.stories.forEach((story, at) => {
      const button = make(
        "button",
        { type: "button", class: "primary", "aria-label": `Start the story: ${story.title}` },
        "Start",
      );
      button.addEventListener("click", () =>
        orders.send({ do: "story", story: story.name }, button),
      );
      const item = make(
        "li",
        { "data-story": story.name },
        make("h3", {}, make("span", {}, `${at + 1} `), story.title),
        make("p", {}, story.intro ?? ""),
        make(
          "div",
          {},
          button,
          make("span", {}, story.seconds ? `${Math.round(story.seconds)} s` : ""),
        ),
      );
      list.append(item);
      this.#stories.set(story.name, { ...story, item, button });
    });
    const end = byId("story-end");
    end.addEventListener("click", () => orders.send({ do: "end_story" }, end));
    // Panels that are jumped to must not end up below the story's text, which stays on top.
    new ResizeObserver(([entry]) => {
      const height = Math.ceil(entry.borderBoxSize[0]?.blockSize ?? 0);
      document.documentElement.style.setProperty(
        "--story-height",
        height > 0 ? `${height + 16}px` : "0.75rem",
      );
    }).observe(byId("story"));
  }

  draw({ story }) {
    const key = story ? `${story.name}/${story.step}/${story.text}/${story.panels}` : null;
    if (key === this.#shown) {
      return;
    }
    this.#shown = key;
    setHidden(byId("story"), !story);
    this.element.classList.toggle("is-running", Boolean(story));
    for (const [name, { item, button, title }] of this.#stories) {
      const isRunning = name === story?.name;
      setAttribute(item, "aria-current", String(isRunning));
      setText(button, isRunning ? "Again" : "Start");
      setAttribute(button, "aria-label", `Start the story${isRunning ? " again" : ""}: ${title}`);
    }
    if (story) {
      const known = this.#stories.get(story.name);
      setText(byId("story-title"), known?.title ?? story.name);
      setText(byId("story-step"), `step ${story.step + 1} of ${story.steps}`);
      setText(byId("story-text"), story.text ?? "");
      setText(byId("story-look"), known?.look ?? "");
    }
    this.#watch(story?.panels ?? []);
  }

  #watch(ids) {
    for (const panel of this.#watched) {
      panel.classList.remove("is-watched");
    }
    this.#watched = ids.map(byId).filter((panel) => panel !== null);
    const links = this.#watched.map((panel) => {
      panel.classList.add("is-watched");
      return make("a", { href: `#${panel.id}` }, panel.querySelector("h2").textContent);
    });
    byId("story-panels").replaceChildren(...(links.length > 0 ? ["Panels: ", ...links] : []));
  }
}
