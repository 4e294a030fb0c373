// A worker of `ops/chaos`, which records what it handles: recorder.mjs RECORD TOPIC...

import fs from 'node:fs';
import process from 'node:process';
import { setTimeout as sleep } from 'node:timers/promises';
import { Release, Retry, Snooze, Worker } from 'rowmq';

const [path, ...topics] = process.argv.slice(2);
const record = fs.openSync(path, 'a');
const begun = new Set();

function note(event) {
  fs.writeSync(record, `${process.hrtime.bigint() / 1000n} ${event}\n`);
}

function bytes(message) {
  return Buffer.from(message.id.replaceAll('-', ''), 'hex');
}

function token(message) {
  const id = bytes(message);
  return `${id.readBigUInt64BE(0)}:${id.readBigUInt64BE(8)} ${message.deliveryNo}`;
}

// What the message asks for at its first try, and the record's word for it.
function askedVerdict(message) {
  if (message.deliveryNo > 1 || message.failures > 0) return undefined;
  switch (message.json.ending) {
    case 'retry-once':
    case 'panic-once':
      return [new Retry('it is asked to'), 'retry'];
    case 'snooze-once':
      return [new Snooze(0.3, 'it is asked to'), 'retry'];
    case 'release-once':
      return [new Release(), 'release'];
    default:
      return undefined;
  }
}

async function handle(tx, message) {
  // The messages of a batch that failed are handled again, each alone.
  if (!begun.has(token(message))) {
    begun.add(token(message));
    note(`start ${token(message)}`);
  }
  const asked = askedVerdict(message);
  if (asked) {
    note(`end ${token(message)} ${asked[1]}`);
    return asked[0];
  }
  try {
    await tx.execute('INSERT INTO chaos_effect (msg_id) VALUES (?)', [bytes(message)]);
  } catch (error) {
    note(`end ${token(message)} retry`);
    throw error;
  }
  await sleep(message.json.work_ms);
  note(`effect ${token(message)}`);
}

function onSettled(message, verdict) {
  note(`settled ${token(message)} ${verdict ? 'other' : 'ack'} settled`);
}

note('caller');
// Traps read what passes, and every worker of a run has this lease.
const worker = new Worker(`${process.env.ROWMQ_URL}?ssl-mode=disabled`, { lease: 10, onSettled });
for (const topic of topics) worker.handler(topic, { transactional: true, batch: 4 }, handle);
await worker.run();
