//! What an installation has exactly one of: its secret, and which links to its procedures are in
//! use.
//!
//! The secret is part of the names of the offices' locks. `GET_LOCK` needs no privilege, and a name
//! is valid for the whole server: any session that can guess it can hold the lock. These names
//! cannot be guessed without the row, which only consumers, janitors and operators may read.

use super::{Statement, execute, execute_surely, load};
use crate::connection::{Connection, row};
use crate::model::{ConnId, Fault, Result};

/// 128 random bits.
pub type Secret = [u8; 16];

/// Which of the two links of each public procedure are in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Links {
    /// Those called `…__even`.
    Even,
    /// Those called `…__odd`.
    Odd,
}

impl Links {
    /// Returns the word that is stored, and that the links' names contain.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Even => "even",
            Self::Odd => "odd",
        }
    }

    /// Returns the links that an upgrade makes.
    #[must_use]
    pub fn other(self) -> Self {
        match self {
            Self::Even => Self::Odd,
            Self::Odd => Self::Even,
        }
    }
}

/// Whether calls use the odd links: the condition within the public procedures. It reads the row by
/// its whole key, so that a killed SELECT does not miss it.
pub const ODD_LINKS_ARE_IN_USE: &str =
    "EXISTS (SELECT 1 FROM queue_installation WHERE only_row = 1 AND links = 'odd')";

/// An office: a role that one session of the installation holds at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Office {
    /// The session that performs the janitor's duties.
    Sweeper,
    /// A janitor that sweeps or is on standby: while there is one, no consumer stands in for it.
    Janitor,
    /// The session that changes the schema.
    Migrator,
}

impl Office {
    /// Returns the name for users, which the lock's name contains.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Sweeper => "sweep",
            Self::Janitor => "janitor",
            Self::Migrator => "migrate",
        }
    }

    /// Builds the name of the office's lock as an SQL expression: 54 bytes at most of the 64 that
    /// MySQL takes; NULL without the secret. The name contains the database, because a copy of a
    /// database has the same secret. The row is read by its whole key, so a killed SELECT does not
    /// miss it.
    #[must_use]
    pub fn lock(self) -> String {
        format!(
            "CONCAT('queue:{}:', LEFT(SHA2(CONCAT((SELECT HEX(secret) FROM queue_installation \
             WHERE only_row = 1), DATABASE()), 256), 40))",
            self.name()
        )
    }
}

/// The DDL of the table. The migrator's lock needs the table, so no migration can create it.
pub const TABLE: &str = "CREATE TABLE IF NOT EXISTS queue_installation (\
     only_row TINYINT UNSIGNED NOT NULL, \
     secret BINARY(16) NOT NULL, \
     links VARBINARY(4) NOT NULL DEFAULT 'even', \
     PRIMARY KEY (only_row), \
     CONSTRAINT queue_installation_only_row CHECK (only_row = 1), \
     CONSTRAINT queue_installation_links CHECK (links IN ('even', 'odd'))) ENGINE = InnoDB";

/// Creates the table unless it exists.
pub async fn make_table(conn: &mut impl Connection) -> Result<()> {
    execute(conn, "make the table of the installation", Statement::new(TABLE)).await?;
    Ok(())
}

/// PRIMARY: stores the secret unless there is one: if two migrators start together, the first one's
/// secret stays.
pub async fn keep_secret(conn: &mut impl Connection, secret: Secret) -> Result<()> {
    let statement = Statement::new(
        "INSERT INTO queue_installation (only_row, secret) VALUES (1, ?) \
         ON DUPLICATE KEY UPDATE only_row = 1",
    )
    .bytes(secret.to_vec());
    execute(conn, "keep the installation's secret", statement).await?;
    Ok(())
}

/// PRIMARY: returns whether the secret is there.
pub async fn has_secret(conn: &mut impl Connection) -> Result<bool> {
    let statement = Statement::new("SELECT 1 AS _there FROM queue_installation WHERE only_row = 1");
    match load::<u8>(conn, "look for the installation's secret", statement).await {
        Ok(rows) => Ok(!rows.is_empty()),
        Err(error) if error.fault() == Fault::Schema => Ok(false),
        Err(error) => Err(error),
    }
}

/// PRIMARY: reads which links to the procedures are in use.
pub async fn links(conn: &mut impl Connection) -> Result<Links> {
    let statement = Statement::new("SELECT links FROM queue_installation WHERE only_row = 1");
    let rows: Vec<Vec<u8>> = load(conn, "read which links are in use", statement).await?;
    let is_odd = rows.first().is_some_and(|links| links == Links::Odd.name().as_bytes());
    Ok(if is_odd { Links::Odd } else { Links::Even })
}

/// PRIMARY: makes calls use these links from now on.
pub async fn use_links(conn: &mut impl Connection, links: Links) -> Result<()> {
    let statement = Statement::new("UPDATE queue_installation SET links = ? WHERE only_row = 1")
        .bytes(links.name().as_bytes());
    execute_surely(conn, "change over to the new procedures", statement).await?;
    Ok(())
}

/// The session that holds a lock of the queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// `sweep`, `janitor` or `migrate`, or the client id of the worker whose lock it is.
    pub lock: String,
    /// The session.
    pub conn: ConnId,
    /// Whether the session is the worker's own, or has performed a duty last, or belongs to a
    /// janitor on standby while another session sweeps.
    pub is_known: bool,
}

/// KEY (state, id) of the workers: finds the sessions that hold the locks of the offices and of
/// workers that are alive.
pub async fn holders(conn: &mut impl Connection) -> Result<Vec<Holder>> {
    let sweeps = |lock: String| {
        format!("EXISTS (SELECT 1 FROM queue_duty d WHERE d.conn_id = IS_USED_LOCK({lock}))")
    };
    let office = |office: Office| {
        let is_known = match office {
            Office::Sweeper | Office::Migrator => sweeps(office.lock()),
            Office::Janitor => {
                format!("{} OR {}", sweeps(office.lock()), sweeps(Office::Sweeper.lock()))
            }
        };
        format!(
            "SELECT CAST('{}' AS BINARY) AS name, CAST(IS_USED_LOCK({}) AS UNSIGNED) AS conn_id, \
             CASE WHEN {is_known} THEN 1 ELSE 0 END AS is_known",
            office.name(),
            office.lock(),
        )
    };
    let worker = |role: &str| {
        let holder = format!("IS_USED_LOCK(CONCAT('queue:', LOWER(HEX(w.instance)), '{role}'))");
        format!(
            "SELECT w.client_id, CAST({holder} AS UNSIGNED), \
             CASE WHEN {holder} IN (w.conn_id, w.life_conn_id) THEN 1 ELSE 0 END \
             FROM queue_worker w WHERE w.state = 'alive'"
        )
    };
    let locks = [
        office(Office::Sweeper),
        office(Office::Janitor),
        office(Office::Migrator),
        worker(""),
        worker(":work"),
    ];
    let statement = Statement::new(format!(
        "SELECT name, conn_id, is_known FROM ({}) held WHERE conn_id IS NOT NULL",
        locks.join(" UNION ALL ")
    ));
    load(conn, "list who holds the queue's locks", statement).await
}

row! { Holder { lock, conn, is_known } }
