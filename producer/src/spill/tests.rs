//! The journal after damage to its files.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;

use rowmq_core::model::RowId;
use rowmq_core::store::lane::{LaneId, LaneKind};
use rowmq_core::{NewMessage, TopicName};
use uuid::Uuid;

use super::aside::keep;
use super::cursor::Intent;
use super::format::HEADER;
use super::journal::{Journal, NotAppended, Pending};
use super::record::Record;
use crate::error::SendError;
use crate::lane::Position;

const LIMIT: u64 = 1 << 30;

/// The first segment.
const FIRST: &str = "00000000000000000000.spill";

/// A cursor's file that cannot be written.
fn read_only(dir: &Path) -> fs::File {
    fs::File::open(dir.join("cursor")).expect("opened")
}

fn record(topic: &str, body: &str) -> Record {
    let topic = TopicName::new(topic).expect("a name");
    Record { topic, messages: vec![NewMessage::new(body)], doubt: None }
}

fn append(journal: &mut Journal, bodies: &[&str]) -> Result<u64, NotAppended> {
    let records: Vec<_> = bodies.iter().map(|body| record("mail", body)).collect();
    let mut pending = Pending::default();
    let first = journal.add(&mut pending, &records)?;
    journal.append(pending).map(|()| first)
}

/// The bodies of everything that is still to be sent, settled batch by batch.
fn drain(journal: &mut Journal) -> Vec<String> {
    let mut bodies = Vec::new();
    while !journal.state().is_empty() {
        let group = journal.peek().expect("it can be read");
        let messages = group.records.iter().flat_map(|record| &record.messages);
        bodies.extend(messages.map(|m| String::from_utf8_lossy(&m.body).into_owned()));
        journal.settle(&group).expect("settled");
    }
    bodies
}

fn open(dir: &Path) -> Journal {
    Journal::open(dir, LIMIT).expect("a journal")
}

fn position(seq: u64) -> Position {
    let id = LaneId { row: RowId(1), name: Uuid::from_u128(7), kind: LaneKind::Durable };
    Position { id, seq }
}

fn intent(records: u64) -> Intent {
    Intent { records, position: position(3) }
}

#[test]
fn what_was_appended_is_there_after_any_end_of_the_process() {
    let folder = tempfile::tempdir().expect("a folder");
    let dir = folder.path().join("a/b");
    for (nth, body) in ["1", "2", "3"].into_iter().enumerate() {
        let mut journal = open(&dir);
        assert_eq!(journal.state().messages, nth as u64);
        append(&mut journal, &[body]).expect("room");
    }
    let mut journal = open(&dir);
    assert_eq!(drain(&mut journal), ["1", "2", "3"]);
    drop(journal);
    assert!(open(&dir).state().is_empty());
    let mode = |path: &Path| fs::metadata(path).expect("there").permissions().mode() & 0o777;
    assert_eq!((mode(&dir), mode(&dir.join("cursor"))), (0o700, 0o600));
}

#[test]
fn an_intent_is_found_by_the_next_process_with_the_same_records() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut journal = open(folder.path());
    append(&mut journal, &["1", "2", "3", "4"]).expect("room");
    let mut group = journal.peek().expect("read");
    assert_eq!((group.records.len(), group.intent), (4, None));
    group.truncate(3);
    journal.intend(Some(intent(3))).expect("written");
    drop(journal);
    let mut journal = open(folder.path());
    append(&mut journal, &["5"]).expect("room");
    let group = journal.peek().expect("read");
    assert_eq!((group.records.len(), group.intent), (3, Some(intent(3))));
    journal.settle(&group).expect("settled");
    // That was not recorded yet, so the lane has to be asked.
    drop(journal);
    let mut journal = open(folder.path());
    let group = journal.peek().expect("read");
    assert_eq!((group.records.len(), group.intent), (3, Some(intent(3))));
    journal.settle(&group).expect("settled");
    let group = journal.peek().expect("read");
    assert_eq!((group.records.len(), group.intent), (2, None));
    journal.intend(Some(intent(2))).expect("written");
    drop(journal);
    assert_eq!(drain(&mut open(folder.path())), ["4", "5"]);
}

#[test]
fn an_intent_does_not_reach_beyond_the_records_that_a_crash_has_left() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut journal = open(folder.path());
    append(&mut journal, &["1"]).expect("room");
    let kept = journal.state().bytes;
    append(&mut journal, &["2", "3"]).expect("room");
    journal.intend(Some(intent(3))).expect("written");
    drop(journal);
    let file = OpenOptions::new().write(true).open(folder.path().join(FIRST)).expect("opened");
    file.set_len(kept).expect("cut");
    for _ in 0..2 {
        let mut journal = open(folder.path());
        append(&mut journal, &["new"]).expect("room");
        let group = journal.peek().expect("read");
        assert_eq!((group.records.len(), group.intent), (1, Some(intent(1))));
    }
    file.set_len(HEADER).expect("cut");
    let mut journal = open(folder.path());
    append(&mut journal, &["new"]).expect("room");
    assert_eq!(journal.peek().expect("read").intent, None);
}

