import fs from 'node:fs';

import { Message } from './message.js';
import { checked, verdictOf } from './verdict.js';

const VERSION = 1;

/**
 * Handles one message after another until the consumer ends the pool. `handler(message)` returns to
 * ack; it throws or returns a Verdict, and any other error means Retry. Run it by
 * `rowmq-consumer pool TOPIC -- node program.js`.
 */
export async function serve(handler, { maxMessages = Infinity } = {}) {
  if (process.env.ROWMQ_POOL !== String(VERSION)) {
    throw new Error(`start it by rowmq-consumer pool, of a version that speaks ${VERSION}`);
  }
  const { frames, say } = takeStreams();
  say({ rowmq_pool: VERSION });
  let handled = 0;
  for await (const line of lines(frames)) {
    const frame = JSON.parse(line);
    handled += 1;
    const last = handled >= maxMessages;
    say(await answer(handler, frame, last));
    if (last) break;
  }
}

/**
 * The frames are for this program alone: what the handler starts reads nothing of them, and what it or
 * the handler prints goes to standard error. The new descriptors are not inherited.
 */
function takeStreams() {
  const frames = fs.openSync('/proc/self/fd/0', 'r');
  const answers = fs.openSync('/proc/self/fd/1', 'w');
  fs.closeSync(0);
  fs.openSync('/dev/null', 'r');
  fs.closeSync(1);
  fs.openSync('/proc/self/fd/2', 'a');
  return {
    frames: fs.createReadStream('', { fd: frames }),
    say: (frame) => fs.writeSync(answers, `${JSON.stringify(frame)}\n`),
  };
}

/** Returns whole lines. At the end of the consumer half a line may be left: it is none. */
async function* lines(stream) {
  let parts = [];
  for await (const chunk of stream) {
    let from = 0;
    for (let end = chunk.indexOf(10); end >= 0; end = chunk.indexOf(10, from)) {
      parts.push(chunk.subarray(from, end));
      yield Buffer.concat(parts).toString('utf8');
      parts = [];
      from = end + 1;
    }
    parts.push(chunk.subarray(from));
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
  if (verdict?.reason) said.reason = verdict.reason;
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
