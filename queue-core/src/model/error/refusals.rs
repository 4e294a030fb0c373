//! Why none of several hosts takes writes.

use super::{Error, Fault};

/// Each host's refusal, in one line.
pub(super) fn list_refusals(refusals: &[Error]) -> String {
    let short = |error: &Error| match error {
        Error::Connect { server, reason, .. } | Error::ReadOnly { server, reason } => {
            format!("{server}: {reason}")
        }
        other => other.to_string(),
    };
    refusals.iter().map(short).collect::<Vec<_>>().join("; ")
}

/// The fault of all refusals together. A retry is worthwhile while one of the hosts may come back
/// or become the writer.
pub(super) fn common_fault(refusals: &[Error]) -> Fault {
    let faults = || refusals.iter().map(Error::fault);
    let transient = [Fault::Gone, Fault::Busy, Fault::ReadOnly].into_iter();
    transient
        .chain(faults())
        .find(|fault| faults().any(|found| found == *fault))
        .unwrap_or(Fault::Other)
}
