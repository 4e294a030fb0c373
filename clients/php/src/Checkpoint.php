<?php

declare(strict_types=1);

namespace Rowmq;

/** How far the work on a message had come: what a handler has saved of it. */
final class Checkpoint
{
    /** @internal */
    public function __construct(
        public readonly int $deliveryNo,
        public readonly \DateTimeImmutable $savedAt,
        public readonly ?int $progress,
        public readonly string $state,
    ) {
    }
}
