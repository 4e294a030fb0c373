/** In bytes of UTF-8: the queue keeps no more. */
const LONGEST_REASON = 8192;

/** In seconds; the queue refuses a longer delay. */
const LONGEST_DELAY = 315_360_000;

/** A decision about a message other than ack: a handler throws or returns one. */
export class Verdict extends Error {
  /** @param {string} word @param {unknown} reason @param {number=} delay in seconds */
  constructor(word, reason = '', delay = undefined) {
    super(Buffer.from(String(reason)).subarray(0, LONGEST_REASON).toString());
    this.name = new.target.name;
    this.word = word;
    if (delay !== undefined && !Number.isFinite(delay)) throw new TypeError(`a delay is a number of seconds, not ${delay}`);
    this.delay = delay === undefined ? undefined : Math.min(Math.max(delay, 0), LONGEST_DELAY);
  }

  get reason() {
    return this.message;
  }
}

/** It has failed: try again after `delay` seconds, or else after the topic's backoff. */
export class Retry extends Verdict {
  constructor(reason = '', delay = undefined) {
    super('retry', reason, delay);
  }
}

/** Not yet: comes back after `delay` seconds, and nothing is charged. */
export class Snooze extends Verdict {
  constructor(delay, reason = '') {
    super('snooze', reason, delay ?? NaN);
  }
}

/** Never try again. */
export class DeadLetter extends Verdict {
  constructor(reason) {
    super('dead-letter', reason);
  }
}

/** Not worth handling: acked, and the reason is kept. */
export class Discard extends Verdict {
  constructor(reason) {
    super('discard', reason);
  }
}

/** Not now: given back unchanged, and nothing is charged. */
export class Release extends Verdict {
  constructor() {
    super('release');
  }
}

/** Returns the verdict that an error of a handler stands for. */
export function verdictOf(error) {
  return error instanceof Verdict ? error : new Retry(error instanceof Error ? `${error.name}: ${error.message}` : error);
}

/** Refuses what a handler returns and is no verdict. */
export function checked(returned) {
  if (returned === undefined || returned === null) return undefined;
  if (returned instanceof Verdict) return returned;
  throw new TypeError(`the handler returned ${typeof returned}, which is no Verdict`);
}
