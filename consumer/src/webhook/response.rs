//! How the answer of a web service decides what becomes of the message.

use std::error::Error;
use std::time::Duration;

use chrono::{DateTime, Utc};
use reqwest::header::{DATE, HeaderMap, HeaderName, RETRY_AFTER};
use reqwest::{Response, StatusCode};
use rowmq_core::handler::HandlerError;

/// The header with which a service snoozes a message, with nothing charged.
const SNOOZE: &str = "queue-snooze";
/// How many bytes of an answer go into the error: the first sentences of an error page.
const EXCERPT: usize = 300;
/// The longest wait that a service may ask for: as long as the longest backoff of a topic's
/// defaults.
const LONGEST_WAIT: Duration = Duration::from_secs(3600);
/// How long the rest of an answer is read once its status is known. The status decides, so a slow
/// answer must not hold the worker.
const BODY_GRACE: Duration = Duration::from_secs(5);

/// Why a run failed. `origin` is the only part of the URL that is shown.
#[derive(Debug, thiserror::Error)]
pub(super) enum RunError {
    #[error("the webhook at {origin} gave no answer: {reason}")]
    Failed { origin: String, reason: String },
    #[error("the webhook at {origin} did not answer within {} ms", limit.as_millis())]
    NoAnswer { origin: String, limit: Duration },
    #[error("the webhook at {origin} had not answered when the message's time was up")]
    DeadlinePassed { origin: String },
    #[error("the webhook at {origin} answered {status}{}", after_colon(said))]
    Status { origin: String, status: StatusCode, said: String },
    #[error(
        "the webhook at {origin} answered {status}, but redirects are not followed; give \
         the URL it leads to"
    )]
    Redirect { origin: String, status: StatusCode },
}

/// A web service's answer.
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    /// The wait that the service asks for.
    pub(crate) wait: Option<Duration>,
    /// How long the service wants to snooze the message.
    snooze: Option<Duration>,
    said: String,
}

impl Answer {
    /// Reads the answer, up to `limit` bytes of it.
    pub(super) async fn read(response: Response, limit: usize) -> Self {
        let status = response.status();
        let wait = retry_after(response.headers(), Utc::now());
        let snooze = snooze(response.headers());
        Self { status, wait, snooze, said: excerpt(response, limit).await }
    }

    /// Makes an error of an answer that is not a success.
    pub(crate) fn into_error(self, origin: &str) -> impl Error + Send + Sync + 'static {
        let (origin, status) = (origin.to_owned(), self.status);
        if status.is_redirection() {
            return RunError::Redirect { origin, status };
        }
        RunError::Status { origin, status, said: self.said }
    }

    /// Applies the table of the module's documentation.
    pub(super) fn verdict(self, origin: &str) -> Result<(), HandlerError> {
        let Self { status, wait, snooze, .. } = self;
        if status.is_success() {
            return Ok(());
        }
        let error = self.into_error(origin);
        if status.is_redirection() {
            return Err(error.into());
        }
        let is_passing = status.is_server_error()
            || matches!(
                status,
                StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_EARLY | StatusCode::TOO_MANY_REQUESTS
            );
        Err(match (snooze, wait) {
            _ if !is_passing => HandlerError::dead(error),
            (Some(time), _) => HandlerError::Snooze(time),
            (None, Some(wait)) => HandlerError::RetryAfter(wait, error.into()),
            (None, None) => error.into(),
        })
    }
}

/// Reads how long the service wants to snooze the message, in seconds.
fn snooze(headers: &HeaderMap) -> Option<Duration> {
    seconds(headers.get(SNOOZE)?.to_str().ok()?.trim())
}

/// Reads a number of seconds from a text that holds nothing else.
fn seconds(text: &str) -> Option<Duration> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let wait = || text.parse().map_or(LONGEST_WAIT, Duration::from_secs).min(LONGEST_WAIT);
    is_number.then(wait)
}

/// Returns the wait that the service asks for; `None` if it asks for none, or for one that is over.
fn retry_after(headers: &HeaderMap, now: DateTime<Utc>) -> Option<Duration> {
    let text = |name: HeaderName| headers.get(name)?.to_str().ok().map(str::trim);
    let asked = text(RETRY_AFTER)?;
    if let Some(wait) = seconds(asked) {
        return Some(wait).filter(|wait| !wait.is_zero());
    }
    let date = |text: &str| DateTime::parse_from_rfc2822(text).ok();
    // A date is compared with the service's own clock, if the answer has its time.
    let now = text(DATE).and_then(date).map_or(now, |date| date.to_utc());
    let wait = (date(asked)?.to_utc() - now).to_std().ok()?;
    Some(wait.min(LONGEST_WAIT)).filter(|wait| !wait.is_zero())
}

/// Returns the beginning of the answer, for the error text. The answer is read on up to the limit
/// so that the connection can be used again.
async fn excerpt(mut response: Response, limit: usize) -> String {
    let mut start = Vec::new();
    let reading = async {
        let mut count = 0;
        while count < limit
            && let Ok(Some(chunk)) = response.chunk().await
        {
            count += chunk.len();
            let missing = EXCERPT.saturating_sub(start.len()).min(chunk.len());
            start.extend_from_slice(&chunk[..missing]);
        }
    };
    // The part that has arrived in time is enough.
    drop(tokio::time::timeout(BODY_GRACE, reading).await);
    let text = String::from_utf8_lossy(&start).replace(char::is_control, " ");
    text.trim().to_owned()
}

fn after_colon(said: &str) -> String {
    if said.is_empty() { String::new() } else { format!(": {said}") }
}

#[cfg(test)]
mod tests {
    use reqwest::header::HeaderValue;

    use super::*;

    fn wait(asked: &str, date: Option<&str>) -> Option<Duration> {
        let mut headers = HeaderMap::new();
        headers.insert(RETRY_AFTER, HeaderValue::from_str(asked).unwrap());
        if let Some(date) = date {
            headers.insert(DATE, HeaderValue::from_str(date).unwrap());
        }
        let now = DateTime::parse_from_rfc3339("1994-11-06T08:49:00Z").unwrap().to_utc();
        retry_after(&headers, now)
    }

    #[test]
    fn a_wait_in_seconds_is_capped_and_nothing_is_no_wait() {
        assert_eq!(wait("7", None), Some(Duration::from_secs(7)));
        assert_eq!(wait(" 120 ", None), Some(Duration::from_secs(120)));
        assert_eq!(wait("86400", None), Some(LONGEST_WAIT));
        assert_eq!(wait("99999999999999999999999", None), Some(LONGEST_WAIT));
        for none in ["0", "", "-5", "soon", "1.5"] {
            assert_eq!(wait(none, None), None, "{none}");
        }
    }

    #[test]
    fn a_date_counts_from_the_clock_of_the_service() {
        let at = "Sun, 06 Nov 1994 08:49:37 GMT";
        assert_eq!(wait(at, None), Some(Duration::from_secs(37)));
        assert_eq!(wait(at, Some("Sun, 06 Nov 1994 08:49:30 GMT")), Some(Duration::from_secs(7)));
        assert_eq!(wait(at, Some("Sun, 06 Nov 1994 08:50:00 GMT")), None);
        assert_eq!(wait("Mon, 07 Nov 1994 08:49:37 GMT", None), Some(LONGEST_WAIT));
    }
}
