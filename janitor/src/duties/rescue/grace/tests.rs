use super::super::observation::tests::worker;
use super::*;

const LEAST: Duration = Duration::from_millis(100);

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

#[test]
fn a_slow_reconnect_doubles_the_grace_for_a_minute_and_a_slow_answer_for_seconds() {
    let mut grace = Grace::new(LEAST);
    let start = Instant::now();
    assert_eq!(grace.now(false, start), LEAST);
    grace.reconnected(ms(40), start);
    assert_eq!(grace.now(false, start), LEAST, "half of it is more than that");
    grace.reconnected(ms(90), start + ms(100));
    grace.reconnected(ms(20), start + ms(59_000));
    assert_eq!(grace.now(false, start + ms(59_000)), ms(180));
    grace.looked(ms(10), start + ms(59_000));
    assert_eq!(grace.now(false, start + ms(60_000)), ms(250));
    grace.looked(ms(500), start + ms(61_000));
    assert_eq!(grace.now(false, start + ms(61_000)), LEAST * 3, "no grace is longer");
    assert_eq!(grace.now(false, start + ms(200_000)), LEAST);
}

#[test]
fn without_a_grace_nothing_prolongs_it() {
    let mut grace = Grace::new(Duration::ZERO);
    let start = Instant::now();
    grace.reconnected(ms(500), start);
    assert_eq!(grace.now(true, start), Duration::ZERO);
}

#[test]
fn the_slowest_of_the_last_period_counts_for_one_period_at_least_and_two_at_most() {
    let mut slowest = Slowest::over(ms(1000));
    let start = Instant::now();
    let mut at = |after: u64, time: u64| {
        slowest.add(ms(time), start + ms(after));
        slowest.at(start + ms(after))
    };
    assert_eq!(at(0, 9), ms(9));
    assert_eq!(at(900, 5), ms(9));
    assert_eq!(at(1100, 1), ms(9), "less than two periods ago");
    assert_eq!(at(2200, 2), ms(2));
    assert_eq!(at(9000, 1), ms(1), "after a pause");
    assert_eq!(slowest.at(start + ms(10_500)), ms(1));
    assert_eq!(slowest.at(start + ms(11_500)), Duration::ZERO);
}

/// A switch or a proxy cuts off many processes; one that dies takes all its workers with it.
#[test]
fn many_processes_that_are_missing_together_have_three_times_the_grace() {
    let fleet = |processes: &[(&str, usize)]| {
        let mut workers = Vec::new();
        for (process, n) in processes {
            for slot in 0..*n {
                let client_id = format!("host 10.0.0.1 {process} 0b-1 {slot}");
                workers.push(WorkerRow { client_id, ..worker(false, 1) });
            }
        }
        workers
    };
    let all = fleet(&[("1", 8), ("2", 1), ("3", 1), ("4", 1)]);
    assert!(!are_many(all[..8].iter(), &all), "all of one process");
    assert!(!are_many(all[7..9].iter(), &all), "two die at the same time");
    assert!(are_many(all[7..10].iter(), &all));
    let names: Vec<_> = (0..12).map(|n| n.to_string()).collect();
    let large = fleet(&names.iter().map(|name| (name.as_str(), 1)).collect::<Vec<_>>());
    assert!(!are_many(large[..3].iter(), &large), "a quarter of a large fleet");
    assert!(are_many(large[..4].iter(), &large));
    let grace = Grace::new(LEAST);
    assert_eq!(grace.now(true, Instant::now()), LEAST * 3);
}
