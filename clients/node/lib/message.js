/** A message that is being handled. */
export class Message {
  constructor(fields) {
    Object.assign(this, fields);
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
