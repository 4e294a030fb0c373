//! The encoding of a sender's bodies.

use std::fmt;
use std::sync::Arc;

use super::{CONTENT_ENCODING, Codec, Owner, applied, reason};
use crate::model::{CodecError, Headers, NewMessage, TopicName};

/// The codecs that a sender applies to its bodies, the first one first.
#[derive(Clone, Default)]
pub struct Encoding(Vec<Arc<dyn Codec>>);

impl Encoding {
    /// Bodies are sent as they are.
    #[must_use]
    pub fn none() -> Self {
        Self::default()
    }

    /// Adds a codec after the others.
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

    /// Encodes the body of a message, for `topic` if it is known. A body that is already encoded is
    /// encoded once more, and its header says so.
    pub(crate) fn apply(
        &self,
        message: &mut NewMessage,
        topic: Option<&TopicName>,
    ) -> Result<(), CodecError> {
        for codec in &self.0 {
            let name = codec.name();
            let is_of_name = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
            if !(1..=64).contains(&name.len()) || !name.chars().all(is_of_name) {
                return Err(CodecError::Name { codec: name.to_owned() });
            }
            let encoded = match topic {
                Some(topic) => {
                    let of = Owner { topic, msg_id: message.msg_id };
                    codec.encode_of(&message.body, &of)
                }
                None => codec.encode(&message.body),
            };
            let encoded = encoded.map_err(|error| CodecError::Encode {
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

impl NewMessage {
    /// Encodes the body with codecs, and names them in the header `content-encoding`. A producer
    /// does this with the codecs of its options.
    ///
    /// # Errors
    /// [`Error::Codec`](crate::Error::Codec) if a codec cannot encode it.
    pub fn encoded(mut self, encoding: &Encoding) -> crate::Result<Self> {
        encoding.apply(&mut self, None)?;
        Ok(self)
    }

    /// As [`encoded`](Self::encoded), for a message to this topic: a codec may bind the body to the
    /// topic and to the message's id ([`Owner`]), so set the id first.
    ///
    /// # Errors
    /// As [`encoded`](Self::encoded).
    pub fn encoded_for(mut self, topic: &TopicName, encoding: &Encoding) -> crate::Result<Self> {
        encoding.apply(&mut self, Some(topic))?;
        Ok(self)
    }
}

impl fmt::Debug for Encoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|codec| codec.name())).finish()
    }
}

fn add(headers: &mut Headers, name: &str) {
    let names: Vec<&str> = applied(headers).chain([name]).collect();
    let names = names.join(", ");
    headers.0.retain(|name, _| !name.eq_ignore_ascii_case(CONTENT_ENCODING));
    headers.0.insert(CONTENT_ENCODING.to_owned(), names);
}
