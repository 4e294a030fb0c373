use rowmq_core::Headers;
use rowmq_core::codec::Codecs;
use serde::Serialize;

/// How much of a body the table shows, in characters.
const SHOWN: usize = 120;

/// A body for display: decoded, if it is compressed by a codec of the queue's own. JSON has no
/// bytes: text is shown as it is, anything else in hexadecimal digits.
#[derive(Debug, Serialize)]
pub(crate) enum Body {
    #[serde(rename = "body")]
    Text(String),
    #[serde(rename = "body_hex")]
    Hex(String),
}

impl Body {
    pub(crate) fn new(headers: &Headers, stored: Vec<u8>) -> Self {
        // A body that cannot be decoded here, for example because a key is missing, is shown as it
        // is stored.
        let bytes = Codecs::default().decode(headers, &stored).ok().flatten().unwrap_or(stored);
        String::from_utf8(bytes).map(Self::Text).unwrap_or_else(|error| {
            Self::Hex(error.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect())
        })
    }

    /// The body as a table shows it.
    pub(crate) fn beginning(&self) -> String {
        let whole = self.whole();
        let mut shown: String = whole.chars().take(SHOWN).collect();
        if shown.len() < whole.len() {
            shown.push('…');
        }
        shown
    }

    /// The whole body.
    pub(crate) fn whole(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Hex(digits) => format!("0x{digits}"),
        }
    }
}
