// Numbers as people read them.  What is not known is a dash, never 0.

const NOTHING = "–";

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

export function rate(value) {
  if (!isNumber(value)) {
    return NOTHING;
  }
  return value > 0 && value < 9.95 ? value.toFixed(1) : Math.round(value).toString();
}

export function count(value) {
  return isNumber(value) ? Math.round(value).toString() : NOTHING;
}

/** A number at an axis: 2.5 must not become 3. */
export function tick(value) {
  return String(Number(value.toPrecision(3)));
}

/** 0.034 → "3.4 %": a decimal where a whole per cent would hide what matters. */
export function percent(share) {
  if (!isNumber(share)) {
    return NOTHING;
  }
  const value = share * 100;
  const isNearAnEnd = (value > 0 && value < 9.95) || (value > 98.5 && value < 99.95);
  return `${isNearAnEnd ? value.toFixed(1) : Math.round(value)} %`;
}

export function wholePercent(share) {
  return isNumber(share) ? `${Math.round(share * 100)} %` : NOTHING;
}

const MARKS = ["S", "S+", "C", "C+"];

/** What is below a line: 1.4 → "S+ 40 %" is all of SHEDDABLE, and 40 % of SHEDDABLE_PLUS. */
export function below(line) {
  if (!isNumber(line)) {
    return NOTHING;
  }
  const value = Math.min(Math.round(line * 100), 100 * MARKS.length);
  if (value <= 0) {
    return "nothing";
  }
  const rank = Math.ceil(value / 100) - 1;
  return `${MARKS[rank]} ${value - 100 * rank} %`;
}

export function milliseconds(value) {
  if (!isNumber(value)) {
    return NOTHING;
  }
  return value >= 9950 ? `${(value / 1000).toFixed(1)} s` : `${Math.round(value)} ms`;
}

/** 1.5 → "1.5 s". */
export function seconds(value) {
  return isNumber(value) ? `${tick(value)} s` : NOTHING;
}

export function times(value) {
  return isNumber(value) ? `× ${value.toFixed(1)}` : NOTHING;
}

/** Seconds since the start as 1:05. */
export function clock(since) {
  if (!isNumber(since)) {
    return NOTHING;
  }
  const whole = Math.max(0, Math.floor(since));
  return `${Math.floor(whole / 60)}:${String(whole % 60).padStart(2, "0")}`;
}
