/** A message that is being handled. */
export class Message {
  #checkpoints;

  constructor(fields, checkpoints) {
    Object.assign(this, fields);
    this.#checkpoints = checkpoints;
  }

  /** Saves how far the work has come, and 0 to 100 percent of it, for the next delivery. */
  async checkpoint(state, progress) {
    if (!this.#checkpoints) throw new Error('a worker of this package saves checkpoints, and a pool does not');
    await this.#checkpoints.save(Buffer.from(state), progress ?? null);
  }

  /** Returns what was saved last, by this delivery or one before it. */
  async lastCheckpoint() {
    return this.#checkpoints?.last();
  }

  /** The body as UTF-8. */
  get text() {
    return this.body.toString('utf8');
  }

  /** The body as JSON. */
  get json() {
    return JSON.parse(this.text);
  }
}
