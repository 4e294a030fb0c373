<?php

declare(strict_types=1);

namespace Rowmq;

/**
 * Runs handlers on the messages of topics, one message at a time. To handle more at once, run more
 * processes.
 */
final class Worker
{
    /** The pauses between two tries to connect, in seconds. */
    private const FIRST_PAUSE = 0.1;
    private const LONGEST_PAUSE = 5.0;

    /** How often the worker looks whether it must stop, in seconds. */
    private const LOOK = 0.05;

    /** The server cannot be reached, or is starting, stopping or full: a worker waits for it. */
    private const UNREACHABLE = [2002, 2003, 2005, 2006, 2013, 1040, 1053, 1203, 1927];

    private readonly \Closure $connect;
    private readonly \Closure $log;
    /** @var list<array{string, \Closure, bool, int}> */
    private array $registrations = [];
    private bool $isStopping = false;
    private ?Session $session = null;
    /** @var array<string, true> The topics that a claim has found. */
    private array $found = [];
    /** Whether an error may be one that keeps the worker from starting. */
    private bool $isStarting = true;
    private bool $isHandling = false;
    private float $pause = self::FIRST_PAUSE;

    /**
     * `url` is `mysql://user:password@host:port/database`; `connect` returns a new PDO instead. `lease`:
     * after so many seconds of silence the server ends a frozen worker's session, and its messages run
     * elsewhere. `onSettled(Message, ?Verdict, float $seconds)` is called for each message that was
     * settled, with null for ack. `log` is called with one line of text (standard error).
     */
    public function __construct(
        ?string $url = null,
        ?callable $connect = null,
        private readonly int $lease = 60,
        private readonly ?\Closure $onSettled = null,
        ?callable $log = null,
    ) {
        if (($url === null) === ($connect === null)) {
            throw new \ValueError('give either a URL or a function that connects');
        }
        $this->connect = $connect === null ? Connector::to((string) $url) : $connect(...);
        $this->log = $log === null ? static fn (string $line) => fwrite(STDERR, "rowmq: $line\n") : $log(...);
    }

    /**
     * Registers `handle(Message)`, or with `transactional` `handle(Transaction, Message)`.
     *
     * It returns null to ack; it throws or returns a Verdict, and any other exception means Retry. A
     * transactional handler's statements and the ack commit together, so that its effects happen exactly
     * once. `batch` (100, plain handlers 10) of them share a transaction; if one fails, each gets its
     * own, so a handler may be called again.
     */
    public function handler(string $topic, callable $handle, bool $transactional = false, ?int $batch = null): self
    {
        $this->registrations[] = [$topic, $handle(...), $transactional, $batch ?? ($transactional ? 100 : 10)];
        return $this;
    }

    /** Asks the worker to stop: it ends what it is doing and gives the rest back. */
    public function stop(): void
    {
        $this->isStopping = true;
    }

    /**
     * Handles messages until TERM or INT, or `stop`; `untilEmpty`: until none is ready.
     *
     * Reconnects by itself. Throws what keeps it from starting: a wrong password, no such topic. While a
     * handler runs, SIGALRM is the worker's: it shows the server that the session is alive.
     */
    public function run(bool $untilEmpty = false): void
    {
        [$this->isStopping, $this->isStarting, $this->found] = [false, true, []];
        $asynchronous = pcntl_async_signals(true);
        $former = [];
        foreach ([SIGTERM, SIGINT, SIGALRM] as $signal) {
            $former[$signal] = pcntl_signal_get_handler($signal);
        }
        pcntl_signal(SIGTERM, $this->stop(...));
        pcntl_signal(SIGINT, $this->stop(...));
        pcntl_signal(SIGALRM, $this->beat(...));
        try {
            $this->consume($untilEmpty);
        } finally {
            pcntl_signal(SIGALRM, SIG_IGN);
            pcntl_alarm(0);
            foreach ($former as $signal => $handler) {
                pcntl_signal($signal, $handler);
            }
            pcntl_async_signals($asynchronous);
        }
    }

    private function consume(bool $untilEmpty): void
    {
        while (!$this->isStopping) {
            try {
                $this->session = $this->open();
                // A claim that met a conflict finds nothing, too: look twice.
                for ($empty = 0; !$this->isStopping && !($untilEmpty && $empty >= 2);) {
                    $found = $this->round($empty, $untilEmpty && $empty === 0);
                    $empty = $found === 0 ? $empty + 1 : 0;
                }
                $this->session->leave();
                $this->session->close();
                return;
            } catch (\Throwable $error) {
                if ($this->isStarting && !self::isUnreachable($error)) {
                    throw $error instanceof SessionLost ? $error->getPrevious() ?? $error : $error;
                }
                // A new session is a new consumer: what the old one held is delivered again.
                ($this->log)("the session is lost: {$error->getMessage()}");
                // Its trace may hold the connection.
                unset($error);
            } finally {
                $this->session?->cut();
                $this->session = null;
            }
            $until = hrtime(true) + 1e9 * $this->pause * (0.5 + mt_rand() / mt_getrandmax() / 2);
            while (!$this->isStopping && hrtime(true) < $until) {
                usleep((int) (1e6 * self::LOOK));
            }
            $this->pause = min($this->pause * 2, self::LONGEST_PAUSE);
        }
    }

