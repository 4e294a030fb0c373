//! One connection that follows the binary log, from its end on.

use std::time::Duration;

use futures_util::StreamExt;
use mysql_async::{BinlogStream, BinlogStreamRequest, Conn, Error as DriverError};
use rand::Rng;

use super::event::{Heard, understand};
use crate::connection::{ServerUrl, connect_follower};
use crate::model::{Error, Fault, Result};
use crate::store::binlog;

/// How often the server sends a heartbeat on a silent stream: a heartbeat is no statement, and
/// costs nothing.
const HEARTBEAT: Duration = Duration::from_secs(1);

/// After this silence the stream counts as cut off.
const SILENCE: Duration = Duration::from_secs(5);

/// People give their replicas small ids.
const SERVER_IDS: std::ops::Range<u32> = 0x8000_0000..u32::MAX;

/// The name in `SHOW REPLICAS`.
const HOSTNAME: &[u8] = b"rowmq-doorbell";

pub(crate) struct Stream {
    stream: BinlogStream,
    database: String,
}

impl Stream {
    /// Opens a stream to the server that takes writes, and waits for its first event: only an event
    /// proves that the account may follow the log.
    ///
    /// # Errors
    /// [`Error::NoDoorbell`] with what is missing and the fix; as [`connect()`](crate::connection).
    pub(crate) async fn open(url: &ServerUrl) -> Result<Self> {
        // The future owns the connection: past the deadline both are dropped.
        match tokio::time::timeout(SILENCE, Self::request(url)).await {
            Ok(opened) => opened,
            Err(_) => {
                Err(Error::Deadline { operation: "follow the binary log", deadline: SILENCE })
            }
        }
    }

    async fn request(url: &ServerUrl) -> Result<Self> {
        let mut conn: Conn = connect_follower(url).await?;
        let position = binlog::position(&mut conn).await.map_err(refused)?;
        let Some(position) = position else {
            return Err(no_doorbell(
                "log_bin is OFF: turn the server's binary log on (log_bin in its configuration) and restart it",
            ));
        };
        binlog::set_heartbeat(&mut conn, HEARTBEAT).await.map_err(refused)?;
        let server_id = rand::rng().random_range(SERVER_IDS);
        let request = BinlogStreamRequest::new(server_id)
            .with_hostname(HOSTNAME)
            .with_filename(&position.file)
            .with_pos(position.offset);
        let stream = conn.get_binlog_stream(request).await.map_err(refused)?;
        let mut opened = Self { stream, database: url.database().to_owned() };
        opened.next().await?;
        Ok(opened)
    }

    /// Returns the next event; also returns `Nothing`, at least once a heartbeat.
    ///
    /// # Errors
    /// If the server ended the stream, or has been silent. The stream is then unusable.
    pub(crate) async fn next(&mut self) -> Result<Heard> {
        let event = match tokio::time::timeout(SILENCE, self.stream.next()).await {
            Ok(Some(event)) => event.map_err(refused)?,
            Ok(None) => return Err(gone("the server ended it")),
            Err(_) => return Err(gone("the server has been silent")),
        };
        Ok(understand(&event, &self.database, |id| self.stream.get_tme(id)))
    }
}

pub(super) fn gone(message: &str) -> Error {
    let operation = "follow the binary log";
    Error::Database { operation, fault: Fault::Gone, message: message.to_owned() }
}

fn no_doorbell(reason: impl Into<String>) -> Error {
    Error::NoDoorbell { reason: reason.into() }
}

fn refused(error: DriverError) -> Error {
    match error {
        // The login succeeded: the privilege to follow is what is denied here.
        DriverError::Server(error) if matches!(error.code, 1045 | 1227) => no_doorbell(format!(
            "the account may not follow the binary log ({}): GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* to it",
            error.code
        )),
        DriverError::Server(error) => no_doorbell(format!("{} ({})", error.message, error.code)),
        error => gone(&error.to_string()),
    }
}
