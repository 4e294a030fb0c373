//! Traps: the statement that a trap waits for, and which statement a packet carries.

use std::collections::HashMap;

/// `COM_QUERY`: the statement's text follows.
const QUERY: u8 = 0x03;
/// `COM_STMT_PREPARE`: the statement's text follows; the answer gives it a number.
const PREPARE: u8 = 0x16;
/// `COM_STMT_EXECUTE`: the number of a prepared statement follows.
const EXECUTE: u8 = 0x17;

/// A packet begins with three bytes of length, little-endian, and one byte with its number.
pub(super) const HEADER: usize = 4;

/// What a trap does to the statement that it waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    DropReply,
    CutBefore,
    Strand,
    Darken,
}

#[derive(Debug, Clone)]
pub(super) struct Trap {
    pub(super) text: Vec<u8>,
    pub(super) fault: Fault,
}

/// The statements that a connection has prepared, by the number the server gave them.
#[derive(Debug, Default)]
pub(super) struct Prepared {
    texts: HashMap<[u8; 4], Vec<u8>>,
    /// The text that was sent and not answered yet.
    asked: Option<Vec<u8>>,
}

impl Prepared {
    /// Returns the text of the statement that the server executes for this packet of a client.
    pub(super) fn executes<'a>(&'a mut self, payload: &'a [u8]) -> Option<&'a [u8]> {
        let (command, rest) = payload.split_first()?;
        match *command {
            QUERY => Some(rest),
            PREPARE => {
                self.asked = Some(rest.to_vec());
                None
            }
            EXECUTE => self.texts.get(rest.first_chunk::<4>()?).map(Vec::as_slice),
            _ => None,
        }
    }

    /// Reads the server's bytes to a client. An answer begins with the first bytes after its
    /// question: a client asks one question at a time.
    pub(super) fn hear(&mut self, bytes: &[u8]) {
        let Some(text) = self.asked.take() else { return };
        if let Some((0, rest)) = bytes.get(HEADER..).and_then(<[u8]>::split_first)
            && let Some(number) = rest.first_chunk::<4>()
        {
            self.texts.insert(*number, text);
        }
    }
}
