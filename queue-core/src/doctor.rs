//! The self-test: does this server give the guarantees that the protocol relies on? `rowmq doctor`
//! shows all of it; every process runs it at its start and refuses to continue after a failure.

mod cluster;
mod durability;
mod locks;
mod lost;
mod privileges;
mod proxy;
mod shape;
mod state;

pub use self::state::{ServerState, server_state};

use std::time::Duration;

use serde::Serialize;
use uuid::Uuid;

use crate::account::Account;
use crate::connection::{
    Connection, ServerUrl, SessionKind, Wanted, connect, connect_host, connect_to,
};
use crate::model::{Access, Error, Fault, Result};
use crate::procedures;
use crate::store::doctor::{self as ask, Variables};
use crate::store::{migration, procedure, switch};

/// How long the whole self-test may take.
const DEADLINE: Duration = Duration::from_secs(30);

/// The oldest servers with SKIP LOCKED as the protocol needs it.
const OLDEST_MARIADB: (u64, u64) = (10, 6);
const OLDEST_MYSQL: (u64, u64) = (8, 0);

/// The tables that `rowmq migrate` makes.
pub const TABLES: [&str; 31] = [
    "queue_installation",
    "queue_topic",
    "queue_switch",
    "queue_message",
    "queue_cancellation",
    "queue_claim",
    "queue_worker",
    "queue_floor",
    "queue_scheduled",
    "queue_dead",
    "queue_archive",
    "queue_checkpoint",
    "queue_throughput",
    "queue_limit",
    "queue_slot",
    "queue_share",
    "queue_ledger",
    "queue_lookup",
    "queue_dedupe",
    "queue_unique",
    "queue_schedule",
    "queue_partition",
    "queue_log",
    "queue_cursor",
    "queue_range",
    "queue_passed",
    "queue_member",
    "queue_trace",
    "queue_duty",
    "queue_audit",
    "queue_access",
];

/// The result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// As the protocol needs it.
    Ok,
    /// It works, with something to know.
    Warning,
    /// The queue must not run in this state.
    Failure,
}

/// One check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    /// The subject of the check.
    pub name: &'static str,
    /// The result.
    pub verdict: Verdict,
    /// The finding, and the fix where one is needed.
    pub detail: String,
}

/// The whole self-test.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Product and version.
    pub server: String,
    /// Every check, in order.
    pub checks: Vec<Check>,
}

impl Report {
    /// The checks that failed.
    pub fn failures(&self) -> impl Iterator<Item = &Check> {
        self.checks.iter().filter(|check| check.verdict == Verdict::Failure)
    }
}

/// Runs every check; finds out as much as it can.
///
/// # Errors
/// [`Error::Connect`] if there is no server to ask; a database failure.
pub async fn examine(url: &ServerUrl) -> Result<Report> {
    examine_as(url, None).await
}

/// As [`examine`], for an account of this kind: also checks whether it has the privileges it needs,
/// and which it has beyond them. Of the tables, checks only those that it needs.
///
/// # Errors
/// As [`examine`].
pub async fn examine_as(url: &ServerUrl, account: Option<Account>) -> Result<Report> {
    let mut report = examine_for_start(url, account).await?;
    let has_schema =
        report.checks.iter().any(|check| check.name == "schema" && check.verdict == Verdict::Ok);
    // The connection belongs to this future: past the deadline it is closed with it.
    match tokio::time::timeout(DEADLINE, ask_more(url, account, has_schema)).await {
        Ok(checks) => report.checks.extend(checks?),
        Err(_) => {
            return Err(Error::Deadline { operation: "examine the tables", deadline: DEADLINE });
        }
    }
    Ok(report)
}

async fn examine_for_start(url: &ServerUrl, account: Option<Account>) -> Result<Report> {
    // The connections belong to this future: past the deadline they are closed with it.
    match tokio::time::timeout(DEADLINE, ask_all(url, account)).await {
        Ok(report) => report,
        Err(_) => Err(Error::Deadline { operation: "examine the server", deadline: DEADLINE }),
    }
}

