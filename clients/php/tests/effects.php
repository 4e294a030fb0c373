<?php

// A worker whose handler has one effect for each message.

declare(strict_types=1);

require 'vendor/autoload.php';

$worker = new Rowmq\Worker(getenv('ROWMQ_URL'), lease: (int) (getenv('LEASE') ?: 60));
$worker->handler('work', function (Rowmq\Transaction $tx, Rowmq\Message $message): void {
    $tx->execute('INSERT INTO effect VALUES (?, ?)', [$message->id, $message->deliveryNo]);
    // So that a kill finds it at work.
    usleep(2_000);
}, transactional: true);
$worker->run();
