<?php

// Runs the package in an application of Laravel on the server of ROWMQ_URL, in whose database each
// test's topic is.

declare(strict_types=1);

use Illuminate\Contracts\Debug\ExceptionHandler;
use Illuminate\Foundation\Application;
use Illuminate\Support\Facades\{Artisan, Bus, DB, Event, Queue};
use PHPUnit\Framework\Attributes\DataProvider;
use PHPUnit\Framework\TestCase;

final class LaravelTest extends TestCase
{
    private static Application $app;
    /** @var list<string> */
    private static array $reported = [];

    public static function setUpBeforeClass(): void
    {
        self::$app = require __DIR__ . '/app.php';
        self::$app->make(Illuminate\Contracts\Console\Kernel::class)->bootstrap();
        self::$app->make(ExceptionHandler::class)->reportable(static function (Throwable $error): void {
            self::$reported[] = $error->getMessage();
        });
        // The runner watches over its own.
        restore_error_handler();
        restore_exception_handler();
    }

    protected function setUp(): void
    {
        Work::$failed = self::$reported = [];
        DB::purge('mysql');
        DB::connection('other')->unprepared('DELETE FROM effect');
        DB::connection('other')->unprepared('DELETE FROM queue_dead');
    }

    /** Handles messages until so many are left. */
    private static function work(string $queue, int $left = 0, int $tries = 3): void
    {
        $options = ['--queue' => $queue, '--stop-when-empty' => true, '--sleep' => 0, '--tries' => $tries, '--quiet' => true];
        for ($rounds = 0; array_sum(array_map(self::left(...), explode(',', $queue))) > $left; ++$rounds) {
            self::assertLessThan(200, $rounds, "$queue is not empty");
            Artisan::call('queue:work', ['connection' => 'rowmq'] + $options);
            // A lost session is rescued by the janitor, which also makes ready what was to wait.
            usleep(50_000);
        }
    }

    /** @return list<int> of each effect the attempt */
    private static function effects(): array
    {
        return DB::connection('other')->table('effect')->orderBy('delivery_no')->pluck('delivery_no')->all();
    }

    /** @return list<string> why messages of the topic have died */
    private static function dead(string $topic): array
    {
        $dead = 'SELECT last_error FROM queue_dead JOIN queue_topic t ON t.id = topic_id WHERE t.name = ?';
        return array_column(DB::connection('other')->select($dead, [$topic]), 'last_error');
    }

    private static function left(string $topic): int
    {
        $left = 'SELECT (SELECT COUNT(*) FROM queue_message WHERE topic_id = t.id)
                 + (SELECT COUNT(*) FROM queue_scheduled WHERE topic_id = t.id) AS n FROM queue_topic t WHERE t.name = ?';
        return (int) DB::connection('other')->scalar($left, [$topic]);
    }

    public function testAJobExistsIfTheTransactionCommits(): void
    {
        foreach ([0, 1] as $committed) {
            DB::beginTransaction();
            Work::dispatch()->onQueue('sending');
            Work::dispatch()->onQueue('sending')->delay(3600);
            Bus::dispatch((new Work())->onQueue('sending')->afterCommit());
            // All of it is in the transaction, one with its delay.
            self::assertSame(2, DB::table('queue_message')->count());
            $committed ? DB::commit() : DB::rollBack();
            self::assertSame(3 * $committed, self::left('sending'));
        }
        // Without a transaction of the application it has one of its own.
        Work::dispatch()->onQueue('sending');
        self::assertSame(4, self::left('sending'));
        self::work('sending', 1);
        self::assertSame([[1, 1, 1], 1], [self::effects(), self::left('sending')]);
    }

    public function testARefusalReachesTheApplication(): void
    {
        $this->expectException(Rowmq\TopicNotFound::class);
        Queue::pushOn('no-such-topic', new Work());
    }

    public function testJobsAreSentInBulk(): void
    {
        $jobs = [(new Work())->delay(3600), new Plain(), new Plain(), new Plain()];
        DB::beginTransaction();
        Queue::bulk($jobs, queue: 'many');
        DB::rollBack();
        self::assertSame(0, self::left('many'));
        Queue::bulk($jobs, queue: 'many');
        self::assertSame(4, self::left('many'));
        self::work('many', 1);
        self::assertSame([1, 1, 1], self::effects());
        // It waits for the commit of another connection.
        DB::connection('other')->beginTransaction();
        Queue::bulk([(new Plain())->afterCommit()], queue: 'many');
        self::assertSame(1, self::left('many'));
        DB::connection('other')->commit();
        self::assertSame(2, self::left('many'));
    }

    public function testOptionsOfTheMessageAreTheJobs(): void
    {
        foreach ([1, 2] as $_) {
            Work::dispatch(options: ['unique' => 'c-7', 'deliver_in' => 3600])->onQueue('unique');
            self::assertSame(1, self::left('unique'));
        }
    }

    public function testAChainAndSeveralQueuesAreHandled(): void
    {
        Bus::chain([new ExactlyOnce(), (new Work())->onQueue('low')])->onQueue('high')->dispatch();
        self::work('high,low');
        self::assertSame([1, 1], self::effects());
    }

