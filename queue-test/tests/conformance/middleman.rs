//! Servers and proxies that break the queue's assumptions.

use rowmq_core::connection::ServerUrl;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

const COM_QUERY: u8 = 0x03;
const COM_STMT_PREPARE: u8 = 0x16;

const SKIP_LOCKED: &[u8] = b" SKIP LOCKED";

/// What sits between a client and its server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Middleman {
    /// Sends every statement outside a transaction to the other one of two server connections, as a
    /// multiplexing proxy may.
    Reassigns,
    /// Greets with its own connection id, as a proxy that speaks the protocol itself does, and
    /// leaves the rest unchanged.
    GreetsItself,
    /// Removes SKIP LOCKED from every statement, as a server does that ignores it.
    IgnoresSkipLocked,
}

impl Middleman {
    /// Forwards until the test's runtime ends. `account` has no password: the reply to one server
    /// connection's challenge must be valid for the other as well.
    pub(crate) async fn start(self, account: &ServerUrl) -> ServerUrl {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let server = account.server();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let servers = [connect(&server).await, connect(&server).await];
                tokio::spawn(self.mediate(client, servers));
            }
        });
        account.with_hosts([address.as_str()]).unwrap()
    }

    async fn mediate(self, client: TcpStream, servers: [TcpStream; 2]) -> Option<()> {
        client.set_nodelay(true).unwrap();
        let (mut from_client, mut to_client) = client.into_split();
        let [(mut from_a, mut to_a), (mut from_b, mut to_b)] = servers.map(TcpStream::into_split);
        let mut greeting = packet(&mut from_a).await?;
        if self == Self::GreetsItself {
            // The id follows the protocol's version and the server's.
            let version_end = greeting[5..].iter().position(|byte| *byte == 0)?;
            greeting[5 + version_end + 1] ^= 0x55;
        }
        to_client.write_all(&greeting).await.ok()?;
        packet(&mut from_b).await?;
        let login = packet(&mut from_client).await?;
        log_in(&mut from_b, &mut to_b, &login).await?;
        let welcome = log_in(&mut from_a, &mut to_a, &login).await?;
        to_client.write_all(&welcome).await.ok()?;
        tokio::join!(
            self.forward(from_client, [to_a, to_b]),
            // Only one of them gets statements at a time.
            answer(from_a, from_b, to_client),
        );
        Some(())
    }

    async fn forward(
        self,
        mut from_client: OwnedReadHalf,
        mut servers: [OwnedWriteHalf; 2],
    ) -> Option<()> {
        let (mut current, mut in_transaction) = (0, false);
        loop {
            let mut packet = packet(&mut from_client).await?;
            let text = packet[5..].to_ascii_uppercase();
            let is_statement = matches!(packet[4], COM_QUERY | COM_STMT_PREPARE);
            match self {
                Self::Reassigns if is_statement => {
                    if !in_transaction {
                        current = 1 - current;
                    }
                    in_transaction = match packet[4] {
                        COM_QUERY if text.starts_with(b"BEGIN") => true,
                        COM_QUERY if text.starts_with(b"COMMIT") => false,
                        COM_QUERY if text.starts_with(b"ROLLBACK") => false,
                        _ => in_transaction,
                    };
                }
                Self::IgnoresSkipLocked if is_statement => {
                    if let Some(at) = text.windows(SKIP_LOCKED.len()).position(|w| w == SKIP_LOCKED)
                    {
                        packet[5 + at..5 + at + SKIP_LOCKED.len()].fill(b' ');
                    }
                }
                _ => {}
            }
            servers[current].write_all(&packet).await.ok()?;
        }
    }
}

async fn connect(server: &str) -> TcpStream {
    let stream = TcpStream::connect(server).await.unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

/// Returns the server's OK. Without a password, anything before it is of no interest.
async fn log_in(
    from: &mut OwnedReadHalf,
    to: &mut OwnedWriteHalf,
    login: &[u8],
) -> Option<Vec<u8>> {
    to.write_all(login).await.ok()?;
    loop {
        let mut answer = packet(from).await?;
        if answer[4] == 0 {
            // The client has had the greeting and has sent its login: this is the next packet.
            answer[3] = 2;
            return Some(answer);
        }
    }
}

async fn answer(mut a: OwnedReadHalf, mut b: OwnedReadHalf, mut client: OwnedWriteHalf) {
    let (mut from_a, mut from_b) = (vec![0; 16_384], vec![0; 16_384]);
    loop {
        let bytes = tokio::select! {
            n = a.read(&mut from_a) => n.map(|n| &from_a[..n]),
            n = b.read(&mut from_b) => n.map(|n| &from_b[..n]),
        };
        match bytes {
            Ok(bytes @ [_, ..]) if client.write_all(bytes).await.is_ok() => {}
            _ => return,
        }
    }
}

/// Reads one packet with its header; `None` at the end.
async fn packet(from: &mut OwnedReadHalf) -> Option<Vec<u8>> {
    let mut packet = vec![0; 4];
    from.read_exact(&mut packet).await.ok()?;
    let length = u32::from_le_bytes([packet[0], packet[1], packet[2], 0]);
    packet.resize(4 + length as usize, 0);
    from.read_exact(&mut packet[4..]).await.ok()?;
    Some(packet)
}
