//! `producer send`: reads, sends in batches, sums up.

mod arguments;
mod bar;
mod input;
mod intake;
mod ndjson;
mod pace;
mod summary;

use std::ops::ControlFlow::{self, Break, Continue};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use producer::{Producer, Progress, ProgressListener, SendError};
use queue_core::{Enqueued, NewMessage, TopicName, doctor};
use queue_service::endpoint::{self, Health};
use queue_service::logging;
use queue_service::process::sentence;
use queue_service::signals::{Shutdown, shutdown_on_signals};
use signal_hook::consts::{SIGINT, SIGTERM};

pub(crate) use self::arguments::Arguments;
use self::bar::Bar;
use self::input::Input;
use self::intake::{Intake, Item};
use self::pace::Pace;
use self::summary::Summary;

/// How often the loop turns while there is no input.
const TURN: Duration = Duration::from_secs(5);

/// Sends the input; the exit code.
///
/// # Errors
/// What keeps it from beginning, and an input that cannot be read further.
pub(crate) async fn run(mut arguments: Arguments) -> anyhow::Result<ExitCode> {
    logging::init(&arguments.service);
    let signal = last_signal()?;
    let shutdown = shutdown_on_signals()?;
    let url = arguments.server.url()?;
    let input = Input::open(&mut arguments)?;
    let health = Health::new();
    endpoint::serve(arguments.service.metrics, health.clone(), shutdown.quit.clone()).await?;
    doctor::require(&url).await?;

    let bar = if input.is_file_or_pipe() { Bar::new(input.size()) } else { Bar::hidden() };
    let resent = Arc::new(AtomicU64::new(0));
    let mut options = arguments.producer_options();
    options.on_progress = Some(listener(&bar, &resent, &health));
    let producer = Producer::connect(url, options).await?;
    health.ready(Ok(()));

    let place = Box::new(input.place());
    let intake = Arc::new(Intake::default());
    input.read_into(Arc::clone(&intake))?;
    let started = Instant::now();
    let mut sending = Sending {
        producer,
        topic: arguments.topic,
        skip_bad: arguments.skip_bad,
        bar,
        place,
        shutdown,
        summary: Summary::default(),
    };
    let read = sending.all(&intake, Pace::new(arguments.rate), arguments.batch, &health).await;
    let mut summary = sending.end().await.took(started.elapsed());
    summary.resent = resent.load(Ordering::Relaxed);
    summary.print(arguments.json)?;
    read?;
    Ok(exit_code(&summary, signal.load(Ordering::Relaxed)))
}

/// The number of the signal that came last; 0 before the first.
fn last_signal() -> anyhow::Result<Arc<AtomicUsize>> {
    let last = Arc::new(AtomicUsize::new(0));
    for (signal, number) in [(SIGINT, 2), (SIGTERM, 15)] {
        signal_hook::flag::register_usize(signal, Arc::clone(&last), number)
            .context("Cannot take signals")?;
    }
    Ok(last)
}

/// 0 if all was sent; as a shell would see a process ended by the signal if one left input unsent.
fn exit_code(summary: &Summary, signal: usize) -> ExitCode {
    match u8::try_from(signal) {
        _ if summary.is_whole() => ExitCode::SUCCESS,
        Ok(signal @ 1..=127) => ExitCode::from(128 + signal),
        _ => ExitCode::FAILURE,
    }
}

fn listener(bar: &Bar, resent: &Arc<AtomicU64>, health: &Health) -> ProgressListener {
    let (bar, resent, health) = (bar.clone(), Arc::clone(resent), health.clone());
    ProgressListener::new(move |progress| {
        health.alive();
        match progress {
            Progress::Waiting { error, .. } => bar.waiting(&error.to_string()),
            Progress::Resending { messages, .. } => {
                resent.fetch_add(messages as u64, Ordering::Relaxed);
            }
            _ => {}
        }
    })
}

/// The sending of one input.
struct Sending {
    producer: Producer,
    topic: TopicName,
    skip_bad: bool,
    bar: Bar,
    place: Box<dyn Fn(u64) -> String>,
    shutdown: Shutdown,
    summary: Summary,
}

/// A message and where it comes from.
struct Sourced {
    number: u64,
    end: u64,
    message: NewMessage,
}

