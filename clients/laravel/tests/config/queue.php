<?php

return [
    'default' => 'rowmq',
    'connections' => [
        'rowmq' => [
            'driver' => 'rowmq',
            'connection' => null,
            'queue' => 'default',
            // The tests look, and do not wait.
            'block_for' => (int) env('BLOCK_FOR', 0),
        ],
    ],
    'failed' => ['driver' => 'null'],
];
