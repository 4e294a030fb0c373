//! A running `rowmq-producer relay`, and requests to it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::thread;

use rowmq_core::connection::ServerUrl;
use rustix::process::{Pid, Signal, kill_process};

/// A running relay.
pub(crate) struct Relay {
    pub(crate) child: Child,
    pub(crate) address: String,
}

/// An answer of the relay.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: serde_json::Value,
}

/// Returns the command, ready to run on this server.
pub(crate) fn command(url: &ServerUrl, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rowmq-producer"));
    command.arg("relay").args(arguments).env("ROWMQ_URL", url.expose()).env_remove("RUST_LOG");
    command.stdin(Stdio::null()).stderr(Stdio::piped());
    command
}

impl Relay {
    pub(crate) fn start(url: &ServerUrl, arguments: &[&str]) -> Self {
        Self::spawned(command(url, &[&["--listen", "0"], arguments].concat()))
    }

    /// Starts a command that listens on port 0.
    pub(crate) fn spawned(mut command: Command) -> Self {
        let mut child = command.spawn().expect("it starts");
        let mut log = BufReader::new(child.stderr.take().expect("piped")).lines();
        let taken = log.by_ref().map_while(Result::ok).find(|line| line.contains("are taken"));
        let taken = taken.expect("it logs where");
        let address = taken.rsplit('=').next().expect("an address").to_owned();
        thread::spawn(move || log.map_while(Result::ok).for_each(drop));
        Self { child, address }
    }

    pub(crate) fn post(&self, path: &str, headers: &str, body: &[u8]) -> Answer {
        post(&self.address, path, headers, body).expect("an answer")
    }

    pub(crate) fn stop(mut self) {
        let id = i32::try_from(self.child.id()).expect("an id");
        kill_process(Pid::from_raw(id).expect("an id"), Signal::TERM).expect("it runs");
        assert!(self.child.wait().expect("it ends").success());
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        // It may have ended already.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Sends one request on its own connection.
pub(crate) fn post(
    address: &str,
    path: &str,
    headers: &str,
    body: &[u8],
) -> std::io::Result<Answer> {
    let len = body.len();
    let mut stream = begin(address, path, &format!("Host: {address}\r\n{headers}"), len)?;
    stream.write_all(body)?;
    answer(stream)
}

/// Sends the head of a request, with these headers, whose body has `len` bytes.
pub(crate) fn begin(
    address: &str,
    path: &str,
    headers: &str,
    len: usize,
) -> std::io::Result<TcpStream> {
    let mut stream = TcpStream::connect(address)?;
    write!(
        stream,
        "POST {path} HTTP/1.1\r\nConnection: close\r\n{headers}Content-Length: {len}\r\n\r\n"
    )?;
    Ok(stream)
}

/// Reads the answer to a request that was sent.
pub(crate) fn answer(mut stream: TcpStream) -> std::io::Result<Answer> {
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
    let body = serde_json::from_str(body).unwrap_or(serde_json::Value::Null);
    Ok(Answer { status, head: head.to_lowercase(), body })
}
