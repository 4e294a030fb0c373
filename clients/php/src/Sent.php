<?php

declare(strict_types=1);

namespace Rowmq;

/** What became of a message that was sent. */
final class Sent
{
    /**
     * @internal The id is the message's, or that of the message that holds its key; null if the latter
     * is another account's.
     */
    public function __construct(
        public readonly ?string $id,
        public readonly bool $duplicate,
        public readonly bool $replaced,
    ) {
    }
}
