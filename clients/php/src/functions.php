<?php

declare(strict_types=1);

namespace Rowmq;

/**
 * Sends a message in the open transaction of the connection: it exists if that commits.
 *
 * Strings are sent as they are, anything else as JSON. The options are those of queue_send and
 * queue_send_unique, by name: `send($pdo, 'mail', $body, deliver_in: '48h', unique: 'c-7')`. A
 * DateTimeInterface is a moment.
 */
function send(\PDO $connection, string $topic, mixed $body, mixed ...$options): Sent
{
    // There is a procedure of its own, with a privilege of its own, for messages with a key.
    $isUnique = array_intersect(array_keys($options), ['unique', 'unique_for', 'on_conflict', 'max_wait']) !== [];
    $procedure = $isUnique ? 'queue_send_unique' : 'queue_send';
    $given = $options === [] ? null : json(array_map(option(...), $options));
    call($connection, "CALL $procedure(?, ?, ?)", [$topic, bytes($body), $given]);
    $outcome = 'SELECT @queue_msg_id, @queue_duplicate, @queue_replaced';
    [[$id, $duplicate, $replaced]] = call($connection, $outcome);
    return new Sent($id === null ? null : (string) $id, (bool) $duplicate, (bool) $replaced);
}

/**
 * Sends many messages, 1000 in a call, in the open transaction; returns how many were stored. Each is
 * an array: its `body`, and options. After any error roll back: a call before it may have stored its
 * messages.
 *
 * @param iterable<array<string, mixed>> $messages
 */
function sendAll(\PDO $connection, string $topic, iterable $messages): int
{
    $stored = 0;
    $batch = [];
    $flush = static function () use ($connection, $topic, &$stored, &$batch): void {
        call($connection, 'CALL queue_send_all(?, ?)', [$topic, json($batch)]);
        $stored += (int) call($connection, 'SELECT @queue_sent')[0][0];
        $batch = [];
    };
    foreach ($messages as $message) {
        $body = bytes($message['body'] ?? throw new \ValueError('a message has a body'));
        unset($message['body']);
        $item = isText($body) ? ['body' => $body] : ['body_base64' => base64_encode($body)];
        $batch[] = $item + array_map(option(...), $message);
        if (count($batch) === 1000) {
            $flush();
        }
    }
    if ($batch !== []) {
        $flush();
    }
    return $stored;
}

/**
 * Handles one message after another until the consumer ends the pool; after `maxMessages` (0: no end)
 * the program ends and the consumer starts a new one.
 *
 * `handler(Message)` returns null to ack; it throws or returns a Verdict, and any other exception means
 * Retry. Run it by `rowmq-consumer pool TOPIC -- php program.php`.
 */
function serve(callable $handler, int $maxMessages = 0): void
{
    Pool::serve($handler(...), $maxMessages);
}

/**
 * @internal Runs a statement on a caller's connection, whatever its settings.
 * @param list<?string> $values
 * @return list<list<mixed>>
 */
function call(\PDO $connection, string $sql, array $values = []): array
{
    try {
        $statement = $connection->prepare($sql);
        foreach ($values as $nth => $value) {
            $isText = $value === null || isText($value);
            $statement !== false && $statement->bindValue($nth + 1, $value, $isText ? \PDO::PARAM_STR : \PDO::PARAM_LOB);
        }
        if ($statement === false || !$statement->execute()) {
            $error = new \PDOException('the statement failed');
            $error->errorInfo = ($statement ?: $connection)->errorInfo();
            throw $error;
        }
        $rows = $statement->columnCount() > 0 ? $statement->fetchAll(\PDO::FETCH_NUM) : [];
        $statement->closeCursor();
        return $rows;
    } catch (\PDOException $error) {
        throw Refused::named($error);
    }
}

/** @internal */
function bytes(mixed $body): string
{
    return is_string($body) ? $body : json($body);
}

/** @internal */
function json(mixed $value): string
{
    return json_encode($value, JSON_THROW_ON_ERROR | JSON_UNESCAPED_UNICODE | JSON_UNESCAPED_SLASHES | JSON_PRESERVE_ZERO_FRACTION);
}

/** @internal Whether it is UTF-8. */
function isText(string $bytes): bool
{
    return preg_match('//u', $bytes) === 1;
}

/** @internal Writes an option as the queue reads it: a moment in UTC, and headers as an object. */
function option(mixed $value): mixed
{
    if (!$value instanceof \DateTimeInterface) {
        return is_array($value) ? (object) $value : $value;
    }
    $utc = \DateTimeImmutable::createFromInterface($value)->setTimezone(new \DateTimeZone('UTC'));
    return $utc->format('Y-m-d\TH:i:s.u\Z');
}
