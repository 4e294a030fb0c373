//! Reading a line of JSON as a message.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use crate::model::{Headers, Moment, MsgId, NewMessage, OnConflict, Priority, Unique};

/// Why a line is no message, as the end of a sentence.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct LineError(String);

/// A message read from a line of JSON. It also reads the output of `rowmq export` and
/// `rowmq-consumer forward`, and ignores where the message was.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MessageLine {
    body: Option<String>,
    #[serde(default, deserialize_with = "present")]
    json: Option<Box<RawValue>>,
    body_base64: Option<String>,
    msg_id: Option<MsgId>,
    priority: Option<Priority>,
    key: Option<String>,
    key_base64: Option<String>,
    biz_id: Option<String>,
    biz_id_base64: Option<String>,
    topic: Option<String>,
    #[serde(rename = "place")]
    _place: Option<IgnoredAny>,
    #[serde(rename = "delivery_no")]
    _delivery_no: Option<IgnoredAny>,
    #[serde(rename = "enqueued_at")]
    _enqueued_at: Option<IgnoredAny>,
    headers: Option<Headers>,
    deliver: Option<Moment>,
    expires: Option<Moment>,
    unique: Option<String>,
    unique_base64: Option<String>,
    #[serde(default, with = "humantime_serde")]
    unique_for: Option<Duration>,
    on_conflict: Option<OnConflict>,
    #[serde(default, with = "humantime_serde")]
    max_wait: Option<Duration>,
}

/// A value that is present, even if it is `null`.
fn present<'de, D: Deserializer<'de>>(value: D) -> Result<Option<Box<RawValue>>, D::Error> {
    Box::<RawValue>::deserialize(value).map(Some)
}

impl MessageLine {
    /// Reads one line.
    ///
    /// # Errors
    /// An input that is no JSON object of a message's fields.
    pub fn parse(line: &[u8]) -> Result<Self, LineError> {
        let line: Self = serde_json::from_slice(line).map_err(|error| {
            LineError(error.to_string().replace(" at line 1 column ", " at column "))
        })?;
        match (&line.body, &line.json, &line.body_base64) {
            (Some(_), None, None) | (None, Some(_), None) | (None, None, Some(_)) => Ok(line),
            _ => Err(LineError("it needs one of body, json and body_base64".to_owned())),
        }
    }

    /// The topic in the line.
    #[must_use]
    pub fn topic(&self) -> Option<&str> {
        self.topic.as_deref()
    }

    /// Returns the message. A field that the line lacks has the value that `blank` gives it;
    /// `blank` makes a message of the body.
    ///
    /// # Errors
    /// Invalid base64, or fields that contradict each other.
    pub fn into_message(
        self,
        blank: impl FnOnce(Vec<u8>) -> NewMessage,
    ) -> Result<NewMessage, LineError> {
        let body = match (self.body, self.json) {
            (Some(text), _) => text.into_bytes(),
            (None, Some(json)) => json.get().as_bytes().to_vec(),
            (None, None) => bytes("body", None, self.body_base64)?.unwrap_or_default(),
        };
        let mut message = blank(body);
        message.msg_id = self.msg_id.unwrap_or(message.msg_id);
        message.priority = self.priority.unwrap_or(message.priority);
        message.key = bytes("key", self.key, self.key_base64)?.or(message.key);
        message.biz_id = bytes("biz_id", self.biz_id, self.biz_id_base64)?;
        message.deliver = self.deliver.or(message.deliver);
        message.expires = self.expires.or(message.expires);
        if let Some(headers) = self.headers {
            message.headers.0.extend(headers.0);
        }
        let key = bytes("unique", self.unique, self.unique_base64)?;
        message.unique =
            Unique::from_options(key, self.unique_for, self.on_conflict, self.max_wait)
                .map_err(|error| LineError(error.to_string()))?;
        Ok(message)
    }
}

