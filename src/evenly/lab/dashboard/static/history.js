// The last two minutes of frames, and sums over the last few seconds: one frame is half a second,
// in which a dozen requests of a kind are asked for, and their share would jump.

export const MOST_FRAMES = 240;
export const WINDOW_SECONDS = 120;
// All figures, legends and rows say what was so on average over two seconds, and what is too rare
// for that over ten.
export const SHORT_FRAMES = 4;
export const LONG_FRAMES = 20;

export class History {
  frames = [];
  marks = []; // times of what a person or a story did

  get last() {
    return this.frames.at(-1) ?? null;
  }

  clear() {
    this.frames = [];
    this.marks = [];
  }

  push(frame) {
    this.frames.push(frame);
    if (this.frames.length > MOST_FRAMES) {
      this.frames.shift();
    }
    for (const event of frame.events ?? []) {
      if (event.kind !== "fleet") {
        this.marks.push(event.t);
      }
    }
    while (this.marks.length > 0 && this.marks[0] < frame.t - WINDOW_SECONDS) {
      this.marks.shift();
    }
  }

  /** Average `value(frame)` over the last `count` frames; null if none of them has one. */
  mean(count, value) {
    let total = 0;
    let known = 0;
    for (const frame of this.frames.slice(-count)) {
      const one = value(frame);
      if (typeof one === "number") {
        total += one;
        known += 1;
      }
    }
    return known === 0 ? null : total / known;
  }

  /** How often `rate(frame)`, which is per second, happened in the last `count` frames. */
  total(count, rate) {
    let total = 0;
    for (const frame of this.frames.slice(-count)) {
      total += (rate(frame) ?? 0) * frame.seconds;
    }
    return total;
  }

  /** Share of `part` in `whole` over the last `count` frames; null if there was nothing. */
  share(count, part, whole) {
    const all = this.total(count, whole);
    return all <= 0 ? null : this.total(count, part) / all;
  }

  /** Retries per first attempt: what was sent once more for each that was sent. */
  retryRatio() {
    return this.share(
      LONG_FRAMES,
      ({ rates }) => rates.retries,
      ({ rates }) => rates.attempts - rates.retries,
    );
  }
}

/** The requests of a kind that came to an end. */
export const ended = (counts) =>
  counts === undefined || counts === null ? null : counts.ok + counts.failed + counts.refused;