#[test]
fn what_is_put_aside_is_settled_only_when_that_is_written_down() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut journal = open(folder.path());
    append(&mut journal, &["1", "2"]).expect("room");
    let mut group = journal.peek().expect("read");
    group.truncate(1);
    assert_eq!((group.first, group.end()), (0, 1));
    let before = journal.state();
    let cursor = journal.cursors.replaced(read_only(folder.path()));
    journal.settle_aside(&group).expect_err("it cannot be written");
    assert_eq!(journal.state(), before);
    journal.cursors.replaced(cursor);
    journal.settle_aside(&group).expect("written");
    drop(journal);
    assert_eq!(drain(&mut open(folder.path())), ["2"]);
}

#[test]
fn messages_that_were_put_aside_are_in_their_file_once_whatever_it_holds() {
    let folder = tempfile::tempdir().expect("a folder");
    let dir = folder.path();
    let mut journal = open(dir);
    append(&mut journal, &["1", "2", "3"]).expect("room");
    let mut group = journal.peek().expect("read");
    let ids: Vec<_> = group.records.iter().map(|record| record.messages[0].msg_id).collect();
    let path = dir.join("refused-mail.ndjson");
    // A person's text, and a body that names a message.
    let before = format!("what is this?\n{{\"body\":\"{}\"}}\n", ids[2]);
    fs::write(&path, &before).expect("written");
    let why = SendError::Closed;
    group.truncate(1);
    keep(dir, &group, &why, true).expect("written");
    let whole = fs::read(&path).expect("read");
    // A crash has cut the next line short, and then there are more.
    fs::write(&path, [&whole[..], b"{\"body\":"].concat()).expect("written");
    let group = journal.peek().expect("read");
    keep(dir, &group, &why, true).expect("written");
    keep(dir, &group, &why, true).expect("written");
    let text = fs::read_to_string(&path).expect("read");
    let lines = text.strip_prefix(&before).expect("left alone").lines();
    let found: Vec<_> = lines
        .map(|line| serde_json::from_str::<serde_json::Value>(line).expect("a line of NDJSON"))
        .map(|line| line["msg_id"].as_str().expect("an id").to_owned())
        .collect();
    assert_eq!(found, ids.iter().map(ToString::to_string).collect::<Vec<_>>());
}

#[test]
fn a_batch_has_one_topic_and_one_in_doubt_is_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut journal = open(folder.path());
    let mut doubted = record("b", "3");
    doubted.doubt = Some(position(0));
    let records = [record("a", "1"), record("b", "2"), doubted, record("b", "4"), record("b", "5")];
    let mut pending = Pending::default();
    journal.add(&mut pending, &records).expect("room");
    journal.append(pending).expect("written");
    let mut sizes = Vec::new();
    while !journal.state().is_empty() {
        let group = journal.peek().expect("read");
        sizes.push(group.records.len());
        journal.settle(&group).expect("settled");
    }
    assert_eq!(sizes, [1, 1, 1, 2]);
}

#[test]
fn a_tail_that_a_crash_has_torn_is_cut_wherever_it_is_torn() {
    let folder = tempfile::tempdir().expect("a folder");
    let source = folder.path().join("source");
    let mut journal = open(&source);
    append(&mut journal, &["1"]).expect("room");
    let name = "00000000000000000000.spill";
    let whole = fs::metadata(source.join(name)).expect("there").len();
    append(&mut journal, &["2", "3"]).expect("room");
    drop(journal);
    let bytes = fs::read(source.join(name)).expect("read");
    let second = whole + (bytes.len() as u64 - whole) / 2;
    for len in (0..bytes.len() as u64).step_by(7) {
        let dir = folder.path().join(len.to_string());
        fs::create_dir(&dir).expect("made");
        fs::copy(source.join("cursor"), dir.join("cursor")).expect("copied");
        fs::write(dir.join(name), &bytes[..usize::try_from(len).expect("small")]).expect("written");
        let mut journal = open(&dir);
        append(&mut journal, &["after"]).expect("room");
        drop(journal);
        let expected: &[&str] = match len {
            len if len < whole => &["after"],
            len if len < second => &["1", "after"],
            _ => &["1", "2", "after"],
        };
        assert_eq!(drain(&mut open(&dir)), expected, "{len}");
    }
}

