<?php

// A worker of `ops/bench` that does nothing: counter.php TOPIC. Prints 0 when it begins, and what it has settled.

declare(strict_types=1);

require 'vendor/autoload.php';

const EACH = 100;
$count = 0;

$worker = new Rowmq\Worker(getenv('ROWMQ_URL'), onSettled: function () use (&$count): void {
    if (++$count % EACH === 0) {
        echo EACH, "\n";
    }
});
$worker->handler($argv[1], function () use (&$count): void {
    if ($count === 0) {
        echo "0\n";
    }
}, transactional: true);
$worker->run();
