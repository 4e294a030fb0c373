<?php

declare(strict_types=1);

use Illuminate\Contracts\Queue\ShouldQueue;
use Illuminate\Foundation\Queue\Queueable;
use Illuminate\Queue\InteractsWithQueue;
use Illuminate\Support\Facades\DB;
use Rowmq\Laravel\HasMessageOptions;
use Rowmq\Laravel\Transactional;

/** A job with one effect for each run, after which it does what its topic's test wants. */
class Work implements ShouldQueue, HasMessageOptions
{
    use Queueable;

    /** @var list<string> what failed for good */
    public static array $failed = [];

    /** @param array<string, mixed> $options */
    public function __construct(public string $what = '', private array $options = [])
    {
    }

    public function messageOptions(): array
    {
        return $this->options;
    }

    public function handle(): void
    {
        DB::table('effect')->insert(['msg_id' => $this->job->getJobId(), 'delivery_no' => $this->job->attempts()]);
        if ($this->what === 'throw always') {
            throw new RuntimeException('broken');
        }
        if ($this->job->attempts() === 1) {
            $this->once();
        }
    }

    /** What happens on the first run only. */
    private function once(): void
    {
        match ($this->what) {
            'throw' => throw new RuntimeException("broken \xff"),
            'release' => $this->release(0),
            'fail' => $this->fail('hopeless'),
            'begin' => DB::beginTransaction(),
            'start' => DB::unprepared('START TRANSACTION'),
            'begin and throw' => $this->begin(),
            'delete and undo' => $this->deleteAndUndo(),
            'define and throw' => $this->define(),
            'release in a transaction' => DB::transaction(fn () => [$this->more(), $this->release(0)]),
            'release and go on' => [$this->release(0), $this->more()],
            'fail and go on' => [$this->fail('hopeless'), $this->more()],
            'delete and roll back' => [$this->delete(), DB::rollBack()],
            'throw after the commit' => DB::afterCommit(fn () => throw new RuntimeException('it is committed')),
            'commit' => DB::commit(),
            'commit and wait' => [DB::commit(), $this->waitForALock()],
            'commit behind its back' => [DB::beginTransaction(), DB::unprepared('COMMIT')],
            'leave' => DB::unprepared('CALL queue_leave()'),
            'lose' => $this->lose(),
            'purge' => $this->purge(),
            default => null,
        };
    }

    private function more(): void
    {
        DB::table('effect')->insert(['msg_id' => $this->job->getJobId(), 'delivery_no' => 7]);
    }

    /** Until the server gives up and undoes the statement. */
    private function waitForALock(): void
    {
        $other = DB::connection('other');
        $other->beginTransaction();
        $other->table('only_one')->insert(['id' => 1]);
        DB::unprepared('SET SESSION innodb_lock_wait_timeout = 1');
        try {
            DB::table('only_one')->insert(['id' => 1]);
        } finally {
            $other->rollBack();
        }
    }

    private function begin(): never
    {
        DB::beginTransaction();
        throw new RuntimeException('in a transaction');
    }

    private function deleteAndUndo(): void
    {
        DB::transaction(function (): never {
            $this->delete();
            throw new RuntimeException('undone');
        });
    }

    private function define(): never
    {
        DB::unprepared('CREATE OR REPLACE VIEW nothing AS SELECT 1');
        throw new RuntimeException('after its transaction');
    }

    private function purge(): void
    {
        DB::purge();
        DB::select('SELECT 1');
    }

    /** Another session ends this one's; the framework connects again, outside a transaction. */
    private function lose(): void
    {
        $session = DB::scalar('SELECT CONNECTION_ID()');
        DB::connection('other')->unprepared("KILL $session");
        DB::select('SELECT 1');
    }

    public function failed(?Throwable $error): void
    {
        self::$failed[] = $error?->getMessage() ?? '';
    }
}

/** The same without options, so that many are sent in one statement. */
class Plain implements ShouldQueue
{
    use Queueable;

    public function handle(): void
    {
        DB::table('effect')->insert(['msg_id' => $this->job->getJobId(), 'delivery_no' => $this->job->attempts()]);
    }
}

/** Takes a while, so that a kill finds it at work. */
class Slow extends Plain implements Transactional
{
    public function handle(): void
    {
        parent::handle();
        usleep(2_000);
    }
}

/** A job of the old kind, which deletes itself; at first it forgets to. */
class Forgetful
{
    public function fire(Illuminate\Contracts\Queue\Job $job): void
    {
        DB::table('effect')->insert(['msg_id' => $job->getJobId(), 'delivery_no' => $job->attempts()]);
        if ($job->attempts() > 1) {
            $job->delete();
        }
    }
}

class Happened
{
}

class Listener implements ShouldQueue, Transactional
{
    use InteractsWithQueue;

    public string $queue = 'outcome';

    public function handle(Happened $event): void
    {
        DB::table('effect')->insert(['msg_id' => $this->job->getJobId(), 'delivery_no' => $this->job->attempts()]);
        if ($this->job->attempts() === 1) {
            throw new RuntimeException('broken');
        }
    }
}

/** The same as Work, with its effects exactly once. */
class ExactlyOnce extends Work implements Transactional
{
}
