use super::*;

const GRACE: Duration = Duration::from_secs(1);
const LEASE: Duration = Duration::from_secs(10);

fn incarnation(started_at: i64) -> Incarnation {
    Incarnation { server_uid: "uid".to_owned(), started_at }
}

pub(in crate::duties::rescue) fn worker(locked: bool, beat_no: u64) -> WorkerRow {
    WorkerRow {
        id: WorkerId(1),
        instance: Default::default(),
        client_id: "host".to_owned(),
        version: "1".to_owned(),
        account: "app@%".to_owned(),
        state: "alive".to_owned(),
        conn: ConnId(7),
        life_conn: ConnId(8),
        incarnation: incarnation(1000),
        lease: LEASE,
        beat_no,
        beat_at: Default::default(),
        registered_at: Default::default(),
        end_reason: None,
        locked,
        claims: 1,
    }
}

fn visibility(process: bool, account: &str) -> Visibility {
    Visibility { account: account.to_owned(), conn: ConnId(99), process }
}

fn list(conns: &[u64]) -> Option<HashSet<ConnId>> {
    Some(conns.iter().map(|id| ConnId(*id)).chain([ConnId(99)]).collect())
}

struct Case {
    observations: Observations,
    start: Instant,
    visibility: Visibility,
    incarnation: Incarnation,
    group: Option<HashSet<String>>,
    locks_count: bool,
}

impl Case {
    fn new() -> Self {
        Self {
            observations: Observations::new(GRACE),
            start: Instant::now(),
            visibility: visibility(true, "janitor@%"),
            incarnation: incarnation(1001),
            group: None,
            locks_count: true,
        }
    }

    fn judge(&mut self, worker: &WorkerRow, list: Option<HashSet<ConnId>>, ms: u64) -> Verdict {
        let evidence = Evidence {
            visibility: &self.visibility,
            incarnation: &self.incarnation,
            group: self.group.as_ref(),
            locks_count: self.locks_count,
            sees_all: self.visibility.process,
            list,
        };
        let now = self.start + Duration::from_millis(ms);
        self.observations.judge_all(std::slice::from_ref(worker), &evidence, now)[0]
    }

    fn is_dead(&mut self, worker: &WorkerRow, list: Option<HashSet<ConnId>>, ms: u64) -> bool {
        matches!(self.judge(worker, list, ms), Verdict::Dead(_))
    }
}

/// H4: the grace runs from when this sweeper first saw the sessions missing.
#[test]
fn a_worker_is_dead_once_its_sessions_have_been_missing_for_the_grace() {
    let mut case = Case::new();
    let until = case.start + Duration::from_millis(5_000) + GRACE;
    assert_eq!(case.judge(&worker(true, 1), list(&[7, 8]), 0), Verdict::Alive);
    assert_eq!(case.judge(&worker(false, 1), list(&[]), 5_000), Verdict::Wait { until });
    assert_eq!(case.judge(&worker(false, 1), list(&[]), 5_900), Verdict::Wait { until });
    let dead = Verdict::Dead(Death::SessionsGone);
    assert_eq!(case.judge(&worker(false, 1), list(&[]), 6_000), dead);
}

#[test]
fn one_session_in_the_list_or_one_lock_held_is_life() {
    let mut case = Case::new();
    for ms in (0..9_000).step_by(300) {
        assert!(!case.is_dead(&worker(false, 1), list(&[8]), ms));
    }
    let mut case = Case::new();
    for ms in (0..60_000).step_by(300) {
        assert!(!case.is_dead(&worker(true, 1), list(&[]), ms));
    }
}

/// H4, H5: a reconnect within the grace restarts everything.
#[test]
fn sessions_that_come_back_restart_the_grace() {
    let mut case = Case::new();
    case.judge(&worker(false, 1), list(&[]), 0);
    case.judge(&worker(false, 1), list(&[]), 900);
    assert_eq!(case.judge(&worker(true, 2), list(&[7, 8]), 950), Verdict::Alive);
    assert!(!case.is_dead(&worker(false, 2), list(&[]), 1_200));
    // Twice the 950 ms that the reconnect took.
    assert!(!case.is_dead(&worker(false, 2), list(&[]), 3_000));
    assert!(case.is_dead(&worker(false, 2), list(&[]), 3_100));
}

#[test]
fn other_sessions_that_go_missing_restart_the_grace() {
    let mut case = Case::new();
    case.judge(&worker(false, 1), list(&[]), 0);
    let moved = WorkerRow { conn: ConnId(17), ..worker(false, 1) };
    assert!(!case.is_dead(&moved, list(&[]), 1_500));
    assert!(case.is_dead(&moved, list(&[]), 2_500));
}

/// S8, and the janitor without PROCESS: an unproved list proves nothing; the lease decides.
#[test]
fn a_list_that_is_not_proved_complete_never_kills_before_the_lease() {
    for (visibility, list) in
        [(visibility(false, "janitor@%"), list(&[])), (visibility(true, "janitor@%"), None)]
    {
        let mut case = Case { visibility, ..Case::new() };
        for ms in (0..10_000).step_by(300) {
            assert!(!case.is_dead(&worker(false, 1), list.clone(), ms), "at {ms}");
        }
        assert_eq!(case.judge(&worker(false, 1), list, 10_000), Verdict::Dead(Death::Silent));
    }
}

#[test]
fn one_account_for_all_proves_the_list_as_well_as_the_privilege() {
    let mut case = Case { visibility: visibility(false, "app@%"), ..Case::new() };
    case.judge(&worker(false, 1), list(&[]), 0);
    assert!(case.is_dead(&worker(false, 1), list(&[]), 1_000));
}

