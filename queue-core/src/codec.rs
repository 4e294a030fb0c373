//! Codecs: how bodies are compressed or encrypted between their senders and their handlers.
//!
//! A sender has an [`Encoding`]: its codecs, in the order in which they work on a body. Their names
//! are written into the message's header `content-encoding`, as HTTP has it, and a reader decodes
//! by that header with the codecs that it knows: [`Codecs`]. The database only sees encoded bodies,
//! and the limit of a topic's bodies is one of encoded bodies.
//!
//! A codec of one's own, which encrypts, with the crate `ring`:
//!
//! ```
//! use queue_core::codec::{Codec, Codecs, Encoding, Gzip};
//! use queue_core::handler::BoxError;
//! use queue_core::NewMessage;
//! use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
//! use ring::rand::{SecureRandom, SystemRandom};
//!
//! /// A body is a nonce of its own, and what was sealed with that. Take another key before 2^32
//! /// messages, under another name.
//! struct Vault(LessSafeKey);
//!
//! impl Vault {
//!     fn new(key: &[u8]) -> Result<Self, BoxError> {
//!         let key = UnboundKey::new(&AES_256_GCM, key).map_err(|_| "a key has 32 bytes")?;
//!         Ok(Self(LessSafeKey::new(key)))
//!     }
//! }
//!
//! impl Codec for Vault {
//!     fn name(&self) -> &str {
//!         "vault-1"
//!     }
//!
//!     fn encode(&self, body: &[u8]) -> Result<Option<Vec<u8>>, BoxError> {
//!         let (mut nonce, mut sealed) = ([0; NONCE_LEN], body.to_vec());
//!         SystemRandom::new().fill(&mut nonce).map_err(|_| "there is no randomness")?;
//!         let once = Nonce::assume_unique_for_key(nonce);
//!         self.0
//!             .seal_in_place_append_tag(once, Aad::empty(), &mut sealed)
//!             .map_err(|_| "it is too long to be sealed")?;
//!         Ok(Some([nonce.as_slice(), &sealed].concat()))
//!     }
//!
//!     fn decode(&self, body: &[u8], _limit: usize) -> Result<Vec<u8>, BoxError> {
//!         let (nonce, sealed) = body.split_at_checked(NONCE_LEN).ok_or("it is too short")?;
//!         let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| "it has no nonce")?;
//!         let mut sealed = sealed.to_vec();
//!         let opened = self.0.open_in_place(nonce, Aad::empty(), &mut sealed);
//!         Ok(opened.map_err(|_| "it was not sealed with this key")?.to_vec())
//!     }
//! }
//!
//! # fn main() -> Result<(), BoxError> {
//! // Compressed first: what is encrypted cannot be compressed any more.
//! let key = [7; 32]; // out of a secret
//! let encoding = Encoding::none().then(Gzip::default()).then(Vault::new(&key)?);
//! let message = NewMessage::new("a long text. ".repeat(1000)).encoded(&encoding)?;
//! assert_eq!(message.headers.get("content-encoding"), Some("gzip, vault-1"));
//! assert!(message.body.len() < 1000);
//!
//! // Beside gzip, which every reader knows.
//! let codecs = Codecs::default().with(Vault::new(&key)?);
//! let body = codecs.decode(&message.headers, &message.body)?;
//! assert_eq!(body, Some("a long text. ".repeat(1000).into_bytes()));
//! # Ok(())
//! # }
//! ```

mod gzip;

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::Arc;

use crate::handler::BoxError;
use crate::message::{Delivery, Headers, NewMessage};

pub use self::gzip::Gzip;

/// The header that names the codecs of a body, in the order in which they were applied.
pub const CONTENT_ENCODING: &str = "content-encoding";

/// The most codecs of one body: more is a mistake, or an attack.
const MOST: usize = 8;

