//! Private servers for these tests: one with its binary log on, one with it off, whatever the
//! product's default is.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use rowmq_core::connection::ServerUrl;
use rowmq_test::TestDatabase;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../ops/dev-server");

/// Starts the server, prints its URL, and stops it once its input ends: with the tests' process,
/// however that ends.
const HOLD: &str = r#"script=$1 kind=$2 name=$3; shift 3
"$script" start --server "$kind" --name "$name" -- "$@" || exit
cat >/dev/null
exec "$script" stop --server "$kind" --name "$name" >/dev/null"#;

pub(crate) struct Server {
    kind: String,
    name: String,
    url: ServerUrl,
    /// Its open input keeps the server up.
    _holder: Child,
}

impl Server {
    /// Returns the server whose binary log is on.
    pub(crate) fn with_log() -> &'static Self {
        static SERVER: OnceLock<Server> = OnceLock::new();
        SERVER.get_or_init(|| Self::start("log", &["--log-bin=binlog", "--sync-binlog=1"]))
    }

    /// Returns the server whose binary log is off.
    pub(crate) fn without_log() -> &'static Self {
        static SERVER: OnceLock<Server> = OnceLock::new();
        SERVER.get_or_init(|| Self::start("no-log", &["--skip-log-bin"]))
    }

    fn start(name: &str, options: &[&str]) -> Self {
        let kind = std::env::var("ROWMQ_SERVER_KIND").unwrap_or_else(|_| "mariadb".to_owned());
        let name = format!("bell-{name}-{}", std::process::id());
        let mut holder = Command::new("sh")
            .args(["-c", HOLD, "hold", SCRIPT, &kind, &name])
            .args(options)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("sh runs");
        let said = BufReader::new(holder.stdout.take().expect("piped")).lines();
        let said: Vec<String> = said.map_while(Result::ok).take(2).collect();
        let url = said.iter().find_map(|line| line.strip_prefix("ROWMQ_URL="));
        let url = url.unwrap_or_else(|| panic!("no server: {said:?}"));
        Self { kind, name, url: ServerUrl::new(url).expect("a URL"), _holder: holder }
    }

    pub(crate) async fn database(&self) -> TestDatabase {
        TestDatabase::on(&self.url).await
    }

    pub(crate) fn is_mariadb(&self) -> bool {
        self.kind == "mariadb"
    }

    /// Returns the connections in this database that follow the server's binary log.
    ///
    /// Not from `information_schema.PROCESSLIST`: MySQL 9.7 refuses to read it (3854) while any
    /// session runs a statement whose text is not UTF-8.
    pub(crate) fn followers(&self, database: &str) -> Vec<u64> {
        let listed = self.sql("SHOW PROCESSLIST");
        let rows = listed.lines().map(|line| line.split('\t').collect::<Vec<_>>());
        rows.filter(|row| row[3] == database && row[4].starts_with("Binlog Dump"))
            .map(|row| row[0].parse().expect("a connection id"))
            .collect()
    }

    /// Returns what the server's own client prints for these statements.
    pub(crate) fn sql(&self, statements: &str) -> String {
        let done = Command::new(SCRIPT)
            .args(["sql", "--server", &self.kind, "--name", &self.name])
            .args(["-N", "-e", statements])
            .output()
            .expect("ops/dev-server runs");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8_lossy(&done.stdout).into_owned()
    }
}
