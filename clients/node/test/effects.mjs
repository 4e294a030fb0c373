// A worker whose handler has one effect for each message.

import { setTimeout as sleep } from 'node:timers/promises';
import { Worker } from 'rowmq';

const worker = new Worker(process.env.ROWMQ_URL, { lease: Number(process.env.LEASE ?? 60) });
worker.handler('work', { transactional: true }, async (tx, message) => {
  await tx.execute('INSERT INTO effect VALUES (?, ?)', [message.id, message.deliveryNo]);
  // So that a kill finds it at work.
  await sleep(2);
});
await worker.run();
