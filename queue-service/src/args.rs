//! The command line arguments that every process takes.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::Parser;
use clap::error::ErrorKind;
use rowmq_core::connection::{ServerUrl, Tls};
use tracing_subscriber::EnvFilter;

use crate::command_group::{CommandGroup, in_groups};
use crate::config::{File, Setting};
use crate::endpoint::address;
use crate::location::{self, Located, from_file, written};
use crate::logging::{self, LogFormat};
use crate::paperwork;

/// Reads the command line of a process that has no settings. A refused value becomes one line on
/// standard error, `name: sentence`; other wrong usage gets clap's own words. Both exit with 2. A
/// process that was only asked for completions or manual pages writes them and exits.
#[must_use]
pub fn parse<T: Parser>() -> T {
    parse_in_groups(&[])
}

/// As [`parse`]; `--help` lists the program's commands in these groups.
#[must_use]
pub fn parse_in_groups<T: Parser>(groups: &[CommandGroup]) -> T {
    let mut command = in_groups(paperwork::command_line::<T>(), groups);
    let parsed = command.try_get_matches_from_mut(std::env::args_os()).and_then(|matches| {
        paperwork::answer(paperwork::command_line::<T>(), &matches);
        T::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
    });
    parsed.unwrap_or_else(|error| {
        if error.kind() != ErrorKind::ValueValidation {
            error.exit();
        }
        let text = error.to_string();
        let text = text.lines().next().unwrap_or_default();
        let text = text.strip_prefix("error: ").unwrap_or(text);
        crate::process::complain(text);
        std::process::exit(2)
    })
}

/// Where the server is. Flatten it into a process's own arguments.
///
/// There is no `--url`: every local user reads the command lines of all processes, and the URL
/// holds the password.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Server")]
pub struct ServerArgs {
    /// File that holds the server's URL: `mysql://user:password@host:3306/database`; of a cluster
    /// all hosts, as in `db1:3306,db2:3306`. Without it, in this order: the environment variable
    /// `ROWMQ_URL`, the systemd credential `rowmq-url`, and `url` or `url_file` in the
    /// configuration.
    #[arg(long, env = "ROWMQ_URL_FILE", value_name = "FILE", global = true)]
    pub url_file: Option<PathBuf>,
    /// Configuration in TOML: `url` or `url_file`, and a table of settings for each process.
    #[arg(long, env = "ROWMQ_CONFIG", value_name = "FILE", global = true)]
    pub config: Option<PathBuf>,
}

impl Located {
    /// Returns the location as [`Settings::show`](crate::config::Settings::show) prints it, without
    /// the password.
    #[must_use]
    pub fn shown(&self) -> Setting {
        let tls = match self.url.tls() {
            Tls::Verified => "TLS, verified",
            Tls::Unverified => "TLS, unverified",
            Tls::Disabled => "no TLS",
        };
        Setting {
            name: "server".to_owned(),
            value: format!("{} on {}, {tls}", self.url.database(), self.url.server()),
            from: self.from.clone(),
        }
    }
}

impl ServerArgs {
    /// Returns the files and directories that hold the server's URL or other secrets of this
    /// process.
    #[must_use]
    pub fn secrets(&self) -> Vec<PathBuf> {
        let credentials = std::env::var_os("CREDENTIALS_DIRECTORY").map(PathBuf::from);
        let configured = self.config.as_deref().and_then(|path| {
            let file = File::read(path, None).ok()?;
            match file.location.get("url_file") {
                Some(named) => Some(file.beside(&named.values.concat())),
                None => file.location.contains_key("url").then(|| path.to_owned()),
            }
        });
        self.url_file.iter().cloned().chain(credentials).chain(configured).collect()
    }

    /// Returns the server's URL from the first place that has one.
    ///
    /// # Errors
    /// One sentence when no place has one, a file cannot be read, or the URL is not usable.
    pub fn url(&self) -> anyhow::Result<ServerUrl> {
        Ok(self.located()?.url)
    }

    /// Returns the URL, and the place where it was found.
    ///
    /// # Errors
    /// As [`Self::url`].
    pub fn located(&self) -> anyhow::Result<Located> {
        location::locate(self.url_file.as_deref(), || match self.config.as_deref() {
            Some(path) => in_config(path),
            None => Ok(None),
        })
    }
}

