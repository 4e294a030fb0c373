//! Access to the database. Separate threads hold the sessions: a client that disconnects in the
//! middle of a page cancels no statement, and the number of sessions is bounded for any number of
//! requests.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::LocalBoxFuture;
use rowmq_core::connection::{Link, ServerUrl, Session, SessionKind, Wanted};
use rowmq_core::store::topic::server_time;
use rowmq_core::{Error, Fault, Result, actor};
use tokio::sync::{Mutex, mpsc, oneshot};

/// How many pages are read at once, and how many changes are made at once.
const READERS: usize = 3;
const WRITERS: usize = 2;

/// How many requests may wait for that. Further requests are refused; clients should retry later.
const WAITING: usize = 64;

/// How long one statement of a page may take before the server ends it.
const STATEMENT: Duration = Duration::from_secs(5);

/// The longest that a call may take if the server does not answer at all.
const DEADLINE: Duration = Duration::from_secs(15);

/// A session that was unused for this long is closed instead of used: the server may have closed
/// it.
const IDLE: Duration = Duration::from_secs(60);

/// A session that was unused for this long is tested first.
const UNTRIED: Duration = Duration::from_secs(1);

type Work = Box<dyn for<'s> FnOnce(Result<&'s mut Session>) -> LocalBoxFuture<'s, ()> + Send>;

/// A handle to the database. Cheap to clone; all clones share the sessions.
#[derive(Debug, Clone)]
pub(crate) struct Database {
    reads: mpsc::Sender<Work>,
    searches: mpsc::Sender<Work>,
    writes: mpsc::Sender<Work>,
    url: ServerUrl,
}

impl Database {
    /// Starts the threads; nothing is connected yet.
    pub(crate) fn start(url: &ServerUrl, replica: Option<&ServerUrl>) -> anyhow::Result<Self> {
        let readers = |url| threads(url, SessionKind::Reading(STATEMENT), Wanted::Any, READERS);
        let reads = readers(url)?;
        let searches = replica.map_or_else(|| Ok(reads.clone()), readers)?;
        let writes = threads(url, SessionKind::Plain, Wanted::Writer, WRITERS)?;
        Ok(Self { reads, searches, writes, url: url.clone() })
    }

    /// Runs `work` on a session that may only read.
    pub(crate) async fn read<T, W>(&self, work: W) -> Result<T>
    where
        T: Send + 'static,
        W: for<'s> FnOnce(&'s mut Session) -> LocalBoxFuture<'s, Result<T>> + Send + 'static,
    {
        run(&self.reads, "read", work).await
    }

    /// Runs `work`, which reads many rows, on a session that may only read: of the replica, if
    /// there is one. The replica may not have the latest changes yet.
    pub(crate) async fn search<T, W>(&self, work: W) -> Result<T>
    where
        T: Send + 'static,
        W: for<'s> FnOnce(&'s mut Session) -> LocalBoxFuture<'s, Result<T>> + Send + 'static,
    {
        run(&self.searches, "search", work).await
    }

    /// Runs `work` on a session that may write.
    pub(crate) async fn write<T, W>(&self, work: W) -> Result<T>
    where
        T: Send + 'static,
        W: for<'s> FnOnce(&'s mut Session) -> LocalBoxFuture<'s, Result<T>> + Send + 'static,
    {
        run(&self.writes, "change", work).await
    }

    /// Runs `work`, which may take minutes, on a thread and a session of its own.
    pub(crate) async fn run_long<T, W>(&self, work: W) -> Result<T>
    where
        T: Send + 'static,
        W: for<'s> FnOnce(&'s mut Session) -> LocalBoxFuture<'s, Result<T>> + Send + 'static,
    {
        let own = threads(&self.url, SessionKind::Plain, Wanted::Writer, 1);
        let own = own.map_err(|error| busy("change", error.to_string()))?;
        run(&own, "change", work).await
    }
}

async fn run<T, W>(threads: &mpsc::Sender<Work>, operation: &'static str, work: W) -> Result<T>
where
    T: Send + 'static,
    W: for<'s> FnOnce(&'s mut Session) -> LocalBoxFuture<'s, Result<T>> + Send + 'static,
{
    let (reply, answer) = oneshot::channel();
    let work: Work = Box::new(move |session| {
        Box::pin(async move {
            let result = match session {
                Ok(session) => work(session).await,
                Err(error) => Err(error),
            };
            // The caller may have gone away.
            drop(reply.send(result));
        })
    });
    let taken = threads.try_send(work);
    taken.map_err(|_| busy(operation, "too many wait already".to_owned()))?;
    answer.await.unwrap_or_else(|_| Err(busy(operation, "the console stops".to_owned())))
}

fn busy(operation: &'static str, message: String) -> Error {
    Error::Database { operation, fault: Fault::Busy, message }
}

fn threads(
    url: &ServerUrl,
    kind: SessionKind,
    wanted: Wanted,
    n: usize,
) -> anyhow::Result<mpsc::Sender<Work>> {
    let (sender, receiver) = mpsc::channel(WAITING);
    let receiver = Arc::new(Mutex::new(receiver));
    for _ in 0..n {
        let (url, receiver) = (url.clone(), Arc::clone(&receiver));
        actor::spawn("console-database", move || async move {
            serve(&url, kind, wanted, &receiver).await;
        })?;
    }
    Ok(sender)
}

/// Does the requested work, one piece after the other, until all senders are gone.
async fn serve(
    url: &ServerUrl,
    kind: SessionKind,
    wanted: Wanted,
    receiver: &Mutex<mpsc::Receiver<Work>>,
) {
    let mut kept: Option<(Session, Instant)> = None;
    loop {
        let next = receiver.lock().await.recv().await;
        let Some(work) = next else { return };
        let session = match kept.take() {
            Some((session, used)) => still_there(session, used.elapsed()).await,
            None => None,
        };
        let session = match session {
            Some(session) => Ok(session),
            None => Session::open_to(url, kind, wanted, DEADLINE).await,
        };
        match session {
            Ok(mut session) => {
                work(Ok(&mut session)).await;
                kept = Some((session, Instant::now()));
            }
            Err(error) => work(Err(error)).await,
        }
    }
}

/// Returns the session unless it has become useless: the server may have ended it while it was
/// idle, and the next request must not fail because of that.
async fn still_there(mut session: Session, idle: Duration) -> Option<Session> {
    if session.is_lost() || idle > IDLE {
        return None;
    }
    if idle > UNTRIED {
        let ask = async |conn: &mut Link| server_time(conn).await;
        session.call("ask whether the server is there", ask).await.ok()?;
    }
    Some(session)
}