/// A way to encode bodies.
pub trait Codec: Send + Sync + 'static {
    /// Its name in the header `content-encoding`: letters, digits, `-`, `_` and `.`, read whatever
    /// the case. Where HTTP has a name for it, that one.
    fn name(&self) -> &str;

    /// Encodes a body; `None` leaves it as it is, and its reader will not come to this codec.
    ///
    /// # Errors
    /// The message is not sent.
    fn encode(&self, body: &[u8]) -> Result<Option<Vec<u8>>, BoxError>;

    /// Decodes what [`encode`](Self::encode) has made. `limit` is the most bytes that the result
    /// may have: stop there with an error, instead of filling the memory with what somebody has
    /// made to do that.
    ///
    /// # Errors
    /// The message is dead-lettered.
    fn decode(&self, body: &[u8], limit: usize) -> Result<Vec<u8>, BoxError>;
}

/// Why a body cannot be encoded or decoded, in one sentence.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum CodecError {
    /// A codec failed to encode.
    #[error("The codec '{codec}' cannot encode the body: {reason}.")]
    Encode {
        /// Its name.
        codec: String,
        /// What it said.
        reason: String,
    },
    /// A codec failed to decode.
    #[error("The codec '{codec}' cannot decode the body: {reason}.")]
    Decode {
        /// Its name.
        codec: String,
        /// What it said.
        reason: String,
    },
    /// A body names a codec that the reader does not know.
    #[error(
        "The body is encoded by '{codec}', which this program does not know (it knows {known}): give it that codec, and redrive the message."
    )]
    Unknown {
        /// The name in the header.
        codec: String,
        /// Those it knows.
        known: String,
    },
    /// A body names more codecs than can be meant.
    #[error("The body is encoded {n} times, at most {limit} times can be meant.")]
    TooMany {
        /// How many the header names.
        n: usize,
        /// The most.
        limit: usize,
    },
    /// A body that is larger decoded than its reader allows.
    #[error(
        "The body has more than {limit} bytes once '{codec}' has decoded it: allow more if that is meant, and redrive the message."
    )]
    TooLarge {
        /// The codec that was decoding.
        codec: String,
        /// The most bytes.
        limit: usize,
    },
    /// A codec whose name cannot stand in a header.
    #[error(
        "'{codec}' is no name of a codec: use letters, digits, '-', '_' and '.', at most 64 of them."
    )]
    Name {
        /// The name.
        codec: String,
    },
}

/// The codecs that a sender applies to its bodies, the first one first.
#[derive(Clone, Default)]
pub struct Encoding(Vec<Arc<dyn Codec>>);

impl Encoding {
    /// Bodies are sent as they are.
    #[must_use]
    pub fn none() -> Self {
        Self::default()
    }

    /// And then this one.
    #[must_use]
    pub fn then(mut self, codec: impl Codec) -> Self {
        self.0.push(Arc::new(codec));
        self
    }

    /// Whether bodies are sent as they are.
    #[must_use]
    pub fn is_none(&self) -> bool {
        self.0.is_empty()
    }

    /// Encodes the body. What is encoded already is encoded once more, as its header then says.
    pub(crate) fn apply(&self, message: &mut NewMessage) -> Result<(), CodecError> {
        for codec in &self.0 {
            let name = codec.name();
            let is_of_name = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
            if !(1..=64).contains(&name.len()) || !name.chars().all(is_of_name) {
                return Err(CodecError::Name { codec: name.to_owned() });
            }
            let encoded = codec.encode(&message.body).map_err(|error| CodecError::Encode {
                codec: name.to_owned(),
                reason: reason(&*error),
            })?;
            if let Some(body) = encoded {
                message.body = body;
                add(&mut message.headers, name);
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Encoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|codec| codec.name())).finish()
    }
}

/// The codecs that a reader knows, and how large a decoded body may be. By default it knows
/// [`Gzip`], and a body may have 32 MiB.
#[derive(Clone)]
pub struct Codecs {
    known: Vec<Arc<dyn Codec>>,
    limit: usize,
}

impl Default for Codecs {
    fn default() -> Self {
        Self { known: vec![Arc::new(Gzip::default())], limit: 32 << 20 }
    }
}

impl Codecs {
    /// Knows this one too, in place of one with the same name.
    #[must_use]
    pub fn with(mut self, codec: impl Codec) -> Self {
        self.known.retain(|known| !known.name().eq_ignore_ascii_case(codec.name()));
        self.known.push(Arc::new(codec));
        self
    }

    /// The most bytes of a decoded body, and of those of a batch together: each handler at once may
    /// have as many in memory.
    #[must_use]
    pub fn with_limit(mut self, bytes: NonZeroUsize) -> Self {
        self.limit = bytes.get();
        self
    }

