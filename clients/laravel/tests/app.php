<?php

// A small application of Laravel, which finds the package as any application does.

declare(strict_types=1);

use Illuminate\Foundation\Application;

require_once __DIR__ . '/vendor/autoload.php';

return Application::configure(__DIR__)->withExceptions()->withMiddleware()->create();
