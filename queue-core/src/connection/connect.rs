use std::fmt::Display;
use std::time::Duration;

use diesel_async::AsyncMysqlConnection;
use mysql_async::{Conn, DriverError as RefusedByDriver, Error as DriverError};

use super::hosts::HostNo;
use crate::connection::ServerUrl;
use crate::connection::role::{self, ServerRole};
use crate::model::{Error, Fault, Result};

/// How long making a connection may take: TCP, TLS and login. A server that answers at all does so
/// in milliseconds; an address that swallows packets never does.
const CONNECT_DEADLINE: Duration = Duration::from_secs(5);

/// The same for each host of a URL that names several: all of them should be tried within a lease.
const DEADLINE_OF_SEVERAL: Duration = Duration::from_secs(2);

/// The purpose of a connection, which decides how soon the server drops it when it falls silent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionKind {
    /// Holds claims or row locks: the server drops it after the lease, also in the middle of a
    /// result set (histories H8 and H10).
    Leased(Duration),
    /// Holds nothing between statements.
    Plain,
    /// Only reads: the server refuses every write, and ends each statement after this time.
    Reading(Duration),
}

/// The servers to accept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// A server that takes writes.
    Writer,
    /// A server that takes writes if there is one, else any that answers: for reading.
    Any,
}

/// Opens a connection to the server that takes writes, with the session settings that the protocol
/// needs: READ COMMITTED, strict mode, UTC, English errors, short lock waits.
///
/// Tries the hosts of the URL in turn, starting with the one that served last. A host that reports
/// `read_only` is refused even for an account that could still write to it: a replica that takes
/// the queue's writes is no longer a replica.
///
/// # Errors
/// [`Error::Connect`] with the reason and the fix, never the password; [`Error::ReadOnly`];
/// [`Error::NoWriter`] if none of several hosts is accepted.
pub async fn connect(url: &ServerUrl, kind: SessionKind) -> Result<AsyncMysqlConnection> {
    connect_to(url, kind, Wanted::Writer).await.map(|(conn, _)| conn)
}

/// As [`connect()`], to any server that answers; a server that takes writes is preferred.
///
/// # Errors
/// As [`connect()`].
pub async fn connect_to_any(url: &ServerUrl, kind: SessionKind) -> Result<AsyncMysqlConnection> {
    connect_to(url, kind, Wanted::Any).await.map(|(conn, _)| conn)
}

/// As [`connect()`]; also returns the host.
pub(crate) async fn connect_to(
    url: &ServerUrl,
    kind: SessionKind,
    wanted: Wanted,
) -> Result<(AsyncMysqlConnection, HostNo)> {
    let (mut refusals, mut reader) = (Vec::new(), None);
    for host in url.hosts().to_try() {
        match connect_host(url, host, kind).await {
            Ok((conn, ServerRole { refusal: None, galera, .. })) => {
                url.hosts().serves(host, galera);
                return Ok((conn, host));
            }
            Ok((conn, ServerRole { refusal: Some(reason), .. })) => {
                reader = reader.or(Some((conn, host)));
                refusals.push(Error::ReadOnly { server: url.hosts().name(host), reason });
            }
            Err(error) => refusals.push(error),
        }
    }
    match reader {
        Some(reader) if wanted == Wanted::Any => Ok(reader),
        _ => Err(Error::no_writer(refusals)),
    }
}

/// Opens a connection to one host, whether it takes writes or not.
pub(crate) async fn connect_host(
    url: &ServerUrl,
    host: HostNo,
    kind: SessionKind,
) -> Result<(AsyncMysqlConnection, ServerRole)> {
    let opening = async {
        let (conn, role) = open(url, host, kind).await?;
        let failed = |error: &dyn Display| {
            let (server, reason) = (url.hosts().name(host), error.to_string());
            Error::Connect { server, fault: Fault::of_text(&reason), reason }
        };
        let conn = AsyncMysqlConnection::try_from(conn).await.map_err(|error| failed(&error))?;
        Ok((conn, role))
    };
    in_time(url, host, opening).await
}

async fn open(url: &ServerUrl, host: HostNo, kind: SessionKind) -> Result<(Conn, ServerRole)> {
    let opened = async {
        let mut conn = Conn::new(url.opts(host)).await?;
        let role = role::set_up(&mut conn, &session_setup(kind)).await?;
        Ok((conn, role))
    };
    opened.await.map_err(|error| refused(url.hosts().name(host), &error))
}

