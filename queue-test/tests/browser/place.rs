//! A queue with its fleet, and the console before it.

use std::io::Write;
use std::process::Stdio;

use diesel_async::SimpleAsyncConnection;
use queue_core::account::Account;
use queue_core::connection::transaction;
use queue_core::handler::{Context, HandlerError, RawHandler};
use queue_core::{NewMessage, TopicName, enqueue_all};
use queue_test::{Program, TestQueue};
use url::Url;

use crate::chromium::Chromium;

const PASSWORD: &str = "correct horse";

/// What the handlers of the fleet do: the body says for how long.
const HANDLER: &str = "read -r body; case $body in slow) sleep 600 ;; esac";

/// A queue, and the console before it, with the administrator `ada`.
pub(crate) struct Place {
    pub(crate) queue: TestQueue,
    pub(crate) console: String,
    _program: Program,
    _folder: tempfile::TempDir,
}

impl Place {
    pub(crate) async fn new() -> Self {
        let queue = TestQueue::new().await;
        let url = queue.database().account_of(Account::Console).await;
        // The optional one of its grants: to see the consumers' connections.
        let account = Url::parse(url.expose()).expect("a URL").username().to_owned();
        let grant = format!("GRANT PROCESS ON *.* TO '{account}'@'%'");
        queue.connect().await.batch_execute(&grant).await.expect("granted");
        let folder = tempfile::tempdir().expect("a folder");
        let users = folder.path().join("users");
        std::fs::write(&users, line("ada", "admin")).expect("written");
        let mut command = Program::built("console");
        command.args(["--listen", "127.0.0.1:0", "--users"]).arg(&users);
        let program = Program::start(command.env("QUEUE_URL", url.expose()).env_remove("RUST_LOG"));
        let said = program.said("The console is served.").await;
        let console = said.rsplit_once("address=").expect("its address").1.trim().to_owned();
        Self { queue, console, _program: program, _folder: folder }
    }

    /// A program of the fleet.
    pub(crate) fn start(&self, name: &str, arguments: &[&str]) -> Program {
        let mut command = Program::built(name);
        command.env("QUEUE_URL", self.queue.url().expose()).env_remove("RUST_LOG");
        Program::start(command.args(arguments))
    }

    /// Runs `queuectl` with the words of this line.
    pub(crate) fn queuectl(&self, line: &str) {
        let mut command = Program::built("queuectl");
        command.args(line.split(' ')).env("QUEUE_URL", self.queue.url().expose());
        let ended = command.output().expect("built: ops/test does");
        assert!(ended.status.success(), "{line}: {}", String::from_utf8_lossy(&ended.stderr));
    }

    /// A consumer of the topic that never stands in for the janitor.
    pub(crate) fn consumer(&self, topic: &str) -> Program {
        let options =
            ["--sweep", "false", "exec", topic, "--timeout", "700s", "--", "/bin/sh", "-c"];
        self.start("consumer", &[&options[..], &[HANDLER]].concat())
    }

    /// A browser of the administrator, at the overview; `None` where no browser can be had.
    pub(crate) async fn signed_in(&self) -> Option<Chromium> {
        let chromium = Chromium::before(&self.console).await?;
        chromium.open("/").await;
        sign_in(&chromium).await;
        Some(chromium)
    }

    /// Enqueues messages.
    pub(crate) async fn enqueue(&self, topic: &str, messages: &[NewMessage]) {
        let topic = TopicName::new(topic).expect("a name");
        let mut conn = self.queue.connect().await;
        for some in messages.chunks(500) {
            let send = async |conn: &mut _| enqueue_all(conn, &topic, some).await;
            transaction(&mut conn, "send", send).await.expect("sent");
        }
    }

    /// Has all that is ready in the topic die of `error`.
    pub(crate) async fn dead_letter(&self, topic: &str, error: &str) {
        let drained = self.queue.drain_raw(topic, &Dies(error.to_owned())).await;
        assert!(drained.dead > 0, "{drained:?}");
    }
}

/// Fills in the form that is before the browser.
pub(crate) async fn sign_in(chromium: &Chromium) {
    chromium.write("input[name=name]", "ada").await;
    chromium.write("input[name=password]", PASSWORD).await;
    chromium.click("Sign in").await;
    chromium.reads("header", "ada (admin)").await;
}

struct Dies(String);

impl RawHandler for Dies {
    async fn handle(&self, _: &Context) -> Result<(), HandlerError> {
        Err(HandlerError::dead(self.0.clone()))
    }
}

/// A line of the users' file, as the program prints it.
fn line(name: &str, role: &str) -> String {
    let mut child = Program::built("console")
        .args(["user", name, "--role", role])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("built: ops/test does");
    writeln!(child.stdin.take().expect("piped"), "{PASSWORD}").expect("written");
    let ended = child.wait_with_output().expect("ended");
    assert!(ended.status.success());
    String::from_utf8(ended.stdout).expect("text")
}
