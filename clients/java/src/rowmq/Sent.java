package rowmq;

/**
 * What became of a message that was sent.
 *
 * @param id the message's, or that of the message that holds its key; null if the latter is another account's
 * @param duplicate whether another message held its key
 * @param replaced whether it took that message's place
 */
public record Sent(String id, boolean duplicate, boolean replaced) {}
