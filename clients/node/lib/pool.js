import readline from 'node:readline';

import { Message } from './message.js';
import { checked, verdictOf } from './verdict.js';

const VERSION = 1;

/** In UTF-16 units: an answer has at most 64 KiB, and the queue keeps far less. */
const LONGEST_REASON = 8_000;

/**
 * Handles one message after another until the consumer ends the pool. `handler(message)` returns to
 * ack; it throws or returns a Verdict, and any other error means Retry. Run it by
 * `rowmq-consumer pool TOPIC -- node program.js`.
 */
export async function serve(handler, { maxMessages = Infinity } = {}) {
  if (process.env.ROWMQ_POOL !== String(VERSION)) {
    throw new Error(`start it by rowmq-consumer pool, of a version that speaks ${VERSION}`);
  }
  // What the handler prints must not come between the frames: it goes to standard error.
  const write = process.stdout.write.bind(process.stdout);
  process.stdout.write = process.stderr.write.bind(process.stderr);
  const say = (frame) => new Promise((resolve) => write(`${JSON.stringify(frame)}\n`, resolve));
  await say({ rowmq_pool: VERSION });
  let handled = 0;
  for await (const line of readline.createInterface({ input: process.stdin, crlfDelay: Infinity })) {
    let frame;
    try {
      frame = JSON.parse(line);
    } catch {
      return; // the consumer has gone in the middle of it
    }
    handled += 1;
    const last = handled >= maxMessages;
    await say(await answer(handler, frame, last));
    if (last) return;
  }
}

async function answer(handler, frame, last) {
  let verdict;
  try {
    verdict = checked(await handler(message(frame)));
  } catch (error) {
    verdict = verdictOf(error);
    if (verdict !== error) console.error(error);
  }
  const said = { frame: frame.frame, verdict: verdict?.word ?? 'ack' };
  if (verdict?.reason) said.reason = verdict.reason.slice(0, LONGEST_REASON);
  if (verdict?.delay !== undefined) said.delay = verdict.delay;
  if (last) said.last = true;
  return said;
}

function message(frame) {
  const of = (name) => {
    if (name in frame) return Buffer.from(frame[name]);
    return `${name}_base64` in frame ? Buffer.from(frame[`${name}_base64`], 'base64') : undefined;
  };
  return new Message({
    topic: frame.topic,
    id: frame.msg_id,
    deliveryNo: frame.delivery_no,
    failures: frame.failures,
    enqueuedAt: new Date(frame.enqueued_at),
    body: of('body') ?? Buffer.alloc(0),
    key: of('key'),
    bizId: of('biz_id'),
    headers: frame.headers ?? {},
    traceparent: frame.traceparent,
  });
}
