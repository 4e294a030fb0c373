// Consume with mysql2: the work and its ack are one transaction, so its effects happen exactly once.
//
//     npm ci
//     ROWMQ_URL=mysql://shop:secret@127.0.0.1:3306/shop node consume.mjs
//
// With --until-empty it ends when nothing is ready.

import { setTimeout as sleep } from 'node:timers/promises';
import mysql from 'mysql2/promise';

// No delivery of this session any more: it was taken back, and another consumer has it.
const FENCED = 31015;

const untilEmpty = process.argv.includes('--until-empty');
let stopping = false;
for (const signal of ['SIGTERM', 'SIGINT']) process.on(signal, () => (stopping = true));

/** No further try would help. */
class Hopeless extends Error {}

/** Does what the message asks for, in the open transaction. */
async function handle(connection, delivery) {
  let order;
  try {
    ({ order } = JSON.parse(delivery.body));
  } catch (error) {
    throw new Hopeless(`the body is no order: ${error.message}`);
  }
  const update = 'UPDATE orders SET mailed = mailed + 1 WHERE id = ?';
  const [{ affectedRows }] = await connection.execute(update, [order]);
  if (affectedRows !== 1) throw new Error(`there is no order ${order}`);
  return `order ${order} is mailed`;
}

async function settle(connection, delivery, verdict, reason = null) {
  await connection.execute('CALL queue_settle(?, ?, ?, NULL)', [delivery.delivery, verdict, reason]);
}

async function work(connection, delivery) {
  await connection.beginTransaction();
  try {
    const done = await handle(connection, delivery);
    await settle(connection, delivery, 'ack');
    await connection.commit();
    console.log(done);
  } catch (error) {
    // Also after an error of the commit: if the session is gone, this fails, too, and the message
    // is either done or delivered again.
    await connection.rollback();
    if (error.errno === FENCED) return;
    const verdict = error instanceof Hopeless ? 'dead-letter' : 'retry';
    await settle(connection, delivery, verdict, error.message);
    console.log(`${verdict}: ${error.message}`);
  }
}

async function consume() {
  const connection = await mysql.createConnection(process.env.ROWMQ_URL);
  // What the server ends is found out by the next call.
  connection.on('error', () => {});
  try {
    while (!stopping) {
      // It waits on the server for messages, for at most a second: then it may have to stop.
      const wait = untilEmpty ? 0 : 1;
      const [[deliveries]] = await connection.query('CALL queue_claim(?, ?, ?)', ['mail', 10, wait]);
      for (const delivery of deliveries) {
        if (!stopping) await work(connection, delivery);
      }
      if (deliveries.length === 0 && untilEmpty) break;
    }
    // What is not settled goes back at once, and is charged with nothing.
    await connection.query('CALL queue_leave()');
  } finally {
    connection.destroy();
  }
}

while (!stopping) {
  try {
    await consume();
    break;
  } catch (error) {
    // A new session is a new consumer: what the old one held is delivered again.
    console.error(`the session is lost: ${error.message}`);
    await sleep(1000);
  }
}
