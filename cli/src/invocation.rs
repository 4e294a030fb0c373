use std::time::Duration;

use rowmq_core::connection::{ServerUrl, Session, SessionKind, Wanted};
use rowmq_service::args::ServerArgs;

use crate::output::Output;

/// The longest that one call may take, far above what any call needs: a server that is silent for
/// this long will not come back while a user waits at a prompt.
const DEADLINE: Duration = Duration::from_secs(30);

/// What every command gets: where the server is, and where to write.
#[derive(Debug)]
pub(crate) struct Invocation {
    server: ServerArgs,
    pub(crate) output: Output,
}

impl Invocation {
    pub(crate) fn new(server: ServerArgs, output: Output) -> Self {
        Self { server, output }
    }

    pub(crate) fn url(&self) -> anyhow::Result<ServerUrl> {
        self.server.url()
    }

    /// Connects, to a replica if there is no writer: that is when users most need to look at the
    /// queue.
    pub(crate) async fn session(&self) -> anyhow::Result<Session> {
        Ok(Session::open_to(&self.url()?, SessionKind::Plain, Wanted::Any, DEADLINE).await?)
    }
}
