package rowmq;

import java.sql.SQLException;

/**
 * The queue refuses a call; nothing has been changed, and your transaction is still open. The error code is the number
 * in the SQL contract, which lists them all with what to do.
 */
public class Refused extends SQLException {
    private static final long serialVersionUID = 1;

    private Refused(SQLException cause) {
        super(cause.getMessage(), cause.getSQLState(), cause.getErrorCode(), cause);
    }

    /** Returns the queue's own refusal by its name, and any other error as it is. */
    static SQLException named(SQLException error) {
        int code = error.getErrorCode();
        return switch (code) {
            case 31001 -> new TopicNotFound(error);
            case 31002 -> new TopicClosed(error);
            case 31004 -> new BodyTooLarge(error);
            case 31005, 31006, 31007, 31008, 31009, 31010, 31011, 31012, 31027, 31029 -> new InvalidOptions(error);
            case 31013 -> new NoTransaction(error);
            case 31020 -> new TopicFull(error);
            case 31028 -> new AccessDenied(error);
            default -> code > 31000 && code < 31100 ? new Refused(error) : error;
        };
    }

    /** There is no such topic. */
    public static final class TopicNotFound extends Refused {
        private static final long serialVersionUID = 1;

        private TopicNotFound(SQLException cause) {
            super(cause);
        }
    }

    /** The topic accepts no messages now, or no topic does. */
    public static final class TopicClosed extends Refused {
        private static final long serialVersionUID = 1;

        private TopicClosed(SQLException cause) {
            super(cause);
        }
    }

    /** The topic holds as many messages or bytes as it may; try again when it is drained. */
    public static final class TopicFull extends Refused {
        private static final long serialVersionUID = 1;

        private TopicFull(SQLException cause) {
            super(cause);
        }
    }

    /** The body is larger than the topic accepts. */
    public static final class BodyTooLarge extends Refused {
        private static final long serialVersionUID = 1;

        private BodyTooLarge(SQLException cause) {
            super(cause);
        }
    }

    /** An option has a value that the queue does not take. */
    public static final class InvalidOptions extends Refused {
        private static final long serialVersionUID = 1;

        private InvalidOptions(SQLException cause) {
            super(cause);
        }
    }

    /** The call needs an open transaction: turn autocommit off. */
    public static final class NoTransaction extends Refused {
        private static final long serialVersionUID = 1;

        private NoTransaction(SQLException cause) {
            super(cause);
        }
    }

    /** The account may not do this in the topic. */
    public static final class AccessDenied extends Refused {
        private static final long serialVersionUID = 1;

        private AccessDenied(SQLException cause) {
            super(cause);
        }
    }
}
