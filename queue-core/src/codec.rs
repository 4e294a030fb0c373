//! Codecs: compressing or encrypting bodies between their senders and their handlers.
//!
//! A sender has an [`Encoding`]: its codecs, in the order in which they are applied to a body.
//! Their names are written into the message's header `content-encoding`, as in HTTP, and a reader
//! decodes by that header with the codecs that it knows: [`Codecs`]. The database only sees encoded
//! bodies, and a topic's body limit applies to encoded bodies.
//!
//! A custom codec that encrypts, with the crate `ring`. A body is sealed together with the topic
//! and the id of its message ([`Owner`]), so that it opens in no other message. The reader
//! [requires](Codecs::require) the seal, so that no plain body passes for a sealed one:
//!
//! ```
//! use rowmq_core::codec::{Codec, Codecs, Encoding, Gzip, Owner};
//! use rowmq_core::{MsgId, NewMessage, TopicName};
//! use rowmq_core::model::BoxError;
//! use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
//! use ring::rand::{SecureRandom, SystemRandom};
//!
//! /// An encoded body is a random nonce and the sealed text. Take another key before 2^32
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
//!     fn encode(&self, _body: &[u8]) -> Result<Option<Vec<u8>>, BoxError> {
//!         Err("a body is sealed for the message that it belongs to".into())
//!     }
//!
//!     fn decode(&self, _body: &[u8], _limit: usize) -> Result<Vec<u8>, BoxError> {
//!         Err("a body is opened with the message that it belongs to".into())
//!     }
//!
//!     fn encode_of(&self, body: &[u8], of: &Owner<'_>) -> Result<Option<Vec<u8>>, BoxError> {
//!         let (mut nonce, mut sealed) = ([0; NONCE_LEN], body.to_vec());
//!         SystemRandom::new().fill(&mut nonce).map_err(|_| "there is no randomness")?;
//!         let once = Nonce::assume_unique_for_key(nonce);
//!         self.0
//!             .seal_in_place_append_tag(once, Aad::from(of.to_bytes()), &mut sealed)
//!             .map_err(|_| "it is too long to be sealed")?;
//!         Ok(Some([nonce.as_slice(), &sealed].concat()))
//!     }
//!
//!     fn decode_of(
//!         &self,
//!         body: &[u8],
//!         of: &Owner<'_>,
//!         _limit: usize,
//!     ) -> Result<Vec<u8>, BoxError> {
//!         let (nonce, sealed) = body.split_at_checked(NONCE_LEN).ok_or("it is too short")?;
//!         let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| "it has no nonce")?;
//!         let mut sealed = sealed.to_vec();
//!         let opened = self.0.open_in_place(nonce, Aad::from(of.to_bytes()), &mut sealed);
//!         Ok(opened.map_err(|_| "it was not sealed for this message with this key")?.to_vec())
//!     }
//! }
//!
//! # fn main() -> Result<(), BoxError> {
//! // Compress first: encrypted bytes do not compress.
//! let key = [7; 32]; // from a secret
//! let encoding = Encoding::none().then(Gzip::default()).then(Vault::new(&key)?);
//! let topic = TopicName::new("letters")?;
//! let text = "a long text. ".repeat(1000);
//! let message = NewMessage::new(text.as_str()).encoded_for(&topic, &encoding)?;
//! assert_eq!(message.headers.get("content-encoding"), Some("gzip, vault-1"));
//! assert!(message.body.len() < 1000);
//!
//! // In addition to gzip, which every reader knows.
//! let codecs = Codecs::default().with(Vault::new(&key)?).require("vault-1");
//! let of = Owner { topic: &topic, msg_id: message.msg_id };
//! let body = codecs.decode_of(&of, &message.headers, &message.body)?;
//! assert_eq!(body, Some(text.clone().into_bytes()));
//! // A body moved to another message or sent in clear is refused: a consumer dead-letters it.
//! let other = Owner { msg_id: MsgId::new(), ..of };
//! assert!(codecs.decode_of(&other, &message.headers, &message.body).is_err());
//! let clear = NewMessage::new(text);
//! assert!(codecs.decode_of(&of, &clear.headers, &clear.body).is_err());
//! # Ok(())
//! # }
//! ```

mod encoding;
mod gzip;
mod room;

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::Arc;

use tokio::sync::Semaphore;

use crate::model::{BoxError, CodecError, Delivery, Headers, MsgId, TopicName};

pub use self::encoding::Encoding;
pub use self::gzip::Gzip;
pub use self::room::Room;

/// The header that names the codecs of a body, in the order in which they were applied.
pub const CONTENT_ENCODING: &str = "content-encoding";

/// The most codecs of one body: more is a mistake, or an attack.
const MOST: usize = 8;

