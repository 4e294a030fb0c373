use std::io::{self, Write};

use rowmq_core::handler::Context;

use super::{Destination, NotTaken};
use crate::line::{Line, lines};

/// Standard output: a line of JSON for each message, written and flushed before it is acked.
#[derive(Debug, Clone, Copy, Default)]
pub struct Stdout;

impl Destination for Stdout {
    fn name(&self) -> &'static str {
        "standard output"
    }

    async fn send(&self, part: &[Context]) -> Result<(), NotTaken> {
        let closed = |error: io::Error| NotTaken::Closed(error.into());
        let lines = lines(part.iter().map(Line::of)).map_err(|error| closed(error.into()))?;
        // On a thread of its own: a pipe without a reader must not block this one, and a line that
        // was begun is finished even if this future is dropped.
        let write = move || {
            let mut out = io::stdout().lock();
            out.write_all(&lines)?;
            out.flush()
        };
        let written = tokio::task::spawn_blocking(write).await;
        written.map_err(|error| closed(io::Error::other(error)))?.map_err(closed)
    }
}
