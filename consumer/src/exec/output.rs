use tokio::io::{AsyncRead, AsyncReadExt};

use super::process::Pipes;

/// How many bytes are read from a pipe at once: some lines; most of it is discarded.
const CHUNK: usize = 8 * 1024;

/// The end of what a program wrote.
#[derive(Debug)]
pub(super) struct Output {
    /// Of its standard output.
    pub(super) stdout: Tail,
    /// Of its standard error.
    pub(super) stderr: Tail,
}

impl Output {
    pub(super) fn new(limit: usize) -> Self {
        Self { stdout: Tail::new(limit), stderr: Tail::new(limit) }
    }
}

/// The last bytes of a stream.
#[derive(Debug)]
pub(super) struct Tail {
    limit: usize,
    bytes: Vec<u8>,
    cut: bool,
}

impl Tail {
    pub(super) fn new(limit: usize) -> Self {
        Self { limit, bytes: Vec::new(), cut: false }
    }

    pub(super) fn push(&mut self, chunk: &[u8]) {
        self.bytes.extend_from_slice(chunk);
        let excess = self.bytes.len().saturating_sub(self.limit);
        self.bytes.drain(..excess);
        self.cut |= excess > 0;
    }

    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.cut = false;
    }

    /// Returns the tail as text, with a mark where the beginning is missing.
    pub(super) fn text(&self) -> String {
        let is_inner_byte = |byte: &&u8| **byte & 0b1100_0000 == 0b1000_0000;
        let skipped =
            if self.cut { self.bytes.iter().take(3).take_while(is_inner_byte).count() } else { 0 };
        let text = String::from_utf8_lossy(&self.bytes[skipped..]);
        match text.trim() {
            "" => String::new(),
            text if self.cut => format!("…{text}"),
            text => text.to_owned(),
        }
    }
}

/// Reads the output until the program has closed its ends.
pub(super) async fn listen(pipes: Pipes, output: &mut Output) {
    let Pipes { stdout, stderr, .. } = pipes;
    tokio::join!(keep_tail(stdout, &mut output.stdout), keep_tail(stderr, &mut output.stderr));
}

async fn keep_tail(mut stream: impl AsyncRead + Unpin, tail: &mut Tail) {
    let mut chunk = vec![0; CHUNK];
    while let Ok(count @ 1..) = stream.read(&mut chunk).await {
        tail.push(&chunk[..count]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_end_is_kept_and_cut_at_a_character() {
        let mut tail = Tail::new(5);
        tail.push(b"ab");
        assert_eq!(tail.text(), "ab");
        tail.push("cdéfgh\n".as_bytes());
        assert_eq!(tail.text(), "…fgh");
        tail.push(&[b'x'; 100]);
        assert_eq!(tail.text(), "…xxxxx");
        assert_eq!(Tail::new(5).text(), "");
    }
}
