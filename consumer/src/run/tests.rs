use std::sync::{Arc, Mutex};

use tokio::task::{Id, try_id};

use super::*;

type Place = Arc<Mutex<Option<Id>>>;

/// Executes a handler after a run of it that took so long; `None`: it has not run yet.
async fn execute_after(
    last: Option<Duration>,
    run: impl Future<Output = ()> + Send + 'static,
) -> (Vec<Ending>, Pace) {
    let pace = Pace::default();
    last.into_iter().for_each(|took| pace.learn(took));
    let run = run.map(|()| vec![Ending::Undone(RunOutcome::Returned(Ok(())))]).boxed();
    let execution = Execution { run, deliveries: 1, give_up: None };
    let (token, stop) = (CancellationToken::new(), CancellationToken::new());
    (execute(execution, None, token, stop, &pace).await, pace)
}

/// Returns the task in which a handler ran; `None`: in that of the test.
async fn task_after(last: Option<Duration>, wait: Duration) -> (Option<Id>, Pace) {
    let place = Place::default();
    let seen = Arc::clone(&place);
    let run = async move {
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
        *seen.lock().unwrap() = try_id();
    };
    let (endings, pace) = execute_after(last, run).await;
    assert!(matches!(endings[..], [Ending::Undone(RunOutcome::Returned(Ok(())))]), "{endings:?}");
    let task = *place.lock().unwrap();
    (task, pace)
}

#[tokio::test]
async fn a_handler_that_was_quick_runs_in_the_task_of_its_topic() {
    assert!(task_after(None, Duration::ZERO).await.0.is_some(), "nothing is known of it");
    assert!(task_after(Some(Duration::from_millis(1)), Duration::ZERO).await.0.is_some());
    assert!(task_after(Some(Duration::ZERO), Duration::ZERO).await.0.is_none());
}

#[tokio::test]
async fn a_handler_that_was_quick_and_now_waits_gets_a_task_and_is_quick_no_more() {
    let (task, pace) = task_after(Some(Duration::ZERO), Duration::from_millis(1)).await;
    assert!(task.is_some() && !pace.is_quick());
}

#[tokio::test]
async fn a_panic_of_a_quick_handler_is_its_outcome() {
    for last in [None, Some(Duration::ZERO)] {
        let (endings, _) = execute_after(last, async { panic!("on purpose") }).await;
        let [Ending::Undone(RunOutcome::Panicked(text))] = &endings[..] else {
            panic!("{endings:?}")
        };
        assert_eq!(text, "on purpose");
    }
}
