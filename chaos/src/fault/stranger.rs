//! Another login of the server, with no privilege at all.

use std::time::Duration;

use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Opts, OptsBuilder};
use rand::rngs::SmallRng;
use tokio::time::sleep;

use crate::arena::Arena;

/// How often it checks whether it still holds or waits for its lock.
const PAUSE: Duration = Duration::from_millis(500);

const NAME: &str = "chaos_stranger";

/// Requests every name lock whose name it can guess or read, and keeps the locks that it gets until
/// the run is over: the queue must not depend on them.
pub(super) async fn hold_locks(arena: &Arena, _: &mut SmallRng) -> anyhow::Result<()> {
    arena.execute(&format!("CREATE USER IF NOT EXISTS {NAME}@'%' IDENTIFIED BY 'app'")).await?;
    let opts = Opts::from_url(arena.root.expose())?;
    let login = OptsBuilder::from_opts(opts)
        .user(Some(NAME))
        .pass(Some("app"))
        .db_name(None::<String>)
        .prefer_socket(false);
    let login = Opts::from(login);
    let database = arena.root.database();
    let mut names = Vec::new();
    for what in ["sweep", "migrate"] {
        names.push(format!("CONCAT('queue:{what}:', LEFT(SHA2('{database}', 256), 40))"));
    }
    for instance in arena.instances().await? {
        names.extend([format!("'queue:{instance}'"), format!("'queue:{instance}:work'")]);
    }
    let mut held = arena.strangers.lock().await;
    for name in names {
        held.spawn(hold(login.clone(), name));
    }
    Ok(())
}

/// Waits for the lock, and starts again whenever its session is lost.
async fn hold(login: Opts, name: String) {
    let ask = format!("DO GET_LOCK({name}, 1)");
    loop {
        if let Ok(mut conn) = Conn::new(login.clone()).await {
            while conn.query_drop(&ask).await.is_ok() {
                sleep(PAUSE).await;
            }
        }
        sleep(PAUSE).await;
    }
}
