use rowmq_core::model::DeadCause;

use super::*;

const PAUSE: Duration = Duration::from_secs(30);

fn breaker() -> Breaker {
    Breaker::new("50%/4".parse().expect("a rate"), PAUSE)
}

/// Builds the tally of `handled` messages, the first `failed` of which failed.
fn tally(handled: usize, failed: usize) -> Tally {
    Tally((0..handled).map(|nth| nth < failed).collect())
}

/// Runs one message after the other; returns the change that the last one makes.
fn runs(breaker: &mut Breaker, now: Instant, failed: &[bool]) -> Option<Change> {
    let mut change = None;
    for failed in failed {
        assert_eq!(change, None, "only the last one changes anything");
        let generation = breaker.begun();
        change = breaker.ended(generation, &tally(1, usize::from(*failed)), now);
    }
    change
}

#[test]
fn a_rate_is_read_and_written_alike_and_nothing_else_is_one() {
    for text in ["50%/20", "1%/1", "100%/65535"] {
        assert_eq!(text.parse::<ErrorRate>().expect(text).to_string(), text);
    }
    for text in ["", "50", "50%", "0%/5", "101%/5", "50%/0", "50/20", "x%/20", "50%/70000", "-1%/2"]
    {
        assert!(text.parse::<ErrorRate>().is_err(), "{text}");
    }
}

#[test]
fn the_share_counts_among_the_last_ones_and_not_before_there_are_so_many() {
    let (mut breaker, now) = (breaker(), Instant::now());
    assert_eq!(runs(&mut breaker, now, &[true, false, false, false]), None, "one in four");
    assert_eq!(runs(&mut breaker, now, &[false, false, false, true]), None, "one in four");
    let paused = Some(Change::Paused { failed: 2, of: 4 });
    assert_eq!(runs(&mut breaker, now, &[true]), paused);
    assert_eq!((breaker.limit(), breaker.until()), (Some(0), Some(now + PAUSE)));
}

#[test]
fn few_failures_at_the_start_pause_nothing() {
    let mut breaker = breaker();
    assert_eq!(runs(&mut breaker, Instant::now(), &[true, true, true]), None);
    assert_eq!(breaker.limit(), None);
}

#[test]
fn after_the_pause_one_message_decides() {
    let (mut breaker, now) = (breaker(), Instant::now());
    runs(&mut breaker, now, &[true; 4]);
    assert_eq!(breaker.turn(now + PAUSE / 2), None);
    assert_eq!(breaker.turn(now + PAUSE), Some(Change::Trying));
    assert_eq!(breaker.limit(), Some(1));
    let generation = breaker.begun();
    assert_eq!(breaker.limit(), Some(0), "no second one beside it");
    assert_eq!(
        breaker.ended(generation, &tally(0, 0), now),
        None,
        "it was put off: that says nothing"
    );
    assert_eq!(breaker.limit(), Some(1));
    let later = now + PAUSE * 2;
    let again = Some(Change::Paused { failed: 1, of: 1 });
    assert_eq!(runs(&mut breaker, later, &[true]), again);
    assert_eq!(breaker.until(), Some(later + PAUSE));
    assert_eq!(breaker.turn(later + PAUSE), Some(Change::Trying));
    assert_eq!(runs(&mut breaker, later, &[false]), Some(Change::Resumed));
    assert_eq!(breaker.limit(), None);
    assert_eq!(
        runs(&mut breaker, later, &[true, true, true]),
        None,
        "it starts counting from zero"
    );
}

#[test]
fn what_began_before_the_pause_does_not_decide_about_its_end() {
    let (mut breaker, now) = (breaker(), Instant::now());
    let early = breaker.begun();
    runs(&mut breaker, now, &[true; 4]);
    assert_eq!(breaker.ended(early, &tally(1, 1), now), None);
    breaker.turn(now + PAUSE);
    assert_eq!(breaker.ended(early, &tally(1, 0), now), None);
    assert_eq!(breaker.limit(), Some(1));
}

#[test]
fn a_batch_counts_as_many_as_it_has() {
    let (mut breaker, now) = (breaker(), Instant::now());
    let generation = breaker.begun();
    let mixed = Tally((0..100).map(|nth| nth % 2 == 0).collect());
    assert_eq!(breaker.ended(generation, &mixed, now), Some(Change::Paused { failed: 2, of: 4 }));
}

#[test]
fn only_what_charges_a_failure_or_dead_letters_is_one() {
    let error = || "no".to_owned();
    let mut said = Tally::default();
    for settlement in [
        Settlement::Release,
        Settlement::Snooze { delay: PAUSE },
        Settlement::Repeated,
        Settlement::Ack,
        Settlement::Discard { reason: error() },
        Settlement::Retry { delay: PAUSE, error: error() },
        Settlement::DeadLetter { cause: DeadCause::Handler, error: error() },
    ] {
        said.count(&settlement);
    }
    assert_eq!(said.0, [false, false, true, true]);
}

#[test]
fn a_pause_may_be_as_long_as_can_be_said() {
    let mut breaker = Breaker::new("100%/1".parse().expect("a rate"), Duration::MAX);
    assert!(runs(&mut breaker, Instant::now(), &[true]).is_some());
}
