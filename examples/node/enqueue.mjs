// Enqueue in a transaction of mysql2.
//
//     npm ci
//     ROWMQ_URL=mysql://shop:secret@127.0.0.1:3306/shop node enqueue.mjs

import mysql from 'mysql2/promise';

/** Stores the order and enqueues its mail, in the caller's transaction; the message's id. */
async function place(connection, topic, order) {
  await connection.execute('INSERT INTO orders (id, email) VALUES (?, ?)', [order, 'ada@example.com']);
  await connection.execute('CALL queue_send(?, ?, ?)', [
    topic,
    JSON.stringify({ order }),
    JSON.stringify({ biz_id: `order-${order}` }),
  ]);
  const [[row]] = await connection.query('SELECT @queue_msg_id AS msg_id');
  return row.msg_id;
}

const connection = await mysql.createConnection(process.env.ROWMQ_URL);

await connection.beginTransaction();
const msgId = await place(connection, 'mail', 1);
await connection.commit();
console.log(`order 1 is stored, and its message ${msgId}`);

await connection.beginTransaction();
await place(connection, 'mail', 2);
await connection.rollback();
console.log('order 2 is undone, and its message with it');

await connection.beginTransaction();
try {
  await place(connection, 'no-such-topic', 3);
  throw new Error('order 3 should have been refused');
} catch (refusal) {
  await connection.rollback();
  // SQLSTATE 45000; the numbers are in docs/sql-contract.md.
  if (refusal.errno !== 31001) throw refusal;
  console.log(`order 3 is refused: ${refusal.sqlMessage}`);
}
await connection.end();
