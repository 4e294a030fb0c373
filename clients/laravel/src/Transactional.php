<?php

declare(strict_types=1);

namespace Rowmq\Laravel;

/**
 * A job whose effects happen exactly once: the statements of its `handle` and its removal from the queue
 * commit together, with the next job of its chain and its mark in its batch. It holds for statements on
 * the queue's own database connection.
 */
interface Transactional
{
}
