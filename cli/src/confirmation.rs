use std::io::{IsTerminal, Write, stderr, stdin};

use anyhow::bail;

/// Asks on the terminal before `what` is deleted.
///
/// # Errors
/// If there is no terminal to ask on.
pub(crate) fn is_confirmed(what: &str, question: &str) -> anyhow::Result<bool> {
    if !stdin().is_terminal() {
        bail!("Deleting the {what} cannot be undone: add --yes where no person can be asked.");
    }
    write!(stderr(), "{question} [y/N] ")?;
    let mut answer = String::new();
    stdin().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}
