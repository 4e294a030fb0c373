use std::time::Duration;

use chrono::{DateTime, Utc};
use rowmq_core::handler::HandlerError;
use rowmq_core::model::BoxError;
use serde::Deserialize;
use thiserror::Error;

/// The most bytes of a line: room for any reason, which is cut far below it where it is stored.
pub(super) const LONGEST: u64 = 64 * 1024;

/// The longest delay, as in the SQL contract: ten years.
const LONGEST_DELAY: Duration = Duration::from_secs(315_360_000);

/// How much of a line that cannot be read an error shows.
const SHOWN: usize = 80;

/// What a program says about its message.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) verdict: Result<(), HandlerError>,
    /// Whether it takes no other message.
    pub(super) is_last: bool,
}

/// Why an answer is no verdict.
#[derive(Debug, Error)]
pub(in super::super) enum ReplyError {
    #[error("it has ended")]
    Ended,
    #[error("it was not ready within {} ms", .0.as_millis())]
    Late(Duration),
    #[error("its line has more than {LONGEST} bytes")]
    TooLong,
    #[error("its line {line:?} is not what it should be: {source}")]
    Json { line: String, source: serde_json::Error },
    #[error("it speaks version {found}, and this consumer speaks {expected}")]
    Version { found: u32, expected: u32 },
    #[error("it answers frame {found}, not {expected}")]
    Frame { found: u64, expected: u64 },
    #[error("{0}")]
    Misfit(&'static str),
}

impl ReplyError {
    fn json(line: &[u8], source: serde_json::Error) -> Self {
        let line = String::from_utf8_lossy(&line[..line.len().min(SHOWN)]).into_owned();
        Self::Json { line, source }
    }
}

/// Checks the line by which a program says that it is ready.
pub(super) fn ready(line: &[u8], expected: u32) -> Result<(), ReplyError> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Ready {
        rowmq_pool: u32,
    }
    let ready: Ready = serde_json::from_slice(line).map_err(|e| ReplyError::json(line, e))?;
    let found = ready.rowmq_pool;
    if found == expected { Ok(()) } else { Err(ReplyError::Version { found, expected }) }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Answer {
    frame: u64,
    verdict: Verdict,
    reason: Option<String>,
    delay: Option<Delay>,
    at: Option<DateTime<Utc>>,
    #[serde(default)]
    last: bool,
}

/// The words of the SQL contract.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Verdict {
    Ack,
    Retry,
    Snooze,
    DeadLetter,
    Discard,
    Release,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Delay {
    Seconds(f64),
    Text(String),
}

impl Delay {
    fn read(self) -> Result<Duration, ReplyError> {
        let time = match self {
            Self::Seconds(seconds) => Duration::try_from_secs_f64(seconds).ok(),
            Self::Text(text) => humantime::parse_duration(&text).ok(),
        };
        time.filter(|time| *time <= LONGEST_DELAY).ok_or(ReplyError::Misfit(
            "its delay is neither a number of seconds nor a time such as \"10m\", at most ten years",
        ))
    }
}

impl Reply {
    /// Reads the answer to frame `expected`.
    pub(super) fn read(line: &[u8], expected: u64) -> Result<Self, ReplyError> {
        let answer: Answer = serde_json::from_slice(line).map_err(|e| ReplyError::json(line, e))?;
        if answer.frame != expected {
            return Err(ReplyError::Frame { found: answer.frame, expected });
        }
        let is_last = answer.last;
        Ok(Self { verdict: answer.verdict()?, is_last })
    }
}

impl Answer {
    fn verdict(self) -> Result<Result<(), HandlerError>, ReplyError> {
        let misfit = |text| Err(ReplyError::Misfit(text));
        let reason = self.reason.unwrap_or_else(|| "the program gave no reason".to_owned());
        let error = || BoxError::from(reason.clone());
        let delay = self.delay.map(Delay::read).transpose()?;
        Ok(match (self.verdict, delay, self.at) {
            (Verdict::Retry, Some(_), Some(_)) => return misfit("it has a delay and a moment"),
            (Verdict::Retry, Some(delay), None) => Err(HandlerError::RetryAfter(delay, error())),
            (Verdict::Retry, None, Some(at)) => Err(HandlerError::RetryAt(at, error())),
            (_, _, Some(_)) => return misfit("only a retry has a moment"),
            (Verdict::Retry, None, None) => Err(HandlerError::Retry(error())),
            (Verdict::Snooze, Some(delay), None) => Err(HandlerError::Snooze(delay)),
            (Verdict::Snooze, None, None) => return misfit("a snooze needs a delay"),
            (_, Some(_), None) => return misfit("only a retry and a snooze have a delay"),
            (Verdict::Ack, None, None) => Ok(()),
            (Verdict::DeadLetter, None, None) => Err(HandlerError::Dead(error())),
            (Verdict::Discard, None, None) => Err(HandlerError::Discard(reason)),
            (Verdict::Release, None, None) => Err(HandlerError::Release),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    fn read(fields: &str) -> Result<Reply, String> {
        let line = format!(r#"{{"frame":7,{fields}}}"#);
        Reply::read(line.as_bytes(), 7).map_err(|error| error.to_string())
    }

    fn verdict(fields: &str) -> Result<(), HandlerError> {
        read(fields).expect("a verdict").verdict
    }

    #[test]
    fn each_word_of_the_contract_is_a_verdict() {
        assert!(matches!(verdict(r#""verdict":"ack""#), Ok(())));
        assert!(matches!(verdict(r#""verdict":"retry""#), Err(HandlerError::Retry(_))));
        assert!(matches!(verdict(r#""verdict":"release""#), Err(HandlerError::Release)));
        let dead = verdict(r#""verdict":"dead-letter","reason":"bad""#);
        assert!(matches!(dead, Err(HandlerError::Dead(why)) if why.to_string() == "bad"));
        let discarded = verdict(r#""verdict":"discard","reason":"old""#);
        assert!(matches!(discarded, Err(HandlerError::Discard(why)) if why == "old"));
        let moment = verdict(r#""verdict":"retry","at":"2026-12-24T19:00:00+01:00""#);
        assert!(matches!(moment, Err(HandlerError::RetryAt(at, _))
            if at.to_rfc3339() == "2026-12-24T18:00:00+00:00"));
        for (delay, ms) in [("90", 90_000), ("0.25", 250), ("0", 0), (r#""1h 30m""#, 5_400_000)] {
            let snoozed = verdict(&format!(r#""verdict":"snooze","delay":{delay}"#));
            assert!(matches!(snoozed, Err(HandlerError::Snooze(it)) if it.as_millis() == ms));
            let retried = verdict(&format!(r#""verdict":"retry","delay":{delay}"#));
            assert!(
                matches!(retried, Err(HandlerError::RetryAfter(it, _)) if it.as_millis() == ms)
            );
        }
    }

    #[test]
    fn only_the_last_answer_says_so() {
        assert!(read(r#""verdict":"ack","last":true"#).is_ok_and(|reply| reply.is_last));
        assert!(read(r#""verdict":"ack""#).is_ok_and(|reply| !reply.is_last));
    }

    #[test]
    fn what_is_no_verdict_is_refused() {
        for fields in [
            r#""verdict":"nack""#,
            r#""reason":"x""#,
            r#""verdict":"ack","delay":1"#,
            r#""verdict":"ack","at":"2026-12-24T18:00:00Z""#,
            r#""verdict":"snooze""#,
            r#""verdict":"snooze","delay":-1"#,
            r#""verdict":"snooze","delay":1e300"#,
            r#""verdict":"snooze","delay":315360001"#,
            r#""verdict":"snooze","delay":"soon""#,
            r#""verdict":"retry","delay":1,"at":"2026-12-24T18:00:00Z""#,
            r#""verdict":"retry","at":"tomorrow""#,
            r#""verdict":"ack","frame":7"#,
            r#""verdict":"retry","dealy":1"#,
        ] {
            assert!(read(fields).is_err(), "{fields}");
        }
        assert!(matches!(
            Reply::read(br#"{"frame":6,"verdict":"ack"}"#, 7),
            Err(ReplyError::Frame { found: 6, expected: 7 })
        ));
        assert!(ready(br#"{"rowmq_pool":1}"#, 1).is_ok());
        assert!(matches!(ready(br#"{"rowmq_pool":2}"#, 1), Err(ReplyError::Version { .. })));
        assert!(ready(b"hello", 1).is_err());
    }

    /// Changes answers at random: `POOL_FUZZ_SECONDS` says for how long, one by default.
    #[test]
    fn no_line_makes_the_reader_panic_or_show_more_than_a_line() {
        let seconds = std::env::var("POOL_FUZZ_SECONDS").map_or(1, |text| text.parse().unwrap());
        let seed = rand::random();
        let mut rng = StdRng::seed_from_u64(seed);
        let start = Instant::now();
        let whole: [&[u8]; 3] = [
            br#"{"frame":7,"verdict":"retry","reason":"no \u00fc\n","delay":"1h 30m","last":true}"#,
            br#"{"frame":7,"verdict":"snooze","delay":0.25e1}"#,
            br#"{"frame":7,"verdict":"retry","at":"2026-12-24T19:00:00.5+01:00"}"#,
        ];
        let mut verdicts = 0;
        while start.elapsed() < Duration::from_secs(seconds) {
            let mut line = whole[rng.random_range(0..whole.len())].to_vec();
            for _ in 0..rng.random_range(0..4) {
                match rng.random_range(0..5) {
                    0 => line.truncate(rng.random_range(0..=line.len())),
                    1 => line.extend_from_within(rng.random_range(0..=line.len())..),
                    _ if line.is_empty() => {}
                    _ => {
                        let at = rng.random_range(0..line.len());
                        line[at] = rng.random();
                    }
                }
            }
            match Reply::read(&line, 7) {
                Ok(_) => verdicts += 1,
                Err(error) => assert!(error.to_string().len() < 1000, "seed {seed}: {error}"),
            }
        }
        assert!(verdicts > 0);
    }
}
