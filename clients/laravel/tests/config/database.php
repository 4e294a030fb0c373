<?php

$server = ['driver' => 'mysql', 'url' => env('ROWMQ_URL'), 'charset' => 'utf8mb4', 'prefix' => '', 'strict' => true];

return ['default' => 'mysql', 'connections' => ['mysql' => $server, 'other' => $server]];
