use std::future::Future;
use std::time::Duration;

use diesel_async::AsyncMysqlConnection;
use mysql_async::{Conn, DriverError as RefusedByDriver, Error as DriverError};

use crate::connection::{Connection, ServerUrl};
use crate::error::{Error, Fault, Result};

/// How long a connection may take to be made: TCP, TLS and login. A server that answers at all
/// does so in milliseconds; an address that swallows packets never does.
const CONNECT_DEADLINE: Duration = Duration::from_secs(5);

/// What a connection is for, which decides how soon the server drops it when it falls silent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionKind {
    /// Holds claims or row locks: the server drops it after the lease, also in the middle of a
    /// result set (histories H8 and H10).
    Leased(Duration),
    /// Holds nothing between statements.
    Plain,
}

/// Opens a connection set up as the protocol needs it: READ COMMITTED, strict mode, UTC, English
/// errors, short lock waits.
///
/// # Errors
/// [`Error::Connect`] with the reason and the fix, never the password.
pub async fn connect(url: &ServerUrl, kind: SessionKind) -> Result<AsyncMysqlConnection> {
    let opening = async {
        let conn = Conn::new(url.opts()).await.map_err(|error| refused(url, &error))?;
        AsyncMysqlConnection::try_from(conn).await.map_err(|error| not_set_up(url, &error))
    };
    set_up(url, kind, opening).await
}

/// Awaits `opening` and sets up what it opened.
pub(super) async fn set_up<C: Connection>(
    url: &ServerUrl,
    kind: SessionKind,
    opening: impl Future<Output = Result<C>>,
) -> Result<C> {
    // The whole set-up is one future that owns the connection: past the deadline both are gone.
    let setting_up = async {
        let mut conn = opening.await?;
        let set = conn.batch(&session_setup(kind)).await;
        set.map(|()| conn).map_err(|error| not_set_up(url, &error))
    };
    match tokio::time::timeout(CONNECT_DEADLINE, setting_up).await {
        Ok(result) => result,
        Err(_) => Err(Error::Connect {
            server: url.server(),
            fault: Fault::Gone,
            reason: format!(
                "no answer within {} s; check the host, the port and the firewall",
                CONNECT_DEADLINE.as_secs()
            ),
        }),
    }
}

fn not_set_up(url: &ServerUrl, error: &dyn std::fmt::Display) -> Error {
    let reason = error.to_string();
    Error::Connect { server: url.server(), fault: Fault::of_text(&reason), reason }
}

/// One round trip for all session variables; both servers know every one of them.
fn session_setup(kind: SessionKind) -> String {
    let mut set = String::from(
        "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED; \
         SET SESSION autocommit = 1, lc_messages = 'en_US', \
         sql_mode = 'STRICT_TRANS_TABLES,NO_ENGINE_SUBSTITUTION', \
         innodb_lock_wait_timeout = 1, lock_wait_timeout = 5",
    );
    if let SessionKind::Leased(lease) = kind {
        let seconds = lease.as_secs().max(1);
        for variable in ["wait_timeout", "net_read_timeout", "net_write_timeout"] {
            set.push_str(&format!(", {variable} = {seconds}"));
        }
    }
    set
}

fn refused(url: &ServerUrl, error: &DriverError) -> Error {
    let server = url.server();
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
        DriverError::Io(error) => {
            (Fault::Gone, format!("{error}; check that the server runs and the address is right"))
        }
        // MySQL answers an account it does not know with a plugin drawn by lot.
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
