import { DeliveryLost, Refused, named } from './errors.js';
import { Message } from './message.js';
import { DeadLetter, Retry, checked, verdictOf } from './verdict.js';

/** How long a claim waits for messages, in seconds: the worker may have to stop then. */
export const WAIT = 1;

/** A deadlock, a lock that did not come, and MariaDB's changed row: it may succeed the next time. */
const AGAIN = new Set([1213, 1205, 1020]);

/** A lock did not come: most servers undo the statement only. */
const NO_LOCK = 1205;

/** How often a transaction is tried again before its message has failed. */
const TRIES = 5;

/** Another message with this business id has been handled: ack this one without its work. */
const REPEATED = 31023;

/** There is no such savepoint. */
const NO_SAVEPOINT = 1305;

/** The session has ended, or is in a state that nothing is known of. */
export class SessionLost extends Error {}

/** The handler has ended the transaction itself: its effects cannot be undone. */
export class TransactionEnded extends DeadLetter {
  constructor() {
    super('the handler has committed or rolled back its transaction');
  }
}

/** The open transaction that a handler's work and its ack share. */
class Transaction {
  #session;
  /** Whether the worker has gone on: a statement that comes later would be in another transaction. */
  isOver = false;

  constructor(session) {
    this.#session = session;
  }

  /** Runs a statement as mysql2 does: `const [rows] = await tx.query(sql, values)`. */
  query(sql, values) {
    return this.#session.run('query', sql, values, this);
  }

  /** The same as a prepared statement. */
  execute(sql, values) {
    return this.#session.run('execute', sql, values, this);
  }

  /** The connection, for libraries that want one. Do not commit or roll back. */
  get connection() {
    return this.#session.connection;
  }
}

/** A connection that consumes one topic. */
export class Session {
  #topic;
  #patience;
  #beats;
  #inTransaction = false;
  // The error by which the server has undone the transaction although the handler goes on.
  #undoneBy;
  #last = Promise.resolve();

  constructor(connection, topic, lease) {
    this.connection = connection;
    this.#topic = topic;
    // The server ends a silent session after the lease; a statement may take a while longer.
    this.#patience = (2 * lease + 10) * 1000;
    // What the server ends is found out by the next statement.
    connection.on('error', () => {});
    this.#beats = setInterval(() => this.#beat(), (lease * 1000) / 4);
  }

  static async open(connect, topic, lease) {
    const session = new Session(await connect(), topic, lease);
    try {
      // It locks less, and on MariaDB never fails because a row has changed.
      await session.run('query', 'SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED');
      await session.run('query', 'SET autocommit = 1, @queue_lease = ?', [Math.floor(lease)]);
      return session;
    } catch (error) {
      session.close();
      throw error;
    }
  }

  /** Runs one statement after another, so that none is sent after an error of the one before it. */
  run(how, sql, values, transaction) {
    const result = this.#last.then(() => this.#runAlone(how, sql, values, transaction));
    this.#last = result.catch(() => {});
    return result;
  }

  async #runAlone(how, sql, values, transaction) {
    if (transaction?.isOver) throw new Error('the transaction of this handler is over');
    if (this.#undoneBy) throw new Error('the server has undone the transaction after an error before');
    // The driver itself waits for an answer for ever.
    const watch = setTimeout(() => this.cut(), this.#patience);
    try {
      return await this.connection[how](sql, values);
    } catch (error) {
      this.#undoneBy = this.#inTransaction && AGAIN.has(error.errno) ? error.errno : undefined;
      throw named(error);
    } finally {
      clearTimeout(watch);
    }
  }

  #beat() {
    // In a transaction the call is refused, and any statement is a sign of life. The driver sends it
    // once the statement before it is done.
    const sign = this.#inTransaction ? 'DO 0' : 'CALL queue_beat()';
    this.connection.query(sign).catch(() => {});
  }

  /** Claims up to `limit` messages. */
  async claim(limit, wait) {
    try {
      const values = [this.#topic, limit, wait];
      const [[rows]] = await this.run('query', 'CALL queue_claim(?, ?, ?)', values);
      return rows.map((row) => {
        const delivery = { token: String(row.delivery), isTransactional: false };
        delivery.message = message(this.#topic, row, this.#checkpoints(delivery));
        return delivery;
      });
    } catch (error) {
      if (error instanceof Refused) throw error;
      if (AGAIN.has(error.errno)) return [];
      throw lost(error);
    }
  }

  #checkpoints(delivery) {
    return {
      save: async (state, progress) => {
        // Its commit ends the message, and its rollback undoes the checkpoint.
        if (delivery.isTransactional) throw new Error('a handler in a transaction saves no checkpoints');
        await this.run('query', 'CALL queue_checkpoint(?, ?, ?)', [delivery.token, state, progress]);
      },
      last: async () => {
        const [[[row]]] = await this.run('query', 'CALL queue_last_checkpoint(?)', [delivery.token]);
        if (!row) return undefined;
        const { delivery_no: deliveryNo, saved_at: savedAt, progress, state } = row;
        return { deliveryNo, savedAt: moment(savedAt), progress: progress ?? undefined, state: buffer(state) };
      },
    };
  }

  async #settle(deliveries, verdict) {
    const tokens = deliveries.map((delivery) => delivery.token).join(',');
    const values = [tokens, verdict?.word ?? 'ack', verdict?.reason || null, verdict?.delay ?? null];
    await this.run('query', 'CALL queue_settle(?, ?, ?, ?)', values);
  }