/// Finds the server's URL at the top of the configuration.
fn in_config(path: &Path) -> anyhow::Result<Option<Located>> {
    let file = File::read(path, None)?;
    let place = |name: &str| file.location.get(name).map(|entry| (entry, file.place(entry)));
    match (place("url"), place("url_file")) {
        (Some((url, place)), None) => written(url.values.concat().trim(), place).map(Some),
        (None, Some((named, place))) => {
            from_file(&file.beside(&named.values.concat())).map(Some).context(place)
        }
        (Some(_), Some((_, place))) => {
            bail!("{place}: the file has both url and url_file: keep one of them")
        }
        (None, None) => Ok(None),
    }
}

/// The logs and metrics of a long-running process. Flatten it into a process's own arguments.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Observation")]
pub struct ServiceArgs {
    /// Serve /metrics, /livez and /readyz on ADDRESS:PORT, or on PORT of 127.0.0.1. Port 0 takes a
    /// free one and logs it. Off by default.
    #[arg(
        long,
        env = "ROWMQ_METRICS",
        value_name = "[ADDRESS:]PORT",
        value_parser = address,
        global = true
    )]
    pub metrics: Option<SocketAddr>,
    /// What is logged: error, warn, info, debug or trace, or such a level for each part, as in
    /// `info,rowmq_core=debug`.
    #[arg(
        long,
        env = "RUST_LOG",
        value_name = "FILTER",
        default_value = "info",
        value_parser = filter,
        global = true
    )]
    pub log: String,
    /// Check the command line, the environment, the configuration file and the files they name;
    /// print what holds and where it comes from, and start nothing. Exit code 2 if something is
    /// wrong.
    #[arg(long, global = true)]
    pub check: bool,
    /// How logs are written to standard error.
    #[arg(
        long,
        env = "ROWMQ_LOG_FORMAT",
        value_name = "FORMAT",
        value_enum,
        default_value_t,
        global = true
    )]
    pub log_format: LogFormat,
}

impl ServiceArgs {
    /// Starts the process's logs. A second call changes nothing.
    pub fn start_logs(&self) {
        logging::start(&self.log, self.log_format);
    }
}

/// Parses the log filter; an empty `RUST_LOG` counts as none.
fn filter(text: &str) -> Result<String, String> {
    let text = if text.trim().is_empty() { "info" } else { text };
    match EnvFilter::try_new(text) {
        Ok(_) => Ok(text.to_owned()),
        Err(_) => Err("it looks like info, or info,rowmq_core=debug".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_file_is_read_and_its_content_never_shown() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("url");
        let args = ServerArgs { url_file: Some(file.clone()), config: None };
        let shown = |args: &ServerArgs| format!("{:#}", args.url().expect_err("refused"));
        assert!(shown(&args).contains("Cannot read the server's URL"));
        std::fs::write(&file, "\n").expect("written");
        assert!(shown(&args).contains("is empty"));
        std::fs::write(&file, "mysql://u:geheim@127.0.0.1").expect("written");
        assert!(shown(&args).contains("names no database"));
        assert!(!shown(&args).contains("geheim"));
        std::fs::write(&file, "mysql://u:geheim@127.0.0.1/q\n").expect("written");
        assert_eq!(args.url().expect("usable").database(), "q");
        std::fs::write(&file, "mysql://u:geheim@127.0.0.1:1,[::1]:2/q\n").expect("written");
        assert_eq!(args.url().expect("usable").servers(), ["127.0.0.1:1", "[::1]:2"]);
    }

    #[test]
    fn the_files_with_a_url_are_known_wherever_they_are_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        let secrets = |text: &str, url_file: Option<PathBuf>| {
            std::fs::write(at("rowmq.toml"), text).expect("written");
            let secrets = ServerArgs { url_file, config: Some(at("rowmq.toml")) }.secrets();
            secrets.into_iter().filter(|it| it.starts_with(folder.path())).collect::<Vec<_>>()
        };
        assert_eq!(secrets("url = \"mysql://u:p@h/q\"\n", None), [at("rowmq.toml")]);
        assert_eq!(secrets("url_file = \"url\"\n", None), [at("url")]);
        assert_eq!(secrets("", Some(at("other"))), [at("other")]);
    }
}
