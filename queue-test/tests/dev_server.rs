//! The server that tests run on, as `ops/dev-server` finds it.

#![allow(clippy::expect_used, reason = "a test that cannot be set up has failed")]

use std::path::Path;
use std::process::Command;

/// Looks many times for a server that becomes another program all the time, as each one does twice
/// while it starts. A look that read its command line twice missed it once in five.
const LOOKS: &str = r#"
library=$1 instance=$2
printf '#!/bin/sh\nexec "$0" "$@"\n' >"$instance/server"
chmod +x "$instance/server"
"$instance/server" --datadir="$instance/data" &
echo $! >"$instance/pid"
trap "kill -9 $!" EXIT
. "$library"
until server_pid >/dev/null; do :; done
for ((look = 1; look <= 300; look++)); do
  server_pid >/dev/null || { echo "look $look did not find the server"; exit 1; }
done
"#;

#[test]
fn a_server_that_becomes_its_program_is_found_by_every_look() {
    let library = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ops/lib/server/process.sh");
    let instance = tempfile::tempdir().expect("a folder");
    let mut bash = Command::new("bash");
    bash.args(["-c", LOOKS, "bash"]).arg(library).arg(instance.path());
    let looked = bash.output().expect("bash runs");
    let said = String::from_utf8_lossy(&looked.stdout);
    assert!(looked.status.success(), "{said}{}", String::from_utf8_lossy(&looked.stderr));
}
