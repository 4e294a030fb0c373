use std::time::Duration;

use chrono::{DateTime, Utc};

use super::{HandlerError, RunOutcome};
use crate::model::{DeadCause, Delivery, Error, Settlement, TopicSettings, chain};

/// When a failed message is retried.
enum Again {
    /// At the time the policy sets.
    ByPolicy,
    After(Duration),
    At(DateTime<Utc>),
}

/// The reason recorded for an expired message.
const EXPIRED: &str = "it had expired before its handler could begin";

/// The reason recorded for a cancelled message, ready or claimed.
pub(crate) const CANCELLED: &str = "it was cancelled";

/// The reason recorded for a message whose handler ended its transaction.
const ENDED_TRANSACTION: &str = "the handler ended its transaction: by COMMIT or ROLLBACK, by a \
     statement that commits (one that makes or changes a table, say), or it went on after a \
     deadlock; see what it has done before you redrive this message";

/// Decides how a delivery is settled after its run; no other function decides this.
#[must_use]
pub fn settlement_for(
    outcome: RunOutcome,
    delivery: &Delivery,
    topic: &TopicSettings,
) -> Settlement {
    tracing::trace!(step = "settlement_for");
    let failed = |error: String, again: Again| {
        let failures = delivery.failures.saturating_add(1);
        if failures >= max_attempts(delivery, topic) {
            return Settlement::DeadLetter { cause: DeadCause::Attempts, error };
        }
        match again {
            Again::ByPolicy => {
                Settlement::Retry { delay: retry_delay(failures, delivery, topic), error }
            }
            Again::After(delay) => Settlement::Retry { delay, error },
            Again::At(at) => Settlement::RetryAt { at, error },
        }
    };
    let by_policy = |error: String| failed(error, Again::ByPolicy);
    match outcome {
        RunOutcome::Returned(Ok(())) => Settlement::Ack,
        RunOutcome::Returned(Err(error)) => match error {
            HandlerError::Retry(error) => by_policy(chain(&*error)),
            HandlerError::RetryAfter(delay, error) => failed(chain(&*error), Again::After(delay)),
            HandlerError::RetryAt(at, error) => failed(chain(&*error), Again::At(at)),
            HandlerError::Snooze(delay) => Settlement::Snooze { delay },
            HandlerError::Dead(error) => {
                Settlement::DeadLetter { cause: DeadCause::Handler, error: chain(&*error) }
            }
            HandlerError::Discard(reason) => Settlement::Discard { reason },
            HandlerError::Release => Settlement::Release,
        },
        RunOutcome::EndedTransaction => Settlement::DeadLetter {
            cause: DeadCause::Handler,
            error: ENDED_TRANSACTION.to_owned(),
        },
        RunOutcome::Repeated => Settlement::Repeated,
        RunOutcome::Interrupted => Settlement::Release,
        RunOutcome::Expired => Settlement::Discard { reason: EXPIRED.to_owned() },
        RunOutcome::Cancelled => Settlement::Discard { reason: CANCELLED.to_owned() },
        RunOutcome::Panicked(message) => by_policy(format!("the handler panicked: {message}")),
        RunOutcome::TimedOut(limit) => {
            by_policy(format!("the handler took longer than {} ms", limit.as_millis()))
        }
        RunOutcome::Undecodable(error) => {
            Settlement::DeadLetter { cause: DeadCause::Decode, error }
        }
    }
}

/// The message's own limit of attempts, but no more than its topic's limit, so that a producer
/// cannot keep the handlers busy with one message for ever.
fn max_attempts(delivery: &Delivery, topic: &TopicSettings) -> u32 {
    let own = own(delivery, delivery.headers.max_attempts());
    own.map_or(topic.max_attempts, |own| own.get().min(topic.max_attempts))
}

/// The delay by the message's own retry policy, but no shorter than any of its topic's policy.
fn retry_delay(failures: u32, delivery: &Delivery, topic: &TopicSettings) -> Duration {
    match own(delivery, delivery.headers.retry()) {
        Some(own) => own.delay(failures).max(topic.retry.shortest()),
        None => topic.retry.delay(failures),
    }
}

