import { setTimeout as sleep } from 'node:timers/promises';

import { DeliveryLost } from './errors.js';
import { Session, TransactionEnded } from './session.js';
import { checked, verdictOf } from './verdict.js';

/** The pauses between two tries to connect, in milliseconds. */
const FIRST_PAUSE = 100;
const LONGEST_PAUSE = 5_000;

/** The server cannot be reached, or is starting, stopping or full: a worker waits for it. */
const UNREACHABLE = new Set([1040, 1053, 1203, 1927]);

/** Runs handlers on the messages of topics. */
export class Worker {
  #connect;
  #lease;
  #onSettled;
  #log;
  #registrations = [];
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
    try {
      await Promise.all(this.#registrations.map((registration) => this.#consume(registration, untilEmpty)));
    } finally {
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
        while (!this.#isStopping) {
          const deliveries = await session.claim(registration.batch, untilEmpty);
          [pause, hasBegun] = [FIRST_PAUSE, true];
          if (deliveries?.length > 0) await this.#work(session, registration, deliveries);
          else if (deliveries !== undefined && untilEmpty) break;
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
        session?.close();
      }
      const until = Date.now() + pause * (0.5 + Math.random() / 2);
      while (!this.#isStopping && Date.now() < until) await sleep(50);
      pause = Math.min(pause * 2, LONGEST_PAUSE);
    }
  }

  async #work(session, { transactional, handle }, deliveries) {
    let begun = performance.now();
    if (transactional && deliveries.length > 1) {
      const failure = await session.together(deliveries, handle);
      if (failure === undefined) {
        const each = (performance.now() - begun) / 1000 / deliveries.length;
        for (const { message } of deliveries) this.#settled(message, undefined, each);
        return;
      }
      if (failure instanceof TransactionEnded) {
        // Which of their effects were committed is not known: none may run again.
        for (const delivery of deliveries) {
          this.#settled(delivery.message, await session.settleAlone(delivery, failure), 0);
        }
        return;
      }
    }
    for (const delivery of deliveries) {
      if (this.#isStopping) return;
      begun = performance.now();
      try {
        const verdict = transactional
          ? await session.alone(delivery, handle)
          : await session.settleAlone(delivery, await call(handle, delivery.message));
        this.#settled(delivery.message, verdict, (performance.now() - begun) / 1000);
      } catch (error) {
        if (!(error instanceof DeliveryLost)) throw error;
        this.#log.warn(`rowmq: ${delivery.message.id}: ${error.message}`);
      }
    }
  }

  #settled(message, verdict, seconds) {
    try {
      this.#onSettled?.(message, verdict, seconds);
    } catch (error) {
      this.#log.warn(`rowmq: onSettled failed for ${message.id}: ${error.message}`);
    }
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
  const isOfNetwork = cause.sqlState === undefined && /^(E[A-Z]{3,}|PROTOCOL_)/.test(cause.code ?? '');
  return UNREACHABLE.has(cause.errno) || isOfNetwork;
}

async function open(url) {
  const { default: mysql } = await import('mysql2/promise');
  const parsed = new URL(url);
  const isLocal = ['127.0.0.1', '[::1]', 'localhost'].includes(parsed.hostname);
  const mode = (parsed.searchParams.get('ssl-mode') ?? 'required').toLowerCase();
  return mysql.createConnection({
    host: parsed.hostname,
    port: Number(parsed.port || 3306),
    user: decodeURIComponent(parsed.username),
    password: decodeURIComponent(parsed.password),
    database: decodeURIComponent(parsed.pathname.slice(1)),
    charset: 'utf8mb4',
    timezone: 'Z',
    connectTimeout: 10_000,
    // A server on this machine has no certificate that anyone has signed.
    ssl: mode === 'disabled' ? undefined : { rejectUnauthorized: !isLocal },
  });
}
