//! The known histories: with its rule switched off, the simulation must find each of them.

use simulation::{Rule, Weather, play};

/// Plays histories without `rule` until one goes wrong, which with the rule goes well.
#[track_caller]
fn is_found(rule: Rule, weather: Weather, seeds: u64) {
    let violation = |seed, rule| play(seed, Some(weather), rule, false).violation;
    let found = (0..seeds).find(|seed| violation(*seed, Some(rule)).is_some());
    let seed = found.unwrap_or_else(|| panic!("{seeds} histories without {rule:?} went well"));
    assert_eq!(violation(seed, None), None, "seed {seed} goes wrong with the rule, too");
}

#[test]
fn h1_h2_moving_by_a_predicate_twice_is_found() {
    is_found(Rule::MovesByKeys, Weather::Calm, 100);
}

#[test]
fn h3_a_death_that_competes_with_nothing_is_found() {
    is_found(Rule::DeathCompetes, Weather::Wild, 200);
}

#[test]
fn h4_a_grace_that_is_over_at_once_is_found() {
    is_found(Rule::Grace, Weather::Mild, 200);
}

#[test]
fn h7_claims_of_a_worker_without_a_row_are_found() {
    is_found(Rule::NoOrphans, Weather::Wild, 200);
}

#[test]
fn h8_sessions_that_stay_silent_for_ever_are_found() {
    is_found(Rule::SilentSessionsEnd, Weather::Wild, 200);
}

#[test]
fn h5_a_worker_that_goes_on_after_its_death_is_found() {
    is_found(Rule::DeadWorkersStop, Weather::Wild, 200);
}

#[test]
fn h6_claims_that_nobody_looks_for_are_found() {
    is_found(Rule::ClaimsCompared, Weather::Wild, 600);
}

#[test]
fn h11_a_range_over_rows_that_are_not_done_is_found() {
    is_found(Rule::RangesOfDoneRows, Weather::Calm, 200);
}

#[test]
fn h12_calling_an_unknown_outcome_fenced_is_found() {
    is_found(Rule::UnknownIsNotFenced, Weather::Wild, 200);
}

#[test]
fn h20_beats_judged_by_a_wall_clock_are_found() {
    is_found(Rule::OwnClock, Weather::Mild, 200);
}

#[test]
fn h21_fencing_by_connection_id_is_found() {
    is_found(Rule::FencedByClaim, Weather::Wild, 200);
}

#[test]
fn h22_charging_every_message_of_a_crash_is_found() {
    is_found(Rule::LoneCrash, Weather::Wild, 300);
}

#[test]
fn h24_rows_below_a_mark_that_nobody_publishes_are_found() {
    is_found(Rule::FloorsAndWalks, Weather::Wild, 200);
}

#[test]
fn a_settle_without_a_fence_is_found() {
    is_found(Rule::SettlesAreFenced, Weather::Wild, 300);
}

#[test]
fn deliveries_that_are_not_counted_are_found() {
    is_found(Rule::DeliveriesAreCounted, Weather::Calm, 50);
}

#[test]
fn claims_that_do_not_lock_are_found() {
    is_found(Rule::ClaimsLock, Weather::Calm, 200);
}

#[test]
fn a_lane_that_takes_late_statements_is_found() {
    is_found(Rule::LanesAreFenced, Weather::Wild, 300);
}
