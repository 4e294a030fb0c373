//! What the kernel reports about a process (Linux).

use anyhow::Context;

/// What a process holds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Holding {
    /// Resident memory, in mebibytes.
    pub(super) memory: f64,
    /// Open file descriptors.
    pub(super) descriptors: u32,
    pub(super) threads: u32,
}

impl Holding {
    /// Reads what the process with this id holds now.
    pub(super) fn of(id: u32) -> anyhow::Result<Self> {
        let path = format!("/proc/{id}/status");
        let status =
            std::fs::read_to_string(&path).with_context(|| format!("Cannot read {path}"))?;
        let number = |name: &str| -> anyhow::Result<u32> {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            let number = line.and_then(|line| line.split_whitespace().next());
            Ok(number.with_context(|| format!("{path} has no {name}"))?.parse()?)
        };
        let path = format!("/proc/{id}/fd");
        let open = std::fs::read_dir(&path).with_context(|| format!("Cannot read {path}"))?;
        Ok(Self {
            memory: f64::from(number("VmRSS:")?) / 1024.0,
            descriptors: u32::try_from(open.count())?,
            threads: number("Threads:")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_holds_memory_descriptors_and_threads() {
        let own = Holding::of(std::process::id()).expect("read");
        assert!(own.memory > 0.5, "{own:?}");
        assert!(own.descriptors >= 3, "{own:?}");
        assert!(own.threads >= 1, "{own:?}");
    }
}
