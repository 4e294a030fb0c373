// Runs the package on the server of ROWMQ_URL, in whose database each test's topic is.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';

import mysql from 'mysql2/promise';
import * as rowmq from 'rowmq';

const url = process.env.ROWMQ_URL;
const connect = () => mysql.createConnection({ uri: url, timezone: 'Z' });

async function withConnection(use) {
  const connection = await connect();
  try {
    return await use(connection);
  } finally {
    connection.destroy();
  }
}

/** Returns how many messages the topic has, and how often they have failed. */
async function counts(topic) {
  return withConnection(async (connection) => {
    const all = [0, 0];
    for (const table of ['queue_message', 'queue_scheduled']) {
      const [[row]] = await connection.query(
        `SELECT COUNT(*) AS n, COALESCE(SUM(failures), 0) AS failures FROM ${table} m
         JOIN queue_topic t ON t.id = m.topic_id WHERE t.name = ?`,
        [topic],
      );
      all[0] += Number(row.n);
      all[1] += Number(row.failures);
    }
    return all;
  });
}

async function send(topic, ...bodies) {
  await withConnection(async (connection) => {
    await connection.beginTransaction();
    await rowmq.sendAll(connection, topic, bodies.map((body) => ({ body })));
    await connection.commit();
  });
}

async function effects() {
  return withConnection(async (connection) => {
    const [[row]] = await connection.query('SELECT COUNT(*) AS n, COUNT(DISTINCT msg_id) AS ids FROM effect');
    return [Number(row.n), Number(row.ids)];
  });
}

const effect = (tx, message) => tx.execute('INSERT INTO effect VALUES (?, ?)', [message.id, message.deliveryNo]);

test('a message exists if its transaction commits', async () => {
  await withConnection(async (connection) => {
    for (const commit of [false, true]) {
      await connection.beginTransaction();
      const sent = await rowmq.send(connection, 'sending', { order: 17 }, {
        priority: 3,
        key: 'ada',
        headers: { trace: '4bf9' },
        deliver_in: '48h',
        expires_at: new Date(Date.now() + 30 * 86_400_000),
      });
      assert.match(sent.id, /^[0-9a-f]{8}-/);
      await (commit ? connection.commit() : connection.rollback());
      assert.equal((await counts('sending'))[0], Number(commit));
    }
  });
});

test('a refusal has a name and leaves the transaction open', async () => {
  await withConnection(async (connection) => {
    await connection.beginTransaction();
    await rowmq.send(connection, 'refusals', 'first');
    for (const [expected, topic, options] of [
      [rowmq.TopicNotFound, 'no-such-topic', {}],
      [rowmq.InvalidOptions, 'refusals', { priority: 10 }],
      [rowmq.InvalidOptions, 'refusals', { colour: 'blue' }],
    ]) {
      await assert.rejects(rowmq.send(connection, topic, 'x', options), expected);
    }
    await connection.commit();
    assert.equal((await counts('refusals'))[0], 1);
    await assert.rejects(rowmq.sendAll(connection, 'refusals', [{ body: 'x' }]), rowmq.NoTransaction);
  });
});

test('one message holds a key', async () => {
  await withConnection(async (connection) => {
    await connection.beginTransaction();
    const options = { unique: 'c-7', on_conflict: 'replace', deliver_in: 60 };
    const first = await rowmq.send(connection, 'unique', '1', options);
    const second = await rowmq.send(connection, 'unique', '2', { unique: 'c-7', on_conflict: 'replace' });
    await connection.commit();
    assert.deepEqual([first.duplicate, first.replaced], [false, false]);
    assert.deepEqual(second, { id: first.id, duplicate: true, replaced: true });
  });
});

test('many messages are sent in one transaction', async () => {
  const bytes = Buffer.from(Array.from({ length: 256 }, (_, n) => n));
  const messages = Array.from({ length: 2_500 }, (_, n) => ({ body: { n } }));
  messages.push({ body: bytes, key: 'k', headers: { a: 'ü' } });
  await withConnection(async (connection) => {
    await connection.beginTransaction();
    assert.equal(await rowmq.sendAll(connection, 'many', messages), 2_501);
    await connection.commit();
  });
  const seen = [];
  const worker = new rowmq.Worker(undefined, { connect });
  worker.handler('many', { transactional: true, batch: 1000 }, (_, message) => void seen.push(message));
  await worker.run({ untilEmpty: true });
  assert.deepEqual(seen.slice(0, 2_500).map((message) => message.json.n), [...Array(2_500).keys()]);
  const last = seen[2_500];
  assert.deepEqual([last.body, last.key, last.headers], [bytes, Buffer.from('k'), { a: 'ü' }]);
  assert.ok(Math.abs(last.enqueuedAt - Date.now()) < 600_000);
});

