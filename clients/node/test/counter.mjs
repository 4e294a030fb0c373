// A worker of `ops/bench` that does nothing: counter.mjs TOPIC. Prints 0 when it begins, and what it has settled.

import process from 'node:process';
import { Worker } from 'rowmq';

const EACH = 100;
let count = 0;

function onSettled() {
  count += 1;
  if (count % EACH === 0) console.log(EACH);
}

const worker = new Worker(process.env.ROWMQ_URL, { onSettled });
worker.handler(process.argv[2], { transactional: true }, () => {
  if (count === 0) console.log(0);
});
await worker.run();
