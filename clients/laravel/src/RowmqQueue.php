<?php

declare(strict_types=1);

namespace Rowmq\Laravel;

use Illuminate\Contracts\Queue\Queue as QueueContract;
use Illuminate\Database\Connection;
use Illuminate\Database\ConnectionResolverInterface;
use Illuminate\Queue\Attributes\Delay;
use Illuminate\Queue\Queue;
use Illuminate\Support\Str;
use Rowmq\Session;
use Rowmq\SessionLost;

use function Illuminate\Support\enum_value;
use function Rowmq\send;
use function Rowmq\sendAll;

/** @internal Laravel's view of the topics of one database: a queue is a topic. */
final class RowmqQueue extends Queue implements QueueContract
{
    private ?Session $session = null;
    /** The job that was claimed last. */
    private ?RowmqJob $last = null;
    private bool $secondaryHadJob = false;

    /**
     * A worker's job runs elsewhere after `lease` seconds without a statement; a worker waits for
     * `blockFor` seconds for a job.
     */
    public function __construct(
        private readonly ConnectionResolverInterface $connections,
        private readonly string $database,
        private readonly string $default,
        private readonly int $lease,
        private readonly int $blockFor,
        bool $dispatchAfterCommit,
    ) {
        $this->dispatchAfterCommit = $dispatchAfterCommit;
    }

    public function push($job, $data = '', $queue = null)
    {
        $payload = $this->createPayload($job, $this->getQueue($queue), $data);
        return $this->enqueueUsing($job, $payload, $queue, null, $this->sender($job));
    }

    public function later($delay, $job, $data = '', $queue = null)
    {
        $payload = $this->createPayload($job, $this->getQueue($queue), $data, $delay);
        return $this->enqueueUsing($job, $payload, $queue, $delay, $this->sender($job));
    }

    private function sender(mixed $job): \Closure
    {
        return fn ($payload, $queue, $delay) => $this->pushRaw(
            $payload,
            $queue,
            $this->getQueueableOptions($job, $queue, $payload, $delay),
        );
    }

    /** @param array<string, mixed> $options of `Rowmq\send` */
    public function pushRaw($payload, $queue = null, array $options = [])
    {
        $topic = $this->getQueue($queue);
        return $this->together(fn () => send($this->database()->getPdo(), $topic, $payload, ...$options)->id);
    }

    /** Sends all or none, many in a statement. */
    public function bulk($jobs, $data = '', $queue = null)
    {
        $topic = $this->getQueue($queue);
        [$afterCommit, $now] = $this->partitionJobsByAfterCommit((array) $jobs);
        $this->together(function () use ($now, $data, $queue, $topic): void {
            $messages = [];
            foreach ($now as $job) {
                // Delays and unique keys are for single messages.
                if ($job instanceof HasMessageOptions || $this->delayOf($job) !== null) {
                    $this->one($job, $data, $queue);
                    continue;
                }
                $collect = static function (string $payload) use (&$messages): string {
                    $messages[] = ['body' => $payload, 'id' => $id = (string) Str::uuid7()];
                    return $id;
                };
                $this->enqueueUsing($job, $this->createPayload($job, $topic, $data), $queue, null, $collect);
            }
            sendAll($this->database()->getPdo(), $topic, $messages);
        });
        foreach ($afterCommit as $job) {
            $this->one($job, $data, $queue);
        }
    }

    private function one(mixed $job, mixed $data, mixed $queue): void
    {
        $delay = $this->delayOf($job);
        $delay === null ? $this->push($job, $data, $queue) : $this->later($delay, $job, $data, $queue);
    }

    private function delayOf(mixed $job): mixed
    {
        return is_object($job) ? $this->getAttributeValue($job, Delay::class, 'delay') : null;
    }

    public function pop($queue = null, int $index = 0): ?RowmqJob
    {
        $topic = $this->getQueue($queue);
        // As with Redis: it waits for the first of several queues, unless another one has work.
        $waits = $index === 0 && !$this->secondaryHadJob;
        try {
            $session = $this->session();
            $delivery = $session->claim($topic, 1, $waits ? $this->blockFor : 0)[0] ?? null;
        } catch (SessionLost | \PDOException $error) {
            // The framework connects again only for statements of its own.
            $this->session = $this->last = null;
            $this->database()->reconnect();
            throw $error;
        }
        if ($index === 0 || $delivery !== null) {
            $this->secondaryHadJob = $index > 0;
        }
        if ($delivery === null) {
            return null;
        }
        return $this->last = new RowmqJob(
            $this->container,
            $this,
            $session,
            $delivery,
            $this->connectionName,
            $topic,
        );
    }

    /** Returns the session that claims: that of the application's own connection. */
    private function session(): Session
    {
        if ($this->last !== null && (!$this->last->isOver() || $this->database()->transactionLevel() > 0)) {
            // A transaction that the job has left open is not done; a message that is still held is given back.
            $this->rollBack($this->session);
            $this->session->leave();
            $this->session = null;
        }
        $this->last = null;
        $connection = $this->database()->getPdo();
        if ($this->session?->isOn($connection) !== true) {
            $this->session = new Session($connection, $this->lease);
        }
        return $this->session;
    }

    /** Undoes what is open, for the framework and for the session. */
    public function rollBack(Session $session): void
    {
        $this->database()->transactionLevel() > 0 && $this->database()->rollBack(0);
        $session->rollback();
    }

    /** Returns the application's connection of now: it may purge one and make another. */
    public function database(): Connection
    {
        return $this->connections->connection($this->database);
    }

    /** Runs it in the open transaction, or in one of its own. */
    private function together(\Closure $send): mixed
    {
        $database = $this->database();
        return $database->transactionLevel() > 0 ? $send() : $database->transaction($send);
    }

    /**
     * Returns the options of `Rowmq\send`. `queue:retry` asks for them, too.
     *
     * @return array<string, mixed>
     */
    public function getQueueableOptions(mixed $job, mixed $queue, string $payload, mixed $delay = null): array
    {
        $options = $job instanceof HasMessageOptions ? $job->messageOptions() : [];
        return $delay === null ? $options : ['deliver_in' => $this->secondsUntil($delay)] + $options;
    }

    protected function shouldDispatchAfterCommit($job)
    {
        // In the open transaction it is stored if that commits, and a crash cannot come in between.
        return $this->database()->transactionLevel() === 0 && parent::shouldDispatchAfterCommit($job);
    }

    private function getQueue(mixed $queue): string
    {
        return $this->resolveQueue(enum_value($queue) ?: $this->default);
    }

    public function size($queue = null)
    {
        self::refuseToCount();
    }

    public function pendingSize($queue = null)
    {
        self::refuseToCount();
    }

    public function delayedSize($queue = null)
    {
        self::refuseToCount();
    }

    public function reservedSize($queue = null)
    {
        self::refuseToCount();
    }

    public function creationTimeOfOldestPendingJob($queue = null)
    {
        self::refuseToCount();
    }

    private static function refuseToCount(): never
    {
        $text = 'rowmq does not count messages for applications: see `rowmq stats`, the console or the janitor\'s /metrics';
        throw new \BadMethodCallException($text);
    }
}
