use std::collections::HashSet;

use queue_core::MsgId;
use rustix::process::Signal;

use crate::fleet::{Fleet, Start};

/// What these processes have handled, and how often they handled something again.
fn handled(fleet: &Fleet, processes: &[usize]) -> (HashSet<MsgId>, usize) {
    let (mut ids, mut again) = (HashSet::new(), 0);
    for (id, history) in fleet.histories() {
        let times = history.ends.iter().filter(|(process, _)| processes.contains(process)).count();
        if times > 0 {
            ids.insert(id);
            again += times - 1;
        }
    }
    (ids, again)
}

/// Each of five members sees everything: two are killed over and over, and go on under their names.
#[tokio::test(flavor = "multi_thread")]
async fn a_named_member_that_is_killed_goes_on_and_loses_nothing() {
    let mut fleet = Fleet::of_broadcast(2).await;
    let settings = ["a", "b", "c"].map(|name| [("QUEUE_CONSUMER_MEMBER", name)]);
    let mut members: Vec<Vec<usize>> = Vec::new();
    for named in &settings {
        members.push(vec![fleet.start(&Start { work_ms: 5, settings: named, ..Start::default() })]);
    }
    for _ in 0..2 {
        members.push(vec![fleet.start(&Start { work_ms: 5, ..Start::default() })]);
    }
    let ids: HashSet<_> = fleet.enqueue(1500).await.into_iter().collect();
    for _ in 0..2 {
        for (member, named) in members.iter_mut().zip(&settings).take(2) {
            let victim = *member.last().expect("a process");
            fleet.until("at work", async || fleet.begun(victim) > 50).await;
            fleet.signal(victim, Signal::KILL);
            fleet.ended(victim).await;
            let next = Start { work_ms: 5, settings: named, ..Start::default() };
            member.push(fleet.start(&next));
        }
    }
    for (n, processes) in members.iter().enumerate() {
        fleet.until("all handled", async || handled(&fleet, processes).0 == ids).await;
        let (_, again) = handled(&fleet, processes);
        println!("member {n}: {again} of {} messages were handled again", ids.len());
        assert!(processes.len() > 1 || again == 0, "{again} again without a kill");
        assert!(again < ids.len() / 2, "{again} messages were handled again");
    }
}
