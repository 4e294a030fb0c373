<?php

declare(strict_types=1);

namespace Rowmq;

/** @internal One program of `rowmq-consumer pool`. */
final class Pool
{
    private const VERSION = 1;

    /**
     * They stay open until the program ends: what is opened after them must not get the numbers of
     * standard input and output.
     *
     * @var list<resource>
     */
    private static array $standard;

    public static function serve(\Closure $handler, int $maxMessages): void
    {
        if (getenv('ROWMQ_POOL') !== (string) self::VERSION) {
            fwrite(STDERR, 'start it by rowmq-consumer pool, of a version that speaks ' . self::VERSION . "\n");
            exit(1);
        }
        [$frames, $answers] = self::ownStreams();
        self::write($answers, ['rowmq_pool' => self::VERSION]);
        for ($handled = 1; ($line = fgets($frames)) !== false && str_ends_with($line, "\n"); ++$handled) {
            $isLast = $handled === $maxMessages;
            self::write($answers, self::answer($handler, json_decode($line, true, 512, JSON_THROW_ON_ERROR), $isLast));
            if ($isLast) {
                return;
            }
        }
    }

    /**
     * The frames are for this program alone: a program that the handler starts has nothing of them as its
     * standard input, and what it prints goes to standard error.
     *
     * @return array{resource, resource}
     */
    private static function ownStreams(): array
    {
        // A child has these under other numbers: PHP cannot keep them from it.
        $own = [fopen('php://fd/0', 'r'), fopen('php://fd/1', 'w')];
        // A stream gets the lowest number that is free.
        fclose(STDIN);
        self::$standard = [fopen('/dev/null', 'r')];
        fclose(STDOUT);
        self::$standard[] = fopen('php://fd/2', 'w');
        return $own;
    }

    /**
     * @param array<string, mixed> $frame
     * @return array<string, mixed>
     */
    private static function answer(\Closure $handler, array $frame, bool $isLast): array
    {
        try {
            $verdict = Verdict::checked($handler(Message::ofFrame($frame)));
        } catch (\Throwable $error) {
            $verdict = Verdict::of($error);
            if ($verdict !== $error) {
                fwrite(STDERR, "$error\n");
            }
        }
        $answer = ['frame' => $frame['frame'], 'verdict' => $verdict === null ? 'ack' : $verdict->word];
        if ($verdict !== null && $verdict->reason !== '') {
            $answer['reason'] = $verdict->reason;
        }
        if ($verdict?->delay !== null) {
            $answer['delay'] = $verdict->delay;
        }
        return $isLast ? $answer + ['last' => true] : $answer;
    }

    /**
     * @param resource $answers
     * @param array<string, mixed> $frame
     */
    private static function write($answers, array $frame): void
    {
        fwrite($answers, json($frame) . "\n");
        fflush($answers);
    }
}
