//! The accounts of the run: each process has the one that an administrator would give it.

use diesel_async::SimpleAsyncConnection;
use rowmq_core::AsyncMysqlConnection;
use rowmq_core::account::Account;
use rowmq_core::connection::ServerUrl;

use super::{Queue, Role, account_url};

/// The prefix of their names, as in `ops/deploy/grants`.
pub(super) const PREFIX: &str = "queue_";

const PASSWORD: &str = "app";

/// The accounts of a run, with exactly what the files of `ops/deploy/grants` grant.
const OURS: [Account; 7] = [
    Account::Migrator,
    Account::Producer,
    Account::Caller,
    Account::Consumer,
    Account::Claimer,
    Account::Janitor,
    Account::Operator,
];

/// The one account of the naive queue.
const NAIVE: &str = "queue_naive";

/// Creates the accounts, and lets those whose transactions have effects write the effects.
pub(super) async fn create(conn: &mut AsyncMysqlConnection, queue: Queue) -> anyhow::Result<()> {
    let mut sql = String::new();
    match queue {
        Queue::Product => {
            for account in OURS {
                let name = name(account);
                sql += &format!("CREATE USER '{name}'@'%' IDENTIFIED BY '{PASSWORD}';\n");
                sql += account.file();
            }
            for account in [Account::Consumer, Account::Claimer] {
                sql += &format!("GRANT INSERT ON chaos_effect TO '{}'@'%';\n", name(account));
            }
        }
        Queue::Naive => {
            sql += &format!(
                "CREATE USER {NAIVE}@'%' IDENTIFIED BY '{PASSWORD}'; \
                 GRANT SELECT, INSERT, UPDATE, DELETE ON * TO {NAIVE}@'%'; \
                 GRANT PROCESS ON *.* TO {NAIVE}@'%'"
            );
        }
    }
    Ok(conn.batch_execute(&sql).await?)
}

fn name(account: Account) -> String {
    format!("{PREFIX}{}", account.word())
}

/// Returns the server's URL with this account.
pub(super) fn url_of(root: &ServerUrl, account: Account) -> anyhow::Result<ServerUrl> {
    account_url(root, &name(account), PASSWORD)
}

/// Returns the server's URL for a process of this role.
pub(super) fn url_for(root: &ServerUrl, queue: Queue, role: Role) -> anyhow::Result<ServerUrl> {
    let account = match (queue, role) {
        (Queue::Naive, _) => return account_url(root, NAIVE, PASSWORD),
        (Queue::Product, Role::Sender | Role::Spiller) => Account::Producer,
        (Queue::Product, Role::Enqueuer) => Account::Caller,
        (Queue::Product, Role::Recorder | Role::Consumer) => Account::Consumer,
        (Queue::Product, Role::Caller) => Account::Claimer,
        (Queue::Product, Role::Janitor) => Account::Janitor,
    };
    url_of(root, account)
}