/// Runs `opening` within the deadline. It owns the connection: past the deadline both are dropped.
async fn in_time<T>(
    url: &ServerUrl,
    host: HostNo,
    opening: impl Future<Output = Result<T>>,
) -> Result<T> {
    let several = url.hosts().is_list();
    let deadline = if several { DEADLINE_OF_SEVERAL } else { CONNECT_DEADLINE };
    match tokio::time::timeout(deadline, opening).await {
        Ok(result) => result,
        Err(_) => {
            url.hosts().distrust(host);
            Err(Error::Connect {
                server: url.hosts().name(host),
                fault: Fault::Gone,
                reason: format!(
                    "no answer within {} s; check the host, the port and the firewall",
                    deadline.as_secs()
                ),
            })
        }
    }
}

/// Sets up a simulation's stand-in for a connection to a server.
#[cfg(feature = "simulation")]
pub(super) async fn set_up_stand_in<C: super::Connection>(
    url: &ServerUrl,
    kind: SessionKind,
    opening: impl Future<Output = Result<C>>,
) -> Result<C> {
    let failed = |reason: String| Error::Connect {
        server: url.server(),
        fault: Fault::of_text(&reason),
        reason,
    };
    let setting_up = async {
        let mut conn = opening.await?;
        let set = conn.batch(&session_setup(kind)).await;
        set.map(|()| conn).map_err(|error| failed(error.to_string()))
    };
    let set_up = tokio::time::timeout(CONNECT_DEADLINE, setting_up).await;
    set_up.unwrap_or_else(|_| Err(failed("no answer".to_owned())))
}

/// Sets all session variables in one round trip; both servers know every one of them.
fn session_setup(kind: SessionKind) -> String {
    let access = if matches!(kind, SessionKind::Reading(_)) { ", READ ONLY" } else { "" };
    let mut set = format!(
        "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED{access}; \
         SET SESSION autocommit = 1, lc_messages = 'en_US', \
         sql_mode = 'STRICT_TRANS_TABLES,NO_ENGINE_SUBSTITUTION', \
         innodb_lock_wait_timeout = 1, lock_wait_timeout = 5",
    );
    match kind {
        SessionKind::Leased(lease) => {
            let seconds = lease.as_secs().max(1);
            for variable in ["wait_timeout", "net_read_timeout", "net_write_timeout"] {
                set.push_str(&format!(", {variable} = {seconds}"));
            }
        }
        // The two servers use different names and units for this limit.
        SessionKind::Reading(limit) => set.push_str(&format!(
            "/*!80000 , max_execution_time = {} */ /*M!100600 , max_statement_time = {} */",
            limit.as_millis().max(1),
            limit.as_secs_f64()
        )),
        SessionKind::Plain => {}
    }
    set
}

fn refused(server: String, error: &DriverError) -> Error {
    let (fault, reason) = match error {
        DriverError::Server(error) => {
            let fix = match error.code {
                1045 | 1044 | 1698 => "; check the account and its password or grants",
                1049 => "; create the database or correct the URL",
                1040 | 1203 | 1226 => "; the server has no connection left, raise max_connections",
                _ => "",
            };
            let fault = match error.code {
                1045 | 1044 | 1698 => Fault::Denied,
                1049 => Fault::Schema,
                1040 | 1203 | 1226 => Fault::Busy,
                _ => Fault::of_text(&error.message),
            };
            (fault, format!("{} ({}){fix}", error.message, error.code))
        }
        DriverError::Io(error) if error.to_string().contains("UnknownIssuer") => (
            Fault::Gone,
            format!(
                "{error}; no authority that is trusted has signed it: name the service's own by ?ca=FILE"
            ),
        ),
        DriverError::Io(error) => {
            (Fault::Gone, format!("{error}; check that the server runs and the address is right"))
        }
        // MySQL answers an unknown account with a randomly chosen plugin.
        DriverError::Driver(RefusedByDriver::UnknownAuthPlugin { name }) => (
            Fault::Denied,
            format!(
                "the account is unknown, or logs in by {name}, which is not supported; check the account and its password or grants"
            ),
        ),
        DriverError::Driver(error) => (
            Fault::Gone,
            format!("{error}; does the server offer TLS? (?tls=disable turns it off)"),
        ),
        other => (Fault::Other, other.to_string()),
    };
    Error::Connect { server, reason, fault }
}
