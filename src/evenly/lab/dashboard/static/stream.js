// The server's events, read with fetch: EventSource cannot send the token as a header, and in the
// address the token would end up in logs.

const FIRST_WAIT_SECONDS = 0.5;
const MOST_WAIT_SECONDS = 15;
// How long the server may take to describe itself or to begin the stream, and to do an order.
const ANSWER_SECONDS = 3;
const ORDER_SECONDS = 10;
// Frames come every 0.5 s.  Without one for so long the server is asked whether it is there at all.
const FRAMELESS_SECONDS = 4;
// While there are no frames the server writes a comment every 10 s.
const SILENCE_SECONDS = 15;

/** The server does not let this page in, and will not later: 401 the token, 403 the address. */
export class Refused extends Error {
  constructor(status) {
    super(`status ${status}`);
    this.status = status;
  }
}

/** Return the token of `#token=…`, or null. */
export function tokenOf(hash) {
  const token = new URLSearchParams(hash.replace(/^#/, "")).get("token");
  return token === null || token.trim() === "" ? null : token.trim();
}

/** The server answered, but not with what was asked for. */
class Answered extends Error {}

/** Why there are no frames: the stream ended, nobody answers, the server said why, or it does
 * answer but has nothing new to tell.
 */
export const TROUBLE = { ended: "ended", silent: "silent", answered: "answered", mute: "mute" };

export class Connection {
  #token;
  #attempt = new AbortController();
  #isLive = false;
  #isHurried = false;
  #latest = null; // the time of the newest frame that is known
  #wake = () => {};

  constructor(token) {
    this.#token = token;
  }

  get headers() {
    return { "evenly-token": this.#token };
  }

  /** Do one thing to the fleet; throw an Error with the server's words if it was not done. */
  async control(order) {
    let answer;
    try {
      answer = await fetch("/api/control", {
        method: "POST",
        headers: { ...this.headers, "content-type": "application/json" },
        body: JSON.stringify(order),
        signal: AbortSignal.timeout(ORDER_SECONDS * 1000),
      });
    } catch (error) {
      throw new Error(
        error.name === "TimeoutError"
          ? `the demo has not answered for ${ORDER_SECONDS} s. It may still do it.`
          : "the demo did not answer.",
        { cause: error },
      );
    }
    if (!answer.ok) {
      throw new Error(await errorText(answer));
    }
  }

  /** Follow the frames for ever, through lost connections.
   *
   * `on.trying()` at the start of each attempt, `on.described(description)` when the server has
   * answered, `on.history(frames)` and `on.frame(frame)` as they come; `on.live()` with the first
   * news: a new frame, or a history that goes on where ours ended.  `on.lost(trouble, seconds,
   * words)` before each wait, with the server's own words if it said any; while the connection is
   * kept, but brings no frames, `seconds` is null.  `on.refused(status)` when this page is not let
   * in: then this ends.
   */
  async follow(on) {
    let wait = FIRST_WAIT_SECONDS;
    for (;;) {
      this.#attempt = new AbortController();
      this.#isHurried = false;
      on.trying();
      let trouble;
      let words = null;
      try {
        on.described(await this.#describe());
        await this.#read(on, () => (wait = FIRST_WAIT_SECONDS));
        trouble = this.#isLive ? TROUBLE.ended : TROUBLE.mute;
      } catch (error) {
        if (error instanceof Refused) {
          on.refused(error.status);
          return;
        }
        trouble = error instanceof Answered ? TROUBLE.answered : TROUBLE.silent;
        words = error instanceof Answered ? error.message : null;
      } finally {
        this.#isLive = false;
        this.#attempt.abort();
      }
      if (!this.#isHurried) {
        on.lost(trouble, wait, words);
        await this.#pause(wait);
        wait = Math.min(MOST_WAIT_SECONDS, wait * 2);
      }
    }
  }

  /** Connect anew, now: neither wait any longer nor for an attempt that hangs. */
  retryNow() {
    if (!this.#isLive) {
      this.#isHurried = true;
      this.#attempt.abort();
      this.#wake();
    }
  }

  async #pause(seconds) {
    await new Promise((resolve) => {
      const timer = setTimeout(resolve, seconds * 1000);
      this.#wake = () => {
        clearTimeout(timer);
        resolve();
      };
    });
  }

  async #describe() {
    const answer = await fetch("/api/describe", {
      headers: this.headers,
      cache: "no-store",
      signal: AbortSignal.any([this.#attempt.signal, AbortSignal.timeout(ANSWER_SECONDS * 1000)]),
    });
    await throwIfRefused(answer);
    return answer.json();
  }

  /** Read one stream to its end; `onNews()` when it is live. */
  async #read(on, onNews) {
    const attempt = this.#attempt;
    const silence = new Timer(() => attempt.abort());
    const frameless = new Timer(() => this.#doubt(attempt, on, () => frameless.isSet));
    const live = () => {
      if (!this.#isLive) {
        this.#isLive = true;
        onNews();
        on.live();
      }
    };
    const parser = new EventParser((name, data) => {
      if (name === "history") {
        on.history(data);
        if (this.#isNews(data)) {
          live();
        }
      } else if (name === "frame") {
        frameless.set(FRAMELESS_SECONDS);
        this.#latest = data.t;
        on.frame(data);
        live();
      }
    });
    try {
      silence.set(ANSWER_SECONDS);
      const answer = await fetch("/api/frames", {
        headers: { ...this.headers, accept: "text/event-stream" },
        cache: "no-store",
        signal: attempt.signal,
      });
      await throwIfRefused(answer);
      frameless.set(FRAMELESS_SECONDS);
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      for (;;) {
        silence.set(SILENCE_SECONDS); // whatever comes, a comment too, is a sign of life
        const { value, done } = await reader.read();
        if (done) {
          return;
        }
        parser.feed(value);
      }
    } finally {
      silence.clear();
      frameless.clear();
    }
  }

  /** Say whether a history tells more than we knew; the first one may be as old as it likes. */
  #isNews(frames) {
    const before = this.#latest;
    this.#latest = frames.at(-1)?.t ?? before;
    return before !== null && this.#latest > before;
  }

  /** There are no frames: find out whether the server has stopped, or only its frames have. */
  async #doubt(attempt, on, hasFramesAgain) {
    try {
      await this.#describe();
    } catch {
      attempt.abort();
      return;
    }
    if (!attempt.signal.aborted && !hasFramesAgain()) {
      this.#isLive = false;
      on.lost(TROUBLE.mute, null, null);
    }
  }
}

/** Do something once, so many seconds after it was set the last time. */
class Timer {
  #action;
  #timer = null;

  constructor(action) {
    this.#action = action;
  }

  get isSet() {
    return this.#timer !== null;
  }

  set(seconds) {
    this.clear();
    this.#timer = setTimeout(() => {
      this.#timer = null;
      this.#action();
    }, seconds * 1000);
  }

  clear() {
    clearTimeout(this.#timer);
    this.#timer = null;
  }
}