async fn ask_all(url: &ServerUrl, account: Option<Account>) -> Result<Report> {
    let (mut conn, host) = connect_to(url, SessionKind::Plain, Wanted::Any).await?;
    let (mut other, role) = connect_host(url, host, SessionKind::Plain).await?;
    let variables = ask::variables(&mut conn).await?;
    let mut checks = vec![version(&variables), cluster::writable(&role), binlog(&variables)];
    checks.extend([durability::durability(&variables), packet(&variables)]);
    checks.extend(durability::semi_sync(&variables));
    checks.push(cluster::one_writer(&variables, &role));
    checks.push(cluster::replica(&mut conn, &role).await?);
    checks.extend(cluster::hosts(url, host, &role).await);
    checks.push(proxy::direct(&mut conn, &mut other, &role).await?);
    let schema = schema(&mut conn, url, account).await?;
    let has_schema = schema.verdict == Verdict::Ok;
    let may = |privilege, table| account.is_none_or(|account| account.may(privilege, table));
    checks.push(schema);
    checks.push(name_locks(&mut conn, &mut other).await?);
    let is_sound = checks.iter().all(|check| check.verdict != Verdict::Failure);
    if has_schema && is_sound && may("INSERT", "queue_duty") {
        checks.push(skip_locked(&mut conn, &mut other).await?);
    }
    if account.is_none_or(privileges::looks_for_the_dead) {
        checks.push(privileges::visibility(&mut conn).await?);
    }
    if has_schema && may("SELECT", "queue_switch") {
        checks.push(access(&mut conn).await?);
    }
    Ok(Report { server: product(&variables), checks })
}

/// Runs the checks that help people and that a starting process does not wait for.
async fn ask_more(
    url: &ServerUrl,
    account: Option<Account>,
    has_schema: bool,
) -> Result<Vec<Check>> {
    let (mut conn, _) = connect_to(url, SessionKind::Plain, Wanted::Any).await?;
    let mut checks = Vec::new();
    if let Some(account) = account {
        checks.push(privileges::grants(&mut conn, account, url.database()).await?);
    }
    let may_see = |accounts: &[Account]| account.is_none_or(|account| accounts.contains(&account));
    if has_schema && may_see(&[Account::Operator]) {
        checks.push(shape::tables(&mut conn).await?);
        checks.push(pages(&mut conn).await?);
    }
    if has_schema && may_see(&[Account::Operator, Account::Janitor]) {
        checks.push(lost::messages(&mut conn).await?);
        checks.push(locks::holders_of_locks(&mut conn).await?);
    }
    Ok(checks)
}

/// Runs the checks at the start of a process.
///
/// # Errors
/// The first failed check as an error of its own kind.
pub async fn require(url: &ServerUrl) -> Result<Report> {
    require_as(url, None).await
}

/// As [`require`], but of the tables only those that an account of this kind needs.
///
/// # Errors
/// As [`require`].
pub async fn require_as(url: &ServerUrl, account: Option<Account>) -> Result<Report> {
    let report = examine_for_start(url, account).await?;
    for check in report.checks.iter().filter(|check| check.verdict == Verdict::Warning) {
        tracing::warn!(check = check.name, "{}", check.detail);
    }
    let first = report.failures().next().cloned();
    match first {
        None => Ok(report),
        Some(check) if check.name == "writable" => {
            // Every host has been asked; the error gives each one's refusal.
            connect(url, SessionKind::Plain).await?;
            Err(Error::ReadOnly { server: url.server(), reason: check.detail })
        }
        Some(check) if check.name == "schema" => {
            Err(Error::Schema { database: url.database().to_owned(), detail: check.detail })
        }
        Some(check) => Err(Error::Unsupported { reason: check.detail }),
    }
}

fn check(name: &'static str, ok: bool, otherwise: Verdict, detail: String) -> Check {
    Check { name, verdict: if ok { Verdict::Ok } else { otherwise }, detail }
}

fn product(variables: &Variables) -> String {
    let version = variables.get("version").unwrap_or("unknown");
    let name = if is_mariadb(variables) { "MariaDB" } else { "MySQL" };
    format!("{name} {version}")
}

fn is_mariadb(variables: &Variables) -> bool {
    variables.get("version").is_some_and(|version| version.contains("MariaDB"))
}

fn version(variables: &Variables) -> Check {
    let text = variables.get("version").unwrap_or_default();
    let mut numbers =
        text.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse().unwrap_or(0));
    let found = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    let oldest = if is_mariadb(variables) { OLDEST_MARIADB } else { OLDEST_MYSQL };
    let ok = found >= oldest;
    let product = product(variables);
    let detail = if ok {
        product
    } else {
        format!(
            "The server is {product}, which lacks SKIP LOCKED: upgrade to MariaDB 10.6 or MySQL 8.0 or later."
        )
    };
    check("version", ok, Verdict::Failure, detail)
}

fn binlog(variables: &Variables) -> Check {
    let format = variables.get("binlog_format").unwrap_or("ROW");
    let ok = !variables.is_on("log_bin") || format != "STATEMENT";
    let detail = if ok {
        format!("log_bin {}, format {format}", variables.get("log_bin").unwrap_or("OFF"))
    } else {
        "binlog_format is STATEMENT, which READ COMMITTED cannot write (error 1665): SET GLOBAL binlog_format = ROW.".to_owned()
    };
    check("binlog", ok, Verdict::Failure, detail)
}

