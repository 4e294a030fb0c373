//! Settings from a TOML file and the environment, read with the crate `config`.

use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use config::{Config, Environment, File, FileFormat, Map, Value};
use serde::de::DeserializeOwned;

/// What may stand at the top of the file, which all processes share.
const TOP: [&str; 7] =
    ["url", "url_file", "producer", "consumer", "janitor", "queuectl", "console"];

/// Reads the settings of one process: the table `table` of the file, then the environment, where
/// `QUEUE_CONSUMER_BATCH` stands for `batch` in the table `consumer`.
///
/// `T` names the settings and their defaults; give it `#[serde(default, deny_unknown_fields)]`, so
/// that a misspelt setting is an error. Without a file, or without the table in it, everything
/// comes from the environment and the defaults.
///
/// # Errors
/// One sentence that names the file and the setting.
pub fn load<T: DeserializeOwned>(file: Option<&Path>, table: &str) -> anyhow::Result<T> {
    let variables: Map<String, String> = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect();
    load_from(file, table, variables)
}

fn load_from<T: DeserializeOwned>(
    file: Option<&Path>,
    table: &str,
    variables: Map<String, String>,
) -> anyhow::Result<T> {
    let prefix = format!("QUEUE_{}", table.to_uppercase());
    let settings = match file {
        Some(file) => read(file)?.remove(table),
        None => None,
    };
    let environment =
        Environment::with_prefix(&prefix).prefix_separator("_").source(Some(variables));
    let merged = Config::builder()
        .add_source(Table(settings))
        .add_source(environment)
        .build()
        .and_then(Config::try_deserialize);
    let place = match file {
        Some(file) => format!("In [{table}] of {}, or a variable {prefix}_*", file.display()),
        None => format!("In a variable {prefix}_*"),
    };
    merged.context(place)
}

/// Where the server is, as the top of the file says.
#[derive(Debug, Default)]
pub(crate) struct Location {
    pub(crate) url: Option<String>,
    pub(crate) url_file: Option<PathBuf>,
}

pub(crate) fn location(file: &Path) -> anyhow::Result<Location> {
    let mut top = read(file)?;
    let mut text = |name: &str| {
        let value = top.remove(name).map(Value::into_string).transpose();
        value.with_context(|| format!("In {}", file.display()))
    };
    Ok(Location { url: text("url")?, url_file: text("url_file")?.map(PathBuf::from) })
}

fn read(file: &Path) -> anyhow::Result<Map<String, Value>> {
    let text = std::fs::read_to_string(file)
        .with_context(|| format!("Cannot read the configuration {}", file.display()))?;
    let top: Map<String, Value> = Config::builder()
        .add_source(File::from_str(&text, FileFormat::Toml))
        .build()
        .and_then(Config::try_deserialize)
        .map_err(|error| not_toml(file, &error))?;
    if let Some(name) = top.keys().find(|name| !TOP.contains(&name.as_str())) {
        bail!(
            "{} has '{name}' at its top, where only {} may stand",
            file.display(),
            TOP.join(", ")
        );
    }
    Ok(top)
}

/// The parser quotes the line it stumbled over, which may hold the password: only its place is
/// told, which is in the first line of the parser's text.
fn not_toml(file: &Path, error: &config::ConfigError) -> anyhow::Error {
    let text = error.to_string();
    let place = text.lines().next().unwrap_or_default();
    anyhow!("{} is not TOML: {place}; text stands in quotes there", file.display())
}

/// A table of the file as a source of its own, so that the environment is laid over it.
#[derive(Debug, Clone)]
struct Table(Option<Value>);

impl config::Source for Table {
    fn clone_into_box(&self) -> Box<dyn config::Source + Send + Sync> {
        Box::new(self.clone())
    }

    fn collect(&self) -> Result<Map<String, Value>, config::ConfigError> {
        self.0.clone().map_or_else(|| Ok(Map::new()), Value::into_table)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use super::*;

    #[derive(Debug, PartialEq, serde::Deserialize)]
    #[serde(default, deny_unknown_fields)]
    struct Settings {
        batch: u32,
        #[serde(with = "humantime_serde")]
        drain: Duration,
        quiet: bool,
        share: f64,
        topics: BTreeMap<String, u8>,
    }

    impl Default for Settings {
        fn default() -> Self {
            let drain = Duration::from_secs(25);
            Self { batch: 100, drain, quiet: false, share: 0.5, topics: BTreeMap::new() }
        }
    }

    fn load_text(toml: &str, variables: &[(&str, &str)]) -> Result<Settings, String> {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("queue.toml");
        std::fs::write(&file, toml).expect("written");
        let variables = variables.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        load_from(Some(&file), "consumer", variables).map_err(|error| format!("{error:#}"))
    }

    #[test]
    fn nothing_set_gives_the_defaults() {
        assert_eq!(load_text("", &[]), Ok(Settings::default()));
        let none = load_from::<Settings>(None, "consumer", Map::new());
        assert_eq!(none.ok(), Some(Settings::default()));
    }

    #[test]
    fn the_environment_is_laid_over_the_file() {
        let toml = "url = 'x'\n[consumer]\nbatch = 7\ndrain = '3s'\n[janitor]\nbatch = 1";
        let variables = [
            ("QUEUE_CONSUMER_BATCH", "9"),
            ("QUEUE_CONSUMER_QUIET", "true"),
            ("QUEUE_CONSUMER_SHARE", "0.25"),
            ("QUEUE_JANITOR_BATCH", "5"),
            ("QUEUE_URL", "secret"),
        ];
        let settings = load_text(toml, &variables).expect("read");
        let drain = Duration::from_secs(3);
        let expected = Settings { batch: 9, drain, quiet: true, share: 0.25, ..Default::default() };
        assert_eq!(settings, expected);
    }

    #[test]
    fn names_in_nested_tables_stay_as_they_are_written() {
        let toml = "[consumer.topics]\nMail = 1\n'mail.v2' = 2";
        let settings = load_text(toml, &[]).expect("read");
        let expected = [("Mail".to_owned(), 1), ("mail.v2".to_owned(), 2)];
        assert_eq!(settings.topics, BTreeMap::from(expected));
    }

    #[test]
    fn a_misspelt_setting_is_an_error_that_names_it() {
        let error = load_text("[consumer]\nbatsch = 7", &[]).expect_err("refused");
        assert!(error.contains("batsch") && error.contains("queue.toml"), "{error}");
        let error = load_text("", &[("QUEUE_CONSUMER_BATSCH", "7")]).expect_err("refused");
        assert!(error.contains("batsch"), "{error}");
        let error = load_text("[consumr]\nbatch = 7", &[]).expect_err("refused");
        assert!(error.contains("consumr"), "{error}");
        let error = load_text("[consumer]\nbatch = 'many'", &[]).expect_err("refused");
        assert!(error.contains("batch"), "{error}");
    }

    #[test]
    fn a_file_that_is_named_must_be_there_and_be_toml() {
        let missing = load_from::<Settings>(Some(Path::new("/none.toml")), "consumer", Map::new());
        let missing = format!("{:#}", missing.expect_err("refused"));
        assert!(missing.contains("Cannot read the configuration /none.toml"), "{missing}");
        let broken = load_text("\nurl = mysql://u:geheim@h/q", &[]).expect_err("refused");
        assert!(broken.contains("is not TOML") && broken.contains("line 2"), "{broken}");
        assert!(!broken.contains("geheim"), "{broken}");
    }
}
