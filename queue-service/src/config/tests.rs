use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

use super::*;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Bell {
    Off,
    Auto,
}

#[derive(Debug, Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
    #[arg(long, env = "ROWMQ_CONFIG", global = true)]
    config: Option<PathBuf>,
    #[arg(long, default_value = "25s", value_parser = humantime::parse_duration)]
    drain: Duration,
    #[arg(long, env = "ROWMQ_TEST_METRICS")]
    metrics: Option<u16>,
    #[arg(long, value_enum, default_value = "off")]
    doorbell: Bell,
    #[arg(long)]
    quiet: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    Exec(Exec),
    Webhook {
        #[arg(env = "ROWMQ_TEST_HOOK", hide_env_values = true)]
        url: u8,
        #[arg(long)]
        secret_file: Option<PathBuf>,
    },
}

#[derive(Debug, Args)]
struct Exec {
    topic: String,
    #[arg(long, default_value_t = 16)]
    concurrency: usize,
    #[arg(long = "pass-env")]
    pass_env: Vec<String>,
    #[arg(long)]
    lines: Option<PathBuf>,
}

const PROCESS: Process = Process { table: "consumer", apart: &["lines"] };

struct Case {
    folder: tempfile::TempDir,
    variables: Vec<(String, String)>,
}

impl Case {
    fn new(toml: &str, variables: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("rowmq.toml");
        std::fs::write(&file, toml).expect("written");
        let mut variables: Vec<_> =
            variables.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        variables.push(("ROWMQ_CONFIG".to_owned(), file.to_str().expect("a path").to_owned()));
        Self { folder, variables }
    }

    fn read(&self, line: &str) -> Result<Configured<Arguments>, String> {
        let arguments: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        read(PROCESS, &arguments, &self.variables).map_err(|refusal| match refusal {
            Refusal::Usage(error) => error.to_string(),
            // As the reader sees it, without the directory of this run.
            Refusal::Sentence(text) => {
                text.replace(&format!("{}/", self.folder.path().display()), "")
            }
        })
    }
}

fn refused(toml: &str, variables: &[(&str, &str)], line: &str) -> String {
    Case::new(toml, variables).read(line).expect_err("refused")
}

fn from(settings: &Settings, name: &str) -> (String, String) {
    let setting = settings.get(name).expect("it has a value");
    let from = setting.from.rsplit('/').next().unwrap_or_default();
    (setting.value.clone(), from.to_owned())
}

#[test]
fn nothing_set_gives_the_defaults() {
    let read = Case::new("", &[]).read("rowmq-consumer exec mail").expect("read");
    assert_eq!(read.arguments.drain, Duration::from_secs(25));
    assert_eq!(from(&read.settings, "drain"), ("25s".into(), "default".into()));
    assert_eq!(read.settings.place("metrics"), None);
}

#[test]
fn the_command_line_is_laid_over_the_environment_and_that_over_the_file() {
    let toml = "url = 'x'\n[janitor]\nlease = '3s'\n[consumer]\ndrain = '1s'\nmetrics = 9464\n\
                concurrency = 4\nquiet = true\ndoorbell = 'auto'\npass_env = ['A', 'B']\n\
                secret_file = '/none'\n";
    let case = Case::new(toml, &[]);
    let read = case.read("rowmq-consumer --drain=3s exec mail --concurrency 5").expect("read");
    let Command::Exec(exec) = &read.arguments.command else { panic!("exec") };
    assert_eq!((read.arguments.drain, exec.concurrency), (Duration::from_secs(3), 5));
    assert_eq!((read.arguments.quiet, read.arguments.doorbell), (true, Bell::Auto));
    assert_eq!((&exec.topic[..], &exec.pass_env[..]), ("mail", &["A".into(), "B".into()][..]));
    assert_eq!(from(&read.settings, "drain"), ("3s".into(), "--drain".into()));
    assert_eq!(from(&read.settings, "metrics"), ("9464".into(), "rowmq.toml:6".into()));
    assert_eq!(from(&read.settings, "pass_env"), ("A, B".into(), "rowmq.toml:10".into()));
}

