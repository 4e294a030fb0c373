use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

use rowmq_test::{Program, TestDatabase, until};
use tempfile::TempDir;

/// Stands before the exit status of a command, in the output.
const ENDED: &str = "ended with status ";

/// Runs what it reads, up to a NUL each time.
const LOOP: &str = r#"exec 2>&1
while IFS= read -r -d '' typed; do eval "$typed"; echo "ended with status $?"; done"#;

/// What stands for anything in the output that a guide shows.
const ANYTHING: char = '…';

/// A reader's shell, in a folder of its own. It and everything that it has started ends with this.
pub(crate) struct Shell {
    shell: Child,
    input: ChildStdin,
    output: Arc<Mutex<Vec<String>>>,
    folder: TempDir,
}

impl Shell {
    pub(crate) fn start(database: &TestDatabase) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let rowmq = Program::built("rowmq");
        let programs = std::path::Path::new(rowmq.get_program()).parent().expect("a folder");
        let path = std::env::var("PATH").expect("a path");
        let mut shell = Command::new("bash")
            .args(["-c", LOOP])
            .env_clear()
            .env("PATH", format!("{}:{path}", programs.display()))
            .env("HOME", folder.path())
            .env("ROWMQ_URL", database.url().expose())
            .current_dir(folder.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()
            .expect("bash starts");
        let input = shell.stdin.take().expect("a pipe");
        let lines = BufReader::new(shell.stdout.take().expect("a pipe")).lines();
        let output = Arc::new(Mutex::new(Vec::new()));
        let written = Arc::clone(&output);
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                written.lock().unwrap_or_else(PoisonError::into_inner).push(line);
            }
        });
        Self { shell, input, output, folder }
    }

    /// Makes a file that can be run.
    pub(crate) fn write(&self, name: &str, text: &str) {
        let path = self.folder.path().join(name);
        std::fs::write(&path, text).expect("written");
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).expect("allowed");
    }

    /// Types a command, and waits for its end and for the output that the guide shows. It may come
    /// from a program in the background, and other output may stand between its lines. A command
    /// succeeds, unless the output is an error of one of the programs.
    pub(crate) async fn run(&mut self, place: &str, command: &str, shown: &[String]) {
        let before = self.output().len();
        write!(self.input, "{command}\0").expect("the shell reads");
        let waiting = format!("{place}: {command}\nshows {shown:?}");
        let mut status = None;
        until(&waiting, async || {
            let printed = self.output().split_off(before);
            let ended = printed.iter().find_map(|line| line.strip_prefix(ENDED));
            status = ended.map(str::to_owned);
            status.is_some() && contains(&printed, shown)
        })
        .await;
        let fails = shown.iter().any(|line| line.starts_with("rowmq"));
        assert_eq!(status.as_deref() != Some("0"), fails, "{place}: {command}: {status:?}");
    }

    fn output(&self) -> Vec<String> {
        self.output.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        let group = format!("-{}", self.shell.id());
        drop(Command::new("kill").args(["-KILL", "--", &group]).status());
        drop(self.shell.wait());
        if std::thread::panicking() {
            self.output().iter().for_each(|line| println!("{line}"));
        }
    }
}

/// Whether the lines were printed, in this order. Runs of spaces count as one: the columns of a
/// table are as wide as what is in them.
fn contains(printed: &[String], shown: &[String]) -> bool {
    let mut printed = printed.iter();
    shown.iter().all(|shown| printed.any(|line| is_like(line, shown)))
}

fn is_like(line: &str, shown: &str) -> bool {
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let (line, shown) = (words(line), words(shown));
    let parts: Vec<_> = shown.split(ANYTHING).collect();
    let [first, between @ .., last] = parts.as_slice() else { return line == shown };
    let Some(mut rest) = line.strip_prefix(first).and_then(|rest| rest.strip_suffix(last)) else {
        return false;
    };
    between.iter().all(|part| match rest.split_once(part) {
        Some((_, after)) => {
            rest = after;
            true
        }
        None => false,
    })
}
