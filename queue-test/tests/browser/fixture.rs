//! A queue with its fleet, and a console that shows it.

use diesel_async::SimpleAsyncConnection;
use rowmq_core::account::Account;
use rowmq_test::{Console, Program, TestQueue};
use url::Url;

use crate::browser::chromium::Chromium;

const PASSWORD: &str = "correct horse";

/// What the handlers of the fleet do: the body says for how long.
const HANDLER: &str = "read -r body; case $body in slow) sleep 600 ;; esac";

/// A queue, and a console that shows it, with the administrator `ada`.
pub(crate) struct Fixture {
    pub(crate) queue: TestQueue,
    pub(crate) console: Console,
    _folder: tempfile::TempDir,
}

impl Fixture {
    pub(crate) async fn new() -> Self {
        let queue = TestQueue::new().await;
        let url = queue.database().account_of(Account::Console).await;
        // The optional one of its grants: to see the consumers' connections.
        let account = Url::parse(url.expose()).expect("a URL").username().to_owned();
        let grant = format!("GRANT PROCESS ON *.* TO '{account}'@'%'");
        queue.connect().await.batch_execute(&grant).await.expect("granted");
        let folder = tempfile::tempdir().expect("a folder");
        let users = folder.path().join("users");
        let ada = Console::user(&mut Program::built("rowmq-console"), "ada", "admin", PASSWORD);
        std::fs::write(&users, ada).expect("written");
        let options = ["--users", users.to_str().expect("text")];
        let console = Console::start(&mut Program::built("rowmq-console"), &url, &options).await;
        Self { queue, console, _folder: folder }
    }

    /// Starts a program of the fleet.
    pub(crate) fn start(&self, name: &str, arguments: &[&str]) -> Program {
        let mut command = Program::built(name);
        command.env("ROWMQ_URL", self.queue.url().expose()).env_remove("RUST_LOG");
        Program::start(command.args(arguments))
    }

    /// Runs `rowmq` with the words of this line.
    pub(crate) fn rowmq(&self, line: &str) {
        let mut command = Program::built("rowmq");
        command.args(line.split(' ')).env("ROWMQ_URL", self.queue.url().expose());
        let ended = command.output().expect("built: ops/test does");
        assert!(ended.status.success(), "{line}: {}", String::from_utf8_lossy(&ended.stderr));
    }

    /// Starts a consumer of the topic that never stands in for the janitor.
    pub(crate) fn consumer(&self, topic: &str) -> Program {
        let options =
            ["--sweep", "false", "exec", topic, "--timeout", "700s", "--", "/bin/sh", "-c"];
        self.start("rowmq-consumer", &[&options[..], &[HANDLER]].concat())
    }

    /// Opens the administrator's browser at the overview; returns `None` where no browser is
    /// available.
    pub(crate) async fn signed_in(&self) -> Option<Chromium> {
        let chromium = Chromium::before(self.console.address()).await?;
        chromium.open("/").await;
        sign_in(&chromium).await;
        Some(chromium)
    }
}

/// Fills in the sign-in form.
pub(crate) async fn sign_in(chromium: &Chromium) {
    chromium.write("input[name=name]", "ada").await;
    chromium.write("input[name=password]", PASSWORD).await;
    chromium.click("Sign in").await;
    chromium.reads("header", "ada (admin)").await;
}
