<?php

declare(strict_types=1);

namespace Rowmq\Laravel;

/** A job that is sent with options of `Rowmq\send`. */
interface HasMessageOptions
{
    /**
     * Returns the options by name: `['key' => 'customer-7', 'priority' => 3]`.
     *
     * @return array<string, mixed>
     */
    public function messageOptions(): array;
}
