use std::io::Write;
use std::process::{Command, Stdio};

use rowmq_core::connection::ServerUrl;
use rowmq_test::TestDatabase;
use serde_json::Value;

/// `rowmq` against one server.
pub(crate) struct Rowmq {
    url: String,
}

/// How a command ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Rowmq {
    pub(crate) fn on(database: &TestDatabase) -> Self {
        Self::at(database.url())
    }

    pub(crate) fn at(url: &ServerUrl) -> Self {
        Self::at_text(url.expose())
    }

    /// Returns it for a text that need not be a URL.
    pub(crate) fn at_text(url: &str) -> Self {
        Self { url: url.to_owned() }
    }

    /// Returns the command, without environment variables that would direct it elsewhere.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rowmq"));
        for name in ["ROWMQ_URL_FILE", "ROWMQ_CONFIG", "CREDENTIALS_DIRECTORY", "RUST_LOG"] {
            command.env_remove(name);
        }
        command.env("ROWMQ_URL", &self.url).args(arguments);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Ended {
        Ended::of(&mut self.command(arguments))
    }

    /// Runs it with `input` on standard input.
    pub(crate) fn run_with(&self, arguments: &[&str], input: &[u8]) -> Ended {
        let mut child =
            self.command(arguments).stdin(Stdio::piped()).spawn().expect("rowmq starts");
        let mut stdin = child.stdin.take().expect("a pipe");
        // It may have stopped reading.
        let _had_enough = stdin.write_all(input);
        drop(stdin);
        Ended::from(child.wait_with_output().expect("rowmq ends"))
    }

    /// Returns its output; it must succeed.
    #[track_caller]
    pub(crate) fn say(&self, arguments: &[&str]) -> String {
        self.run(arguments).succeeded()
    }

    /// Returns its output for scripts; it must succeed.
    #[track_caller]
    pub(crate) fn json(&self, arguments: &[&str]) -> Value {
        let arguments: Vec<_> = arguments.iter().copied().chain(["--json"]).collect();
        let out = self.say(&arguments);
        serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error} in {out}"))
    }

    /// Returns its sentence; it must refuse.
    #[track_caller]
    pub(crate) fn refuse(&self, arguments: &[&str]) -> String {
        self.run(arguments).refused(1)
    }
}

impl Ended {
    pub(crate) fn of(command: &mut Command) -> Self {
        command.output().expect("rowmq runs").into()
    }

    #[track_caller]
    pub(crate) fn succeeded(self) -> String {
        assert_eq!((self.code, self.err.as_str()), (Some(0), ""), "{}", self.out);
        self.out
    }

    /// Asserts one line on standard error and nothing on standard output; returns the line.
    #[track_caller]
    pub(crate) fn refused(self, code: i32) -> String {
        assert_eq!(self.code, Some(code), "{self:?}");
        assert_eq!(self.out, "");
        let sentence = self.err.strip_prefix("rowmq: ").expect("it says who speaks");
        let sentence = sentence.strip_suffix('\n').expect("a line");
        assert!(!sentence.contains('\n'), "one line: {sentence}");
        sentence.to_owned()
    }
}

impl From<std::process::Output> for Ended {
    fn from(output: std::process::Output) -> Self {
        let text = |bytes| String::from_utf8(bytes).expect("text");
        Self { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
    }
}

/// Returns the table's lines, each split into its cells, without the header.
pub(crate) fn cells(table: &str) -> Vec<Vec<&str>> {
    table
        .lines()
        .skip(1)
        .map(|line| line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect())
        .collect()
}
