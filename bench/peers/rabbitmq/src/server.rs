//! What the server says about itself. The client does not pass it on.

use anyhow::Context as _;
use lapin::uri::AMQPUri;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// The greeting of AMQP 0-9-1.
const GREETING: &[u8] = b"AMQP\0\0\x09\x01";

/// A field's name with its length, and the mark of a long string.
const VERSION: &[u8] = b"\x07versionS";

/// The version, from the properties with which the server answers a greeting.
pub(crate) async fn version(url: &str) -> anyhow::Result<String> {
    let uri: AMQPUri = url.parse().map_err(anyhow::Error::msg)?;
    let mut stream = TcpStream::connect((uri.authority.host, uri.authority.port)).await?;
    stream.write_all(GREETING).await?;
    let mut header = [0; 7];
    stream.read_exact(&mut header).await?;
    let [_, _, _, length @ ..] = header;
    let mut frame = vec![0; usize::try_from(u32::from_be_bytes(length))?];
    stream.read_exact(&mut frame).await?;
    let found = frame.windows(VERSION.len()).position(|bytes| bytes == VERSION);
    let after = frame.get(found.context("no version")? + VERSION.len()..).unwrap_or_default();
    let (length, after) = after.split_first_chunk().context("no version")?;
    let length = usize::try_from(u32::from_be_bytes(*length))?;
    let version = after.get(..length).context("half a version")?;
    Ok(String::from_utf8_lossy(version).into_owned())
}
