// Checked by the TypeScript compiler, never run.

import mysql from 'mysql2/promise';
import { DeadLetter, Retry, Snooze, Worker, send, sendAll, serve } from 'rowmq';

const connection = await mysql.createConnection('mysql://');
const sent = await send(connection, 'mail', { order: 17 }, { key: 'ada', deliver_in: '48h', on_conflict: 'replace' });
const id: string | null = sent.id;
const stored: number = await sendAll(connection, 'mail', [{ body: 'x', priority: 3 }]);
const worker = new Worker(process.env.ROWMQ_URL, { lease: 30, onSettled: (message) => message.text });
worker.handler('mail', { transactional: true, concurrency: 4 }, async (tx, message) => {
  await tx.execute('UPDATE orders SET mailed = 1 WHERE id = ?', [message.json.order]);
});
worker.handler('plain', {}, (message) => (message.failures > 3 ? new DeadLetter('no') : undefined));
await serve(async () => new Snooze(60), { maxMessages: 10 });
// @ts-expect-error a delay is a number of seconds
new Retry('later', '10m');
// @ts-expect-error there is no such option
await send(connection, 'mail', 'x', { colour: 'blue' });
console.log(id, stored);
