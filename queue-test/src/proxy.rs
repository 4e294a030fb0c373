//! A proxy between a client and the server that breaks connections at a chosen statement.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use queue_core::connection::ServerUrl;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::AbortHandle;

/// How long a trap is waited for: far longer than any statement of a test takes.
const SPRING_DEADLINE: Duration = Duration::from_secs(60);

/// The commands whose text a trap can match: `COM_QUERY` and `COM_STMT_PREPARE`.
const TEXT_COMMANDS: [u8; 2] = [0x03, 0x16];

/// A TCP proxy on a free port of 127.0.0.1 that forwards the traffic of MySQL clients to a server
/// and breaks it on demand.
///
/// A *trap* waits for the next statement whose text begins with given words, springs once, and
/// lets everything else pass; arming another replaces it. It sees `COM_QUERY`, which carries BEGIN
/// and COMMIT, and the preparing of a statement, which each connection does once for a text. The
/// proxy must read the bytes, so the connection has to be plain, which is the default on loopback.
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

#[derive(Debug, Clone)]
struct Trap {
    text: Vec<u8>,
    fault: Fault,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    DropReply,
    CutBefore,
    Strand,
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

    /// Everything passes again, and no trap is armed.
    pub fn pass(&self) {
        self.shared.disarm();
        self.shared.way.send_replace(Way::Pass);
    }

    fn arm(&self, text: &str, fault: Fault) {
        self.shared.sprung.send_replace(false);
        let trap = Trap { text: text.as_bytes().to_vec(), fault };
        *self.shared.trap.lock().unwrap_or_else(PoisonError::into_inner) = Some(trap);
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.accepting.abort();
        self.reset();
    }
}

impl Shared {
    fn disarm(&self) {
        *self.trap.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// The fault for this packet of a client, if it is the one that the trap waits for.
    fn spring(&self, payload: &[u8]) -> Option<Fault> {
        let (command, text) = payload.split_first()?;
        let mut trap = self.trap.lock().unwrap_or_else(PoisonError::into_inner);
        let Trap { text: wanted, fault } = trap.as_ref()?;
        let hit = TEXT_COMMANDS.contains(command) && text.starts_with(wanted);
        let fault = *fault;
        hit.then(|| {
            *trap = None;
            fault
        })
    }

    fn is_dark(&self) -> bool {
        *self.way.borrow() == Way::Blackhole
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

async fn connection(client: TcpStream, shared: &Shared) {
    let way = *shared.way.borrow();
    match way {
        Way::Pass => {}
        Way::Blackhole => std::future::pending().await,
        Way::Refuse => {
            // A reset instead of a polite end; without it the cut is still one.
            drop(client.set_zero_linger());
            return;
        }
    }
    let Ok(server) = TcpStream::connect(&shared.target).await else { return };
    for socket in [&client, &server] {
        if socket.set_nodelay(true).is_err() {
            return;
        }
    }
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let fate = watch::Sender::new(Fate::Open);
    let stranded = tokio::select! {
        stranded = forward_statements(from_client, to_server, &fate, shared) => stranded,
        () = forward_replies(from_server, to_client, &fate, shared) => None,
    };
    // The client's socket is closed by now; the server's lives on with what is stranded.
    if let Some(stranded) = stranded {
        stranded.arrive(shared).await;
    }
}

/// What is to become of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Open,
    /// The server's next answer is the last thing that happens.
    SwallowReply,
    /// Bytes of it were lost; neither side learns it.
    Dark,
}

/// A statement that left its client and has not arrived.
struct Stranded {
    to_server: OwnedWriteHalf,
    packet: Vec<u8>,
}

impl Stranded {
    async fn arrive(mut self, shared: &Shared) {
        let mut released = shared.released.subscribe();
        if released.wait_for(|released| *released).await.is_ok()
            && self.to_server.write_all(&self.packet).await.is_ok()
        {
            // The socket stays open, or the server might stop half-way.
            std::future::pending::<()>().await;
        }
    }
}

/// Client to server, packet by packet, until one side ends or a trap springs.
async fn forward_statements(
    mut from_client: OwnedReadHalf,
    mut to_server: OwnedWriteHalf,
    fate: &watch::Sender<Fate>,
    shared: &Shared,
) -> Option<Stranded> {
    loop {
        let packet = read_packet(&mut from_client).await;
        if shared.is_dark() || *fate.borrow() == Fate::Dark {
            fate.send_replace(Fate::Dark);
            std::future::pending::<()>().await;
        }
        let packet = packet?;
        match shared.spring(&packet[HEADER..]) {
            None => {}
            Some(Fault::CutBefore) => {
                shared.sprung.send_replace(true);
                return None;
            }
            Some(Fault::Strand) => {
                shared.sprung.send_replace(true);
                return Some(Stranded { to_server, packet });
            }
            Some(Fault::DropReply) => {
                fate.send_replace(Fate::SwallowReply);
            }
        }
        to_server.write_all(&packet).await.ok()?;
    }
}

/// Server to client, as the bytes come, until one side ends or a reply is swallowed.
async fn forward_replies(
    mut from_server: OwnedReadHalf,
    mut to_client: OwnedWriteHalf,
    fate: &watch::Sender<Fate>,
    shared: &Shared,
) {
    let mut bytes = vec![0; 64 * 1024];
    loop {
        let read = from_server.read(&mut bytes).await;
        if shared.is_dark() || *fate.borrow() == Fate::Dark {
            fate.send_replace(Fate::Dark);
            std::future::pending::<()>().await;
        }
        let Ok(n @ 1..) = read else { return };
        if *fate.borrow() == Fate::SwallowReply {
            shared.sprung.send_replace(true);
            return;
        }
        if to_client.write_all(&bytes[..n]).await.is_err() {
            return;
        }
    }
}

/// A packet begins with three bytes of length, little end first, and its number.
const HEADER: usize = 4;

/// One packet with its header, or `None` at the end of the stream.
async fn read_packet(from: &mut OwnedReadHalf) -> Option<Vec<u8>> {
    let mut packet = vec![0; HEADER];
    from.read_exact(&mut packet).await.ok()?;
    let len = u32::from_le_bytes([packet[0], packet[1], packet[2], 0]);
    packet.resize(HEADER + usize::try_from(len).ok()?, 0);
    from.read_exact(&mut packet[HEADER..]).await.ok()?;
    Some(packet)
}
