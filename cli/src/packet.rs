use rowmq_core::connection::Session;
use rowmq_core::{Error, store};

/// What a packet holds besides the body: headers (at most 64 KiB as JSON), keys and the statement.
const BESIDE_THE_BODY: usize = 64 * 1024;

/// Checks that a body of `bytes` fits into one packet of the server: one that does not would break
/// the connection without a clear error.
///
/// # Errors
/// [`Error::PacketTooLarge`]; a database failure.
pub(crate) async fn check(
    session: &mut Session,
    what: &'static str,
    bytes: usize,
) -> rowmq_core::Result<()> {
    let variables = session
        .call("read the server's variables", async |conn| store::doctor::variables(conn).await)
        .await?;
    let limit = variables.number("max_allowed_packet").unwrap_or(u64::MAX);
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let len = bytes.saturating_add(BESIDE_THE_BODY);
    if len > limit { Err(Error::PacketTooLarge { what, len, limit }) } else { Ok(()) }
}