/// A way to encode bodies.
pub trait Codec: Send + Sync + 'static {
    /// Its name in the header `content-encoding`: letters, digits, `-`, `_` and `.`, read in any
    /// case. If HTTP has a name for it, use that one.
    fn name(&self) -> &str;

    /// Encodes a body. `None` leaves it as it is; its reader then skips this codec.
    ///
    /// # Errors
    /// The message is not sent.
    fn encode(&self, body: &[u8]) -> Result<Option<Vec<u8>>, BoxError>;

    /// Decodes the result of [`encode`](Self::encode). `limit` is the most bytes that the result
    /// may have: beyond it, stop with an error, so that a malicious body cannot fill the memory.
    ///
    /// # Errors
    /// The message is dead-lettered.
    fn decode(&self, body: &[u8], limit: usize) -> Result<Vec<u8>, BoxError>;

    /// As [`encode`](Self::encode), with the message that the body belongs to. A codec that seals
    /// bodies binds them to [`Owner::to_bytes`], as data that is authenticated with them.
    ///
    /// # Errors
    /// The message is not sent.
    fn encode_of(&self, body: &[u8], of: &Owner<'_>) -> Result<Option<Vec<u8>>, BoxError> {
        let _ = of;
        self.encode(body)
    }

    /// Decodes the result of [`encode_of`](Self::encode_of); as [`decode`](Self::decode).
    ///
    /// # Errors
    /// The message is dead-lettered.
    fn decode_of(&self, body: &[u8], of: &Owner<'_>, limit: usize) -> Result<Vec<u8>, BoxError> {
        let _ = of;
        self.decode(body, limit)
    }
}

/// The message that a body belongs to.
///
/// The owner stays the same while the message waits, is retried, dead-lettered and redriven, and
/// for every group that reads it from a stream. It changes when the body moves to another message:
/// when a message is [replaced or debounced](crate::Unique::replacing), and when a dead letter
/// moves to a dead-letter topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner<'m> {
    /// The topic that it was sent to.
    pub topic: &'m TopicName,
    /// Its id.
    pub msg_id: MsgId,
}

impl Owner<'_> {
    /// The topic's name, a zero byte and the 16 bytes of the id; for a group, its stream's name.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let stream = self.topic.stream();
        let topic = stream.as_ref().unwrap_or(self.topic).as_str();
        [topic.as_bytes(), &[0], self.msg_id.as_bytes()].concat()
    }
}

/// The codecs that a reader knows, and the limit of a decoded body. By default it knows [`Gzip`],
/// and the limit is 32 MiB.
#[derive(Clone)]
pub struct Codecs {
    known: Vec<Arc<dyn Codec>>,
    required: Vec<String>,
    limit: usize,
    /// The most bytes of all decoded bodies together, shared by all clones of these codecs.
    budget: usize,
    free: Arc<Semaphore>,
}

/// The default budget.
const BUDGET: usize = 128 << 20;

impl Default for Codecs {
    fn default() -> Self {
        Self {
            known: vec![Arc::new(Gzip::default())],
            required: Vec::new(),
            limit: 32 << 20,
            budget: BUDGET,
            free: Arc::new(Semaphore::new(room::units(BUDGET))),
        }
    }
}

impl Codecs {
    /// Adds a codec, in place of one with the same name.
    #[must_use]
    pub fn with(mut self, codec: impl Codec) -> Self {
        self.known.retain(|known| !known.name().eq_ignore_ascii_case(codec.name()));
        self.known.push(Arc::new(codec));
        self
    }

    /// Requires that the header of every body names this codec; other bodies are dead-lettered.
    /// Otherwise any producer could send unsealed bodies where others are sealed.
    #[must_use]
    pub fn require(mut self, name: impl Into<String>) -> Self {
        self.required.push(name.into());
        self
    }

    /// Whether a body with these headers needs no decoding: it is not encoded, no codec is
    /// required, and it was not in a page that is damaged.
    #[must_use]
    pub fn pass(&self, headers: &Headers) -> bool {
        self.required.is_empty() && !is_encoded(headers) && headers.damaged_page().is_none()
    }

    /// Sets the most bytes of a decoded body, and of the decoded bodies of a batch together.
    #[must_use]
    pub fn with_limit(mut self, bytes: NonZeroUsize) -> Self {
        self.limit = bytes.get();
        self
    }

    /// Sets the most bytes of all decoded bodies of these codecs and their clones together, 128 MiB
    /// by default. It should be at least the [limit](Self::with_limit) of one body. A handler whose
    /// body finds no [room](Self::room) waits for it.
    #[must_use]
    pub fn with_budget(mut self, bytes: NonZeroUsize) -> Self {
        self.budget = bytes.get();
        self.free = Arc::new(Semaphore::new(room::units(self.budget)));
        self
    }

