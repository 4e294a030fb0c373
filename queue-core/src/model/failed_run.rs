use chrono::{DateTime, SecondsFormat, Utc};
use serde::{Deserialize, Serialize};

use super::settlement::cut;
use super::{DeliveryNo, WorkerId};

/// How many bytes of each failed run's error the history keeps.
const ERROR_LIMIT: usize = 1024;

/// A failed run of a message, from its history.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
pub struct FailedRun {
    /// Which delivery it was.
    pub delivery_no: u32,
    /// The worker that had it.
    pub worker: u64,
    /// When it was settled, by the server's clock.
    pub at: DateTime<Utc>,
    /// Why it failed; its first KiB.
    pub error: String,
}

impl FailedRun {
    /// Reads the failed runs of a stored history, oldest first. Only its newest part is stored: a
    /// line whose beginning is missing is left out.
    #[must_use]
    pub fn from_stored(history: &[u8]) -> Vec<Self> {
        let lines = history.split(|byte| *byte == b'\n');
        lines.filter_map(|line| serde_json::from_slice(line).ok()).collect()
    }

    /// The whole line of a run that the database has not recorded.
    pub(crate) fn line(
        no: DeliveryNo,
        worker: WorkerId,
        at: DateTime<Utc>,
        error: &str,
    ) -> Vec<u8> {
        let at = at.to_rfc3339_opts(SecondsFormat::Micros, true);
        let head = format!("{{\"delivery_no\":{no},\"worker\":{worker},\"at\":\"{at}\",\"error\":");
        [head.into_bytes(), Self::line_end(error)].concat()
    }

    /// The end of a line, from the error on; the database writes the part before it.
    pub(crate) fn line_end(error: &str) -> Vec<u8> {
        let error = serde_json::Value::from(cut(error, ERROR_LIMIT));
        format!("{error}}}\n").into_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(error: &str) -> Vec<u8> {
        let start = r#"{"delivery_no":3,"worker":7,"at":"2026-11-21T10:00:00.123456Z","error":"#;
        [start.as_bytes(), &FailedRun::line_end(error)].concat()
    }

    #[test]
    fn a_line_is_read_as_it_was_written_whatever_the_error_says() {
        for error in ["", "no", "a\n\"b\" \\ \u{0} \u{1b}[31m 漢字 🦀", "{\"delivery_no\":1}\n"]
        {
            let read = FailedRun::from_stored(&[line(error), line("2")].concat());
            assert_eq!(read.len(), 2, "{error:?}");
            assert_eq!((read[0].delivery_no, read[0].worker), (3, 7));
            assert_eq!((read[0].error.as_str(), read[1].error.as_str()), (error, "2"));
        }
    }

    #[test]
    fn a_line_whose_beginning_is_missing_is_left_out() {
        let history = [line("{\"delivery_no\":1}"), line("kept")].concat();
        for start in 1..line("{\"delivery_no\":1}").len() {
            let read = FailedRun::from_stored(&history[start..]);
            assert_eq!(read.len(), 1, "{start}");
            assert_eq!(read[0].error, "kept");
        }
        assert_eq!(FailedRun::from_stored(b""), []);
    }

    #[test]
    fn a_long_error_is_cut_at_a_character() {
        let read = FailedRun::from_stored(&line(&"é".repeat(ERROR_LIMIT)));
        assert_eq!(read[0].error, "é".repeat(ERROR_LIMIT / 2));
    }
}
