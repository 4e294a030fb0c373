<?php

declare(strict_types=1);

namespace Rowmq;

/**
 * A message that is being handled. The id is the same for every delivery, and the delivery number
 * rises with each: together they are the token by which another system can refuse what it has seen.
 */
final class Message
{
    /**
     * @internal
     * @param array<string, string> $headers
     */
    public function __construct(
        public readonly string $topic,
        public readonly string $id,
        public readonly int $deliveryNo,
        public readonly int $failures,
        public readonly \DateTimeImmutable $enqueuedAt,
        public readonly string $body,
        public readonly ?string $key = null,
        public readonly ?string $bizId = null,
        public readonly array $headers = [],
        public readonly ?string $traceparent = null,
        private readonly ?\Closure $save = null,
        private readonly ?\Closure $last = null,
    ) {
    }

    /**
     * Saves how far the work has come, up to 1 MiB, and 0 to 100 percent of it: the next delivery goes on
     * from there. Not in a pool, nor in a handler in a transaction.
     */
    public function checkpoint(string $state, ?int $progress = null): void
    {
        if ($this->save === null) {
            throw new \LogicException('a worker of this package saves checkpoints, and a pool does not');
        }
        ($this->save)($state, $progress);
    }

    /** Returns what was saved last, by this delivery or one before it. */
    public function lastCheckpoint(): ?Checkpoint
    {
        return $this->last === null ? null : ($this->last)();
    }

    /** Returns the body as JSON, objects as arrays. */
    public function json(): mixed
    {
        return json_decode($this->body, true, 512, JSON_THROW_ON_ERROR);
    }

    /**
     * @internal Of a row of queue_claim.
     * @param array<string, mixed> $row
     */
    public static function ofRow(string $topic, array $row, \Closure $save, \Closure $last): self
    {
        return new self(
            topic: $topic,
            id: (string) $row['msg_id'],
            deliveryNo: (int) $row['delivery_no'],
            failures: (int) $row['failures'],
            enqueuedAt: self::moment((string) $row['enqueued_at']),
            body: (string) $row['body'],
            key: $row['key'],
            bizId: $row['biz_id'],
            headers: self::headersOf($row['headers']),
            save: $save,
            last: $last,
        );
    }

    /**
     * @internal Of a frame of a pool.
     * @param array<string, mixed> $frame
     */
    public static function ofFrame(array $frame): self
    {
        $of = static fn (string $name): ?string =>
            $frame[$name] ?? (isset($frame["{$name}_base64"]) ? (string) base64_decode($frame["{$name}_base64"]) : null);
        return new self(
            topic: $frame['topic'],
            id: $frame['msg_id'],
            deliveryNo: $frame['delivery_no'],
            failures: $frame['failures'],
            enqueuedAt: self::moment($frame['enqueued_at']),
            body: (string) $of('body'),
            key: $of('key'),
            bizId: $of('biz_id'),
            headers: $frame['headers'] ?? [],
            traceparent: $frame['traceparent'] ?? null,
        );
    }

    /** @internal */
    public static function moment(string $text): \DateTimeImmutable
    {
        return new \DateTimeImmutable($text, new \DateTimeZone('UTC'));
    }

    /** @return array<string, string> */
    private static function headersOf(?string $value): array
    {
        if ($value === null || $value === '') {
            return [];
        }
        $headers = json_decode($value, true);
        if (is_array($headers) && array_filter($headers, is_string(...)) === $headers) {
            return $headers;
        }
        // Written past the checks of the contract: the handler gets them whole, as in the consumer.
        return ['malformed-headers' => $value];
    }
}