#[test]
fn damage_in_the_middle_is_an_error_once_and_everything_is_kept() {
    let folder = tempfile::tempdir().expect("a folder");
    let dir = folder.path();
    let mut journal = open(dir);
    append(&mut journal, &["first"]).expect("room");
    let name = "00000000000000000000.spill";
    let good = fs::metadata(dir.join(name)).expect("there").len();
    append(&mut journal, &["second", "third"]).expect("room");
    drop(journal);
    let file = OpenOptions::new().write(true).open(dir.join(name)).expect("opened");
    file.write_all_at(b"?", good + 20).expect("written");
    let before = fs::read(dir.join(name)).expect("read");
    let error = Journal::open(dir, LIMIT).expect_err("damage");
    assert!(error.contains("is damaged from byte") && error.contains("damaged-"), "{error}");
    assert_eq!(fs::read(dir.join(format!("damaged-{name}"))).expect("kept"), before);
    let mut journal = open(dir);
    append(&mut journal, &["after"]).expect("room");
    assert_eq!(drain(&mut journal), ["first", "after"]);
}

#[test]
fn what_another_version_wrote_or_no_journal_is_refused_and_left_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let dir = folder.path();
    let name = dir.join("00000000000000000000.spill");
    drop(open(dir));
    for (bytes, part) in [
        (&b"QSPILL\x09\x00________________"[..], "version 9 of the journal's format"),
        (b"no journal at all, but some other text", "does not begin as a segment"),
    ] {
        fs::write(&name, bytes).expect("written");
        let error = Journal::open(dir, LIMIT).expect_err("refused");
        assert!(error.contains(part), "{error}");
        assert_eq!(fs::read(&name).expect("read"), bytes);
    }
}

#[test]
fn a_journal_without_its_cursor_is_refused_because_messages_could_be_sent_twice() {
    let folder = tempfile::tempdir().expect("a folder");
    append(&mut open(folder.path()), &["1"]).expect("room");
    let cursor = fs::read(folder.path().join("cursor")).expect("read");
    fs::remove_file(folder.path().join("cursor")).expect("removed");
    for _ in 0..2 {
        let error = Journal::open(folder.path(), LIMIT).expect_err("refused");
        assert!(error.contains("cursor is gone"), "{error}");
    }
    fs::write(folder.path().join("cursor"), cursor).expect("put back");
    assert_eq!(drain(&mut open(folder.path())), ["1"]);
}

#[test]
fn segments_follow_one_another_and_go_when_they_are_sent() {
    let folder = tempfile::tempdir().expect("a folder");
    let dir = folder.path();
    let count = || {
        let entries = fs::read_dir(dir).expect("read").map(|entry| entry.expect("read").path());
        entries.filter(|path| path.extension().is_some_and(|end| end == "spill")).count()
    };
    let large = "x".repeat(6 << 20);
    let mut journal = open(dir);
    for _ in 0..8 {
        append(&mut journal, &[&large, "small"]).expect("room");
    }
    assert_eq!(count(), 3);
    drop(journal);
    let mut journal = open(dir);
    let mut left = Vec::new();
    while !journal.state().is_empty() {
        let group = journal.peek().expect("read");
        journal.intend(Some(intent(group.records.len() as u64))).expect("written");
        journal.settle(&group).expect("settled");
        left.push(count());
    }
    assert!(left.is_sorted_by(|a, b| a >= b), "{left:?}");
    assert_eq!((left.first(), left.last()), (Some(&3), Some(&0)));
}

#[test]
fn a_segment_that_begins_while_the_batch_before_it_is_on_its_way_is_found() {
    let folder = tempfile::tempdir().expect("a folder");
    // A quarter of the limit is a segment.
    let mut journal = Journal::open(folder.path(), 4000).expect("a journal");
    let body = "x".repeat(1000);
    append(&mut journal, &[&body]).expect("room");
    let group = journal.peek().expect("read");
    append(&mut journal, &["next"]).expect("room");
    journal.settle(&group).expect("settled");
    assert_eq!(drain(&mut journal), ["next"]);
}

#[test]
fn a_journal_without_room_takes_nothing_and_says_so() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut journal = Journal::open(folder.path(), 2000).expect("a journal");
    let mut taken = 0;
    let full = loop {
        match append(&mut journal, &["x"]) {
            Ok(_) => taken += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(full, NotAppended::Full), "{full:?}");
    assert!(journal.state().bytes <= 2000 && taken > 3, "{taken}");
    assert_eq!(drain(&mut journal).len(), taken);
    append(&mut journal, &["x"]).expect("room again");
}
