import type { Connection, QueryResult, FieldPacket } from 'mysql2/promise';

/** The queue refuses a call; nothing has been changed, and your transaction is still open. */
export class Refused extends Error {
  /** The number in the SQL contract, which lists them all with what to do. */
  readonly code: number;
}
export class TopicNotFound extends Refused {}
export class TopicClosed extends Refused {}
export class TopicFull extends Refused {}
export class BodyTooLarge extends Refused {}
export class InvalidOptions extends Refused {}
export class NoTransaction extends Refused {}
export class AccessDenied extends Refused {}
export class DeliveryLost extends Refused {}

/** A number of seconds, or a number and its unit: `250ms`, `1.5h`, `48h`, `7d`. */
export type Time = number | string;
/** Text in UTC, such as `2026-12-24T18:00:00Z`, or a Date. */
export type Moment = string | Date;
/** Bytes are sent as they are, text as UTF-8, and anything else as JSON. */
export type Body = unknown;

export interface BatchOptions {
  priority?: number;
  key?: string;
  biz_id?: string;
  headers?: Record<string, string>;
  id?: string;
}

export interface SendOptions extends BatchOptions {
  deliver_in?: Time;
  deliver_at?: Moment;
  expires_in?: Time;
  expires_at?: Moment;
  unique?: string;
  unique_for?: Time;
  on_conflict?: 'keep' | 'replace' | 'debounce';
  max_wait?: Time;
}

/** What became of a message that was sent. */
export interface Sent {
  /** The message's, or that of the message that holds its key; null if the latter is another account's. */
  id: string | null;
  duplicate: boolean;
  replaced: boolean;
}

/** Sends a message in the open transaction of `connection`: it exists if that commits. */
export function send(connection: Connection, topic: string, body: Body, options?: SendOptions): Promise<Sent>;

/** Sends many, 1000 in a call; returns how many were stored. After any error roll back. */
export function sendAll(
  connection: Connection,
  topic: string,
  messages: Iterable<{ body: Body } & BatchOptions>,
): Promise<number>;

/** A message that is being handled. */
export interface Message {
  readonly topic: string;
  /** The same for every delivery. */
  readonly id: string;
  /** Rises with every delivery. */
  readonly deliveryNo: number;
  readonly failures: number;
  readonly enqueuedAt: Date;
  readonly body: Buffer;
  readonly key?: Buffer;
  readonly bizId?: Buffer;
  readonly headers: Record<string, string>;
  readonly traceparent?: string;
  /** The body as UTF-8. */
  readonly text: string;
  /** The body as JSON. */
  readonly json: any;
  /**
   * Saves how far the work has come, up to 1 MiB, and 0 to 100 percent of it: the next delivery goes on
   * from there. Not in a pool, nor in a handler in a transaction.
   */
  checkpoint(state: string | Uint8Array, progress?: number): Promise<void>;
  /** Returns what was saved last, by this delivery or one before it. */
  lastCheckpoint(): Promise<Checkpoint | undefined>;
}

/** How far the work on a message had come: what a handler has saved of it. */
export interface Checkpoint {
  readonly deliveryNo: number;
  readonly savedAt: Date;
  /** In percent. */
  readonly progress?: number;
  readonly state: Buffer;
}

/** A decision about a message other than ack: a handler throws or returns one. */
export abstract class Verdict extends Error {
  readonly word: 'retry' | 'snooze' | 'dead-letter' | 'discard' | 'release';
  readonly reason: string;
  /** In seconds. */
  readonly delay?: number;
}
export class Retry extends Verdict {
  constructor(reason?: unknown, delay?: number);
}
export class Snooze extends Verdict {
  constructor(delay: number, reason?: unknown);
}
export class DeadLetter extends Verdict {
  constructor(reason: unknown);
}
export class Discard extends Verdict {
  constructor(reason: unknown);
}
export class Release extends Verdict {
  constructor();
}

type Returned = Verdict | void | null | undefined;

/** The open transaction that a handler's work and its ack share. */
export interface Transaction {
  query<T extends QueryResult>(sql: string, values?: any): Promise<[T, FieldPacket[]]>;
  execute<T extends QueryResult>(sql: string, values?: any): Promise<[T, FieldPacket[]]>;
  /** For libraries that want one. Do not commit or roll back. */
  readonly connection: Connection;
}

export interface WorkerOptions {
  /** Returns a connection of mysql2/promise, with `timezone: 'Z'`, in place of the URL. */
  connect?: () => Promise<Connection>;
  /** After this many seconds of silence the server ends a frozen worker's session. Default 60. */
  lease?: number;
  /** Called for each message that was settled; no verdict means ack. */
  onSettled?: (message: Message, verdict: Verdict | undefined, seconds: number) => void;
  /** Default: console. */
  log?: { warn(text: string): void };
}

export interface HandlerOptions {
  concurrency?: number;
  batch?: number;
}

/** Runs handlers on the messages of topics. */
export class Worker {
  constructor(url: string | undefined, options?: WorkerOptions);
  handler(
    topic: string,
    options: HandlerOptions & { transactional: true },
    handle: (tx: Transaction, message: Message) => Promise<Returned> | Returned,
  ): this;
  handler(
    topic: string,
    options: HandlerOptions & { transactional?: false },
    handle: (message: Message) => Promise<Returned> | Returned,
  ): this;
  stop(): void;
  run(options?: { untilEmpty?: boolean }): Promise<void>;
}

/** Handles the messages of `rowmq-consumer pool TOPIC -- node program.js`. */
export function serve(
  handler: (message: Message) => Promise<Returned> | Returned,
  options?: { maxMessages?: number },
): Promise<void>;