  /** Settles one in a transaction of its own; returns what became of it, undefined for ack. */
  async settleAlone(delivery, given) {
    let verdict = given;
    for (let tries = 0; tries < TRIES; tries += 1) {
      try {
        await this.#settle([delivery], verdict);
        if (!(verdict instanceof Retry)) return verdict;
        const [[row]] = await this.run('query', 'SELECT @queue_settled AS settled');
        return String(row.settled) === 'dead-letter' ? new DeadLetter(verdict.reason) : verdict;
      } catch (error) {
        if (error instanceof DeliveryLost) throw error;
        if (error instanceof Refused) {
          // 31025: the ack comes alone, and the work was undone.
          verdict = new Retry(error.message);
        } else {
          await this.#rollback();
          if (!AGAIN.has(error.errno)) throw lost(error);
        }
      }
    }
    throw new SessionLost('a message could not be settled');
  }

  /** Does the work of all and acks them in one transaction; returns why that was undone. */
  async together(deliveries, handle) {
    const transaction = new Transaction(this);
    let isInWork = false;
    try {
      this.#inTransaction = true;
      await this.run('query', 'START TRANSACTION');
      // It is gone if a handler ends the transaction.
      await this.run('query', 'SAVEPOINT rowmq_work');
      isInWork = true;
      for (const delivery of deliveries) {
        delivery.isTransactional = true;
        const verdict = checked(await handle(transaction, delivery.message));
        if (verdict) throw verdict;
      }
      transaction.isOver = true;
      await this.#toSavepoint('RELEASE SAVEPOINT rowmq_work');
      isInWork = false;
      await this.#settle(deliveries, undefined);
      await this.run('query', 'COMMIT');
      this.#inTransaction = false;
      return undefined;
    } catch (error) {
      transaction.isOver = true;
      return await this.#undo(error ?? new Error('the handler rejected without a reason'), isInWork);
    }
  }

  /** Undoes the work; returns why it failed. */
  async #undo(error, isInWork) {
    let failure = error;
    await this.#last;
    if (isInWork && !(error instanceof TransactionEnded)) failure = (await this.#undoWork(error)) ?? error;
    await this.#rollback();
    return failure;
  }

  /** Returns to the savepoint; returns a TransactionEnded if the handler has ended the transaction. */
  async #undoWork(error) {
    const code = this.#undoneBy ?? codeOf(error);
    this.#undoneBy = undefined;
    // The server has undone all of it.
    if (AGAIN.has(code) && code !== NO_LOCK) return undefined;
    try {
      await this.#toSavepoint('ROLLBACK TO SAVEPOINT rowmq_work');
      return undefined;
    } catch (other) {
      if (!(other instanceof TransactionEnded)) throw lost(other);
      if (code !== NO_LOCK) return other;
      const [[row]] = await this.run('query', 'SELECT @@innodb_rollback_on_timeout AS yes');
      return row.yes ? undefined : other;
    }
  }

  async #toSavepoint(statement) {
    try {
      await this.run('query', statement);
    } catch (error) {
      throw error.errno === NO_SAVEPOINT ? new TransactionEnded() : error;
    }
  }

  /** Does the work of one message in a transaction of its own, and settles it. */
  async alone(delivery, handle) {
    let error;
    for (let tries = 0; tries < TRIES; tries += 1) {
      error = await this.together([delivery], handle);
      if (error === undefined) return undefined;
      if (!AGAIN.has(error.errno)) break;
    }
    if (error instanceof DeliveryLost) throw error;
    if (error instanceof Refused && error.code === REPEATED) return this.settleAlone(delivery, undefined);
    return this.settleAlone(delivery, verdictOf(error));
  }

  /** Undoes what is open. A session that cannot do that is lost. */
  async #rollback() {
    this.#undoneBy = undefined;
    try {
      await this.run('query', 'ROLLBACK');
      this.#inTransaction = false;
    } catch (error) {
      throw lost(error);
    }
  }

  /** Gives back what was not handled. */
  async leave() {
    // Else the server gives it back when the session ends.
    await this.run('query', 'CALL queue_leave()').catch(() => {});
  }

  /** Ends the connection: every statement that runs or waits fails. */
  cut() {
    // The driver's own destroy() waits for the other side.
    this.connection.connection?.stream?.destroy();
  }

  /** Disconnects. */
  close() {
    clearInterval(this.#beats);
    this.connection.destroy();
    this.cut();
  }
}

function lost(error) {
  return new SessionLost(error.message, { cause: error });
}

/** Returns the server's number of an error, also of one that a library has wrapped. */
function codeOf(error) {
  return error?.errno ?? error?.cause?.errno ?? error?.original?.errno;
}

function moment(value) {
  return value instanceof Date ? value : new Date(`${value}Z`);
}

function message(topic, row, checkpoints) {
  const fields = {
    topic,
    id: String(row.msg_id),
    deliveryNo: Number(row.delivery_no),
    failures: Number(row.failures),
    enqueuedAt: moment(row.enqueued_at),
    body: buffer(row.body) ?? Buffer.alloc(0),
    key: buffer(row.key),
    bizId: buffer(row.biz_id),
    headers: headers(row.headers),
  };
  return new Message(fields, checkpoints);
}

function headers(value) {
  if (value === null || value === undefined) return {};
  try {
    const read = typeof value === 'object' && !Buffer.isBuffer(value) ? value : JSON.parse(value);
    if (Object.values(read).every((one) => typeof one === 'string')) return read;
  } catch {
    // Written past the checks of the contract: the handler gets them whole, as in the consumer.
  }
  return { 'malformed-headers': String(value) };
}

function buffer(value) {
  if (value === null || value === undefined) return undefined;
  return Buffer.isBuffer(value) ? value : Buffer.from(String(value));
}
