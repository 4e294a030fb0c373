import { named } from './errors.js';

/** The options for which there is a procedure of its own, with a privilege of its own. */
const UNIQUE = ['unique', 'unique_for', 'on_conflict', 'max_wait'];

/** The most messages of one call of queue_send_all. */
const MOST = 1000;

/**
 * Sends a message in the open transaction of `connection`: it exists if that commits. The options are
 * those of queue_send and queue_send_unique; a Date is a moment.
 */
export async function send(connection, topic, body, options = {}) {
  const procedure = UNIQUE.some((name) => name in options) ? 'queue_send_unique' : 'queue_send';
  const given = Object.keys(options).length === 0 ? null : JSON.stringify(options, finite);
  try {
    await connection.query(`CALL ${procedure}(?, ?, ?)`, [topic, bytes(body), given]);
    const [[row]] = await connection.query({
      sql: 'SELECT @queue_msg_id AS id, @queue_duplicate AS duplicate, @queue_replaced AS replaced',
      rowsAsArray: true,
    });
    const [id, duplicate, replaced] = row;
    return { id: id === null ? null : String(id), duplicate: Boolean(Number(duplicate)), replaced: Boolean(Number(replaced)) };
  } catch (error) {
    throw named(error);
  }
}

/**
 * Sends many messages, 1000 in a call, in the open transaction; returns how many were stored. Each is
 * `{ body, ...options }`. After any error roll back: a call before it may have stored its messages.
 */
export async function sendAll(connection, topic, messages) {
  let stored = 0;
  let batch = [];
  const flush = async () => {
    await connection.query('CALL queue_send_all(?, ?)', [topic, JSON.stringify(batch, finite)]);
    const [[row]] = await connection.query({ sql: 'SELECT @queue_sent', rowsAsArray: true });
    stored += Number(row[0]);
    batch = [];
  };
  try {
    for (const { body, ...options } of messages) {
      batch.push({ ...options, ...item(bytes(body)) });
      if (batch.length === MOST) await flush();
    }
    if (batch.length > 0) await flush();
  } catch (error) {
    throw named(error);
  }
  return stored;
}

/** JSON makes null, which is the default, of what is no number or no date. */
function finite(name, value) {
  const given = this[name];
  if (typeof given === 'number' && !Number.isFinite(given)) throw new TypeError(`${name} is no number`);
  if (given instanceof Date && Number.isNaN(given.getTime())) throw new TypeError(`${name} is no date`);
  return value;
}

function bytes(body) {
  if (Buffer.isBuffer(body)) return body;
  if (body instanceof Uint8Array) return Buffer.from(body);
  return Buffer.from(typeof body === 'string' ? body : JSON.stringify(body));
}

function item(body) {
  const text = body.toString('utf8');
  return Buffer.from(text).equals(body) ? { body: text } : { body_base64: body.toString('base64') };
}