/// Reads a setting from the message's own header. A header that cannot be read (another client
/// broke the contract) is ignored: the message is worth more than its header.
fn own<T>(delivery: &Delivery, header: Result<Option<T>, Error>) -> Option<T> {
    header.unwrap_or_else(|error| {
        tracing::warn!(
            message.id = %delivery.msg_id, delivery.no = %delivery.delivery_no, %error,
            "Message has a header that cannot be read; its topic's setting holds."
        );
        None
    })
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;
    use crate::model::{
        ClaimNo, DeliveryNo, Headers, MsgId, NewMessage, Priority, RetryPolicy, RowId, TopicId,
    };

    fn delivery(failures: u32, headers: Headers) -> Delivery {
        Delivery {
            topic_id: TopicId(1),
            msg_id: MsgId::new(),
            delivery_no: DeliveryNo(failures + 1),
            failures,
            crashes: 0,
            enqueued_at: DateTime::UNIX_EPOCH,
            expires_at: None,
            claimed_at: DateTime::UNIX_EPOCH,
            key: None,
            biz_id: None,
            unique_key: None,
            headers,
            body: Vec::new(),
            priority: Priority::default(),
            row: RowId(1),
            claim_no: ClaimNo(1),
            position: None,
            traced: false,
        }
    }

    fn topic() -> TopicSettings {
        let retry = RetryPolicy::Fixed(Duration::from_secs(7));
        TopicSettings { retry, max_attempts: 3, ..TopicSettings::default() }
    }

    fn decided(error: HandlerError, failures: u32, headers: &Headers) -> Settlement {
        let delivery = delivery(failures, headers.clone());
        settlement_for(RunOutcome::Returned(Err(error)), &delivery, &topic())
    }

    fn retry(seconds: u64) -> Settlement {
        Settlement::Retry { delay: Duration::from_secs(seconds), error: "no".to_owned() }
    }

    fn dead() -> Settlement {
        Settlement::DeadLetter { cause: DeadCause::Attempts, error: "no".to_owned() }
    }

    #[test]
    fn a_message_may_have_a_policy_and_a_limit_of_its_own() {
        let ladder = RetryPolicy::Ladder([10, 30].map(Duration::from_secs).into());
        let two = NonZeroU32::MIN.saturating_add(1);
        let message = NewMessage::new("").with_retry(&ladder).with_max_attempts(two);
        let own = [retry(10), dead(), dead()];
        let of_topic = [retry(7), retry(7), dead()];
        for failures in 0..3 {
            let decided = |headers| decided(HandlerError::retry("no"), failures, headers);
            let (own, of_topic) = (&own[failures as usize], &of_topic[failures as usize]);
            assert_eq!(decided(&message.headers), *own, "{failures}");
            assert_eq!(decided(&Headers::default()), *of_topic, "{failures}");
        }
    }

    #[test]
    fn a_message_asks_for_no_more_attempts_and_no_shorter_wait_than_its_topic_allows() {
        let eager = RetryPolicy::Ladder([1, 9].map(Duration::from_secs).into());
        let message = NewMessage::new("").with_retry(&eager).with_max_attempts(NonZeroU32::MAX);
        for (failures, expected) in [(0, retry(7)), (1, retry(9)), (2, dead())] {
            let decided = decided(HandlerError::retry("no"), failures, &message.headers);
            assert_eq!(decided, expected, "{failures}");
        }
    }

    #[test]
    fn a_header_that_cannot_be_read_leaves_the_topics_setting() {
        for text in ["", "0", "-1", "often", "ladder", "99999999999"] {
            let headers = Headers::from_iter([("queue-retry", text), ("queue-max-attempts", text)]);
            assert_eq!(decided(HandlerError::retry("no"), 1, &headers), retry(7), "{text}");
            assert_eq!(decided(HandlerError::retry("no"), 2, &headers), dead(), "{text}");
        }
    }

    #[test]
    fn a_time_counts_as_a_failure_and_a_snooze_does_not() {
        let at = DateTime::UNIX_EPOCH;
        let retry_at = || HandlerError::RetryAt(at, "no".into());
        let none = Headers::default();
        assert_eq!(
            decided(retry_at(), 1, &none),
            Settlement::RetryAt { at, error: "no".to_owned() }
        );
        assert_eq!(decided(retry_at(), 2, &none), dead());
        let delay = Duration::from_secs(5);
        assert_eq!(decided(HandlerError::Snooze(delay), 2, &none), Settlement::Snooze { delay });
    }
}
