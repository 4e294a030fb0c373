<?php

declare(strict_types=1);

namespace Rowmq;

/** @internal Connects the worker's own sessions. */
final class Connector
{
    /** How long the worker waits until the server's machine answers, in seconds. */
    private const CONNECT = 10;

    /**
     * Returns what connects to `mysql://user:password@host:port/database`. To another machine it uses
     * TLS and checks the server's certificate: by the authorities of this system, or those in the file
     * `?ssl-ca=`. `?ssl-mode=disabled` does without.
     */
    public static function to(string $url): \Closure
    {
        $parsed = parse_url($url);
        $database = rawurldecode(ltrim($parsed['path'] ?? '', '/'));
        if (($parsed['scheme'] ?? '') !== 'mysql' || ($parsed['host'] ?? '') === '' || $database === '') {
            throw new \ValueError('the URL is no mysql://user:password@host:port/database');
        }
        // By this name the driver would take a socket, whatever the port.
        $host = $parsed['host'] === 'localhost' ? '127.0.0.1' : trim($parsed['host'], '[]');
        $dsn = "mysql:host=$host;port=" . ($parsed['port'] ?? 3306) . ";dbname=$database;charset=utf8mb4";
        parse_str($parsed['query'] ?? '', $query);
        $isLocal = in_array($host, ['127.0.0.1', '::1'], true);
        $options = [
            \PDO::ATTR_ERRMODE => \PDO::ERRMODE_EXCEPTION,
            \PDO::ATTR_TIMEOUT => self::CONNECT,
            // The server gets values as they are, bytes too.
            \PDO::ATTR_EMULATE_PREPARES => false,
        ];
        if (!$isLocal && strtolower($query['ssl-mode'] ?? '') !== 'disabled') {
            $authorities = $query['ssl-ca'] ?? openssl_get_cert_locations()['default_cert_file'];
            if (!is_file($authorities)) {
                throw new \ValueError("there are no certificates of authorities in $authorities: give ?ssl-ca=FILE");
            }
            $options[\PDO::MYSQL_ATTR_SSL_CA] = $authorities;
            $options[\PDO::MYSQL_ATTR_SSL_VERIFY_SERVER_CERT] = true;
        }
        [$user, $password] = [rawurldecode($parsed['user'] ?? ''), rawurldecode($parsed['pass'] ?? '')];
        return static fn () => new \PDO($dsn, $user, $password, $options);
    }
}
