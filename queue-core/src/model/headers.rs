use std::collections::BTreeMap;
use std::num::NonZeroU32;

use serde::{Deserialize, Serialize};

use crate::model::page::Damage;
use crate::model::{Error, Result, RetryPolicy};

/// The most bytes that headers may take as JSON. They are read with every claim.
const HEADERS_LIMIT: usize = 64 * 1024;

/// The header that holds a message's own retry policy.
const RETRY: &str = "queue-retry";

/// The header that holds a message's own limit of attempts.
const MAX_ATTEMPTS: &str = "queue-max-attempts";

/// The header that distinguishes the kinds of messages of one topic.
const KIND: &str = "queue-kind";

/// Name and value pairs beside the body, stored as a JSON object.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct Headers(pub BTreeMap<String, String>);

impl Headers {
    /// The header of what is left of a page of the log that cannot be read.
    pub(crate) const DAMAGED_PAGE: &str = "queue-damaged-page";

    /// The value of `name`, if the message carries it.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// The kind of the message within its topic, from the header `queue-kind`.
    #[must_use]
    pub fn kind(&self) -> Option<&str> {
        self.get(KIND)
    }

    /// Sets the kind of the message.
    pub fn set_kind(&mut self, kind: impl Into<String>) {
        self.0.insert(KIND.to_owned(), kind.into());
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The message's own retry policy, from the header `queue-retry`.
    ///
    /// # Errors
    /// [`Error::InvalidRetry`] if the header holds none.
    pub fn retry(&self) -> Result<Option<RetryPolicy>> {
        self.get(RETRY).map(RetryPolicy::from_header).transpose()
    }

    /// The message's own limit of attempts, from the header `queue-max-attempts`.
    ///
    /// # Errors
    /// [`Error::InvalidHeaders`] if the header holds no number above zero.
    pub fn max_attempts(&self) -> Result<Option<NonZeroU32>> {
        let Some(text) = self.get(MAX_ATTEMPTS) else { return Ok(None) };
        text.trim().parse().map(Some).map_err(|_| Error::InvalidHeaders {
            reason: format!("{MAX_ATTEMPTS} must be a number from 1 on, such as 5"),
        })
    }

    /// Sets the message's own retry policy.
    pub fn set_retry(&mut self, policy: &RetryPolicy) {
        self.0.insert(RETRY.to_owned(), policy.to_string());
    }

    /// Sets the message's own limit of attempts.
    pub fn set_max_attempts(&mut self, attempts: NonZeroU32) {
        self.0.insert(MAX_ATTEMPTS.to_owned(), attempts.to_string());
    }

    /// Why the page that the message was in cannot be read; the body is then the whole page. From
    /// the header `queue-damaged-page`.
    #[must_use]
    pub fn damaged_page(&self) -> Option<&str> {
        self.get(Self::DAMAGED_PAGE)
    }

    /// The headers of what is left of a page.
    pub(crate) fn of_damaged_page(damage: Damage) -> Self {
        Self::from_iter([(Self::DAMAGED_PAGE, damage.to_string())])
    }

    /// The stored form: `None` when there are no headers.
    pub(crate) fn to_stored(&self) -> Result<Option<Vec<u8>>> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let stored = serde_json::to_vec(&self.0)
            .map_err(|source| Error::InvalidHeaders { reason: source.to_string() })?;
        if stored.len() > HEADERS_LIMIT {
            let reason = format!("{} bytes as JSON, at most {HEADERS_LIMIT} fit", stored.len());
            return Err(Error::InvalidHeaders { reason });
        }
        Ok(Some(stored))
    }

    /// Reads the stored form. Headers that are no JSON object of strings (another client broke the
    /// contract) are kept under one name, so that the message is not lost.
    pub(crate) fn from_stored(stored: Option<&[u8]>) -> Self {
        let Some(bytes) = stored else { return Self::default() };
        if let Ok(headers) = serde_json::from_slice(bytes) {
            return headers;
        }
        if let Ok(serde_json::Value::Object(map)) = serde_json::from_slice(bytes) {
            return Self(map.into_iter().map(|(name, value)| (name, as_text(value))).collect());
        }
        let raw = String::from_utf8_lossy(bytes).into_owned();
        Self(BTreeMap::from([("malformed-headers".to_owned(), raw)]))
    }
}

fn as_text(value: serde_json::Value) -> String {
    match value {
        serde_json::Value::String(text) => text,
        other => other.to_string(),
    }
}

impl<N: Into<String>, V: Into<String>> FromIterator<(N, V)> for Headers {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(pairs: I) -> Self {
        Self(pairs.into_iter().map(|(name, value)| (name.into(), value.into())).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_written_by_other_clients_never_lose_the_message() {
        assert_eq!(Headers::from_stored(Some(br#"{"a":1}"#)).get("a"), Some("1"));
        assert_eq!(
            Headers::from_stored(Some(b"\xff{")).get("malformed-headers"),
            Some("\u{fffd}{")
        );
        assert!(Headers::from_stored(None).is_empty());
    }

    #[test]
    fn headers_beyond_the_limit_are_refused_before_sending() {
        let headers = Headers::from_iter([("a", "x".repeat(HEADERS_LIMIT))]);
        assert!(matches!(headers.to_stored(), Err(Error::InvalidHeaders { .. })));
    }
}
