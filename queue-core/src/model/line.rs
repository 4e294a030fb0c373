//! A message as a line of JSON, the form in which messages are exported and imported.

mod read;

pub use self::read::{LineError, MessageLine};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;

/// The fields of a line that may be any bytes. Bytes that are not text are base64 under another
/// name, so that nothing is lost.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LineBytes<'m> {
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<&'m str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key_base64: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    biz_id: Option<&'m str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    biz_id_base64: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    body: Option<&'m str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    body_base64: Option<String>,
}

impl<'m> LineBytes<'m> {
    /// The fields of a message with this ordering key, business id and body.
    #[must_use]
    pub fn new(key: Option<&'m [u8]>, biz_id: Option<&'m [u8]>, body: &'m [u8]) -> Self {
        let (key, key_base64) = text_or_base64(key);
        let (biz_id, biz_id_base64) = text_or_base64(biz_id);
        let (body, body_base64) = text_or_base64(Some(body));
        Self { key, key_base64, biz_id, biz_id_base64, body, body_base64 }
    }
}

/// Returns bytes as text, or else in base64; neither if there are none.
#[must_use]
pub fn text_or_base64(bytes: Option<&[u8]>) -> (Option<&str>, Option<String>) {
    match bytes.map(|bytes| (bytes, std::str::from_utf8(bytes))) {
        None => (None, None),
        Some((_, Ok(text))) => (Some(text), None),
        Some((bytes, Err(_))) => (None, Some(STANDARD.encode(bytes))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_text_is_base64_under_another_name() {
        let bytes = LineBytes::new(None, Some(&[0xff, 0]), b"text");
        let line = serde_json::to_string(&bytes).expect("JSON");
        assert_eq!(line, r#"{"biz_id_base64":"/wA=","body":"text"}"#);
    }
}
