//! `rowmq-producer send`: reads the input, sends it in batches, and prints a summary.

mod arguments;
mod bar;
mod input;
mod intake;
mod pace;
mod sending;
mod summary;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::Context;
use rowmq_producer::{Producer, Progress, ProgressListener};
use rowmq_service::config;
use rowmq_service::config::Settings;
use rowmq_service::endpoint;
use rowmq_service::health::Health;
use rowmq_service::signals::shutdown_on_signals;
use signal_hook::consts::{SIGINT, SIGTERM};

pub(crate) use self::arguments::Arguments;
pub(crate) use self::bar::Bar;
pub(crate) use self::input::Input;
pub(crate) use self::intake::Intake;
pub(crate) use self::pace::Pace;
pub(crate) use self::sending::Sending;
pub(crate) use self::summary::Summary;

/// Sends the input, and returns the exit code.
///
/// # Errors
/// What keeps it from starting, and an input that cannot be read further.
pub(crate) async fn run(mut arguments: Arguments, settings: Settings) -> anyhow::Result<ExitCode> {
    arguments.service.start_logs();
    if arguments.service.check {
        return match arguments.server.located() {
            Ok(located) => settings.show(&[located.shown()]),
            Err(error) => Ok(config::refuse(&error)),
        };
    }
    let signal = last_signal()?;
    let shutdown = shutdown_on_signals()?;
    let url = arguments.server.url()?;
    let input = Input::open(&mut arguments)?;
    let health = Health::new();
    endpoint::serve(arguments.service.metrics, health.clone(), shutdown.quit.clone()).await?;
    arguments.spill.require(&url).await?;

    let bar = if input.is_file_or_pipe() { Bar::new(input.size()) } else { Bar::hidden() };
    let tally = Arc::new(Tally::default());
    let mut options = arguments.producer_options();
    options.on_progress = Some(listener(&bar, &tally, &health));
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
    if !arguments.leave_spilled {
        sending.drained(&health).await;
    }
    let mut summary = sending.end(&arguments.spill).await.took(started.elapsed());
    tally.fill(&mut summary);
    summary.print(arguments.json)?;
    read?;
    Ok(exit_code(&summary, arguments.leave_spilled, signal.load(Ordering::Relaxed)))
}

/// What the producer has reported while it sends, counted in messages.
#[derive(Debug, Default)]
struct Tally {
    resent: AtomicU64,
    spilled: AtomicU64,
    drained: AtomicU64,
    set_aside: AtomicU64,
}

impl Tally {
    fn fill(&self, summary: &mut Summary) {
        summary.resent = self.resent.load(Ordering::Relaxed);
        summary.spilled = self.spilled.load(Ordering::Relaxed);
        summary.drained = self.drained.load(Ordering::Relaxed);
        summary.set_aside = self.set_aside.load(Ordering::Relaxed);
    }
}

/// The number of the latest signal; 0 before the first.
fn last_signal() -> anyhow::Result<Arc<AtomicUsize>> {
    let last = Arc::new(AtomicUsize::new(0));
    for (signal, number) in [(SIGINT, 2), (SIGTERM, 15)] {
        signal_hook::flag::register_usize(signal, Arc::clone(&last), number)
            .context("Cannot take signals")?;
    }
    Ok(last)
}

/// 0 if all was stored, or spilled if that is enough. If a signal left input unsent, the code with
/// which a shell reports a process ended by that signal.
fn exit_code(summary: &Summary, leave_spilled: bool, signal: usize) -> ExitCode {
    match u8::try_from(signal) {
        _ if summary.is_whole(leave_spilled) => ExitCode::SUCCESS,
        Ok(signal @ 1..=127) => ExitCode::from(128 + signal),
        _ => ExitCode::FAILURE,
    }
}

fn listener(bar: &Bar, tally: &Arc<Tally>, health: &Health) -> ProgressListener {
    let (bar, tally, health) = (bar.clone(), Arc::clone(tally), health.clone());
    ProgressListener::new(move |progress| {
        health.alive();
        let (count, messages) = match progress {
            Progress::Waiting { error, .. } => return bar.waiting(&error.to_string()),
            Progress::Resending { messages, .. } => (&tally.resent, messages),
            Progress::Spilled { messages, .. } => (&tally.spilled, messages),
            Progress::Drained { messages, .. } => (&tally.drained, messages),
            Progress::SetAside { messages, .. } => (&tally.set_aside, messages),
            _ => return,
        };
        count.fetch_add(messages as u64, Ordering::Relaxed);
    })
}
