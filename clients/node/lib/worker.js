import { setTimeout as sleep } from 'node:timers/promises';

import { DeliveryLost } from './errors.js';
import { Session, TransactionEnded, WAIT } from './session.js';
import { checked, verdictOf } from './verdict.js';

/** The pauses between two tries to connect, in milliseconds. */
const FIRST_PAUSE = 100;
const LONGEST_PAUSE = 5_000;

/** How often the worker looks whether it must stop, in milliseconds. */
const LOOK = 50;

/** The server cannot be reached, or is starting, stopping or full: a worker waits for it. */
const UNREACHABLE = new Set([1040, 1053, 1203, 1927]);

/** Runs handlers on the messages of topics. */
export class Worker {
  #connect;
  #lease;
  #onSettled;
  #log;
  #registrations = [];
  #sessions = new Set();
  #isStopping = false;
  #failure;

  /**
   * `url` is `mysql://user:password@host:port/database`. Options: `connect` returns a connection of
   * mysql2/promise instead; `lease`: after this many seconds of silence the server ends a frozen
   * worker's session; `onSettled(message, verdict, seconds)`; `log` (console).
   */
  constructor(url, { connect, lease = 60, onSettled, log = console } = {}) {
    this.#connect = connect ?? (() => open(url));
    this.#lease = lease;
    this.#onSettled = onSettled;
    this.#log = log;
  }

  /**
   * Registers `handle(message)`, or with `transactional` `handle(tx, message)`. It returns to ack; it
   * throws or returns a Verdict, and any other error means Retry. `batch` (100, plain handlers 10) of
   * a transactional handler's messages share a transaction; if one fails, each gets its own, so a
   * handler may be called again. `concurrency`: so many connections, each with one message at a time.
   */
  handler(topic, { transactional = false, concurrency = 1, batch = transactional ? 100 : 10 }, handle) {
    if (typeof handle !== 'function') throw new TypeError('give handler(topic, options, handle)');
    for (let n = 0; n < concurrency; n += 1) this.#registrations.push({ topic, transactional, batch, handle });
    return this;
  }

  /** Asks the worker to stop: it ends what it is doing and gives the rest back. */
  stop() {
    this.#isStopping = true;
  }

  /**
   * Handles messages until TERM or INT, or `stop`; `untilEmpty`: until none is ready. Reconnects by
   * itself. Throws what keeps it from starting: a wrong password, no such topic.
   */
  async run({ untilEmpty = false } = {}) {
    this.#isStopping = false;
    this.#failure = undefined;
    const stop = () => this.stop();
    for (const signal of ['SIGTERM', 'SIGINT']) process.on(signal, stop);
    // A handler or a network that does not end is left after a lease.
    let stopped = 0;
    const watch = setInterval(() => {
      stopped = this.#isStopping ? stopped + LOOK : 0;
      if (stopped > this.#lease * 1000) for (const session of this.#sessions) session.cut();
    }, LOOK);
    try {
      await Promise.all(this.#registrations.map((registration) => this.#consume(registration, untilEmpty)));
    } finally {
      clearInterval(watch);
      for (const signal of ['SIGTERM', 'SIGINT']) process.off(signal, stop);
    }
    if (this.#failure !== undefined) throw this.#failure;
  }

  async #consume(registration, untilEmpty) {
    let pause = FIRST_PAUSE;
    let hasBegun = false;
    while (!this.#isStopping) {
      let session;
      try {
        session = await Session.open(this.#connect, registration.topic, this.#lease);
        this.#sessions.add(session);
        // A claim that met a conflict finds nothing, too: look twice.
        for (let empty = 0; !this.#isStopping && empty < 2; ) {
          const deliveries = await session.claim(registration.batch, untilEmpty && empty === 0 ? 0 : WAIT);
          [pause, hasBegun] = [FIRST_PAUSE, true];
          await this.#work(session, registration, deliveries);
          empty = untilEmpty && deliveries.length === 0 ? empty + 1 : 0;
        }
        await session.leave();
        return;
      } catch (error) {
        if (!hasBegun && !isUnreachable(error)) {
          this.#failure = error;
          this.stop();
          return;
        }
        // A new session is a new consumer: what the old one held is delivered again.
        this.#log.warn(`rowmq: ${registration.topic}: the session is lost: ${error.message}`);
      } finally {
        this.#sessions.delete(session);
        session?.close();
      }
      const until = Date.now() + pause * (0.5 + Math.random() / 2);
      while (!this.#isStopping && Date.now() < until) await sleep(LOOK);
      pause = Math.min(pause * 2, LONGEST_PAUSE);
    }
  }

  async #work(session, { transactional, handle }, deliveries) {
    const begun = performance.now();
    if (transactional && deliveries.length > 1) {
      const failure = await session.together(deliveries, handle);
      if (failure === undefined) {
        const each = (performance.now() - begun) / 1000 / deliveries.length;
        for (const { message } of deliveries) this.#settled(message, undefined, each);
        return;
      }
      if (failure instanceof TransactionEnded) {
        // Which of their effects were committed is not known: none may run again.
        await this.#each(deliveries, (delivery) => session.settleAlone(delivery, failure), true);
        return;
      }
    }
    await this.#each(deliveries, async (delivery) =>
      transactional
        ? session.alone(delivery, handle)
        : session.settleAlone(delivery, await call(handle, delivery.message)),
    );
  }

  async #each(deliveries, handle, althoughStopping = false) {
    for (const delivery of deliveries) {
      if (this.#isStopping && !althoughStopping) return;
      const begun = performance.now();
      try {
        const verdict = await handle(delivery);
        this.#settled(delivery.message, verdict, (performance.now() - begun) / 1000);
      } catch (error) {
        if (!(error instanceof DeliveryLost)) throw error;
        this.#log.warn(`rowmq: ${delivery.message.id}: ${error.message}`);
      }
    }
  }

  #settled(message, verdict, seconds) {
    Promise.resolve()
      .then(() => this.#onSettled?.(message, verdict, seconds))
      .catch((error) => this.#log.warn(`rowmq: onSettled failed for ${message.id}: ${error}`));
  }
}

async function call(handle, message) {
  try {
    return checked(await handle(message));
  } catch (error) {
    return verdictOf(error);
  }
}

function isUnreachable(error) {
  const cause = error.cause ?? error;
  // Errors of the server have a state; ER_ and HANDSHAKE_ are the driver's refusals to go on.
  const isOfNetwork = cause.sqlState === undefined && /^(E[A-Z]{3,}|EAI_AGAIN|PROTOCOL_)/.test(cause.code ?? '');
  return UNREACHABLE.has(cause.errno) || isOfNetwork;
}

async function open(url) {
  const { default: mysql } = await import('mysql2/promise');
  const parsed = new URL(url);
  const isLocal = ['127.0.0.1', '[::1]', 'localhost'].includes(parsed.hostname);
  const mode = (parsed.searchParams.get('ssl-mode') ?? 'required').toLowerCase();
  return mysql.createConnection({
    host: parsed.hostname.replace(/^\[|\]$/g, ''),
    port: Number(parsed.port || 3306),
    user: decodeURIComponent(parsed.username),
    password: decodeURIComponent(parsed.password),
    database: decodeURIComponent(parsed.pathname.slice(1)),
    charset: 'utf8mb4',
    timezone: 'Z',
    connectTimeout: 10_000,
    // A server on this machine has no certificate that anyone has signed.
    ssl: mode === 'disabled' ? undefined : { rejectUnauthorized: !isLocal, verifyIdentity: !isLocal },
  });
}
