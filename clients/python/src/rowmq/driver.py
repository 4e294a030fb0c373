"""Connections of the worker's own: PyMySQL or mysqlclient, or what the caller connects with."""

from __future__ import annotations

import ssl
from typing import Any, Callable, Dict, Optional
from urllib.parse import parse_qs, unquote, urlparse

Connect = Callable[[], Any]

#: How long the worker waits for a connection, in seconds.
_CONNECT = 10


def connector(url: str, tls: Optional[ssl.SSLContext] = None, timeout: float = 130) -> Connect:
    """Returns what connects to ``mysql://user:password@host:port/database``.

    TLS is used, and the server's certificate checked unless the server is on this machine.
    ``?ssl-mode=disabled`` does without. A statement may take ``timeout`` seconds.
    """
    parsed = urlparse(url)
    if parsed.scheme != "mysql" or not parsed.hostname or not parsed.path.strip("/"):
        raise ValueError("the URL is no mysql://user:password@host:port/database")
    arguments: Dict[str, Any] = {
        "host": parsed.hostname,
        "port": parsed.port or 3306,
        "user": unquote(parsed.username or ""),
        "password": unquote(parsed.password or ""),
        "database": unquote(parsed.path.lstrip("/")),
        "charset": "utf8mb4",
        "connect_timeout": _CONNECT,
        "read_timeout": int(timeout),
        "write_timeout": int(timeout),
        "autocommit": True,
    }
    mode = parse_qs(parsed.query).get("ssl-mode", ["required"])[0].lower()
    is_local = parsed.hostname in ("127.0.0.1", "::1", "localhost")
    try:
        import pymysql
    except ImportError:
        return _mysqlclient(arguments, mode, is_local, tls)
    if mode == "disabled":
        arguments["ssl_disabled"] = True
    else:
        context = tls or ssl.create_default_context()
        if tls is None and is_local:
            # A server on this machine has no certificate that anyone has signed.
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        arguments["ssl"] = context
    return lambda: pymysql.connect(**arguments)


def _mysqlclient(
    arguments: Dict[str, Any], mode: str, is_local: bool, tls: Optional[ssl.SSLContext]
) -> Connect:
    import MySQLdb  # type: ignore

    if tls is not None:
        raise ValueError("mysqlclient takes no SSLContext: give connect= a function of your own")
    if mode == "disabled":
        arguments["ssl_mode"] = "DISABLED"
    else:
        arguments["ssl_mode"] = "PREFERRED" if is_local else "VERIFY_IDENTITY"
    return lambda: MySQLdb.connect(**arguments)
