//! What the kernel reports about a process (Linux).

use std::time::Duration;

use anyhow::Context;

/// Clock ticks a second in the kernel's reports, independent of the kernel's own rate.
const TICKS: u64 = 100;

/// Returns the CPU time that a process has used.
pub(crate) fn cpu_time(id: u32) -> anyhow::Result<Duration> {
    let text = read(id, "stat")?;
    // The name, in brackets, may contain anything; after it come numbers.
    let numbers = text.rsplit(')').next().unwrap_or_default().split_whitespace();
    let ticks: u64 = numbers.skip(11).take(2).filter_map(|n| n.parse::<u64>().ok()).sum();
    Ok(Duration::from_millis(ticks * 1000 / TICKS))
}

/// Returns the most memory that a process has had resident, in mebibytes.
pub(crate) fn peak_resident(id: u32) -> anyhow::Result<f64> {
    let text = read(id, "status")?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let number = line.and_then(|line| line.split_whitespace().next());
    let kibibytes: u32 = number.context("The system does not say a process's memory")?.parse()?;
    Ok(f64::from(kibibytes) / 1024.0)
}

fn read(id: u32, file: &str) -> anyhow::Result<String> {
    let path = format!("/proc/{id}/{file}");
    std::fs::read_to_string(&path).with_context(|| format!("Cannot read {path}"))
}
