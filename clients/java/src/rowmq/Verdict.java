package rowmq;

import java.time.Duration;

/** A decision about a message other than ack, which a handler throws. */
public final class Verdict extends RuntimeException {
    private static final long serialVersionUID = 1;

    /** The queue refuses a longer delay. */
    private static final Duration LONGEST = Duration.ofDays(3650);

    final String word;
    final Duration delay;

    private Verdict(String word, String reason, Duration delay) {
        super(reason == null ? "" : reason);
        this.word = word;
        boolean isLong = delay != null && delay.compareTo(LONGEST) > 0;
        this.delay = delay != null && delay.isNegative() ? Duration.ZERO : isLong ? LONGEST : delay;
    }

    /** It has failed: try again after the topic's backoff. Every other exception means the same. */
    public static Verdict retry(String reason) {
        return new Verdict("retry", reason, null);
    }

    /** It has failed: try again after this time. */
    public static Verdict retry(String reason, Duration delay) {
        return new Verdict("retry", reason, delay);
    }

    /** Not yet: comes back after this time, and nothing is charged. */
    public static Verdict snooze(Duration delay) {
        return new Verdict("snooze", "", delay);
    }

    /** Never try again. */
    public static Verdict deadLetter(String reason) {
        return new Verdict("dead-letter", reason, null);
    }

    /** Not worth handling: acked, and the reason is kept. */
    public static Verdict discard(String reason) {
        return new Verdict("discard", reason, null);
    }

    /** Not now: given back unchanged, and nothing is charged. */
    public static Verdict release() {
        return new Verdict("release", "", null);
    }

    /** Returns the verdict that an error of a handler stands for. */
    static Verdict of(Throwable error) {
        return error instanceof Verdict verdict ? verdict : retry(error.toString());
    }
}
