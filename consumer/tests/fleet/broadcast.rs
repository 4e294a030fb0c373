use std::collections::HashSet;
use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rowmq_core::MsgId;
use rustix::process::Signal;

use crate::fleet::{Fleet, Start};

/// Returns what these processes have handled, and how often they handled a message again.
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

/// Each of five members gets everything: two are killed repeatedly, and continue under their names.
#[tokio::test(flavor = "multi_thread")]
async fn a_named_member_that_is_killed_goes_on_and_loses_nothing() {
    let mut fleet = Fleet::of_broadcast(2).await;
    let settings = ["a", "b", "c"].map(|name| [("ROWMQ_CONSUMER_MEMBER", name)]);
    let mut members: Vec<Vec<usize>> = Vec::new();
    for named in &settings {
        members.push(vec![fleet.start(&Start { work_ms: 5, settings: named, ..Start::default() })]);
    }
    for _ in 0..2 {
        members.push(vec![fleet.start(&Start { work_ms: 5, ..Start::default() })]);
    }
    let mut ids: HashSet<_> = fleet.enqueue(1500).await.into_iter().collect();
    for _ in 0..2 {
        for (member, named) in members.iter_mut().zip(&settings).take(2) {
            let victim = *member.last().expect("a process");
            // It may have handled the others already under its name.
            ids.extend(fleet.enqueue(200).await);
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

/// A process that is killed when the test ends.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// Starts a `rowmq-consumer exec` as the member `cache-1`, which appends each body to a file.
fn exec_as_member(fleet: &Fleet, folder: &Path, name: &str) -> Process {
    let errors = File::create(folder.join(format!("{name}.err"))).expect("a log");
    let append = r#"{ cat; echo; } >> "$0""#;
    let child = Command::new(env!("CARGO_BIN_EXE_rowmq-consumer"))
        .args(["--member", "cache-1", "exec", fleet.consumed.name.as_str()])
        .args(["--concurrency", "1", "--", "sh", "-c", append])
        .arg(folder.join(name))
        .env("ROWMQ_URL", fleet.database.url().expose())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(errors)
        .spawn();
    Process(child.expect("the consumer starts"))
}

fn lines(folder: &Path, name: &str) -> usize {
    fs::read_to_string(folder.join(name)).map_or(0, |text| text.lines().count())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_whose_name_is_taken_says_so_and_goes_on_when_the_other_is_killed() {
    let fleet = Fleet::of_broadcast(1).await;
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let first = exec_as_member(&fleet, folder, "first");
    fleet.enqueue(10).await;
    fleet.until("handled", async || lines(folder, "first") == 10).await;
    let _second = exec_as_member(&fleet, folder, "second");
    fleet
        .until("it says why it waits", async || {
            let said = fs::read_to_string(folder.join("second.err")).unwrap_or_default();
            said.contains("give this one a name of its own") && said.contains("cache-1")
        })
        .await;
    fleet.enqueue(10).await;
    fleet.until("handled", async || lines(folder, "first") == 20).await;
    assert_eq!(lines(folder, "second"), 0);
    drop(first);
    fleet.enqueue(10).await;
    fleet.until("handled by the other", async || lines(folder, "second") >= 10).await;
    let text = fs::read_to_string(folder.join("second")).expect("its lines");
    let handled: HashSet<_> = text.lines().collect();
    assert!((0..10).all(|n| handled.contains(format!("message {n}").as_str())));
}