/** Cut text/event-stream into events with a name and JSON data. */
export class EventParser {
  #onEvent;
  #rest = "";
  #name = "message";
  #data = [];

  constructor(onEvent) {
    this.#onEvent = onEvent;
  }

  feed(text) {
    const lines = (this.#rest + text).split("\n");
    this.#rest = lines.pop();
    for (const line of lines) {
      this.#line(line.endsWith("\r") ? line.slice(0, -1) : line);
    }
  }

  #line(line) {
    if (line === "") {
      if (this.#data.length > 0) {
        this.#onEvent(this.#name, JSON.parse(this.#data.join("\n")));
      }
      this.#name = "message";
      this.#data = [];
    } else if (line.startsWith("event:")) {
      this.#name = line.slice(6).trim();
    } else if (line.startsWith("data:")) {
      this.#data.push(line.slice(line.startsWith("data: ") ? 6 : 5));
    }
  }
}

async function throwIfRefused(answer) {
  if (answer.status === 401 || answer.status === 403) {
    throw new Refused(answer.status);
  }
  if (!answer.ok) {
    throw new Answered(await errorText(answer));
  }
}

async function errorText(answer) {
  try {
    const { error } = await answer.json();
    if (typeof error === "string" && error !== "") {
      return error;
    }
  } catch {
    // Not JSON: the status has to do.
  }
  return `the demo answered with status ${answer.status}.`;
}
