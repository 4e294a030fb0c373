//! An estimate of the size of a topic's messages: it takes a few index dives, however many messages
//! there are.

use serde::{Deserialize, Serialize};

use crate::connection::Connection;
use crate::model::{Offset, Result, RowId, Topic, TopicId};
use crate::store::backlog::{self, Span};
use crate::store::stream::log::{self, Stretch};
use crate::store::stream::partition;
use crate::store::topic::server_time;

/// How many messages of a priority are counted; those beyond are assumed to be equally dense.
const COUNTED: u32 = 10_000;

/// How many bodies are sampled: of the topic, and of each partition.
const SAMPLES: u64 = 16;

/// The size of a topic's messages.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Weight {
    /// About how many messages are ready or claimed; exactly, up to 10,000 of a priority.
    pub messages: u64,
    /// About how many bytes their bodies and headers have; for a stream, including its log.
    pub bytes: u64,
    /// The log of a stream.
    pub log: Option<LogWeight>,
}

/// The size of a stream's log.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogWeight {
    /// The messages that are kept.
    pub messages: u64,
    /// All messages it has ever had.
    pub appended: u64,
    /// How long ago the oldest one got its offset, in milliseconds; `None` if there is none.
    pub oldest_age_ms: Option<u64>,
}

/// Weighs a topic: two dives for each priority, up to 10,000 rows counted of each, 16 bodies read;
/// for a stream's log, 16 bodies of each partition.
pub async fn weigh(conn: &mut impl Connection, topic: &Topic) -> Result<Weight> {
    let mut weight = Weight::default();
    let spans = backlog::spans(conn, topic.id).await?;
    if !spans.is_empty() {
        for span in &spans {
            weight.messages += messages(conn, topic.id, *span).await?;
        }
        let sizes = backlog::sizes(conn, topic.id, &places(&spans)).await?;
        let looked_at: u64 = sizes.iter().sum();
        weight.bytes = scaled(looked_at, weight.messages, (sizes.len() as u64).max(1));
    }
    if topic.is_stream() {
        let (log, bytes) = weigh_log(conn, topic.id).await?;
        weight.bytes = weight.bytes.saturating_add(bytes);
        weight.log = Some(log);
    }
    Ok(weight)
}

async fn messages(conn: &mut impl Connection, topic: TopicId, span: Span) -> Result<u64> {
    let within = (RowId(span.first.0.saturating_sub(1)), span.last);
    let counted = backlog::count_rows(conn, topic, span.priority, within, COUNTED).await?;
    Ok(counted.last.map_or(0, |last| beyond(span, counted.rows, last)))
}

/// Estimates how many rows of a span lie beyond the `rows` that were counted up to `last`.
fn beyond(span: Span, rows: u64, last: RowId) -> u64 {
    if last >= span.last {
        return rows;
    }
    let (counted, all) = (last.0 - span.first.0 + 1, span.last.0 - span.first.0 + 1);
    scaled(rows, all, counted)
}

/// `part` times `all`, divided by `of`.
fn scaled(part: u64, all: u64, of: u64) -> u64 {
    let about = u128::from(part) * u128::from(all) / u128::from(of);
    u64::try_from(about).unwrap_or(u64::MAX)
}

/// Places spread evenly over all spans together.
fn places(spans: &[Span]) -> Vec<(u8, RowId)> {
    let width = |span: &Span| span.last.0 - span.first.0 + 1;
    let whole: u64 = spans.iter().map(width).sum();
    let nth = |n: u64| {
        let mut at = scaled(whole, n, SAMPLES);
        for span in spans {
            if at < width(span) {
                return Some((span.priority, RowId(span.first.0 + at)));
            }
            at -= width(span);
        }
        None
    };
    let mut places: Vec<_> = (0..SAMPLES).filter_map(nth).collect();
    places.dedup();
    places
}

async fn weigh_log(conn: &mut impl Connection, stream: TopicId) -> Result<(LogWeight, u64)> {
    let (mut log, mut bytes, mut oldest) = (LogWeight::default(), 0_u64, None);
    for partition in partition::all(conn, stream).await? {
        log.appended += partition.next.0;
        let kept = partition.next.0 - partition.first.0;
        if kept == 0 {
            continue;
        }
        log.messages += kept;
        let newest = Stretch {
            stream,
            partition: partition.no,
            lo: Offset(partition.next.0.saturating_sub(SAMPLES).max(partition.first.0)),
            hi: partition.next,
        };
        bytes = bytes.saturating_add(kept.saturating_mul(log::mean_bytes(conn, newest).await?));
        let first = log::at_or_after(conn, stream, partition.no, partition.first).await?;
        oldest = oldest.into_iter().chain(first.map(|(_, at)| at)).min();
    }
    if let Some(oldest) = oldest {
        let age = server_time(conn).await? - oldest;
        log.oldest_age_ms = Some(u64::try_from(age.num_milliseconds()).unwrap_or(0));
    }
    Ok((log, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(priority: u8, first: u64, last: u64) -> Span {
        Span { priority, first: RowId(first), last: RowId(last) }
    }

    #[test]
    fn what_lies_beyond_the_counted_rows_is_taken_to_lie_as_densely() {
        let span = span(5, 101, 1100);
        assert_eq!(beyond(span, 7, RowId(1100)), 7, "all of it was counted");
        assert_eq!(beyond(span, 50, RowId(200)), 500, "every second row is the topic's");
    }

    #[test]
    fn places_lie_in_every_span_that_is_wide() {
        let places = places(&[span(0, 10, 10), span(5, 1000, 1998), span(9, 1, 1000)]);
        assert_eq!(places.len(), 16);
        assert!(places.iter().any(|(priority, _)| *priority == 9));
        assert!(places.iter().all(|(priority, row)| match priority {
            5 => (1000..=1998).contains(&row.0),
            9 => (1..=1000).contains(&row.0),
            priority => (*priority, row.0) == (0, 10),
        }));
    }

    #[test]
    fn a_single_message_is_looked_at_once() {
        assert_eq!(places(&[span(5, 7, 7)]), [(5, RowId(7))]);
    }
}
