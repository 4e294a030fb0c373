//! A relay that records every statement a client prepares and runs, with its values, so that
//! EXPLAIN gets the statement itself and not a copy of its text.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use mysql_async::Value;
use rowmq_core::connection::ServerUrl;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

const COM_STMT_PREPARE: u8 = 0x16;
const COM_STMT_EXECUTE: u8 = 0x17;
const NULL: u8 = 0x06;
const LONGLONG: u8 = 0x08;

/// A statement as it was run.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Run {
    pub(crate) sql: String,
    pub(crate) values: Vec<Value>,
}

type Log = Arc<Mutex<Vec<Run>>>;

/// The relay. It ends with the test's runtime.
pub(crate) struct Recorder {
    url: ServerUrl,
    log: Log,
}

impl Recorder {
    pub(crate) async fn start(target: &ServerUrl) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut url = url::Url::parse(target.expose()).unwrap();
        url.set_host(Some("127.0.0.1")).unwrap();
        url.set_port(Some(listener.local_addr().unwrap().port())).unwrap();
        let (log, server) = (Log::default(), target.server());
        let recorder = Self { url: ServerUrl::new(url.as_str()).unwrap(), log: Arc::clone(&log) };
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(&server).await.unwrap();
                relay(client, server, Arc::clone(&log));
            }
        });
        recorder
    }

    pub(crate) fn url(&self) -> &ServerUrl {
        &self.url
    }

    /// Returns what has been run so far; one statement of each text.
    pub(crate) fn distinct(&self) -> Vec<Run> {
        let mut seen: Vec<Run> = Vec::new();
        for run in self.log.lock().unwrap().iter() {
            if seen.iter().all(|other| other.sql != run.sql) {
                seen.push(run.clone());
            }
        }
        seen
    }
}

/// The prepared statements of one connection.
#[derive(Default)]
struct Prepared {
    asked: Option<String>,
    texts: HashMap<u32, (String, usize)>,
}

fn relay(client: TcpStream, server: TcpStream, log: Log) {
    client.set_nodelay(true).unwrap();
    server.set_nodelay(true).unwrap();
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let prepared = Arc::new(Mutex::new(Prepared::default()));
    tokio::spawn(statements(from_client, to_server, Arc::clone(&prepared), log));
    tokio::spawn(replies(from_server, to_client, prepared));
}

async fn statements(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    prepared: Arc<Mutex<Prepared>>,
    log: Log,
) {
    while let Some(packet) = read_packet(&mut from).await {
        match packet.get(4) {
            Some(&COM_STMT_PREPARE) => {
                let text = String::from_utf8_lossy(&packet[5..]).into_owned();
                prepared.lock().unwrap().asked = Some(text);
            }
            Some(&COM_STMT_EXECUTE) => {
                let id = u32::from_le_bytes(packet[5..9].try_into().unwrap());
                if let Some((sql, n)) = prepared.lock().unwrap().texts.get(&id) {
                    let run = Run { sql: sql.clone(), values: values(&packet[14..], *n) };
                    log.lock().unwrap().push(run);
                }
            }
            _ => {}
        }
        if to.write_all(&packet).await.is_err() {
            return;
        }
    }
}

/// Returns the values of an execution, which follow its id, flags and count.
fn values(bytes: &[u8], n: usize) -> Vec<Value> {
    if n == 0 {
        return Vec::new();
    }
    let nulls = n.div_ceil(8);
    assert_eq!(bytes[nulls], 1, "the driver sends the types with every execution");
    let types = &bytes[nulls + 1..nulls + 1 + 2 * n];
    let mut rest = &bytes[nulls + 1 + 2 * n..];
    let mut values = Vec::with_capacity(n);
    for i in 0..n {
        let (kind, unsigned) = (types[2 * i], types[2 * i + 1] & 0x80 != 0);
        let is_null = kind == NULL || bytes[i / 8] >> (i % 8) & 1 == 1;
        let value = if is_null {
            Value::NULL
        } else if kind == LONGLONG {
            let number: [u8; 8] = rest[..8].try_into().unwrap();
            rest = &rest[8..];
            if unsigned {
                Value::UInt(u64::from_le_bytes(number))
            } else {
                Value::Int(i64::from_le_bytes(number))
            }
        } else {
            let (len, prefix) = length(rest);
            let value = Value::Bytes(rest[prefix..prefix + len].to_vec());
            rest = &rest[prefix + len..];
            value
        };
        values.push(value);
    }
    values
}

/// Decodes a length of the protocol; returns it and the number of its bytes.
fn length(bytes: &[u8]) -> (usize, usize) {
    let number =
        |n: usize| bytes[1..=n].iter().rev().fold(0, |sum, byte| sum << 8 | usize::from(*byte));
    match bytes[0] {
        0xFC => (number(2), 3),
        0xFD => (number(3), 4),
        0xFE => (number(8), 9),
        short => (usize::from(short), 1),
    }
}

async fn replies(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, prepared: Arc<Mutex<Prepared>>) {
    while let Some(packet) = read_packet(&mut from).await {
        {
            let mut prepared = prepared.lock().unwrap();
            // The first packet after the request: OK, then the statement's id and its columns.
            if let Some(text) = prepared.asked.take()
                && packet[4] == 0
            {
                let id = u32::from_le_bytes(packet[5..9].try_into().unwrap());
                let n = u16::from_le_bytes(packet[11..13].try_into().unwrap());
                prepared.texts.insert(id, (text, usize::from(n)));
            }
        }
        if to.write_all(&packet).await.is_err() {
            return;
        }
    }
}

/// Reads one packet with its header of length and number.
async fn read_packet(from: &mut OwnedReadHalf) -> Option<Vec<u8>> {
    let mut packet = vec![0; 4];
    from.read_exact(&mut packet).await.ok()?;
    let len = u32::from_le_bytes([packet[0], packet[1], packet[2], 0]) as usize;
    packet.resize(4 + len, 0);
    from.read_exact(&mut packet[4..]).await.ok()?;
    Some(packet)
}