test('the work and the ack of a batch commit together, and a failure is alone', async () => {
  await send('work', ...Array.from({ length: 10 }, (_, n) => ({ n })), 'bad');
  const before = (await effects())[0];
  const worker = new rowmq.Worker(url).handler('work', { transactional: true }, async (tx, message) => {
    await effect(tx, message);
    if (message.text === 'bad') throw new TypeError('no number');
  });
  await worker.run({ untilEmpty: true });
  assert.deepEqual(await counts('work'), [1, 1]);
  assert.equal((await effects())[0] - before, 10);
});

test('each verdict is thrown or returned', async () => {
  const verdicts = {
    retry: new rowmq.Retry('later', 3600),
    'odd text': new rowmq.Retry('\ud800', 3600),
    snooze: new rowmq.Snooze(3600),
    dead: new rowmq.DeadLetter('broken'),
    discard: new rowmq.Discard('old'),
    error: new TypeError('odd'),
    number: 200,
    nothing: undefined,
    ack: undefined,
  };
  assert.equal(new rowmq.Retry('', -1).delay, 0);
  for (const wrong of [NaN, Infinity, '10m', null]) assert.throws(() => new rowmq.Retry('', wrong), TypeError);
  assert.throws(() => new rowmq.Snooze(), TypeError);
  const expected = Object.fromEntries(Object.keys(verdicts).map((name) => [name, 'retry']));
  Object.assign(expected, { snooze: 'snooze', dead: 'dead-letter', discard: 'discard', ack: undefined });
  let rounds = 0;
  for (const transactional of [false, true]) {
    for (const thrown of [false, true]) {
      await send('verdicts', ...Object.keys(verdicts));
      const settled = {};
      const onSettled = async (message, verdict) => {
        if (!(message.text in settled)) settled[message.text] = verdict?.word;
        throw new Error('a hook that fails harms nothing');
      };
      const log = { warn() {} };
      const worker = new rowmq.Worker(url, { onSettled, log });
      worker.handler('verdicts', { transactional }, async (...given) => {
        const verdict = verdicts[given.at(-1).text];
        if (given.at(-1).text === 'nothing') return Promise.reject();
        if (verdict instanceof Error && (thrown || !(verdict instanceof rowmq.Verdict))) throw verdict;
        return verdict;
      });
      await worker.run({ untilEmpty: true });
      assert.deepEqual(settled, expected);
      rounds += 1;
      assert.equal((await counts('verdicts'))[0], 6 * rounds);
    }
  }
});

test('a checkpoint is there for the next delivery', async () => {
  const state = Buffer.from([0x70, 0, 0xff]);
  for (const transactional of [false, true]) {
    await send('checkpoints', 'x');
    const found = [];
    const worker = new rowmq.Worker(url);
    worker.handler('checkpoints', { transactional }, async (...given) => {
      const message = given.at(-1);
      const last = await message.lastCheckpoint();
      found.push(last && [last.deliveryNo, last.progress, last.state]);
      if (transactional) await assert.rejects(message.checkpoint(state), /in a transaction/);
      else await message.checkpoint(state, 40);
      return message.deliveryNo === 1 ? new rowmq.Release() : undefined;
    });
    await worker.run({ untilEmpty: true });
    assert.deepEqual(found, [undefined, transactional ? undefined : [1, 40, state]]);
  }
  const [[row]] = await withConnection((connection) => connection.query('SELECT COUNT(*) AS n FROM queue_checkpoint'));
  assert.equal(Number(row.n), 0);
});

test('groups of a stream are consumed, and an ordered one in order', async () => {
  await send('events', 'a', 'b', 'c');
  for (const [group, expected] of [['events@all', 'abca'], ['events@ordered', 'aabc']]) {
    let found = '';
    const worker = new rowmq.Worker(url).handler(group, { batch: 10 }, async (message) => {
      found += message.text;
      return message.text === 'a' && message.deliveryNo === 1 ? new rowmq.Release() : undefined;
    });
    await worker.run({ untilEmpty: true });
    assert.equal(found, expected);
  }
});

