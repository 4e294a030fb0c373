//! One connection through the proxy.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::watch;

use super::trap::{Fault, HEADER, Prepared};
use super::{Listed, Shared, Side, Way};

/// What is to happen to a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    Open,
    /// The server's next answer is swallowed, and both sides are cut.
    SwallowReply,
    /// Bytes were lost, or will be; neither side notices.
    Dark,
    /// This side's socket closes; the other's stays open.
    Cut(Side),
}

/// An open connection, as the proxy's owner can act on it.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) fate: watch::Sender<Fate>,
    prepared: Mutex<Prepared>,
}

/// How the forwarding ended.
enum End {
    /// One side closed its connection, or a trap has cut it.
    Closed,
    /// The client is to be cut, and this packet is to arrive later.
    Stranded(Vec<u8>),
    /// One side is to be cut.
    Cut(Side),
}

/// Forwards one client's connection until it ends.
pub(super) async fn connection(client: TcpStream, shared: &Shared) {
    let way = *shared.way.borrow();
    match way {
        Way::Pass => {}
        Way::Blackhole => std::future::pending().await,
        Way::Refuse => {
            // A reset instead of a graceful close; without it the connection is still cut.
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
    let Ok(address) = server.local_addr() else { return };
    let link = Link { fate: watch::Sender::new(Fate::Open), prepared: Mutex::default() };
    let listed = Listed::new(shared, address.port(), link);
    let link = &*listed.link;
    let (from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let mut from_client = BufReader::new(from_client);
    let mut fate = link.fate.subscribe();
    let end = tokio::select! {
        end = forward_statements(&mut from_client, &mut to_server, link, shared) => end,
        () = forward_replies(&mut from_server, &mut to_client, link, shared) => End::Closed,
        side = cut(&mut fate) => End::Cut(side),
    };
    match end {
        End::Closed => {}
        // The server's side stays open, with the stranded packet.
        End::Stranded(packet) => {
            drop((from_client, to_client));
            let mut released = shared.released.subscribe();
            if released.wait_for(|released| *released).await.is_ok()
                && to_server.write_all(&packet).await.is_ok()
            {
                exhaust(&mut from_server).await;
            }
        }
        End::Cut(Side::Client) => {
            drop((from_client, to_client));
            exhaust(&mut from_server).await;
        }
        End::Cut(Side::Server) => {
            drop((from_server, to_server));
            exhaust(from_client.get_mut()).await;
        }
    }
}

async fn cut(fate: &mut watch::Receiver<Fate>) -> Side {
    loop {
        if let Fate::Cut(side) = *fate.borrow_and_update() {
            return side;
        }
        if fate.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// Keeps a socket open whose counterpart is gone, and reads from it until its peer closes it.
async fn exhaust(from: &mut OwnedReadHalf) {
    let mut bytes = vec![0; 4 * 1024];
    while let Ok(1..) = from.read(&mut bytes).await {}
}

/// Forwards client to server, packet by packet, until one side ends or a trap springs.
async fn forward_statements(
    from_client: &mut BufReader<OwnedReadHalf>,
    to_server: &mut OwnedWriteHalf,
    link: &Link,
    shared: &Shared,
) -> End {
    loop {
        let asked = Instant::now();
        let packet = read_packet(from_client).await;
        shared.travel(asked).await;
        link.vanish_if_dark(shared).await;
        let Some(packet) = packet else { return End::Closed };
        match link.spring(shared, &packet[HEADER..]) {
            None => {}
            Some(Fault::CutBefore) => {
                shared.sprung.send_replace(true);
                return End::Closed;
            }
            Some(Fault::Strand) => {
                shared.sprung.send_replace(true);
                return End::Stranded(packet);
            }
            Some(Fault::Darken) => {
                shared.sprung.send_replace(true);
                link.fate.send_replace(Fate::Dark);
                link.vanish_if_dark(shared).await;
            }
            Some(Fault::DropReply) => {
                link.fate.send_replace(Fate::SwallowReply);
            }
        }
        if to_server.write_all(&packet).await.is_err() {
            return End::Closed;
        }
    }
}

/// Forwards server to client, as the bytes come, until one side ends or a reply is swallowed.
async fn forward_replies(
    from_server: &mut OwnedReadHalf,
    to_client: &mut OwnedWriteHalf,
    link: &Link,
    shared: &Shared,
) {
    let mut bytes = vec![0; 64 * 1024];
    loop {
        let asked = Instant::now();
        let read = from_server.read(&mut bytes).await;
        shared.travel(asked).await;
        link.vanish_if_dark(shared).await;
        let Ok(n @ 1..) = read else { return };
        if *link.fate.borrow() == Fate::SwallowReply {
            shared.sprung.send_replace(true);
            return;
        }
        link.prepared().hear(&bytes[..n]);
        if to_client.write_all(&bytes[..n]).await.is_err() {
            return;
        }
    }
}

impl Link {
    fn prepared(&self) -> MutexGuard<'_, Prepared> {
        self.prepared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the fault for this packet of a client, if the trap waits for its statement.
    fn spring(&self, shared: &Shared, payload: &[u8]) -> Option<Fault> {
        shared.spring(self.prepared().executes(payload)?)
    }

    /// Never returns if bytes are to vanish.
    async fn vanish_if_dark(&self, shared: &Shared) {
        if shared.is_dark() || *self.fate.borrow() == Fate::Dark {
            self.fate.send_replace(Fate::Dark);
            std::future::pending::<()>().await;
        }
    }
}

/// Bytes that are read sooner than this after they were asked for had already arrived.
const AT_ONCE: Duration = Duration::from_millis(1);

impl Shared {
    /// Waits as long as bytes travel that were asked for at `asked` and are read now. Bytes that
    /// came while earlier ones travelled have travelled alongside them.
    async fn travel(&self, asked: Instant) {
        let delay = *self.delay.borrow();
        if !delay.is_zero() && asked.elapsed() >= AT_ONCE {
            tokio::time::sleep(delay).await;
        }
    }
}

/// Reads one packet with its header, or `None` at the end of the stream.
async fn read_packet(from: &mut BufReader<OwnedReadHalf>) -> Option<Vec<u8>> {
    let mut packet = vec![0; HEADER];
    from.read_exact(&mut packet).await.ok()?;
    let len = u32::from_le_bytes([packet[0], packet[1], packet[2], 0]);
    packet.resize(HEADER + usize::try_from(len).ok()?, 0);
    from.read_exact(&mut packet[HEADER..]).await.ok()?;
    Some(packet)
}