    private function open(): Session
    {
        // The server ends a silent session after the lease; a statement may take a while longer. The driver
        // reads this when it connects, and by default waits for a dead network for a day.
        $former = ini_set('mysqlnd.net_read_timeout', (string) (2 * $this->lease + 10));
        try {
            return new Session(($this->connect)(), $this->lease);
        } finally {
            ini_set('mysqlnd.net_read_timeout', (string) $former);
        }
    }

    /** Claims once from each topic and handles what it gets; returns how much that was. */
    private function round(int $empty, bool $inHaste): int
    {
        $found = 0;
        foreach ($this->registrations as $nth => [$topic, $handle, $transactional, $batch]) {
            if ($this->isStopping) {
                break;
            }
            // After an empty round it waits for one of the topics, each in turn.
            $waits = count($this->registrations) === 1 || $empty % (count($this->registrations) + 1) === $nth + 1;
            $this->isStarting = !isset($this->found[$topic]);
            $deliveries = $this->session->claim($topic, $batch, $waits && !$inHaste ? Session::WAIT : 0);
            [$this->found[$topic], $this->isStarting, $this->pause] = [true, false, self::FIRST_PAUSE];
            $found += count($deliveries);
            $this->work($handle, $transactional, $deliveries);
        }
        return $found;
    }

    /** @param list<Delivery> $deliveries */
    private function work(\Closure $handle, bool $transactional, array $deliveries): void
    {
        $session = $this->session;
        $handle = $this->kept($handle);
        $begun = hrtime(true);
        if ($transactional && count($deliveries) > 1) {
            $failure = $session->together($deliveries, $handle);
            if ($failure === null) {
                $each = (hrtime(true) - $begun) / 1e9 / count($deliveries);
                foreach ($deliveries as $delivery) {
                    $this->settled($delivery->message, null, $each);
                }
                return;
            }
            if ($failure instanceof TransactionEnded) {
                // Which of their effects were committed is not known: none may run again.
                $this->each($deliveries, static fn (Delivery $one) => $session->settleAlone($one, $failure), true);
                return;
            }
        }
        $this->each($deliveries, static fn (Delivery $one) => $transactional
            ? $session->alone($one, $handle)
            : $session->settleAlone($one, self::verdictOf($handle, $one->message)));
    }

    /** @param list<Delivery> $deliveries */
    private function each(array $deliveries, \Closure $handle, bool $althoughStopping = false): void
    {
        foreach ($deliveries as $delivery) {
            if ($this->isStopping && !$althoughStopping) {
                return;
            }
            $begun = hrtime(true);
            try {
                $verdict = $handle($delivery);
            } catch (DeliveryLost $error) {
                ($this->log)("{$delivery->message->id}: {$error->getMessage()}");
                continue;
            }
            $this->settled($delivery->message, $verdict, (hrtime(true) - $begun) / 1e9);
        }
    }

    private static function verdictOf(\Closure $handle, Message $message): ?Verdict
    {
        try {
            return Verdict::checked($handle($message));
        } catch (\Throwable $error) {
            return Verdict::of($error);
        }
    }

    /** Returns the handler, with the session kept alive while it runs. */
    private function kept(\Closure $handle): \Closure
    {
        return function (mixed ...$given) use ($handle): mixed {
            $this->isHandling = true;
            $this->beat();
            try {
                return $handle(...$given);
            } finally {
                $this->isHandling = false;
                pcntl_alarm(0);
            }
        };
    }

    private function beat(): void
    {
        if ($this->isHandling) {
            pcntl_alarm(max(1, intdiv($this->lease, 8)));
            $this->session?->beat();
        }
    }

    private function settled(Message $message, ?Verdict $verdict, float $seconds): void
    {
        if ($this->onSettled === null) {
            return;
        }
        try {
            $this->kept($this->onSettled)($message, $verdict, $seconds);
        } catch (\Throwable $error) {
            ($this->log)("onSettled failed for {$message->id}: {$error->getMessage()}");
        }
    }

    private static function isUnreachable(\Throwable $error): bool
    {
        $code = Refused::codeOf($error) ?? $error->getCode();
        return in_array($code, self::UNREACHABLE, true);
    }
}
