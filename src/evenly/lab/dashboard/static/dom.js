// Make and change elements.  Text goes in as text, never as HTML, and only where it changed: an
// unchanged text node costs no layout, and the page is redrawn twice a second.

export const byId = (id) => document.getElementById(id);

/** Make an element: `make("td", { class: "number", "data-label": "active" }, "12")`. */
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) {
      element.setAttribute(name, value === true ? "" : String(value));
    }
  }
  element.append(...children);
  return element;
}

export function setText(element, text) {
  const node = element.firstChild;
  if (node === null) {
    element.append(text);
  } else if (node.data !== text) {
    node.data = text;
  }
}

export function setAttribute(element, name, value) {
  if (element.getAttribute(name) !== value) {
    element.setAttribute(name, value);
  }
}

export function setHidden(element, isHidden) {
  if (element.hidden !== isHidden) {
    element.hidden = isHidden;
  }
}

/** Set the class among `names` that says what is so, and remove the others. */
export function setOneClass(element, names, name) {
  for (const one of names) {
    if (element.classList.contains(one) !== (one === name)) {
      element.classList.toggle(one);
    }
  }
}

/** Make a button that is pressed or not, says so to a screen reader, and shows it in a word. */
export function makeToggle(label, attributes = {}) {
  const state = make("span", { class: "toggle-state", "aria-hidden": "true" }, "off");
  const button = make(
    "button",
    { type: "button", "aria-pressed": "false", ...attributes },
    label,
    " ",
    state,
  );
  return { button, state };
}

export function setToggle(toggle, isOn) {
  setAttribute(toggle.button, "aria-pressed", String(isOn));
  setText(toggle.state, isOn ? "on" : "off");
}

/** Show how much of a bar is full; a transform needs no layout. */
export function setBar(bar, share) {
  const transform = `scaleX(${Math.max(0, Math.min(1, share)).toFixed(2)})`;
  if (bar.style.transform !== transform) {
    bar.style.transform = transform;
  }
}