/// H21: connection ids from before a restart of the server mean nothing.
#[test]
fn after_a_server_restart_a_worker_has_time_to_come_back_and_connection_ids_prove_nothing() {
    for list in [list(&[]), list(&[7, 8]), None] {
        let mut case = Case { incarnation: incarnation(5_000), ..Case::new() };
        for ms in (0..4_000).step_by(300) {
            assert!(!case.is_dead(&worker(false, 1), list.clone(), ms), "at {ms}");
        }
        let dead = Verdict::Dead(Death::SessionsGone);
        assert_eq!(case.judge(&worker(false, 1), list, 4_000), dead);
        let back = WorkerRow { incarnation: incarnation(5_000), ..worker(true, 1) };
        assert_eq!(case.judge(&back, None, 4_100), Verdict::Alive);
    }
}

/// Where nothing proves that the former server is gone, its workers may still be at work there.
#[test]
fn on_another_server_only_a_lost_member_of_its_group_ends_the_lease_early() {
    let here = || Incarnation { server_uid: "other".to_owned(), started_at: 5_000 };
    let group = |members: &[&str]| Some(members.iter().map(|id| (*id).to_owned()).collect());
    for (group, dies_at) in
        [(None, 10_000), (group(&["other", "uid"]), 10_000), (group(&["other", "third"]), 4_000)]
    {
        let mut case = Case { incarnation: here(), group, ..Case::new() };
        for ms in (0..dies_at).step_by(250) {
            assert!(!case.is_dead(&worker(false, 1), list(&[]), ms), "at {ms}");
        }
        assert!(case.is_dead(&worker(false, 1), list(&[]), dies_at));
    }
}

/// A server whose clock is set back has not restarted.
#[test]
fn a_clock_that_goes_back_proves_no_restart() {
    let mut case = Case { incarnation: incarnation(500), ..Case::new() };
    for ms in (0..10_000).step_by(300) {
        assert!(!case.is_dead(&worker(false, 1), list(&[]), ms), "at {ms}");
    }
}

/// H20: a sweeper that had a gap itself knows nothing about time.
#[test]
fn a_gap_of_the_sweeper_gives_every_worker_its_lease_again() {
    let mut case = Case { visibility: visibility(false, "janitor@%"), ..Case::new() };
    assert!(case.observations.restarted(case.start));
    case.judge(&worker(false, 1), list(&[]), 0);
    let gap = case.start + Duration::from_secs(15);
    assert!(case.observations.restarted(gap));
    assert!(!case.observations.restarted(gap));
    assert!(!case.is_dead(&worker(false, 1), list(&[]), 15_000));
    assert!(!case.is_dead(&worker(false, 1), list(&[]), 24_000));
    assert!(case.is_dead(&worker(false, 1), list(&[]), 25_000));
}

#[test]
fn on_a_cluster_beats_alone_decide() {
    let mut case = Case { locks_count: false, ..Case::new() };
    for beat in 0..20 {
        assert!(!case.is_dead(&worker(false, beat), list(&[]), beat * 2_500));
    }
    assert!(!case.is_dead(&worker(true, 19), list(&[7, 8]), 19 * 2_500 + 9_999));
    assert!(case.is_dead(&worker(true, 19), list(&[7, 8]), 19 * 2_500 + 10_000));
}

/// The slowest reconnect of any worker prolongs the grace of every worker.
#[test]
fn a_slow_reconnect_prolongs_the_grace() {
    let mut case = Case::new();
    case.judge(&worker(true, 1), list(&[7, 8]), 0);
    case.judge(&worker(false, 1), list(&[]), 1_000);
    let back = WorkerRow { life_conn: ConnId(18), ..worker(true, 2) };
    assert_eq!(case.judge(&back, list(&[18]), 1_900), Verdict::Alive);
    let gone = WorkerRow { locked: false, ..back };
    case.judge(&gone, list(&[]), 5_000);
    assert!(!case.is_dead(&gone, list(&[]), 6_700));
    assert!(case.is_dead(&gone, list(&[]), 6_800));
}

/// A proxy that restarts cuts everybody off for a moment.
#[test]
fn many_that_are_missing_together_have_longer_to_come_back() {
    let mut case = Case::new();
    let fleet: Vec<_> = (1..=3)
        .map(|n| WorkerRow {
            id: WorkerId(n),
            client_id: format!("host 10.0.0.{n} 1 0b 0"),
            ..worker(false, 1)
        })
        .collect();
    let mut verdicts = |workers: &[WorkerRow], ms| {
        let evidence = Evidence {
            visibility: &case.visibility,
            incarnation: &case.incarnation,
            group: None,
            locks_count: true,
            sees_all: true,
            list: list(&[]),
        };
        case.observations.judge_all(workers, &evidence, case.start + Duration::from_millis(ms))
    };
    let wait = |verdict: &Verdict| matches!(verdict, Verdict::Wait { .. });
    assert!(verdicts(&fleet, 0).iter().all(wait));
    assert!(verdicts(&fleet, 2_900).iter().all(wait));
    assert!(!verdicts(&fleet, 3_000).iter().any(wait));
}

/// This process may share its CPU with the worker: both stood still.
#[test]
fn a_pause_of_the_sweeper_is_no_part_of_the_grace() {
    let mut case = Case::new();
    case.judge(&worker(false, 1), list(&[]), 0);
    case.observations.paused(Duration::from_millis(700));
    assert!(!case.is_dead(&worker(false, 1), list(&[]), 1_600));
    assert!(case.is_dead(&worker(false, 1), list(&[]), 1_700));
}
