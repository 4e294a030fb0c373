//! The way to the database. Threads of their own hold the sessions: a reader who goes away in the
//! middle of a page cancels no statement, and however many come, there are no more sessions.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use futures_util::future::LocalBoxFuture;
use rowmq_core::connection::{Link, ServerUrl, Session, SessionKind, Wanted};
use rowmq_core::store::topic::server_time;
use rowmq_core::{Error, Fault, Result};
use tokio::sync::{Mutex, mpsc, oneshot};

/// How many pages are read at once, and how many changes are made.
const READERS: usize = 3;
const WRITERS: usize = 2;

/// How many wait for that; who comes then is told to come later.
const WAITING: usize = 64;

/// How long one statement of a page may take; the server ends it then.
const STATEMENT: Duration = Duration::from_secs(5);

/// The longest that a call may take, should the server not answer at all.
const DEADLINE: Duration = Duration::from_secs(15);

/// A session that nobody has used for so long is closed instead of used: the server may have.
const IDLE: Duration = Duration::from_secs(60);

/// One that nobody has used for so long is tried first.
const UNTRIED: Duration = Duration::from_secs(1);

type Work = Box<dyn for<'s> FnOnce(Result<&'s mut Session>) -> LocalBoxFuture<'s, ()> + Send>;

/// The way to the database. Cheap to clone; clones are one.
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
    /// there is one. What was changed a moment ago may not be there yet.
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
    let (tell, told) = oneshot::channel();
    let work: Work = Box::new(move |session| {
        Box::pin(async move {
            let result = match session {
                Ok(session) => work(session).await,
                Err(error) => Err(error),
            };
            // Whoever asked may have gone away.
            drop(tell.send(result));
        })
    });
    let taken = threads.try_send(work);
    taken.map_err(|_| busy(operation, "too many wait already".to_owned()))?;
    told.await.unwrap_or_else(|_| Err(busy(operation, "the console stops".to_owned())))
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
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.context("Cannot start a thread")?;
        let (url, receiver) = (url.clone(), Arc::clone(&receiver));
        std::thread::Builder::new()
            .name("console-database".to_owned())
            .spawn(move || runtime.block_on(serve(&url, kind, wanted, &receiver)))
            .context("Cannot start a thread")?;
    }
    Ok(sender)
}

/// Does what is asked for, one after the other, until nobody can ask any more.
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

/// The session, unless it is of no use any more: the server may have ended it while nobody used it,
/// and whoever asks next is not to be told of that.
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
