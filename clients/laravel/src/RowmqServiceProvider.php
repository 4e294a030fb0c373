<?php

declare(strict_types=1);

namespace Rowmq\Laravel;

use Illuminate\Queue\Events\JobExceptionOccurred;
use Illuminate\Queue\QueueManager;
use Illuminate\Support\ServiceProvider;

/** Makes the driver `rowmq` known to config/queue.php. */
final class RowmqServiceProvider extends ServiceProvider
{
    public function register(): void
    {
        $this->callAfterResolving('queue', function (QueueManager $manager): void {
            $manager->addConnector('rowmq', fn () => new RowmqConnector($this->app['db']));
        });
    }

    public function boot(): void
    {
        $this->app['events']->listen(JobExceptionOccurred::class, static function (JobExceptionOccurred $event): void {
            if ($event->job instanceof RowmqJob) {
                $event->job->hasThrown($event->exception);
            }
        });
    }
}
