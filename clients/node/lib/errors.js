/** The queue refuses a call; nothing has been changed, and your transaction is still open. */
export class Refused extends Error {
  /** @param {number} code @param {string} text @param {unknown} cause */
  constructor(code, text, cause) {
    super(text, { cause });
    this.name = new.target.name;
    /** The number in the SQL contract, which lists them all with what to do. */
    this.code = code;
  }
}

/** There is no such topic. */
export class TopicNotFound extends Refused {}
/** The topic accepts no messages now, or no topic does. */
export class TopicClosed extends Refused {}
/** The topic holds as many messages or bytes as it may; try again when it is drained. */
export class TopicFull extends Refused {}
/** The body is larger than the topic accepts. */
export class BodyTooLarge extends Refused {}
/** An option has an unknown name or a value that the queue does not take. */
export class InvalidOptions extends Refused {}
/** The call needs an open transaction. */
export class NoTransaction extends Refused {}
/** The account may not do this in the topic. */
export class AccessDenied extends Refused {}
/** The session no longer holds the delivery: roll back, another consumer does the work. */
export class DeliveryLost extends Refused {}

const NAMED = new Map([
  [31001, TopicNotFound],
  [31002, TopicClosed],
  [31004, BodyTooLarge],
  [31013, NoTransaction],
  [31015, DeliveryLost],
  [31020, TopicFull],
  [31027, InvalidOptions],
  [31028, AccessDenied],
  [31029, InvalidOptions],
]);
for (let code = 31005; code <= 31012; code += 1) NAMED.set(code, InvalidOptions);

/** Returns the queue's own refusals by their names, and other errors as they are. */
export function named(error) {
  const code = error?.errno;
  if (error instanceof Refused || !(code > 31000 && code < 31100)) return error;
  const text = error.sqlMessage ?? error.message;
  return new (NAMED.get(code) ?? Refused)(code, text, error);
}
