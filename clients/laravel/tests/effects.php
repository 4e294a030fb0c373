<?php

// A worker of `artisan queue:work` with one effect for each message.

declare(strict_types=1);

$_SERVER['BLOCK_FOR'] = '1';
$_SERVER['argv'] = ['artisan', 'queue:work', 'rowmq', '--queue=work', '--sleep=0', '--tries=0', '--quiet'];
require __DIR__ . '/artisan';