test('an error of a statement that the handler swallows acks nothing', async () => {
  await send('swallow', 'lock', 'other');
  const before = (await effects())[0];
  const holder = await connect();
  await holder.beginTransaction();
  await holder.query('INSERT INTO only_one (id) VALUES (1)');
  const worker = new rowmq.Worker(url).handler('swallow', { transactional: true }, async (tx, message) => {
    await effect(tx, message);
    if (message.text !== 'lock') return;
    await tx.query('SET SESSION innodb_lock_wait_timeout = 1');
    await tx.query('INSERT INTO only_one (id) VALUES (1)').catch(() => {});
  });
  await worker.run({ untilEmpty: true });
  holder.destroy();
  assert.deepEqual(await counts('swallow'), [1, 1]);
  assert.equal((await effects())[0] - before, 1);
});

test('a statement that a failed handler has left behind is in no transaction', async () => {
  await send('release', 'first', 'second');
  const before = (await effects())[0];
  let left;
  const worker = new rowmq.Worker(url).handler('release', { transactional: true, batch: 1 }, async (tx, message) => {
    await effect(tx, message);
    if (message.text === 'second') return void (await sleep(400));
    left = sleep(200).then(() => effect(tx, message)).then(() => 'it ran', String);
    throw new Error('while a statement is still to come');
  });
  await worker.run({ untilEmpty: true });
  assert.match(await left, /is over/);
  assert.equal((await effects())[0] - before, 1);
});

test('a handler that commits has its message dead-lettered', async () => {
  for (const bodies of [['commit'], ['throw'], ['first', 'commit', 'last'], ['first', 'throw', 'last'], ['wait']]) {
    await send('commits', ...bodies);
    const settled = {};
    const worker = new rowmq.Worker(url, { onSettled: (message, it) => (settled[message.text] = it?.word) });
    worker.handler('commits', { transactional: true }, async (tx, message) => {
      await effect(tx, message);
      if (['commit', 'throw', 'wait'].includes(message.text)) await tx.connection.commit();
      if (message.text === 'wait') {
        // For a lock, in vain: the server undoes the statement only.
        await withConnection(async (other) => {
          await other.beginTransaction();
          await other.query('INSERT INTO only_one VALUES (9)');
          await tx.query('SET SESSION innodb_lock_wait_timeout = 1');
          await tx.query('INSERT INTO only_one VALUES (9)');
        });
      }
      if (message.text === 'throw') throw new Error('after its commit');
    });
    await worker.run({ untilEmpty: true });
    assert.deepEqual(settled, Object.fromEntries(bodies.map((body) => [body, 'dead-letter'])));
    assert.deepEqual(await counts('commits'), [0, 0]);
  }
});

test('a long handler keeps its session alive', async () => {
  for (const transactional of [false, true]) {
    await send('beats', 'x');
    const calls = [];
    const worker = new rowmq.Worker(url, { lease: 3 });
    worker.handler('beats', { transactional }, async (...given) => {
      calls.push(given.at(-1).deliveryNo);
      await sleep(5_000);
    });
    await worker.run({ untilEmpty: true });
    assert.deepEqual(calls, [1]);
    assert.deepEqual(await counts('beats'), [0, 0]);
  }
});

test('a lost session is replaced', async () => {
  await send('lost', 'x');
  const deliveries = [];
  const worker = new rowmq.Worker(url, { log: { warn() {} } });
  worker.handler('lost', { transactional: true }, async (tx, message) => {
    deliveries.push(message.deliveryNo);
    if (deliveries.length === 1) {
      const [[{ number }]] = await tx.query('SELECT CONNECTION_ID() AS number');
      await withConnection((other) => other.query(`KILL CONNECTION ${number}`));
    } else {
      worker.stop();
    }
    await effect(tx, message);
  });
  await worker.run();
  assert.deepEqual(deliveries, [1, 2]);
  assert.equal((await counts('lost'))[0], 0);
});

test('TERM ends a worker after its message', async () => {
  await send('term', '0', '1', '2');
  const handled = [];
  const worker = new rowmq.Worker(url).handler('term', {}, async (message) => {
    handled.push(message.id);
    process.kill(process.pid, 'SIGTERM');
    await sleep(500);
  });
  await worker.run();
  assert.equal(handled.length, 1);
  assert.deepEqual(await counts('term'), [2, 0]);
  assert.equal(process.listenerCount('SIGTERM'), 0);
});

test('what keeps a worker from starting is thrown', async () => {
  const worker = new rowmq.Worker(url).handler('no-such-topic', {}, () => undefined);
  await assert.rejects(worker.run(), rowmq.TopicNotFound);
});
