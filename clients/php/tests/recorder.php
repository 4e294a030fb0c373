<?php

// A worker of `ops/chaos`, which records what it handles: recorder.php RECORD TOPIC...

declare(strict_types=1);

require 'vendor/autoload.php';

use Rowmq\{Message, Release, Retry, Snooze, Transaction, Verdict, Worker};

$record = fopen($argv[1], 'a');
$begun = [];

function note(string $event): void
{
    fwrite($GLOBALS['record'], intdiv(hrtime(true), 1000) . " $event\n");
}

function token(Message $message): string
{
    [, $sender, $seq] = unpack('J2', hex2bin(str_replace('-', '', $message->id)));
    return "$sender:$seq {$message->deliveryNo}";
}

/** What the message asks for at its first try. */
function askedVerdict(Message $message): ?Verdict
{
    if ($message->deliveryNo > 1 || $message->failures > 0) {
        return null;
    }
    return match ($message->json()['ending']) {
        'retry-once', 'panic-once' => new Retry('it is asked to'),
        'snooze-once' => new Snooze(0.3, 'it is asked to'),
        'release-once' => new Release(),
        default => null,
    };
}

function handle(Transaction $tx, Message $message): ?Verdict
{
    $token = token($message);
    // The messages of a batch that failed are handled again, each alone.
    if (!isset($GLOBALS['begun'][$token])) {
        $GLOBALS['begun'][$token] = true;
        note("start $token");
    }
    if (($asked = askedVerdict($message)) !== null) {
        note("end $token " . ($asked instanceof Release ? 'release' : 'retry'));
        return $asked;
    }
    try {
        $tx->execute('INSERT INTO chaos_effect (msg_id) VALUES (?)', [hex2bin(str_replace('-', '', $message->id))]);
    } catch (Throwable $error) {
        note("end $token retry");
        throw $error;
    }
    usleep(1000 * $message->json()['work_ms']);
    note("effect $token");
    return null;
}

function settled(Message $message, ?Verdict $verdict): void
{
    note('settled ' . token($message) . ' ' . ($verdict === null ? 'ack' : 'other') . ' settled');
}

note('caller');
// Traps read what passes, and every worker of a run has this lease.
$worker = new Worker(getenv('ROWMQ_URL') . '?ssl-mode=disabled', lease: 10, onSettled: settled(...));
foreach (array_slice($argv, 2) as $topic) {
    $worker->handler($topic, handle(...), transactional: true, batch: 4);
}
$worker->run();
