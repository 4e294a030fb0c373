//! Handlers in a consumer within the test: verdicts, panics, time, order, batches, the pull API.

mod polling;
mod running;
mod runs;
mod verdicts;
