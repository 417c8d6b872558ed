"use strict";

// Draw every panel of the page as an SVG of its own, from the JSON in #data.  Text reaches the page
// as textContent only.  Every panel has a slider that nobody sees: it is what keyboards and screen
// readers move, and it reads out the same values as the pointer does.
(() => {
  const HEIGHT = 220;
  const MARGIN = { top: 14, right: 10, bottom: 26, left: 54 };
  const BASE = HEIGHT - MARGIN.bottom;
  const WIDE_SPAN = 20; // From so many times on, an axis that may be logarithmic is.
  const data = JSON.parse(document.getElementById("data").textContent);
  const unseen = new Set(); // policies that are switched off
  let load = 0;

  const views = [...document.querySelectorAll("[data-chart]")].map((element) => ({
    element,
    plot: element.querySelector(".plot"),
    panels: data.charts[element.dataset.chart],
  }));
  const panelOf = (view) => view.panels[view.panels.length > 1 ? load : 0];
  const linesOf = (panel) => panel.lines.filter((line) => !unseen.has(line.policy));
  const lookOf = (line) => (line.policy === null ? "" : data.policies[line.policy].look);

  function svg(name, attributes, parent, text) {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== undefined) made.textContent = text;
    parent.append(made);
    return made;
  }

  function html(name, properties, parent) {
    const made = Object.assign(document.createElement(name), properties);
    parent.append(made);
    return made;
  }

  const digits = (value) =>
    value < 99.95 ? String(Number(value.toPrecision(3))) : Math.round(value).toLocaleString("en");

  // As units.py writes them; where only all is 100% and only nothing is 0%.
  function said(value, unit) {
    if (value === null) return "–";
    if (unit === "percent" && value > 0 && value < 0.00005) return "<0.01%";
    if (unit === "percent" && value >= 0.99995 && value < 1) return ">99.99%";
    if (unit === "percent") return `${(100 * value).toFixed(2)}%`;
    if (unit === "each") return value.toFixed(3);
    if (unit === "ratio" && value < 99.95) return value.toFixed(2);
    if (unit !== "seconds") return digits(value);
    if (value >= 0.9995 || value === 0) return `${digits(value)} s`;
    return value >= 0.0009995 ? `${digits(1e3 * value)} ms` : `${digits(1e6 * value)} µs`;
  }

  // Round numbers, so they do without zeros at the end, and may be as small as the axis is.
  function saidTick(value, unit) {
    if (unit === "percent") return `${Number((100 * value).toPrecision(4))}%`;
    return unit === "seconds" ? said(value, unit) : digits(value);
  }

  // Return round numbers from low to high: at most about so many.
  function roundTicks(low, high, wanted) {
    const rough = (high - low) / wanted || 1;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = power * [1, 2, 5, 10].find((one) => one * power >= rough * 0.999);
    const ticks = [];
    for (let place = Math.ceil(low / step - 1e-9); place * step <= high + step * 1e-9; place++)
      ticks.push(Number((place * step).toPrecision(12)));
    return ticks;
  }

  function powerTicks(low, high) {
    const ticks = [];
    for (let power = Math.floor(Math.log10(low)); 10 ** power <= high; power++)
      for (const first of [1, 2, 5]) ticks.push(Number(`${first}e${power}`));
    const seen = ticks.filter((tick) => tick >= low && tick <= high);
    return seen.length <= 6 ? seen : seen.filter((tick) => Number.isInteger(Math.log10(tick)));
  }

  // Return the vertical scale of a panel, which panels with the same axis share; null: no values.
  function scaleOf(panel) {
    const isPeer = (other) => other && panel.axis && other.axis === panel.axis;
    const peers = [panel, ...views.map(panelOf).filter(isPeer)];
    const lines = peers.flatMap(linesOf).flatMap((line) => line.values);
    const values = lines.filter((value) => value !== null).sort((one, two) => one - two);
    if (!values.length) return null;
    const least = values[0];
    const leastAbove = values.find((value) => value > 0);
    const most = Math.max(values.at(-1), ...(panel.marks ?? []).map((mark) => mark.at));
    const isWide = most > WIDE_SPAN * leastAbove;
    if (panel.scale !== "linear" && isWide) {
      const hasZero = panel.scale === "log1p";
      const [low, high] = [hasZero ? 0 : leastAbove / 1.15, most * 1.15];
      const ticks = hasZero ? [0, ...powerTicks(1, high)] : powerTicks(low, high);
      return { low, high, by: hasZero ? Math.log1p : Math.log, name: "log scale", ticks };
    }
    const low = Math.min(panel.floor ?? 0, least);
    const bound = Math.max(panel.top ?? 0, most);
    const high = bound === panel.top && bound > low ? bound : low + (bound - low || 1) * 1.05;
    return { low, high, by: (value) => value, name: "", ticks: roundTicks(low, high, 5) };
  }

  // Return the horizontal scale, and the places of all points in pixels and in words.
  function pointsOf({ unit, at, step, count }, width) {
    const [low, high] = unit === "load" ? [at[0], at[at.length - 1]] : [0, count * step];
    const inner = width - MARGIN.left - MARGIN.right;
    const x = (value) => MARGIN.left + (inner * (value - low)) / (high - low || 1);
    if (unit === "load")
      return { x, ticks: at, places: at.map(x), said: at.map((value) => `load ${value}`) };
    const places = Array.from({ length: count }, (_, place) => x((place + 0.5) * step));
    const said = places.map((_, place) => `${place * step}–${(place + 1) * step} s`);
    return { x, ticks: roundTicks(low, high, inner / 80), places, said };
  }

  function pathOf(values, places, y) {
    let path = "";
    let isOpen = false;
    values.forEach((value, place) => {
      const height = value === null ? NaN : y(value);
      const isThere = Number.isFinite(height);
      const point = `${places[place].toFixed(1)} ${height.toFixed(1)}`;
      if (isThere) path += isOpen ? `L${point}` : `M${point}h.1`; // A point alone is a dot.
      isOpen = isThere;
    });
    return path;
  }

  function drawAxes({ scale, points, y, root }, panel, width) {
    const right = width - MARGIN.right;
    const across = (height, kind) =>
      svg("line", { x1: MARGIN.left, x2: right, y1: height, y2: height, class: kind }, root);
    const write = (x, height, anchor, text) =>
      svg("text", { x, y: height, "text-anchor": anchor }, root, text);
    const [begin, end] = (panel.x.measured ?? []).map((at) => Math.min(points.x(at), right));
    for (const [from, to] of panel.x.measured ? [[MARGIN.left, begin], [end, right]] : []) {
      const box = { x: from, y: MARGIN.top, width: to - from, height: BASE - MARGIN.top };
      if (to > from) svg("rect", { ...box, class: "unmeasured" }, root);
    }
    for (const tick of scale.ticks) {
      across(y(tick), "grid");
      write(MARGIN.left - 6, y(tick) + 4, "end", saidTick(tick, panel.unit));
    }
    let free = 0; // Loads may lie close together: write those that have room.
    for (const tick of points.ticks) {
      const x = points.x(tick);
      const text = panel.x.unit === "s" ? `${tick} s` : `load ${tick}`;
      if (x >= free) write(x, HEIGHT - 8, x > right - 14 ? "end" : "middle", text);
      free = Math.max(free, x + 60);
    }
    if (scale.name) write(right, 10, "end", scale.name);
    for (const mark of panel.marks ?? []) {
      across(y(mark.at), "mark");
      write(right, y(mark.at) - 4, "end", mark.label);
    }
  }

  function drawLines(view, panel) {
    const { points, y, root } = view;
    const draw = (d, line, kind) => svg("path", { d, class: `${lookOf(line)} ${kind}` }, root);
    for (const [low, high] of panel.bands ?? []) {
      const [below, above] = [panel.lines[low].values, panel.lines[high].values];
      const there = pathOf(above, points.places, y);
      const back = pathOf(below.toReversed(), points.places.toReversed(), y);
      draw(`${there}${back.replace("M", "L")}Z`, panel.lines[low], "band");
    }
    const backends = panel.backends ?? [];
    // The more lines, the fainter each: they are a texture, and only a crowd is dark.
    root.style.setProperty("--faintness", Math.min(0.5, Math.max(0.15, 8 / backends.length)));
    view.backends = backends.map((values) =>
      draw(pathOf(values, points.places, y), panel.lines[0], "backend"),
    );
    for (const line of linesOf(panel).filter((one) => one.kind !== "quiet")) {
      const path = draw(pathOf(line.values, points.places, y), line, `line ${line.kind}`);
      path.dataset.policy = line.policy;
      if (panel.x.unit === "load")
        line.values.forEach((_, place) => drawDot(view, line, place, root));
    }
  }

  function drawDot({ points, y }, line, place, parent) {
    const height = line.values[place] == null ? NaN : y(line.values[place]);
    const dot = { cx: points.places[place], cy: height, r: 3.5, class: `dot ${lookOf(line)}` };
    if (Number.isFinite(height) && line.kind !== "quiet") svg("circle", dot, parent);
  }

  function draw(view) {
    const panel = panelOf(view);
    view.element.hidden = Boolean(panel) && unseen.has(panel.policy);
    view.plot.replaceChildren();
    view.root = null;
    view.scale = panel && !view.element.hidden && scaleOf(panel);
    if (!view.scale) view.plot.append(panel ? "Nothing to show" : "Did not run");
    else drawChart(view, panel);
  }

  function drawChart(view, panel) {
    const width = Math.max(120, view.plot.clientWidth); // A window may open with no width yet.
    const words = view.element.querySelector(".words:not([hidden])");
    const heading = view.element.closest("section").querySelector("h2");
    const title = `${heading.textContent}, ${view.element.querySelector("h3").textContent}`;
    const label = `${title}. ${words.textContent}`;
    view.root = svg("svg", { width, height: HEIGHT, role: "img", "aria-label": label }, view.plot);
    const [low, high] = [view.scale.low, view.scale.high].map(view.scale.by);
    view.y = (value) => BASE - ((BASE - MARGIN.top) * (view.scale.by(value) - low)) / (high - low);
    view.points = pointsOf(panel.x, width);
    drawAxes(view, panel, width);
    drawLines(view, panel);
    view.cursor = svg("g", { class: "cursor" }, view.root);
    view.tip = html("div", { className: "tip", hidden: true }, view.plot);
    listen(view, title);
  }

  function listen(view, title) {
    const { places } = view.points;
    const range = { type: "range", className: "unseen", min: 0, max: places.length - 1 };
    const ariaLabel = `${title}: values at a point`;
    view.slider = html("input", { ...range, ariaLabel }, view.plot);
    view.slider.oninput = view.slider.onfocus = () => point(view, Number(view.slider.value));
    view.slider.onblur = unpoint;
    view.root.onpointermove = view.root.onpointerdown = (event) => {
      const box = view.root.getBoundingClientRect();
      const away = places.map((place) => Math.abs(place - event.clientX + box.left));
      point(view, away.indexOf(Math.min(...away)), event.clientY - box.top);
    };
    // A finger leaves at once; what it touched stays.
    view.root.onpointerleave = (event) => event.pointerType === "mouse" && unpoint();
  }

  // Show the values of one view at one point, and the same moment in all others.
  function point(view, place, height) {
    unpoint();
    const panel = panelOf(view);
    for (const other of views.filter((one) => one.root && panelOf(one).x.unit === panel.x.unit)) {
      const x = other.points.places[place];
      svg("line", { x1: x, x2: x, y1: MARGIN.top, y2: BASE }, other.cursor);
    }
    const rows = linesOf(panel);
    const valueOf = (row) => row.values[place] ?? null;
    if (!panel.axis) rows.sort((one, two) => (valueOf(two) ?? -1) - (valueOf(one) ?? -1));
    rows.push(...nearestBackend(view, panel, place, height));
    const x = view.points.places[place];
    view.tip.replaceChildren();
    html("strong", { textContent: view.points.said[place] }, view.tip);
    for (const row of rows) {
      const line = html("div", {}, view.tip);
      const swatch = svg("svg", { class: `swatch ${lookOf(row)}` }, line);
      svg("path", { class: `line ${row.kind}`, d: "M0 3h36" }, swatch);
      html("span", { textContent: row.label }, line);
      html("b", { textContent: said(valueOf(row), panel.unit) }, line);
      drawDot(view, row, place, view.cursor);
    }
    view.tip.hidden = false;
    const room = view.plot.clientWidth;
    const left = x > room / 2 ? x - 10 - view.tip.offsetWidth : x + 10;
    view.tip.style.left = `${Math.max(0, Math.min(left, room - view.tip.offsetWidth))}px`;
    view.slider.value = place;
    const values = rows.map((row) => `${row.label} ${said(valueOf(row), panel.unit)}`);
    view.slider.ariaValueText = [view.points.said[place], ...values].join(", ");
  }

  function nearestBackend(view, panel, place, height) {
    if (height === undefined || !view.backends.length) return [];
    const away = panel.backends.map((values) => Math.abs(view.y(values[place]) - height));
    const backend = away.indexOf(Math.min(...away));
    view.backends[backend].classList.add("near");
    const values = panel.backends[backend];
    return [{ policy: panel.policy, label: `backend ${backend}`, kind: "", values }];
  }

  function unpoint() {
    for (const view of views.filter((one) => one.root)) {
      view.cursor.replaceChildren();
      view.tip.hidden = true;
      for (const path of view.plot.querySelectorAll(".near")) path.classList.remove("near");
    }
  }

  function drawAll() {
    for (const part of document.querySelectorAll("[data-load]"))
      part.hidden = Number(part.dataset.load) !== load;
    views.forEach(draw);
  }

  function dimAllBut(policy) {
    for (const path of document.querySelectorAll("path[data-policy]"))
      path.classList.toggle("dim", policy !== null && path.dataset.policy !== policy);
  }

  for (const box of document.querySelectorAll("input[data-policy]")) {
    box.addEventListener("change", () => {
      unseen[box.checked ? "delete" : "add"](Number(box.dataset.policy));
      drawAll();
    });
    const label = box.closest("label");
    label.addEventListener("pointerenter", () => dimAllBut(box.dataset.policy));
    label.addEventListener("pointerleave", () => dimAllBut(null));
  }
  const select = document.getElementById("load");
  select?.addEventListener("change", () => {
    load = Number(select.value);
    drawAll();
  });

  let width = 0;
  new ResizeObserver(() => {
    if (document.body.clientWidth === width) return;
    width = document.body.clientWidth;
    drawAll();
  }).observe(document.body);
})();
