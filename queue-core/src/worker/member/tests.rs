//! The part of a member's memory that outlives its workers.

use super::*;

const PARTITION: PartitionNo = PartitionNo(0);
const ONE: WorkerId = WorkerId(1);
const TWO: WorkerId = WorkerId(2);

/// The member's row, as the next worker finds it.
fn row(worker: WorkerId, next: u64) -> [MemberPosition; 1] {
    [MemberPosition { partition: PARTITION, next: Offset(next), worker }]
}

/// Worker 1 has read and handled ten messages that the database does not know of.
fn ahead() -> State {
    let mut state = State::default();
    state.take_over(ONE, &row(WorkerId(0), 0));
    if let Some(track) = state.tracks.get_mut(&PARTITION) {
        track.next = Offset(10);
    }
    state
}

fn mark(state: &State) -> Option<Offset> {
    state.tracks.get(&PARTITION).map(Track::mark)
}

/// Worker 1 is declared dead. Its late report comes before or after the next worker has the rows.
#[test]
fn a_worker_that_learns_late_that_it_has_lost_the_name_disturbs_no_other() {
    for (before, after) in [(true, false), (false, true), (true, true)] {
        let mut state = ahead();
        if before {
            state.lose_rows(ONE);
            assert!(!state.is_of(ONE));
        }
        state.take_over(TWO, &row(ONE, 0));
        if after {
            state.lose_rows(ONE);
        }
        assert!(state.is_of(TWO));
        assert_eq!(mark(&state), Some(Offset(10)), "nothing is handled again");
    }
}

#[test]
fn rows_that_another_session_has_changed_start_again() {
    for changed in [row(WorkerId(0), 4), row(WorkerId(7), 4), row(ONE, 11)] {
        let mut state = ahead();
        state.lose_rows(ONE);
        state.take_over(TWO, &changed);
        assert_eq!(mark(&state), Some(changed[0].next));
    }
}
