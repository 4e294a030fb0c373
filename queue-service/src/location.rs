//! Finds the server by the environment and the files that it names.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use rowmq_core::connection::ServerUrl;

/// The name of the systemd credential that holds the URL.
const CREDENTIAL: &str = "rowmq-url";

/// Returns the file of a systemd credential, if the service was given one of this name.
#[must_use]
pub fn credential(name: &str) -> Option<PathBuf> {
    let file = Path::new(&std::env::var_os("CREDENTIALS_DIRECTORY")?).join(name);
    file.exists().then_some(file)
}

/// A server's URL and where it was found.
#[derive(Debug, Clone)]
pub struct Located {
    /// The URL.
    pub url: ServerUrl,
    /// The place where it was found.
    pub from: String,
}

/// Finds the server's URL in the first place that has one: `url_file`, the variable `ROWMQ_URL`,
/// the systemd credential `rowmq-url`, what `configured` finds.
///
/// # Errors
/// One sentence when no place has one, a file cannot be read, or the URL is not usable.
pub fn locate(
    url_file: Option<&Path>,
    configured: impl FnOnce() -> anyhow::Result<Option<Located>>,
) -> anyhow::Result<Located> {
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    if let Some(former) = names.into_iter().find(|name| is_former(name)) {
        bail!("{former} is called {} now: rename it", renamed(&former));
    }
    if let Some(file) = url_file {
        return from_file(file);
    }
    if let Some(url) = std::env::var_os("ROWMQ_URL").filter(|url| !url.is_empty()) {
        let url = url.into_string().ok().context("ROWMQ_URL is not UTF-8: correct it")?;
        let url = ServerUrl::new(url.trim())?;
        return Ok(Located { url, from: "ROWMQ_URL".to_owned() });
    }
    if let Some(file) = credential(CREDENTIAL) {
        return from_file(&file);
    }
    if let Some(located) = configured()? {
        return Ok(located);
    }
    if std::env::var_os(FORMER_URL).is_some() {
        bail!("{FORMER_URL} is not read, it may be another program's: call it ROWMQ_URL");
    }
    bail!(
        "No server is named: set ROWMQ_URL=mysql://user:password@host:3306/database, or \
         ROWMQ_URL_FILE to a file that holds it"
    )
}

/// Does what [`locate`] does, by the environment alone: `ROWMQ_URL_FILE`, `ROWMQ_URL`, the systemd
/// credential.
///
/// # Errors
/// As [`locate`].
pub fn from_env() -> anyhow::Result<Located> {
    let file = std::env::var_os("ROWMQ_URL_FILE").filter(|file| !file.is_empty());
    locate(file.as_deref().map(Path::new), || Ok(None))
}

/// The name of `ROWMQ_URL` before the product had a name. Users of other queues may have it set
/// too.
const FORMER_URL: &str = "QUEUE_URL";

/// Returns whether a variable was a setting before the product had a name. It is refused, because a
/// user who has it set relies on it.
fn is_former(variable: &str) -> bool {
    let alone = ["QUEUE_URL_FILE", "QUEUE_CONFIG", "QUEUE_METRICS", "QUEUE_LOG_FORMAT"];
    let of_processes = ["QUEUE_CONSOLE_", "QUEUE_CONSUMER_", "QUEUE_JANITOR_", "QUEUE_PRODUCER_"];
    alone.contains(&variable) || of_processes.iter().any(|prefix| variable.starts_with(prefix))
}

fn renamed(former: &str) -> String {
    former.replacen("QUEUE", "ROWMQ", 1)
}

pub(crate) fn written(url: &str, from: String) -> anyhow::Result<Located> {
    let url = ServerUrl::new(url).with_context(|| format!("In {from}"))?;
    Ok(Located { url, from })
}

/// Reads the URL of another server from the file that a setting names.
///
/// # Errors
/// One sentence when the file cannot be read, or the URL is not usable.
pub fn url_in(file: &Path) -> anyhow::Result<ServerUrl> {
    Ok(from_file(file)?.url)
}

pub(crate) fn from_file(file: &Path) -> anyhow::Result<Located> {
    let text = std::fs::read_to_string(file)
        .with_context(|| format!("Cannot read the server's URL from {}", file.display()))?;
    let url = text.trim();
    if url.is_empty() {
        bail!("{} is empty: put the server's URL into it", file.display());
    }
    written(url, file.display().to_string())
}
