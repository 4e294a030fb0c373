<?php

declare(strict_types=1);

namespace Rowmq;

/** A decision about a message other than ack: a handler throws or returns one. */
abstract class Verdict extends \RuntimeException
{
    /** In bytes of UTF-8: the queue keeps no more. */
    private const LONGEST_REASON = 8192;

    /** In seconds; the queue refuses a longer one. */
    private const LONGEST_DELAY = 315_360_000.0;

    public readonly string $reason;
    public readonly ?float $delay;

    /** @internal */
    public function __construct(public readonly string $word, string|\Throwable $reason, ?float $delay)
    {
        $text = $reason instanceof \Throwable ? $reason->getMessage() : $reason;
        // The queue keeps text in UTF-8.
        $text = substr($text, 0, self::LONGEST_REASON);
        $this->reason = isText($text) ? $text : self::cleaned($text);
        if ($delay !== null && !is_finite($delay)) {
            throw new \ValueError("a delay is a number of seconds, not $delay");
        }
        $this->delay = $delay === null ? null : min(max($delay, 0.0), self::LONGEST_DELAY);
        parent::__construct($this->reason);
    }

    /** @internal Returns the verdict that an error of a handler stands for. */
    public static function of(\Throwable $error): self
    {
        return $error instanceof self && isset($error->word) ? $error : new Retry($error::class . ': ' . $error->getMessage());
    }

    /** @internal Refuses what is no verdict. */
    public static function checked(mixed $returned): ?self
    {
        // A class of the caller's may have left out the constructor of its parent.
        if ($returned === null || ($returned instanceof self && isset($returned->word))) {
            return $returned;
        }
        throw new \TypeError('the handler returned ' . get_debug_type($returned) . ', which is no Rowmq\Verdict');
    }

    private static function cleaned(string $text): string
    {
        return (string) json_decode((string) json_encode($text, JSON_INVALID_UTF8_SUBSTITUTE));
    }
}

/**
 * It has failed: try again after so many seconds, or else after the topic's backoff. Every other
 * exception of a handler means the same, without a delay.
 */
final class Retry extends Verdict
{
    public function __construct(string|\Throwable $reason = '', ?float $delay = null)
    {
        parent::__construct('retry', $reason, $delay);
    }
}

/** Not yet: comes back after so many seconds, and nothing is charged. */
final class Snooze extends Verdict
{
    public function __construct(float $delay, string $reason = '')
    {
        parent::__construct('snooze', $reason, $delay);
    }
}

/** Never try again. */
class DeadLetter extends Verdict
{
    public function __construct(string|\Throwable $reason)
    {
        parent::__construct('dead-letter', $reason, null);
    }
}

/** Not worth handling: acked, and the reason is kept. */
final class Discard extends Verdict
{
    public function __construct(string|\Throwable $reason)
    {
        parent::__construct('discard', $reason, null);
    }
}

/** Not now: given back unchanged, and nothing is charged. */
final class Release extends Verdict
{
    public function __construct()
    {
        parent::__construct('release', '', null);
    }
}
