// Light or dark: as the system says, until the button says otherwise for this tab.

import { byId, setText } from "./dom.js";

const KEY = "evenly-theme";
const dark = matchMedia("(prefers-color-scheme: dark)");
const listeners = [];

const remembered = () => {
  try {
    return sessionStorage.getItem(KEY);
  } catch {
    return null; // storage is switched off: the button works until the next load
  }
};

let chosen = remembered();

const isDark = () => (chosen === null ? dark.matches : chosen === "dark");

function show() {
  document.documentElement.dataset.theme = isDark() ? "dark" : "light";
  setText(byId("theme"), isDark() ? "Light theme" : "Dark theme");
  for (const listener of listeners) {
    listener();
  }
}

/** Call `listener` after each change: canvases do not follow CSS by themselves. */
export function onThemeChange(listener) {
  listeners.push(listener);
}

/** Read a colour of style.css, such as "--ink". */
export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

export function startTheme() {
  byId("theme").addEventListener("click", () => {
    chosen = isDark() ? "light" : "dark";
    try {
      sessionStorage.setItem(KEY, chosen);
    } catch {
      // as above
    }
    show();
  });
  dark.addEventListener("change", show);
  show();
}
