use std::collections::BinaryHeap;

use super::*;

/// Topics on a clock of their own: when their runs end, and how often each topic has run.
struct Scene {
    topics: Vec<Topic>,
    /// Runs under way by their ends, the earliest first.
    ends: BinaryHeap<(std::cmp::Reverse<Instant>, usize)>,
    now: Instant,
}

struct Topic {
    share: Share,
    took: Duration,
    /// How many messages wait.
    backlog: usize,
    runs: u32,
    time: Duration,
}

impl Scene {
    fn new(slots: usize, topics: &[(u32, u64)]) -> Self {
        let shares = Shares::new(slots);
        let topic = |(weight, ms): &(u32, u64)| Topic {
            share: shares.join(*weight),
            took: Duration::from_millis(*ms),
            backlog: usize::MAX,
            runs: 0,
            time: Duration::ZERO,
        };
        let topics = topics.iter().map(topic).collect();
        Self { topics, ends: BinaryHeap::new(), now: Instant::now() }
    }

    /// Starts every run that can start.
    fn start(&mut self) {
        let mut started = true;
        while started {
            started = false;
            for (at, topic) in self.topics.iter_mut().enumerate() {
                while topic.backlog > 0 {
                    let Some(slot) = topic.share.take(self.now) else { break };
                    // Given back by hand, at the time of the scene.
                    std::mem::forget(slot);
                    topic.backlog -= 1;
                    topic.runs += 1;
                    topic.time += topic.took;
                    self.ends.push((std::cmp::Reverse(self.now + topic.took), at));
                    started = true;
                }
                if topic.backlog == 0 {
                    topic.share.content();
                }
            }
        }
    }

    fn play(&mut self, time: Duration) {
        let end = self.now + time;
        self.start();
        while let Some((std::cmp::Reverse(at), topic)) = self.ends.pop() {
            self.now = at;
            let share = &self.topics[topic].share;
            Share::give_back(&share.table, topic, at);
            self.start();
            if at >= end {
                return;
            }
        }
        self.now = end;
    }

    /// Returns each topic's percentage of the slots' time, and starts to count again.
    fn shares(&mut self) -> Vec<u128> {
        let times = self.topics.iter_mut().map(|topic| std::mem::take(&mut topic.time));
        let times: Vec<_> = times.map(|time| time.as_millis()).collect();
        let all = times.iter().sum::<u128>().max(1);
        times.iter().map(|time| (time * 100 + all / 2) / all).collect()
    }
}

const LONG: Duration = Duration::from_secs(100);

#[track_caller]
fn about(shares: &[u128], expected: &[u128]) {
    let is_near = |(a, b): (&u128, &u128)| a.abs_diff(*b) <= 3;
    assert!(shares.iter().zip(expected).all(is_near), "{shares:?}, not {expected:?}");
}

#[test]
fn topics_with_work_share_the_slots_by_their_weights() {
    for slots in [1, 2, 7] {
        let mut scene = Scene::new(slots, &[(1, 10), (2, 10), (7, 10)]);
        scene.play(LONG);
        about(&scene.shares(), &[10, 20, 70]);
    }
}

#[test]
fn slow_handlers_get_no_larger_share_than_fast_ones() {
    let mut scene = Scene::new(4, &[(1, 400), (1, 10)]);
    scene.play(LONG);
    about(&scene.shares(), &[50, 50]);
    assert!(scene.topics[1].runs > 30 * scene.topics[0].runs);
}

#[test]
fn no_topic_starves() {
    let mut scene = Scene::new(2, &[(1, 10), (1000, 10)]);
    scene.play(LONG);
    let runs = scene.topics[0].runs;
    assert!((10..100).contains(&runs), "{runs} of 20000");
}

#[test]
fn what_a_topic_does_not_want_the_others_use() {
    let mut scene = Scene::new(4, &[(1, 10), (3, 10), (4, 10)]);
    scene.topics[2].backlog = 0;
    scene.play(LONG);
    about(&scene.shares(), &[25, 75, 0]);
    let all = scene.topics[0].runs + scene.topics[1].runs;
    assert!(all >= 4 * 10_000 - 10, "the slots were never idle: {all}");
}

/// Otherwise the topic would get every slot in the first minute after an idle night.
#[test]
fn a_topic_that_was_away_comes_back_to_its_share_and_no_more() {
    let mut scene = Scene::new(4, &[(1, 10), (1, 10)]);
    scene.topics[1].backlog = 0;
    scene.play(LONG);
    scene.topics[1].backlog = usize::MAX;
    scene.shares();
    scene.play(Duration::from_secs(2));
    about(&scene.shares(), &[50, 50]);
}

#[tokio::test]
async fn whose_turn_it_is_is_woken_when_a_slot_comes_free() {
    let shares = Shares::new(1);
    let (first, second) = (shares.join(1), shares.join(1));
    let slot = first.take(Instant::now()).expect("it is free");
    assert!(second.take(Instant::now()).is_none());
    drop(slot);
    second.turn().await;
    assert!(first.take(Instant::now()).is_none(), "it has used more, and the other one waits");
    second.turn().await;
    // No topic waits for one that no longer wants a slot.
    second.content();
    first.turn().await;
    assert!(first.take(Instant::now()).is_some());
}

/// Neither topic gets extra slots for the time that it was away, even if no topic had work when it
/// came back.
#[test]
fn who_worked_alone_for_long_does_not_wait_for_as_long() {
    let mut scene = Scene::new(1, &[(1, 10), (1, 10)]);
    scene.topics[0].backlog = 0;
    scene.play(LONG);
    scene.topics[1].backlog = 0;
    scene.play(Duration::from_secs(1));
    scene.now += Duration::from_secs(10);
    scene.topics[0].backlog = usize::MAX;
    scene.play(Duration::from_secs(1));
    scene.shares();
    scene.topics[1].backlog = usize::MAX;
    scene.play(LONG);
    about(&scene.shares(), &[50, 50]);
}
