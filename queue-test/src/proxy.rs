//! A proxy between a client and the server that breaks connections at a chosen statement.

mod link;
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

/// How long a trap is waited for: far longer than any statement of a test takes.
const SPRING_DEADLINE: Duration = Duration::from_secs(60);

/// A TCP proxy on a free port of 127.0.0.1 that forwards the traffic of MySQL clients to a server
/// and breaks it on demand.
///
/// A *trap* waits for the next statement whose text begins with given words, springs once, and
/// lets everything else pass; arming another replaces it. It sees statements sent as text, as BEGIN
/// and COMMIT are, and the execution of prepared ones. The proxy must read the bytes, so the
/// connection has to be plain, which is the default on loopback.
/// It ends, and cuts its connections, when it is dropped.
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
    /// How long bytes are under way, in each direction.
    delay: watch::Sender<Duration>,
    /// The open connections, by the port that the server sees them come from.
    links: Mutex<HashMap<u16, Arc<Link>>>,
    trap: Mutex<Option<Trap>>,
    sprung: watch::Sender<bool>,
    released: watch::Sender<bool>,
    /// Rises whenever every connection is to be cut.
    cuts: watch::Sender<u64>,
}

/// What happens to bytes that no trap waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Pass,
    Blackhole,
    Refuse,
}

/// One of the two sockets that a connection through the proxy has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The one between the client and the proxy.
    Client,
    /// The one between the proxy and the server.
    Server,
}

impl FaultProxy {
    /// Starts a proxy in front of the server of `target`, the first if it names several;
    /// everything passes.
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

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The same account and database as `url`, through the proxy.
    ///
    /// # Panics
    /// If `url` leads through a socket instead of to a host.
    #[must_use]
    pub fn url(&self, url: &ServerUrl) -> ServerUrl {
        let through = url.with_hosts([self.address.to_string().as_str()]);
        through.expect("another host leaves it a URL")
    }

    /// Trap: the statement reaches the server and is executed, but its reply is swallowed and both
    /// sides are cut. The client cannot know whether it happened; it has.
    pub fn drop_reply_after(&self, statement: &str) {
        self.arm(statement, Fault::DropReply);
    }

    /// Trap: both sides are cut before the statement reaches the server. It has not happened.
    pub fn cut_before(&self, statement: &str) {
        self.arm(statement, Fault::CutBefore);
    }

    /// Trap: the client is cut, and the statement is kept on its way, with the server's side of the
    /// connection open, until [`release`](Self::release) lets it arrive. It has not happened *yet*.
    pub fn strand(&self, statement: &str) {
        self.shared.released.send_replace(false);
        self.arm(statement, Fault::Strand);
    }

    /// Trap: from this statement on the connection's bytes vanish in both directions, with both
    /// sides open: a transaction it is in keeps its locks until the server gives the session up.
    pub fn darken_at(&self, statement: &str) {
        self.arm(statement, Fault::Darken);
    }

    /// Lets a stranded statement arrive at the server.
    pub fn release(&self) {
        self.shared.released.send_replace(true);
    }

    /// Waits until the trap armed last has sprung: for
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

    /// From now on bytes vanish in both directions while every connection stays open, as behind a
    /// cut cable; new ones are accepted and never answered. Connections that lost bytes stay dark
    /// also after [`pass`](Self::pass).
    pub fn blackhole(&self) {
        self.shared.way.send_replace(Way::Blackhole);
    }

    /// Cuts every connection, and each new one, until [`pass`](Self::pass).
    pub fn refuse(&self) {
        self.refuse_new();
        self.reset();
    }

    /// Cuts each new connection until [`pass`](Self::pass); those there are go on.
    pub fn refuse_new(&self) {
        self.shared.way.send_replace(Way::Refuse);
    }

    /// Cuts every connection there is; new ones pass as before.
    pub fn reset(&self) {
        self.shared.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// From now on bytes take this long in each direction; zero: they pass at once.
    pub fn delay(&self, delay: Duration) {
        self.shared.delay.send_replace(delay);
    }

    /// The open connections, by the port of 127.0.0.1 that the server sees each come from, as in
    /// the host column of its process list.
    #[must_use]
    pub fn ports(&self) -> Vec<u16> {
        self.shared.links().keys().copied().collect()
    }

    /// From now on the bytes of one connection vanish in both directions while it stays open.
    pub fn darken(&self, port: u16) {
        self.shared.decide(port, Fate::Dark);
    }

    /// Closes one side of one connection; the other stays open and silent until its own end closes
    /// it.
    pub fn cut(&self, port: u16, side: Side) {
        self.shared.decide(port, Fate::Cut(side));
    }

    /// Everything passes again, and no trap is armed. A delay stays.
    pub fn pass(&self) {
        self.disarm();
        self.shared.way.send_replace(Way::Pass);
    }

    /// No trap is armed any more.
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

    /// The fault for this statement, if it is the one that the trap waits for.
    fn spring(&self, text: &[u8]) -> Option<Fault> {
        let mut trap = self.trap();
        let fault = trap.as_ref().filter(|trap| text.starts_with(&trap.text))?.fault;
        *trap = None;
        Some(fault)
    }

    fn is_dark(&self) -> bool {
        *self.way.borrow() == Way::Blackhole
    }

    /// A connection that has gone already has no use for it.
    fn decide(&self, port: u16, fate: Fate) {
        if let Some(link) = self.links().get(&port) {
            link.fate.send_replace(fate);
        }
    }
}

/// A connection in the proxy's list, until it is dropped.
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
            // Whichever ends first, both sockets go with the future.
            tokio::select! {
                () = connection(client, &shared) => {}
                _ = cuts.changed() => {}
            }
        });
    }
}
