// Transactional queues inside MySQL and MariaDB: send in a transaction of your own, and consume with
// a Worker, or with serve() in a pool of `rowmq-consumer`.

export { DeliveryLost, Refused, TopicNotFound, TopicClosed, TopicFull } from './lib/errors.js';
export { AccessDenied, BodyTooLarge, InvalidOptions, NoTransaction } from './lib/errors.js';
export { serve } from './lib/pool.js';
export { send, sendAll } from './lib/send.js';
export { DeadLetter, Discard, Release, Retry, Snooze, Verdict } from './lib/verdict.js';
export { Worker } from './lib/worker.js';