fn packet(variables: &Variables) -> Check {
    let bytes = variables.number("max_allowed_packet").unwrap_or(0);
    let needed = crate::model::TopicSettings::default().body_limit;
    let ok = bytes >= u64::from(needed) + 65_536;
    let detail = if ok {
        format!("max_allowed_packet {bytes}")
    } else {
        format!(
            "max_allowed_packet is {bytes}, too small for bodies of {needed} bytes: raise it, or lower the topics' body limits."
        )
    };
    check("packet", ok, Verdict::Warning, detail)
}

async fn schema(
    conn: &mut impl Connection,
    url: &ServerUrl,
    account: Option<Account>,
) -> Result<Check> {
    let found = ask::objects(conn).await?;
    let has = |may: fn(Account, &str) -> bool| {
        move |name: &&str| account.is_none_or(|account| may(account, name))
    };
    let tables = TABLES.into_iter().filter(has(Account::knows_table)).map(str::to_owned);
    let procedures = procedures::public().filter(has(Account::knows_procedure));
    let wanted: Vec<_> = tables.chain(procedures.map(|name| format!("{name}()"))).collect();
    // The list holds only the tables that the account may see: a table without any grant looks
    // missing too.
    let missing: Vec<_> = wanted.into_iter().filter(|name| !found.contains(name)).collect();
    let is_callable = procedure::has_definer(conn).await?;
    let detail = if missing.is_empty() && !is_callable {
        "the account that the procedures run as does not exist: run `rowmq migrate`, which makes \
         them again"
            .to_owned()
    } else if missing.is_empty() {
        format!("the queue's tables are in '{}'", url.database())
    } else if missing.len() == TABLES.len() + procedures::public().count() {
        "none of them is there: run `rowmq migrate`".to_owned()
    } else {
        format!(
            "missing or hidden from this account: {}: run `rowmq migrate`, or grant it",
            missing.join(", ")
        )
    };
    Ok(check("schema", missing.is_empty() && is_callable, Verdict::Failure, detail))
}

async fn name_locks(conn: &mut impl Connection, other: &mut impl Connection) -> Result<Check> {
    let name = format!("queue:trial:{}", Uuid::new_v4().simple());
    let first = ask::try_lock(conn, &name).await?;
    let second = ask::try_lock(other, &name).await?;
    let ok = first && !second;
    let detail = if ok {
        "name locks exclude each other between sessions".to_owned()
    } else {
        "GET_LOCK does not exclude between sessions here: liveness is decided by beats alone, so rescue takes a lease.".to_owned()
    };
    Ok(check("name locks", ok, Verdict::Warning, detail))
}

async fn skip_locked(conn: &mut impl Connection, other: &mut impl Connection) -> Result<Check> {
    let trial = Uuid::new_v4().simple().to_string();
    let (a, b) = (format!("a{}", &trial[..24]), format!("b{}", &trial[..24]));
    let names = [a.as_str(), b.as_str()];
    ask::insert_scratch(conn, names).await?;
    ask::begin(conn).await?;
    ask::begin(other).await?;
    let locked = ask::lock_scratch(conn, &a).await?;
    let passed_over = match ask::lock_scratch(other, &a).await {
        // The server waits for the row, as if the words were not there.
        Err(error) if error.fault() == Fault::LockWait => false,
        locked => !locked?,
    };
    let free = ask::lock_scratch(other, &b).await?;
    ask::roll_back(conn).await?;
    ask::roll_back(other).await?;
    ask::remove_scratch(conn, names).await?;
    let ok = locked && passed_over && free;
    let detail = if ok {
        "SKIP LOCKED passes over another session's row".to_owned()
    } else {
        "SKIP LOCKED hands out a row that another session has locked, or waits for it: this server cannot run the queue.".to_owned()
    };
    Ok(check("skip locked", ok, Verdict::Failure, detail))
}

/// Only the speed of streams depends on it.
async fn pages(conn: &mut impl Connection) -> Result<Check> {
    let detail = if migration::are_pages_on(conn).await? {
        "the logs of streams hold several messages a row"
    } else {
        "the logs of streams hold a message a row; pages are faster: `rowmq migrate --pages`, once no program of version 0.1 is in use"
    };
    Ok(check("pages", true, Verdict::Ok, detail.to_owned()))
}

/// A switch set for maintenance is easily forgotten, and nothing else fails.
async fn access(conn: &mut impl Connection) -> Result<Check> {
    let access = switch::read(conn).await?;
    let ok = access == Access::ReadWrite;
    let detail = if ok {
        "read-write for all topics, but for their own rules".to_owned()
    } else {
        format!("{access} for all topics at once: `rowmq access read-write` ends it.")
    };
    Ok(check("access", ok, Verdict::Warning, detail))
}
