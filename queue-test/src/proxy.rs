//! A proxy between a client and the server that breaks connections at a chosen statement.

mod link;
#[doc(hidden)]
pub mod statement;
mod trap;

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rowmq_core::connection::ServerUrl;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::AbortHandle;

use self::link::{Fate, Link, connection};
use self::trap::{Fault, Trap};

/// How long to wait for a trap to spring: far longer than any statement of a test takes.
const SPRING_DEADLINE: Duration = Duration::from_secs(60);

/// A TCP proxy on a free port of 127.0.0.1 that forwards the traffic of MySQL clients to a server
/// and breaks it on demand.
///
/// A *trap* waits for the next statement whose text, without backticks, begins with given words,
/// springs once, and lets everything else pass; arming another trap replaces it. It sees statements
/// sent as text, as BEGIN and COMMIT are, and the execution of prepared ones. The proxy must read
/// the bytes, so the connection has to be unencrypted, which is the default on loopback. Dropping
/// the proxy ends it and cuts its connections.
#[derive(Debug)]
pub struct FaultProxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    accepting: AbortHandle,
}

#[derive(Debug)]
struct Shared {
    target: String,
    way: watch::Sender<Way>,
    /// How long bytes travel, in each direction.
    delay: watch::Sender<Duration>,
    /// The open connections, by the port that the server sees them come from.
    links: Mutex<HashMap<u16, Arc<Link>>>,
    trap: Mutex<Option<Trap>>,
    sprung: watch::Sender<bool>,
    released: watch::Sender<bool>,
    /// Rises whenever every connection is to be cut.
    cuts: watch::Sender<u64>,
}

/// What happens to traffic that no trap waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Pass,
    Blackhole,
    Refuse,
}

/// One of the two sockets of a connection through the proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The socket between the client and the proxy.
    Client,
    /// The socket between the proxy and the server.
    Server,
}

impl FaultProxy {
    /// Starts a proxy in front of the server of `target`, the first one if it names several.
    /// Everything passes.
    ///
    /// # Panics
    /// If loopback has no port left.
    pub async fn start(target: &ServerUrl) -> Self {
        let listener =
            TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("loopback has a port");
        let address = listener.local_addr().expect("a bound socket has an address");
        let shared = Arc::new(Shared {
            target: target.servers().swap_remove(0),
            way: watch::Sender::new(Way::Pass),
            delay: watch::Sender::new(Duration::ZERO),
            links: Mutex::default(),
            trap: Mutex::default(),
            sprung: watch::Sender::new(false),
            released: watch::Sender::new(false),
            cuts: watch::Sender::new(0),
        });
        let accepting = tokio::spawn(accept(listener, Arc::clone(&shared))).abort_handle();
        Self { address, shared, accepting }
    }

    /// Returns the address that it listens on.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns `url` with the same account and database, through the proxy.
    ///
    /// # Panics
    /// If `url` names a socket instead of a host.
    #[must_use]
    pub fn url(&self, url: &ServerUrl) -> ServerUrl {
        let through = url.with_hosts([self.address.to_string().as_str()]);
        through.expect("another host leaves it a URL")
    }

    /// Sets a trap: the statement reaches the server and is executed, but its reply is swallowed
    /// and both sides are cut. The client cannot know whether it was executed; it was.
    pub fn drop_reply_after(&self, statement: &str) {
        self.arm(statement, Fault::DropReply);
    }

    /// Sets a trap: both sides are cut before the statement reaches the server. It was not
    /// executed.
    pub fn cut_before(&self, statement: &str) {
        self.arm(statement, Fault::CutBefore);
    }

    /// Sets a trap: the client is cut, and the statement is held back, with the server's side of
    /// the connection open, until [`release`](Self::release) lets it arrive. It is not executed
    /// *yet*.
    pub fn strand(&self, statement: &str) {
        self.shared.released.send_replace(false);
        self.arm(statement, Fault::Strand);
    }

    /// Sets a trap: from this statement on the connection's bytes vanish in both directions, with
    /// both sides open. A transaction keeps its locks until the server gives the session up.
    pub fn darken_at(&self, statement: &str) {
        self.arm(statement, Fault::Darken);
    }

    /// Lets a stranded statement arrive at the server.
    pub fn release(&self) {
        self.shared.released.send_replace(true);
    }

