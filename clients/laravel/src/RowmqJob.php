<?php

declare(strict_types=1);

namespace Rowmq\Laravel;

use Illuminate\Container\Container;
use Illuminate\Contracts\Queue\Job as JobContract;
use Illuminate\Database\Connection;
use Illuminate\Queue\Jobs\Job;
use Illuminate\Queue\TimeoutExceededException;
use Rowmq\DeadLetter;
use Rowmq\Delivery;
use Rowmq\Retry;
use Rowmq\Session;
use Rowmq\SessionLost;
use Rowmq\Snooze;
use Rowmq\TransactionEnded;
use Rowmq\Verdict;

/** @internal A message that Laravel's worker handles. */
final class RowmqJob extends Job implements JobContract
{
    private ?\Throwable $exception = null;
    /** Whether a plain job's code is running. */
    private bool $isRunning = false;
    /** Whether a transactional job's code is running. What it decides is done after it. */
    private bool $isInWork = false;
    /** What follows a transactional job in place of its ack. */
    private ?\Closure $instead = null;
    private bool $isSettled = false;
    /** It was settled inside a transaction of the job's own, which may be undone. */
    private bool $isInDoubt = false;

    public function __construct(
        Container $container,
        private readonly RowmqQueue $rowmq,
        private readonly Session $session,
        private readonly Delivery $delivery,
        string $connectionName,
        string $queue,
    ) {
        $this->container = $container;
        $this->connectionName = $connectionName;
        $this->queue = $queue;
    }

    public function getJobId()
    {
        return $this->delivery->message->id;
    }

    public function getRawBody()
    {
        return $this->delivery->message->body;
    }

    /** As with Laravel's other drivers, every delivery is an attempt. */
    public function attempts()
    {
        return $this->delivery->message->deliveryNo;
    }

    /** Whether the message is certainly no longer this session's. */
    public function isOver(): bool
    {
        return $this->isSettled && !$this->isInDoubt;
    }

    public function fire()
    {
        if ($this->isTransactional()) {
            $this->fireInTransaction($this->rowmq->database());
            return;
        }
        $this->isRunning = true;
        try {
            parent::fire();
        } finally {
            $this->isRunning = false;
        }
    }

    private function isTransactional(): bool
    {
        // The framework wraps listeners, mails and notifications: their own class is the name.
        $classes = [$this->resolveQueuedJobClass(), $this->resolveName()];
        return array_filter($classes, static fn ($class) => is_a($class, Transactional::class, true)) !== [];
    }

    private function fireInTransaction(Connection $database): void
    {
        $database->beginTransaction();
        if (!$this->session->isOn($database->getPdo()) || !$this->session->isInTransaction()) {
            $database->rollBack(0);
            throw new SessionLost('the connection of the application is not the one that has claimed the job');
        }
        // It is gone if the job ends the transaction.
        $this->session->execute('SAVEPOINT rowmq_work');
        $this->isInWork = true;
        try {
            parent::fire();
            if ($this->instead === null && $this->deleted) {
                $this->ackInTransaction($database);
                $database->commit();
            }
        } catch (\Throwable $error) {
            if ($this->isSettled && $database->transactionLevel() === 0) {
                // It is committed: something that followed the commit has failed.
                $this->isInWork = false;
            } else {
                $this->undo($error);
            }
            throw $error;
        }
        $this->isSettled ? $this->isInWork = false : $this->undo(null);
    }

    private function ackInTransaction(Connection $database): void
    {
        if ($database->transactionLevel() > 1) {
            throw new \LogicException('the job has left a transaction open');
        }
        if (!$this->session->isOn($this->rowmq->database()->getPdo())) {
            // It has purged its connection: what it did later is in no transaction.
            throw new TransactionEnded();
        }
        $this->session->toSavepoint('RELEASE SAVEPOINT rowmq_work');
        $this->session->settle([$this->delivery], null);
        $this->isSettled = true;
    }

    /** Undoes the work, and does what the job or its failure asks for instead. */
    private function undo(?\Throwable $error): void
    {
        $ended = $error instanceof TransactionEnded ? $error : null;
        try {
            if ($ended === null && !$this->isSettled) {
                $this->session->undoWork($error);
            }
        } catch (TransactionEnded $early) {
            $ended = $early;
        }
        $this->isInWork = $this->isSettled = $this->deleted = $this->released = $this->failed = false;
        $this->rowmq->rollBack($this->session);
        if ($ended !== null) {
            // Its effects cannot be undone: it must not run again.
            $this->fail($ended);
        } elseif ($this->instead !== null) {
            ($this->instead)();
        }
    }

    /** Takes what the job has thrown: it is the reason if the job is released. */
    public function hasThrown(\Throwable $exception): void
    {
        $this->exception = $exception;
    }

    public function delete()
    {
        if (!$this->isInWork) {
            $this->settle(null);
        }
        parent::delete();
    }

    public function release($delay = 0)
    {
        parent::release($delay);
        if ($this->isInWork) {
            $this->instead = fn () => $this->release($delay);
            return;
        }
        $seconds = (float) $this->secondsUntil($delay);
        $reason = $this->exception === null ? null : Verdict::of($this->exception)->reason;
        $settled = $this->settle($reason === null ? new Snooze($seconds) : new Retry($reason, $seconds));
        if ($settled instanceof DeadLetter) {
            // It has failed as often as its topic allows.
            $this->fail($this->exception);
        }
    }

    public function fail($e = null)
    {
        if ($e instanceof TimeoutExceededException) {
            // The process is about to be killed, in the midst of the job's code.
            $this->isInWork = $this->isRunning = false;
        }
        if ($this->isInWork) {
            $this->instead = fn () => $this->fail($e);
            $this->markAsFailed();
            return;
        }
        if (!$this->isDeleted()) {
            // Before the listeners of the failure run.
            $this->settle(new DeadLetter($e === null ? 'the job has failed' : Verdict::of($e)->reason));
        }
        parent::fail($e);
    }

    /** Settles the message once; returns what became of it. Throws if another worker has it. */
    private function settle(?Verdict $verdict): ?Verdict
    {
        if ($this->isSettled) {
            return $verdict;
        }
        if (!$this->isRunning) {
            // What the job has left open is not done.
            $this->rowmq->rollBack($this->session);
        }
        $this->isInDoubt = $this->session->isInTransaction();
        $verdict = $this->session->settleAlone($this->delivery, $verdict);
        $this->isSettled = true;
        return $verdict;
    }
}