impl Sending {
    /// Sends what `intake` gives until its end, a failure or a signal.
    async fn all(
        &mut self,
        intake: &Intake,
        mut pace: Pace,
        batch: u32,
        health: &Health,
    ) -> anyhow::Result<()> {
        let limit = pace.batch(batch as usize);
        // Until the end is reached, something is left.
        self.summary.left = true;
        loop {
            health.alive();
            let items = tokio::select! {
                biased;
                () = self.shutdown.drain.cancelled() => break,
                items = intake.take(limit) => items?,
                () = tokio::time::sleep(TURN) => continue,
            };
            if items.is_empty() {
                self.summary.left = false;
                break;
            }
            let booked = tokio::time::sleep_until(pace.book(items.len()));
            if self.shutdown.drain.run_until_cancelled(booked).await.is_none() {
                intake.stop();
                return Ok(());
            }
            if self.items(items).await.is_break() {
                break;
            }
        }
        // After a signal, perhaps nothing is left all the same.
        self.summary.left = self.summary.left && intake.stop();
        Ok(())
    }

    /// Sends a batch as it was read, with what is no message in between.
    async fn items(&mut self, items: Vec<Item>) -> ControlFlow<()> {
        let mut batch = Vec::with_capacity(items.len());
        for Item { number, end, message } in items {
            match message {
                Ok(message) => batch.push(Sourced { number, end, message }),
                Err(why) => {
                    self.batch(std::mem::take(&mut batch)).await?;
                    let place = (self.place)(number);
                    self.bad(&format!("{place} is no message: {why}"))?;
                }
            }
        }
        self.batch(batch).await
    }

    /// Sends a batch. If a message of it is refused for what it is, the batch is halved until that
    /// message is alone: the others lose nothing by its company.
    async fn batch(&mut self, batch: Vec<Sourced>) -> ControlFlow<()> {
        let mut parts = vec![batch];
        while let Some(mut part) = parts.pop() {
            let n = part.len() as u64;
            let Some(last) = part.last() else { continue };
            let (number, end) = (last.number, last.end);
            let messages = part.iter().map(|sourced| sourced.message.clone()).collect();
            match self.send(messages).await {
                Ok(enqueued) => {
                    self.summary.sent += n;
                    let there = enqueued.iter().filter(|one| !one.is_stored()).count();
                    self.summary.duplicates += there as u64;
                    self.bar.sent(self.summary.sent, end);
                }
                Err(error) if error.is_about_message() && n > 1 => {
                    let tail = part.split_off(part.len() / 2);
                    parts.extend([tail, part]);
                }
                Err(error) if error.is_about_message() => {
                    let place = (self.place)(number);
                    self.bad(&format!("{place} was not sent: {}", sentence(&error.into())))?;
                }
                Err(error) => {
                    self.summary.failed += n;
                    if matches!(error, SendError::Unknown { .. }) {
                        self.summary.unknown += n;
                    }
                    self.bar.say(&reason(error));
                    return Break(());
                }
            }
        }
        Continue(())
    }

    /// Sends messages, unless a second signal says not to wait for the answer.
    async fn send(&self, messages: Vec<NewMessage>) -> Result<Vec<Enqueued>, SendError> {
        let unknown = SendError::Unknown {
            topic: self.topic.clone(),
            messages: messages.len(),
            reason: "stopped at once by a signal".to_owned(),
        };
        let sent = self.producer.send_all(&self.topic, messages);
        self.shutdown.quit.run_until_cancelled(sent).await.unwrap_or(Err(unknown))
    }

    /// Counts and reports something that cannot be sent.
    fn bad(&mut self, sentence: &str) -> ControlFlow<()> {
        self.summary.failed += 1;
        if self.skip_bad {
            self.bar.say(sentence);
            return Continue(());
        }
        let sentence = sentence.trim_end_matches('.');
        self.bar.say(&format!("{sentence}; correct it, or go on past it with --skip-bad"));
        Break(())
    }

    /// Closes the producer, unless that is not to be waited for.
    async fn end(self) -> Summary {
        self.bar.finish();
        let closed = self.producer.close();
        // Cut short, it leaves a row that the janitor prunes.
        let _cut_short = self.shutdown.quit.run_until_cancelled(closed).await;
        self.summary
    }
}

/// The error as one sentence, with the fix where the project knows one.
fn reason(error: SendError) -> String {
    match error {
        SendError::Refused(error) => sentence(&error.into()),
        error => sentence(&error.into()),
    }
}