    public function testItDoesNotCount(): void
    {
        $this->expectException(BadMethodCallException::class);
        Queue::size('sending');
    }

    /** @return array<string, array{string, list<int>, list<int>, int, int, 4?: int}> */
    public static function outcomes(): array
    {
        // The attempts whose effects stay, of a plain job and of a transactional one; how many of each died.
        return [
            'it does its work' => ['', [1], [1], 0, 0],
            'it is released' => ['release', [1, 2], [2], 0, 0],
            'it throws' => ['throw', [1, 2], [2], 0, 0],
            'it throws too often' => ['throw always', [1, 2, 3], [], 1, 1],
            'it fails' => ['fail', [1], [], 1, 1],
            'it leaves a transaction open' => ['begin', [1, 2], [2], 0, 0],
            'it throws in a transaction' => ['begin and throw', [1, 2], [2], 0, 0],
            'it is released in a transaction' => ['release in a transaction', [1, 2, 7], [2], 0, 0],
            'it goes on when it is released' => ['release and go on', [1, 2, 7], [2], 0, 0],
            'it goes on when it fails' => ['fail and go on', [1, 7], [], 1, 1],
            'a callback throws after its commit' => ['throw after the commit', [1], [1], 1, 0, 1],
            'it is deleted in a transaction that is undone' => ['delete and undo', [1, 2], [2], 0, 0],
            'its session is lost' => ['lose', [1, 2], [2], 0, 0],
            // What is committed early cannot be undone: a transactional job must not run again.
            'it is deleted and rolls back' => ['delete and roll back', [1], [], 0, 1],
            'it commits and waits in vain for a lock' => ['commit and wait', [1, 2], [1], 0, 1],
            'it commits behind its back' => ['commit behind its back', [1], [1], 0, 1],
            'it commits' => ['commit', [1], [1], 0, 1],
            'it purges its connection' => ['purge', [1], [], 0, 1],
            'it begins another transaction' => ['start', [1, 2], [1], 0, 1],
            'it defines something' => ['define and throw', [1, 2], [1], 0, 1],
            // It fails because it is delivered again, not because it was lost.
            'it is not held any more' => ['leave', [1], [], 1, 1, 1],
        ];
    }

    /**
     * @param list<int> $plain
     * @param list<int> $transactional
     */
    #[DataProvider('outcomes')]
    public function testWhatAJobDoes(string $what, array $plain, array $transactional, int $plainDead, int $dead, int $tries = 3): void
    {
        foreach ([[Work::class, $plain, $plainDead], [ExactlyOnce::class, $transactional, $dead]] as [$class, $effects, $died]) {
            $this->setUp();
            $class::dispatch($what)->onQueue('outcome');
            self::work('outcome', tries: $tries);
            self::assertSame([$effects, $died, $died], [self::effects(), count(self::dead('outcome')), count(Work::$failed)], $class);
        }
    }

    public function testAJobThatForgetsToDeleteItselfRunsAgain(): void
    {
        Queue::pushOn('outcome', 'Forgetful');
        self::work('outcome');
        self::assertSame([1, 2], self::effects());
    }

    public function testAJobIsNotInTheTransactionThatAnotherOneHasForgotten(): void
    {
        Work::dispatch('commit behind its back')->onQueue('outcome');
        ExactlyOnce::dispatch()->onQueue('outcome');
        self::work('outcome');
        self::assertSame([[1, 1], []], [self::effects(), self::dead('outcome')]);
    }

    public function testATransactionalJobThatLeavesATransactionOpenHasFailed(): void
    {
        ExactlyOnce::dispatch('begin')->onQueue('outcome');
        self::work('outcome', tries: 1);
        self::assertSame([[], ['the job has left a transaction open']], [self::effects(), Work::$failed]);
    }

    public function testTheReasonIsKeptThoughATransactionIsOpen(): void
    {
        Work::dispatch('begin and throw')->onQueue('outcome');
        self::work('outcome', tries: 1);
        self::assertSame(['RuntimeException: in a transaction'], self::dead('outcome'));
    }

    public function testAnErrorAfterTheCommitIsReported(): void
    {
        ExactlyOnce::dispatch('throw after the commit')->onQueue('outcome');
        self::work('outcome', tries: 1);
        self::assertSame([[1], [], ['it is committed']], [self::effects(), Work::$failed, self::$reported]);
    }

    public function testAListenerIsTransactional(): void
    {
        Event::listen(Happened::class, Listener::class);
        Event::dispatch(new Happened());
        self::work('outcome');
        self::assertSame([2], self::effects());
    }

    public function testATopicsLimitFailsAJobThatMayAlwaysTryAgain(): void
    {
        Work::dispatch('throw always', ['headers' => ['queue-max-attempts' => '2']])->onQueue('limited');
        self::work('limited', tries: 0);
        self::assertSame([[1, 2], ['broken']], [self::effects(), Work::$failed]);
        self::assertSame(['RuntimeException: broken'], self::dead('limited'));
    }
}
