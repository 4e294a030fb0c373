//! Single messages of the log in SQL, out of rows that hold [pages](crate::model::page) of them.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use crate::connection::Statement;
use crate::model::page::{ENTRY, HEAD, LONGEST};
use crate::model::{Headers, Offset, PartitionNo, TopicId};
use crate::store::row_set::LIST_LIMIT;

/// The most messages of a page.
pub(crate) const PAGE: u64 = 64;

static MESSAGES: LazyLock<String> = LazyLock::new(text);

/// Selects messages of the log by their offsets, each with the offset under which its row is:
/// `offset_no`, `msg_id`, `enqueued_at`, `expires_at`, `ordering_key`, `biz_id`, `headers` and
/// `body`. The body of a damaged page is the whole page, and its other columns are NULL or those of
/// its row, as what the page says of its messages cannot be trusted; a header marks it.
pub(super) fn messages(
    stream: TopicId,
    partition: PartitionNo,
    places: &[(Offset, Offset)],
) -> Statement<'static> {
    let text: &'static str = &MESSAGES;
    let pairs: Vec<_> = places.iter().map(|(at, row)| format!("[{at},{row}]")).collect();
    let rows: BTreeSet<_> = places.iter().map(|(_, row)| *row).collect();
    let rows: Vec<_> = rows.iter().map(Offset::to_string).collect();
    let place = [u64::from(stream.0), partition.0.into()];
    Statement::new(text)
        .bytes(format!("[{}]", pairs.join(",")).into_bytes())
        .bytes(format!("[{}]", rows.join(",")).into_bytes())
        .numbers([place, place].concat())
}

fn number(bytes: &str) -> String {
    format!("CAST(CONV(HEX({bytes}), 16, 10) AS UNSIGNED)")
}

/// The number of `bytes` bytes that begins `at` bytes after the start of the message's entry.
fn field(at: usize, bytes: usize) -> String {
    number(&format!("SUBSTRING(l.entries, l.entry + {at}, {bytes})"))
}

/// A key, biz id or headers, which lie one behind the other, after those of the lengths `before`.
fn variable(flag: usize, before: &[&str], length: &str) -> String {
    let at: String = before.iter().map(|length| format!(" + {length}")).collect();
    let (start, has) = (field(40, 4), format!("{} DIV {flag} MOD 2 = 1", field(51, 1)));
    format!("IF({has}, SUBSTRING(l.entries, 1 + {start}{at}, {length}), NULL)")
}

fn text() -> String {
    let (key, biz_id, headers) = (field(48, 1), field(49, 1), field(44, 4));
    let (flags, expires) = (field(51, 1), field(24, 8));
    let span = |micros: &str| format!("INTERVAL LEAST({micros}, {LONGEST}) MICROSECOND");
    let expires = format!(
        "CASE WHEN {flags} DIV 8 MOD 2 = 1 THEN l.enqueued_at + {} \
         WHEN {flags} DIV 16 MOD 2 = 1 \
         THEN TIMESTAMP('1970-01-01') + {} ELSE NULL END",
        span(&expires),
        span(&expires)
    );
    let enqueued = format!("l.enqueued_at + {}", span(&field(16, 8)));
    let mark = format!("'{{\"{}\":\"it was damaged when it was filed\"}}'", Headers::DAMAGED_PAGE);
    let body = format!("SUBSTRING(l.body, 1 + {}, {})", field(32, 4), field(36, 4));
    // What a row says, what its page says, and what remains of a page that is damaged.
    let columns = [
        ("msg_id", "SUBSTRING(l.entries, l.entry, 16)".to_owned(), "l.msg_id"),
        ("enqueued_at", enqueued, "l.enqueued_at"),
        ("expires_at", expires, "NULL"),
        ("ordering_key", variable(1, &[], &key), "NULL"),
        ("biz_id", variable(2, &[&key], &biz_id), "NULL"),
        ("headers", variable(4, &[&key, &biz_id], &headers), &mark),
        ("body", body, "CONCAT(l.entries, l.body)"),
    ];
    let mut text = "SELECT l.id AS offset_no".to_owned();
    for (name, page, damaged) in columns {
        text.push_str(&format!(
            ", CASE WHEN l.state = 0 THEN l.{name} WHEN l.state = 1 THEN {page} ELSE {damaged} END AS {name}"
        ));
    }
    let stated = |at: usize, bytes: usize| number(&format!("SUBSTRING(r.entries, {at}, {bytes})"));
    let conditions = [
        "HEX(LEFT(r.entries, 2)) = '0001'".to_owned(),
        format!("{} = r.messages", stated(3, 2)),
        format!("LENGTH(r.entries) >= {HEAD} + {ENTRY} * r.messages"),
        format!("{} = LENGTH(r.body)", stated(5, 4)),
        format!("{} = CRC32(CONCAT(LEFT(r.entries, 12), SUBSTRING(r.entries, 17)))", stated(13, 4)),
        format!("{} = CRC32(r.body)", stated(9, 4)),
    ];
    // The limit keeps the servers from merging the query of the states into the outer one, where
    // they would compute the checksums of a page for each column of each of its messages: a
    // thousand messages of 200 bytes took 23 ms on MariaDB and 77 ms on MySQL, and now 6 and 8.
    text.push_str(&format!(
        " FROM (SELECT k.id, r.msg_id, r.enqueued_at, r.expires_at, r.ordering_key, r.biz_id, \
         r.headers, r.entries, r.body, p.state, \
         {first} + {ENTRY} * (k.id + r.messages - r.offset_no - 1) AS entry \
         FROM JSON_TABLE(CONVERT(? USING utf8mb4), '$[*]' COLUMNS \
         (id BIGINT UNSIGNED PATH '$[0]', page BIGINT UNSIGNED PATH '$[1]')) k \
         STRAIGHT_JOIN (SELECT r.offset_no, \
         CASE WHEN r.entries IS NULL THEN 0 WHEN {sound} THEN 1 ELSE 2 END AS state \
         FROM JSON_TABLE(CONVERT(? USING utf8mb4), '$[*]' COLUMNS \
         (id BIGINT UNSIGNED PATH '$')) j \
         STRAIGHT_JOIN queue_log r FORCE INDEX (PRIMARY) \
         ON r.topic_id = ? AND r.partition_no = ? AND r.offset_no = j.id LIMIT {LIST_LIMIT}) p \
         ON p.offset_no = k.page \
         STRAIGHT_JOIN queue_log r FORCE INDEX (PRIMARY) \
         ON r.topic_id = ? AND r.partition_no = ? AND r.offset_no = k.page \
         WHERE r.offset_no + 1 <= k.id + r.messages) l",
        first = HEAD + 1,
        sound = conditions.join(" AND "),
    ));
    text
}