    /// The most bytes of a decoded body.
    #[must_use]
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Decodes a body; `None` if it is not encoded. Only [`decode_of`](Self::decode_of) opens a
    /// body that is sealed for its message.
    ///
    /// # Errors
    /// [`CodecError`]: an unknown codec, a required one that is missing, a body that its codec
    /// cannot decode, one too large.
    pub fn decode(&self, headers: &Headers, body: &[u8]) -> Result<Option<Vec<u8>>, CodecError> {
        self.decode_as(None, headers, body)
    }

    /// Decodes the body of this message; `None` if it is not encoded.
    ///
    /// # Errors
    /// As [`Codecs::decode`]; a body that was sealed for another message.
    pub fn decode_of(
        &self,
        of: &Owner<'_>,
        headers: &Headers,
        body: &[u8],
    ) -> Result<Option<Vec<u8>>, CodecError> {
        self.decode_as(Some(of), headers, body)
    }

    fn decode_as(
        &self,
        of: Option<&Owner<'_>>,
        headers: &Headers,
        body: &[u8],
    ) -> Result<Option<Vec<u8>>, CodecError> {
        let names: Vec<&str> = applied(headers).collect();
        let is_missing =
            |codec: &&String| !names.iter().any(|name| name.eq_ignore_ascii_case(codec));
        if let Some(codec) = self.required.iter().find(is_missing) {
            return Err(CodecError::Missing { codec: codec.clone() });
        }
        if names.len() > MOST {
            return Err(CodecError::TooMany { n: names.len(), limit: MOST });
        }
        let mut decoded = None;
        // The codec applied last is undone first.
        for name in names.into_iter().rev() {
            let codec = self.find(name)?;
            decoded = Some(self.undo(codec, of, decoded.as_deref().unwrap_or(body))?);
        }
        Ok(decoded)
    }

    /// Returns the topic's delivery with its body decoded and without the encoding header; `None`
    /// if it is not encoded.
    ///
    /// # Errors
    /// As [`Codecs::decode_of`]; [`CodecError::DamagedPage`].
    pub fn decoded(
        &self,
        topic: &TopicName,
        delivery: &Delivery,
    ) -> Result<Option<Delivery>, CodecError> {
        if let Some(reason) = delivery.headers.damaged_page() {
            return Err(CodecError::DamagedPage { reason: reason.to_owned() });
        }
        let of = Owner { topic, msg_id: delivery.msg_id };
        let Some(body) = self.decode_of(&of, &delivery.headers, &delivery.body)? else {
            return Ok(None);
        };
        let mut headers = delivery.headers.clone();
        headers.0.retain(|name, _| !name.eq_ignore_ascii_case(CONTENT_ENCODING));
        Ok(Some(delivery.with_content(headers, body)))
    }

    fn find(&self, name: &str) -> Result<&dyn Codec, CodecError> {
        // By RFC 9110 the two are the same.
        let name = if name.eq_ignore_ascii_case("x-gzip") { "gzip" } else { name };
        let found = self.known.iter().find(|known| known.name().eq_ignore_ascii_case(name));
        found.map(|codec| &**codec).ok_or_else(|| CodecError::Unknown {
            codec: name.chars().take(64).collect(),
            known: self.known.iter().map(|known| known.name()).collect::<Vec<_>>().join(", "),
        })
    }

    fn undo(
        &self,
        codec: &dyn Codec,
        of: Option<&Owner<'_>>,
        body: &[u8],
    ) -> Result<Vec<u8>, CodecError> {
        let name = || codec.name().to_owned();
        let decoded = match of {
            Some(of) => codec.decode_of(body, of, self.limit),
            None => codec.decode(body, self.limit),
        };
        let decoded = decoded.map_err(|error| {
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

/// The error of a codec's [`decode`](Codec::decode) when the body would be larger than its limit.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("the decoded body would be larger than the limit")]
pub struct OverLimit;

/// Whether the headers say that the body is encoded.
#[must_use]
pub fn is_encoded(headers: &Headers) -> bool {
    applied(headers).next().is_some()
}

/// The codecs that the header names, except for `identity`, which means no encoding.
fn applied(headers: &Headers) -> impl Iterator<Item = &str> {
    let is_header = |name: &str| name.eq_ignore_ascii_case(CONTENT_ENCODING);
    let values = headers.0.iter().filter(move |(name, _)| is_header(name));
    let names = values.flat_map(|(_, value)| value.split(',')).map(str::trim);
    names.filter(|name| !name.is_empty() && !name.eq_ignore_ascii_case("identity"))
}

/// The error and its sources, as part of a sentence.
fn reason(error: &(dyn std::error::Error + 'static)) -> String {
    crate::model::chain(error).trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests;
