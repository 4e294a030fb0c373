<?php

declare(strict_types=1);

namespace Rowmq;

/** @internal Connects the worker's own sessions. */
final class Connector
{
    /** How long the worker waits for a connection, in seconds. */
    private const CONNECT = 10;

    /**
     * Returns what connects to `mysql://user:password@host:port/database`. To another machine it uses
     * TLS and checks the server's certificate: by the authorities of this system, or those in the file
     * `?ssl-ca=`. `?ssl-mode=disabled` does without. A statement may take `timeout` seconds.
     */
    public static function to(string $url, int $timeout): \Closure
    {
        $parsed = parse_url($url);
        $database = rawurldecode(ltrim($parsed['path'] ?? '', '/'));
        if (($parsed['scheme'] ?? '') !== 'mysql' || ($parsed['host'] ?? '') === '' || $database === '') {
            throw new \ValueError('the URL is no mysql://user:password@host:port/database');
        }
        $host = trim($parsed['host'], '[]');
        $dsn = "mysql:host=$host;port=" . ($parsed['port'] ?? 3306) . ";dbname=$database;charset=utf8mb4";
        parse_str($parsed['query'] ?? '', $query);
        $isLocal = in_array($host, ['127.0.0.1', '::1', 'localhost'], true);
        $options = [
            \PDO::ATTR_ERRMODE => \PDO::ERRMODE_EXCEPTION,
            \PDO::ATTR_TIMEOUT => self::CONNECT,
            // The server gets values as they are, bytes too.
            \PDO::ATTR_EMULATE_PREPARES => false,
        ];
        if (!$isLocal && strtolower($query['ssl-mode'] ?? '') !== 'disabled') {
            $options[\PDO::MYSQL_ATTR_SSL_CA] = $query['ssl-ca'] ?? openssl_get_cert_locations()['default_cert_file'];
            $options[\PDO::MYSQL_ATTR_SSL_VERIFY_SERVER_CERT] = true;
        }
        [$user, $password] = [rawurldecode($parsed['user'] ?? ''), rawurldecode($parsed['pass'] ?? '')];
        return static function () use ($dsn, $user, $password, $options, $timeout): \PDO {
            // The driver reads it when it connects; by default it waits for a dead network for a day.
            ini_set('mysqlnd.net_read_timeout', (string) $timeout);
            return new \PDO($dsn, $user, $password, $options);
        };
    }
}