/// A field that is text, or bytes in base64.
fn bytes(
    name: &str,
    text: Option<String>,
    base64: Option<String>,
) -> Result<Option<Vec<u8>>, LineError> {
    match (text, base64) {
        (text, None) => Ok(text.map(String::into_bytes)),
        (None, Some(base64)) => match STANDARD.decode(base64) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) => Err(LineError(format!("{name}_base64: {error}"))),
        },
        (Some(_), Some(_)) => Err(LineError(format!("it has both {name} and {name}_base64"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(line: &[u8]) -> Result<NewMessage, LineError> {
        MessageLine::parse(line)?.into_message(NewMessage::new)
    }

    fn body(line: &str) -> Result<Vec<u8>, LineError> {
        message(line.as_bytes()).map(|message| message.body)
    }

    #[test]
    fn a_body_is_text_json_as_written_or_base64() {
        assert_eq!(body(r#"{"body":"a\nb"}"#), Ok(b"a\nb".to_vec()));
        let json = r#"{"json": {"b":1.10, "a":12345678901234567890123}}"#;
        assert_eq!(body(json), Ok(br#"{"b":1.10, "a":12345678901234567890123}"#.to_vec()));
        assert_eq!(body(r#"{"json":null}"#), Ok(b"null".to_vec()));
        assert_eq!(body(r#"{"body_base64":"/wA="}"#), Ok(vec![0xff, 0]));
    }

    #[test]
    fn the_line_goes_before_what_the_message_has_already() {
        let blank = |body: Vec<u8>| {
            let message = NewMessage::new(body).with_priority(Priority::FIRST).with_key("k");
            let message = message.with_header("a", "1").with_header("b", "1");
            message.with_delay(Duration::from_secs(1))
        };
        let parse = |line: &[u8]| MessageLine::parse(line)?.into_message(blank);
        let plain = parse(br#"{"body":""}"#).expect("a message");
        assert_eq!((plain.priority, plain.key), (Priority::FIRST, Some(b"k".to_vec())));
        let line = br#"{"body":"","priority":9,"key":"x","biz_id":"o-1","headers":{"b":"2"},"expires":"2d",
            "msg_id":"0199f5a0-0000-7000-8000-000000000001"}"#;
        let full = parse(line).expect("a message");
        assert_eq!(full.deliver, Some(Moment::After(Duration::from_secs(1))));
        assert_eq!(full.expires, Some(Moment::After(Duration::from_secs(172_800))));
        assert_eq!(full.priority, Priority::LAST);
        assert_eq!(full.key.as_deref(), Some(&b"x"[..]));
        assert_eq!(full.biz_id.as_deref(), Some(&b"o-1"[..]));
        assert_eq!(full.headers, Headers::from_iter([("a", "1"), ("b", "2")]));
        assert_eq!(full.msg_id.to_string(), "0199f5a0-0000-7000-8000-000000000001");
    }

    #[test]
    fn a_line_of_a_forward_is_a_message_again() {
        let line =
            br#"{"msg_id":"0199f5a0-0000-7000-8000-000000000001","topic":"a","delivery_no":2,
            "enqueued_at":"2026-11-21T17:00:00Z","key_base64":"/w==","biz_id":"o-1","body":"b"}"#;
        let message = message(line).expect("a message");
        assert_eq!(message.msg_id.to_string(), "0199f5a0-0000-7000-8000-000000000001");
        assert_eq!(message.key.as_deref(), Some(&[0xff][..]));
        assert_eq!((message.biz_id, message.body), (Some(b"o-1".to_vec()), b"b".to_vec()));
    }

    #[test]
    fn a_line_that_is_no_message_says_why() {
        for (line, why) in [
            ("", "EOF"),
            ("[]", "invalid length"),
            (r#"{"body":"a""#, "EOF"),
            (r#"{}"#, "one of body, json and body_base64"),
            (r#"{"body":"a","json":1}"#, "one of body, json and body_base64"),
            (r#"{"body":"a","prio":1}"#, "unknown field `prio`"),
            (r#"{"body":"a","priority":12}"#, "Priority 12 does not exist"),
            (r#"{"body":"a","msg_id":"x"}"#, "UUID"),
            (r#"{"body":"a","headers":{"a":1}}"#, "expected a string"),
            (r#"{"body":"a","deliver":"soon"}"#, "no moment"),
            (r#"{"body_base64":"?"}"#, "body_base64"),
            (r#"{"body":"","key_base64":"?"}"#, "key_base64"),
            (r#"{"body":"","key":"a","key_base64":"YQ=="}"#, "both key and key_base64"),
            ("{\"body\":\"\u{fffd}", "EOF"),
        ] {
            let error = body(line).expect_err(line).to_string();
            assert!(error.contains(why), "{line}: {error}");
            assert!(!error.contains("at line"), "{line}: {error}");
        }
        assert!(message(b"{\"body\":\"\xff\"}").is_err());
    }
}
