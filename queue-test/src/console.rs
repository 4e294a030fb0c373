use std::io::Write;
use std::process::{Command, Stdio};

use rowmq_core::connection::ServerUrl;

use crate::Program;

/// The running web console, as a [`Program`].
#[derive(Debug)]
pub struct Console {
    program: Program,
    address: String,
}

impl Console {
    /// Starts the console that `command` runs for this server, on a port of its own and with these
    /// additional options, and waits until it serves.
    ///
    /// # Panics
    /// As [`Program::said`].
    pub async fn start(command: &mut Command, url: &ServerUrl, options: &[&str]) -> Self {
        command.args(["--listen", "127.0.0.1:0"]).args(options);
        let program = Program::start(command.env("ROWMQ_URL", url.expose()).env_remove("RUST_LOG"));
        let said = program.said("The console is served.").await;
        let (_, address) = said.rsplit_once("address=").expect("It says its address.");
        Self { address: address.trim().to_owned(), program }
    }

    /// Returns the line for a file of users that the console of `command` prints for this user.
    ///
    /// # Panics
    /// If it prints none.
    #[must_use]
    pub fn user(command: &mut Command, name: &str, role: &str, password: &str) -> String {
        command.args(["user", name, "--role", role]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|error| {
            panic!("{} cannot be started: {error}.", command.get_program().display())
        });
        let mut input = child.stdin.take().expect("It was piped.");
        writeln!(input, "{password}").expect("It reads the password.");
        drop(input);
        let ended = child.wait_with_output().expect("It ends.");
        assert!(ended.status.success(), "The console takes no user {name}.");
        String::from_utf8(ended.stdout).expect("It prints text.")
    }

    /// Returns where it is served: `127.0.0.1:PORT`.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Returns the program, for its log.
    #[must_use]
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Kills it at once.
    pub fn kill(&mut self) {
        self.program.kill();
    }
}