#[test]
fn a_misspelt_name_is_refused_with_the_nearest_one() {
    let line = "rowmq-consumer exec mail";
    assert_eq!(
        refused("\n[consumer]\nmetrics = 1\nconcurency = 7", &[], line),
        "rowmq.toml:4: [consumer] has no setting 'concurency'; is 'concurrency' meant?"
    );
    assert_eq!(
        refused("\n[consumr]\nbatch = 7", &[], line),
        "rowmq.toml:2: 'consumr' may not stand at the top of the file; is 'consumer' meant?"
    );
    assert_eq!(
        refused("", &[("ROWMQ_CONSUMER_DRIAN", "7")], line),
        "The variable ROWMQ_CONSUMER_DRIAN is no setting; is 'ROWMQ_CONSUMER_DRAIN' meant?"
    );
    let far = refused("[consumer]\nxyz = 7", &[], line);
    assert!(
        far.ends_with(
            "there are concurrency, doorbell, drain, metrics, pass_env, quiet, \
                           secret_file"
        ),
        "{far}"
    );
    let apart = refused("[consumer]\nlines = 'x'", &[], line);
    assert!(apart.contains("no setting 'lines'"), "{apart}");
}

#[test]
fn a_wrong_value_is_refused_with_its_place_and_what_it_looks_like() {
    let line = "rowmq-consumer exec mail";
    let unit = refused("[consumer]\ndrain = 10", &[], line);
    assert!(unit.starts_with("rowmq.toml:2: 'drain' is '10': time unit needed"), "{unit}");
    assert_eq!(
        refused("[consumer]\n\ndoorbell = 'on'", &[], line),
        "rowmq.toml:3: 'doorbell' is 'on': use one of off, auto"
    );
    let number = refused("[consumer]\nconcurrency = 'many'", &[], line);
    assert!(number.starts_with("rowmq.toml:2: 'concurrency' is 'many': invalid digit"), "{number}");
    let option = refused("", &[], "rowmq-consumer exec mail --concurrency many");
    assert!(option.starts_with("--concurrency: 'concurrency' is 'many'"), "{option}");
}

#[test]
fn a_wrong_type_is_refused_with_its_place() {
    let line = "rowmq-consumer exec mail";
    assert_eq!(
        refused("[consumer]\ndrain = ['1s']", &[], line),
        "rowmq.toml:2: 'drain' has one value: write no list"
    );
    assert_eq!(
        refused("[consumer]\ndrain = { s = 1 }", &[], line),
        "rowmq.toml:2: 'drain' is a table: write text in quotes, a number, true or false"
    );
    assert_eq!(
        refused("\nconsumer = 3", &[], line),
        "rowmq.toml:2: 'consumer' is a table: write [consumer]"
    );
}

#[test]
fn a_file_that_is_named_must_be_there_and_be_toml() {
    let missing = Case::new("", &[]).read("rowmq-consumer --config /none.toml exec mail");
    let missing = missing.expect_err("refused");
    assert!(missing.starts_with("Cannot read the configuration /none.toml: No such"), "{missing}");
    let broken = refused("\nurl = mysql://u:geheim@h/q", &[], "rowmq-consumer exec mail");
    assert!(broken.starts_with("rowmq.toml:2: this is not TOML"), "{broken}");
    assert!(!broken.contains("geheim"), "{broken}");
}

#[test]
fn help_is_given_whatever_the_file_says() {
    let help = refused("[consumr]", &[], "rowmq-consumer --help");
    assert!(help.contains("[env: ROWMQ_CONSUMER_DRAIN]"), "{help}");
}

#[test]
fn a_wrong_secret_is_not_shown() {
    let refused = refused("", &[], "rowmq-consumer webhook geheim");
    assert!(refused.contains("ROWMQ_TEST_HOOK cannot be used"), "{refused}");
    assert!(!refused.contains("geheim"), "{refused}");
}
