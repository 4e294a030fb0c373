use std::fmt;
use std::num::NonZeroU64;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, ConnectionAddr, Pipeline, RedisError};
use rowmq_core::handler::Context;
use thiserror::Error;
use tokio::sync::Mutex;

use super::{Destination, NotTaken};

/// How long a connection or an answer may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// Which stream messages are appended to, and where it is.
#[derive(Clone)]
pub struct RedisStreamOptions {
    /// `redis://` or `rediss://` with user, password, host, port and database number.
    pub url: String,
    /// The key of the stream.
    pub stream: String,
    /// About how many entries the stream keeps (`MAXLEN ~`). Default: all.
    pub max_len: Option<NonZeroU64>,
}

/// Without the URL, which may hold a password.
impl fmt::Debug for RedisStreamOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { stream, max_len, .. } = self;
        f.debug_struct("RedisStreamOptions")
            .field("stream", stream)
            .field("max_len", max_len)
            .finish_non_exhaustive()
    }
}

/// Why messages cannot be forwarded to a stream.
#[derive(Debug, Error)]
#[error("the Redis URL cannot be used ({reason}); it looks like redis://:password@host:6379/0")]
pub struct RedisStreamError {
    reason: String,
}

/// A Redis stream: an entry for each message, appended by `XADD` in one pipeline for each part.
///
/// The fields are `msg_id`, `topic`, `delivery_no`, `enqueued_at` (RFC 3339), `key`, `biz_id` and
/// `headers` (as JSON) if the message has them, and `body` byte for byte. An entry that Redis has
/// acknowledged is as durable as its configuration makes it (`appendonly`, `appendfsync`).
///
/// Every refusal by Redis concerns Redis itself, not a message (out of memory, read only, a key
/// that holds no stream), so the batch waits.
pub struct RedisStream {
    client: Client,
    name: String,
    stream: String,
    max_len: Option<NonZeroU64>,
    connection: Mutex<Option<MultiplexedConnection>>,
}

impl RedisStream {
    /// Checks the options; connects to nothing yet.
    ///
    /// # Errors
    /// A URL that cannot be read.
    pub fn new(options: RedisStreamOptions) -> Result<Self, RedisStreamError> {
        let RedisStreamOptions { url, stream, max_len } = options;
        let unusable = |error: RedisError| RedisStreamError { reason: error.to_string() };
        let client = Client::open(url).map_err(unusable)?;
        let name = match client.get_connection_info().addr() {
            ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
                format!("Redis at {host}:{port}")
            }
            other => format!("Redis at {other}"),
        };
        Ok(Self { client, name, stream, max_len, connection: Mutex::new(None) })
    }

    async fn append(&self, part: &[Context]) -> Result<(), RedisError> {
        let mut slot = self.connection.lock().await;
        // A connection that failed, or whose answer was not read, is not used again.
        let mut connection = match slot.take() {
            Some(connection) => connection,
            None => {
                let config = AsyncConnectionConfig::new()
                    .set_connection_timeout(Some(PATIENCE))
                    .set_response_timeout(Some(PATIENCE));
                self.client.get_multiplexed_async_connection_with_config(&config).await?
            }
        };
        let pipeline = self.pipeline(part);
        let _entry_ids: Vec<String> = pipeline.query_async(&mut connection).await?;
        *slot = Some(connection);
        Ok(())
    }

    fn pipeline(&self, part: &[Context]) -> Pipeline {
        let mut pipeline = Pipeline::with_capacity(part.len());
        for Context { topic, delivery, .. } in part {
            let entry = pipeline.cmd("XADD").arg(&self.stream);
            if let Some(max_len) = self.max_len {
                entry.arg("MAXLEN").arg("~").arg(max_len.get());
            }
            entry.arg("*").arg("msg_id").arg(delivery.msg_id.to_string());
            entry.arg("topic").arg(topic.as_str());
            entry.arg("delivery_no").arg(delivery.delivery_no.0);
            entry.arg("enqueued_at").arg(delivery.enqueued_at.to_rfc3339());
            if let Some(key) = &delivery.key {
                entry.arg("key").arg(key.as_slice());
            }
            if let Some(biz_id) = &delivery.biz_id {
                entry.arg("biz_id").arg(biz_id.as_slice());
            }
            if !delivery.headers.is_empty() {
                // A map of strings, which can always be written as JSON.
                let headers = serde_json::to_vec(&delivery.headers).unwrap_or_default();
                entry.arg("headers").arg(headers);
            }
            entry.arg("body").arg(delivery.body.as_slice());
        }
        pipeline
    }
}

impl fmt::Debug for RedisStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStream")
            .field("name", &self.name)
            .field("stream", &self.stream)
            .finish_non_exhaustive()
    }
}

impl Destination for RedisStream {
    fn name(&self) -> &str {
        &self.name
    }

    async fn send(&self, part: &[Context]) -> Result<(), NotTaken> {
        self.append(part).await.map_err(|error| NotTaken::Unready(error.into(), None))
    }
}
