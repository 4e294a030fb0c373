use std::fmt;

use rowmq_service::process::sentence;

/// What a program's `main` returns.
pub type Outcome = Result<(), Failure>;

/// Why a worker's program ended, or could not start: one sentence that says what is wrong, where,
/// and what to do. Every error becomes one by `?`.
///
/// `main` prints its error with `Debug`; so that users can read it, `Debug` prints the sentence
/// too.
pub struct Failure(anyhow::Error);

impl Failure {
    pub(crate) fn new(error: anyhow::Error) -> Self {
        Self(error)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&sentence(&self.0))
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// `Failure` is not an `Error` itself: this conversion would then clash with that of a type to
/// itself.
impl<E: std::error::Error + Send + Sync + 'static> From<E> for Failure {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn main_prints_a_sentence() {
        let failure: Failure = rowmq_core::Error::InvalidPriority { level: 10 }.into();
        let text = "Priority 10 does not exist: use 0 (first) to 9 (last).";
        assert_eq!((failure.to_string(), format!("{failure:?}")), (text.into(), text.into()));
    }
}