    /// The most bytes of a decoded body.
    #[must_use]
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// The body decoded; `None` if it is not encoded.
    ///
    /// # Errors
    /// [`CodecError`]: an unknown codec, a body that is not what its codec makes, one too large.
    pub fn decode(&self, headers: &Headers, body: &[u8]) -> Result<Option<Vec<u8>>, CodecError> {
        let names: Vec<&str> = applied(headers).collect();
        if names.len() > MOST {
            return Err(CodecError::TooMany { n: names.len(), limit: MOST });
        }
        let mut decoded = None;
        // What was applied last is undone first.
        for name in names.into_iter().rev() {
            let codec = self.find(name)?;
            decoded = Some(self.undo(codec, decoded.as_deref().unwrap_or(body))?);
        }
        Ok(decoded)
    }

    /// The delivery with its body decoded and without the header that says how; `None` if it is not
    /// encoded.
    ///
    /// # Errors
    /// As [`Codecs::decode`].
    pub fn decoded(&self, delivery: &Delivery) -> Result<Option<Delivery>, CodecError> {
        let Some(body) = self.decode(&delivery.headers, &delivery.body)? else { return Ok(None) };
        let mut headers = delivery.headers.clone();
        headers.0.retain(|name, _| !name.eq_ignore_ascii_case(CONTENT_ENCODING));
        Ok(Some(delivery.with_content(headers, body)))
    }

    fn find(&self, name: &str) -> Result<&dyn Codec, CodecError> {
        // RFC 9110 has it that the two are the same.
        let name = if name.eq_ignore_ascii_case("x-gzip") { "gzip" } else { name };
        let found = self.known.iter().find(|known| known.name().eq_ignore_ascii_case(name));
        found.map(|codec| &**codec).ok_or_else(|| CodecError::Unknown {
            codec: name.chars().take(64).collect(),
            known: self.known.iter().map(|known| known.name()).collect::<Vec<_>>().join(", "),
        })
    }

    fn undo(&self, codec: &dyn Codec, body: &[u8]) -> Result<Vec<u8>, CodecError> {
        let name = || codec.name().to_owned();
        let decoded = codec.decode(body, self.limit).map_err(|error| {
            if error.is::<OverLimit>() {
                return CodecError::TooLarge { codec: name(), limit: self.limit };
            }
            CodecError::Decode { codec: name(), reason: reason(&*error) }
        })?;
        if decoded.len() > self.limit {
            return Err(CodecError::TooLarge { codec: name(), limit: self.limit });
        }
        Ok(decoded)
    }
}

impl fmt::Debug for Codecs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known: Vec<_> = self.known.iter().map(|codec| codec.name()).collect();
        f.debug_struct("Codecs").field("known", &known).field("limit", &self.limit).finish()
    }
}

/// What a codec's [`decode`](Codec::decode) fails with when the body would be larger than its
/// limit.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("the decoded body would be larger than the limit")]
pub struct OverLimit;

/// Whether the body is encoded, by what its headers say.
#[must_use]
pub fn is_encoded(headers: &Headers) -> bool {
    applied(headers).next().is_some()
}

/// The codecs that the header names, but for `identity`, which is none.
fn applied(headers: &Headers) -> impl Iterator<Item = &str> {
    let is_header = |name: &str| name.eq_ignore_ascii_case(CONTENT_ENCODING);
    let values = headers.0.iter().filter(move |(name, _)| is_header(name));
    let names = values.flat_map(|(_, value)| value.split(',')).map(str::trim);
    names.filter(|name| !name.is_empty() && !name.eq_ignore_ascii_case("identity"))
}

fn add(headers: &mut Headers, name: &str) {
    let names: Vec<&str> = applied(headers).chain([name]).collect();
    let names = names.join(", ");
    headers.0.retain(|name, _| !name.eq_ignore_ascii_case(CONTENT_ENCODING));
    headers.0.insert(CONTENT_ENCODING.to_owned(), names);
}

/// The error and its sources, to stand within a sentence.
fn reason(error: &(dyn std::error::Error + 'static)) -> String {
    crate::handler::chain(error).trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests;
