<?php

declare(strict_types=1);

namespace Rowmq;

/**
 * The queue refuses a call; nothing has been changed, and your transaction is still open. The code is
 * the number in the SQL contract, which lists them all with what to do.
 */
class Refused extends \RuntimeException
{
    private const NAMED = [
        31001 => TopicNotFound::class,
        31002 => TopicClosed::class,
        31004 => BodyTooLarge::class,
        31005 => InvalidOptions::class,
        31006 => InvalidOptions::class,
        31007 => InvalidOptions::class,
        31008 => InvalidOptions::class,
        31009 => InvalidOptions::class,
        31010 => InvalidOptions::class,
        31011 => InvalidOptions::class,
        31012 => InvalidOptions::class,
        31013 => NoTransaction::class,
        31015 => DeliveryLost::class,
        31020 => TopicFull::class,
        31027 => InvalidOptions::class,
        31028 => AccessDenied::class,
        31029 => InvalidOptions::class,
    ];

    /** @internal Returns the queue's own refusal by its name, and any other error as it is. */
    public static function named(\Throwable $error): \Throwable
    {
        $code = self::codeOf($error);
        if ($error instanceof self || $code === null || $code <= 31000 || $code >= 31100) {
            return $error;
        }
        // PDO writes its own words before the server's.
        $text = $error instanceof \PDOException ? ($error->errorInfo[2] ?? $error->getMessage()) : $error->getMessage();
        $name = self::NAMED[$code] ?? self::class;
        return new $name($text, $code, $error);
    }

    /** @internal Returns the server's number of an error, also of one that a framework has wrapped. */
    public static function codeOf(?\Throwable $error): ?int
    {
        for (; $error !== null; $error = $error->getPrevious()) {
            if ($error instanceof self) {
                return $error->getCode();
            }
            if ($error instanceof \PDOException && is_int($error->errorInfo[1] ?? null)) {
                return $error->errorInfo[1];
            }
        }
        return null;
    }
}

/** There is no such topic. */
final class TopicNotFound extends Refused
{
}

/** The topic accepts no messages now, or no topic does. */
final class TopicClosed extends Refused
{
}

/** The topic holds as many messages or bytes as it may; try again when it is drained. */
final class TopicFull extends Refused
{
}

/** The body is larger than the topic accepts. */
final class BodyTooLarge extends Refused
{
}

/** An option has an unknown name or a value that the queue does not take. */
final class InvalidOptions extends Refused
{
}

/** The call needs an open transaction: begin one. */
final class NoTransaction extends Refused
{
}

/** The account may not do this in the topic. */
final class AccessDenied extends Refused
{
}

/** The session no longer holds the delivery: roll back, another consumer does the work. */
final class DeliveryLost extends Refused
{
}
