use super::*;
use crate::model::TopicId;

fn floor(row: u64, seq: u64) -> Floor {
    Floor { topic: TopicId(1), priority: Priority::default(), row: RowId(row), seq }
}

fn marks_at(row: u64) -> Marks {
    let mut marks = Marks::START;
    marks.raise(Priority::default(), RowId(row));
    marks
}

#[test]
fn a_published_floor_lowers_the_mark_and_a_missed_one_sends_it_to_the_start() {
    let mut cursor = Cursor::new();
    cursor.see(&floor(10, 4));
    cursor.marks = marks_at(100);
    cursor.see(&floor(10, 4));
    assert_eq!(cursor.marks, marks_at(100), "nothing new");
    cursor.see(&floor(50, 5));
    assert_eq!(cursor.marks, marks_at(50));
    cursor.see(&floor(70, 6));
    assert_eq!(cursor.marks, marks_at(50), "never raised by a floor");
    cursor.see(&floor(40, 8));
    assert_eq!(cursor.marks, Marks::START, "publication 7 was missed");
}

#[test]
fn what_a_floor_made_ready_is_looked_for_at_once_however_costly_walks_are() {
    let mut cursor = Cursor::new();
    let start = Instant::now();
    let floor = |priority, row, seq| Floor { priority, ..floor(row, seq) };
    let (urgent, late) = (Priority::FIRST, Priority::LAST);
    for priority in [urgent, late] {
        cursor.see(&floor(priority, 1, 1));
        cursor.marks.raise(priority, RowId(1000));
    }
    cursor.walk_cost(start, Duration::from_secs(9));
    cursor.look_up_cost(start, Duration::from_secs(9));
    cursor.found(None);
    assert_eq!(cursor.look(start), Look::Next(cursor.marks.position(late)), "nothing new");
    cursor.see(&floor(urgent, 7, 2));
    cursor.see(&floor(late, 7, 2));
    let lowered = ScanPosition { priority: urgent, from: RowId(7) };
    assert_eq!(cursor.look(start), Look::Next(lowered), "idle");
    cursor.state = State::Ready(late);
    assert_eq!(cursor.look(start), Look::Next(lowered), "others are claimed");
    cursor.state = State::Ready(urgent);
    assert_eq!(cursor.look(start), Look::Claim(lowered), "claims come from there");
    cursor.found(None);
    let last = ScanPosition { priority: late, from: RowId(7) };
    assert_eq!(cursor.look(start), Look::Next(last), "once is enough");
}

#[test]
fn a_costly_walk_is_rare_and_a_cheap_one_is_not() {
    let mut cursor = Cursor::new();
    let start = Instant::now();
    assert!(cursor.may_walk(start));
    cursor.walk_cost(start, Duration::from_millis(1));
    cursor.walked(&Walk::default());
    assert_eq!(cursor.look(start), Look::Next(Marks::START.position(Priority::default())));
    assert!(!cursor.may_walk(start + Duration::from_millis(19)));
    assert!(cursor.may_walk(start + Duration::from_millis(20)));
    cursor.walk_cost(start, Duration::from_secs(9));
    assert!(!cursor.may_walk(start + Duration::from_secs(29)));
    assert!(cursor.may_walk(start + WALK_CAP));
}

#[test]
fn urgent_rows_are_looked_for_while_others_are_claimed_and_never_beyond_the_cap() {
    let mut cursor = Cursor::new();
    let start = Instant::now();
    let place = ScanPosition { priority: Priority::default(), from: RowId(7) };
    cursor.walk_cost(start, Duration::from_secs(1));
    cursor.found(Some(place));
    let soon = start + Duration::from_millis(199);
    assert_eq!(cursor.look(soon), Look::Claim(place));
    let later = start + URGENT_SPACING;
    assert_eq!(cursor.look(later), Look::Urgent(place.priority));
    cursor.look_up_cost(later, Duration::from_secs(9));
    assert!(matches!(cursor.look(later + Duration::from_millis(999)), Look::Claim(_)));
    assert!(matches!(cursor.look(later + URGENT_CAP), Look::Urgent(_)));
    cursor.found(Some(ScanPosition { priority: Priority::FIRST, from: RowId(9) }));
    assert!(matches!(cursor.look(later + URGENT_CAP), Look::Claim(_)), "nothing comes before");
}

#[test]
fn what_others_have_claimed_is_skipped_unless_something_below_was_made_ready() {
    let mut cursor = Cursor::new();
    let start = Instant::now();
    let priority = Priority::FIRST;
    cursor.walk_cost(start, Duration::ZERO);
    cursor.found(Some(ScanPosition { priority, from: RowId(1) }));
    cursor.crowded = true;
    assert_eq!(cursor.look(start), Look::Skip(priority));
    cursor.skip(priority, Some(RowId(999)));
    assert_eq!(cursor.look(start), Look::Claim(ScanPosition { priority, from: RowId(1000) }));
    cursor.marks.lower(priority, RowId(500));
    cursor.crowded = true;
    assert_eq!(cursor.look(start), Look::Claim(ScanPosition { priority, from: RowId(500) }));
}

#[test]
fn claims_grow_while_they_are_full_and_shrink_when_bodies_are_large_or_answers_late() {
    let mut cursor = Cursor::new();
    assert_eq!(cursor.sized(1000), FIRST_CLAIM);
    cursor.largest = 1000;
    assert_eq!(cursor.sized(100), 100);
    cursor.body = 4 << 20;
    assert_eq!(cursor.sized(100), 2);
    cursor.body = 64 << 20;
    assert_eq!(cursor.sized(100), 1);
    cursor.body = 10;
    let late =
        || Err::<(), _>(Error::Deadline { operation: "claim", deadline: Duration::from_secs(5) });
    cursor.answered(&Ok(()), 100);
    assert_eq!(cursor.sized(100), 100);
    cursor.answered(&late(), 100);
    assert_eq!(cursor.sized(100), 50);
    cursor.answered(&late(), 1);
    assert_eq!(cursor.sized(100), 1);
}