    /// Waits until the trap armed last has sprung; for
    /// [`drop_reply_after`](Self::drop_reply_after), until the server has answered.
    ///
    /// # Panics
    /// If it has not sprung within a minute.
    pub async fn sprung(&self) {
        let mut sprung = self.shared.sprung.subscribe();
        let waiting = sprung.wait_for(|sprung| *sprung);
        let waited = tokio::time::timeout(SPRING_DEADLINE, waiting).await;
        assert!(matches!(waited, Ok(Ok(_))), "the trap was not sprung within a minute");
    }

    /// Makes bytes vanish in both directions from now on while every connection stays open, as
    /// behind a cut cable. New connections are accepted and never answered. Connections that lost
    /// bytes stay dark even after [`pass`](Self::pass).
    pub fn blackhole(&self) {
        self.shared.way.send_replace(Way::Blackhole);
    }

    /// Cuts every connection, and each new one, until [`pass`](Self::pass).
    pub fn refuse(&self) {
        self.refuse_new();
        self.reset();
    }

    /// Cuts each new connection until [`pass`](Self::pass); existing ones go on.
    pub fn refuse_new(&self) {
        self.shared.way.send_replace(Way::Refuse);
    }

    /// Cuts every existing connection; new ones pass as before.
    pub fn reset(&self) {
        self.shared.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// Makes bytes take this long in each direction from now on; with zero they pass at once.
    pub fn delay(&self, delay: Duration) {
        self.shared.delay.send_replace(delay);
    }

    /// Returns the open connections, by the port of 127.0.0.1 that the server sees each come from,
    /// as in the host column of its process list.
    #[must_use]
    pub fn ports(&self) -> Vec<u16> {
        self.shared.links().keys().copied().collect()
    }

    /// Makes the bytes of one connection vanish in both directions from now on while it stays open.
    pub fn darken(&self, port: u16) {
        self.shared.decide(port, Fate::Dark);
    }

    /// Closes one side of one connection. The other side stays open and silent until its own peer
    /// closes it.
    pub fn cut(&self, port: u16, side: Side) {
        self.shared.decide(port, Fate::Cut(side));
    }

    /// Lets everything pass again, with no trap armed. A delay stays.
    pub fn pass(&self) {
        self.disarm();
        self.shared.way.send_replace(Way::Pass);
    }

    /// Disarms the trap.
    pub fn disarm(&self) {
        *self.shared.trap() = None;
    }

    fn arm(&self, text: &str, fault: Fault) {
        self.shared.sprung.send_replace(false);
        let trap = Trap { text: text.as_bytes().to_vec(), fault };
        *self.shared.trap() = Some(trap);
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.accepting.abort();
        self.reset();
    }
}

impl Shared {
    fn trap(&self) -> MutexGuard<'_, Option<Trap>> {
        self.trap.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn links(&self) -> MutexGuard<'_, HashMap<u16, Arc<Link>>> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the fault for this statement, if the trap waits for it.
    fn spring(&self, text: &[u8]) -> Option<Fault> {
        let mut trap = self.trap();
        let unquoted = || text.iter().filter(|byte| **byte != b'`');
        let fault = trap
            .as_ref()
            .filter(|trap| trap.text.iter().eq(unquoted().take(trap.text.len())))?
            .fault;
        *trap = None;
        Some(fault)
    }

    fn is_dark(&self) -> bool {
        *self.way.borrow() == Way::Blackhole
    }

    /// Sets the fate of a connection; one that is already closed is ignored.
    fn decide(&self, port: u16, fate: Fate) {
        if let Some(link) = self.links().get(&port) {
            link.fate.send_replace(fate);
        }
    }
}

/// Keeps a connection in the proxy's list until it is dropped.
struct Listed<'a> {
    shared: &'a Shared,
    port: u16,
    link: Arc<Link>,
}

impl<'a> Listed<'a> {
    fn new(shared: &'a Shared, port: u16, link: Link) -> Self {
        let link = Arc::new(link);
        shared.links().insert(port, Arc::clone(&link));
        Self { shared, port, link }
    }
}

impl Drop for Listed<'_> {
    fn drop(&mut self) {
        self.shared.links().remove(&self.port);
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    while let Ok((client, _)) = listener.accept().await {
        let mut cuts = shared.cuts.subscribe();
        let shared = Arc::clone(&shared);
        tokio::spawn(async move {
            // Whichever ends first, both sockets are dropped with the future.
            tokio::select! {
                () = connection(client, &shared) => {}
                _ = cuts.changed() => {}
            }
        });
    }
}
