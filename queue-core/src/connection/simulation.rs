//! The seam for simulations: what replaces the server, randomness and threads while a thread is
//! [in one](enter). Compiled for tests only (feature `simulation`).

use std::cell::RefCell;
use std::rc::Rc;

use diesel::QueryResult;
use diesel::deserialize::FromSqlRow;
use diesel::mysql::{Mysql, MysqlQueryBuilder, MysqlType};
use diesel::query_builder::bind_collector::RawBytesBindCollector;
use diesel::query_builder::{QueryBuilder, QueryFragment};
use diesel::result::Error;
use futures_util::future::BoxFuture;

mod row;

pub use self::row::{Column, Row};

use crate::chance;
use crate::connection::{FromRow, ServerUrl, Statement};
use crate::model::Result;

/// Everything that a run takes from outside.
pub trait World {
    /// Opens a connection to the model of the server.
    fn connect(&self, url: &ServerUrl) -> BoxFuture<'static, Result<Box<dyn StandIn>>>;

    /// The next number drawn from the run's seed.
    fn random(&self) -> u64;
}

/// A connection to the model of the server.
pub trait StandIn: Send {
    /// Runs one statement, or several without values separated by semicolons.
    fn run<'c>(
        &'c mut self,
        text: &'c str,
        values: &'c [Value],
    ) -> BoxFuture<'c, QueryResult<Answer>>;
}

/// A bound value, as it goes over the wire.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Value {
    /// How it is encoded.
    pub kind: MysqlType,
    /// `None` is NULL.
    pub bytes: Option<Vec<u8>>,
}

impl Value {
    /// An unsigned number.
    #[must_use]
    pub fn number(number: u64) -> Self {
        Self { kind: MysqlType::UnsignedLongLong, bytes: Some(number.to_ne_bytes().to_vec()) }
    }
}

/// The server's answer to a statement.
#[derive(Debug, Clone, Default)]
pub struct Answer {
    /// Rows matched by a statement that changes rows.
    pub matched: usize,
    /// Rows of a query.
    pub rows: Vec<Row>,
}

thread_local! {
    static WORLD: RefCell<Option<Rc<dyn World>>> = const { RefCell::new(None) };
}

/// Puts this thread into a simulation until the guard is dropped.
#[must_use]
pub fn enter(world: Rc<dyn World>) -> Entered {
    let source = world.clone();
    chance::draw_from(Some(Rc::new(move || source.random())));
    WORLD.set(Some(world));
    Entered(())
}

/// Ends the simulation of this thread when dropped.
#[derive(Debug)]
pub struct Entered(());

impl Drop for Entered {
    fn drop(&mut self) {
        chance::draw_from(None);
        WORLD.set(None);
    }
}

fn world() -> Option<Rc<dyn World>> {
    WORLD.with_borrow(Clone::clone)
}

/// Whether this thread is in a simulation.
#[must_use]
pub fn is_on() -> bool {
    WORLD.with_borrow(Option::is_some)
}

type Opening = BoxFuture<'static, Result<Box<dyn StandIn>>>;

pub(crate) fn connect(url: &ServerUrl) -> Option<Opening> {
    world().map(|world| world.connect(url))
}

pub(crate) async fn execute<Q>(conn: &mut dyn StandIn, query: Q) -> QueryResult<usize>
where
    Q: QueryFragment<Mysql>,
{
    let (text, values) = rendered(&query)?;
    Ok(conn.run(&text, &values).await?.matched)
}

pub(crate) async fn select<Q, T, S>(conn: &mut dyn StandIn, query: Q) -> QueryResult<Vec<T>>
where
    Q: QueryFragment<Mysql>,
    T: FromSqlRow<S, Mysql>,
{
    let (text, values) = rendered(&query)?;
    let answer = conn.run(&text, &values).await?;
    let rows = answer.rows.iter().map(T::build_from_row);
    rows.map(|row| row.map_err(Error::DeserializationError)).collect()
}

pub(crate) async fn load<T>(conn: &mut dyn StandIn, statement: Statement<'_>) -> QueryResult<Vec<T>>
where
    T: FromRow,
{
    let (text, values) = rendered(&statement)?;
    let answer = conn.run(&text, &values).await?;
    answer.rows.iter().map(super::row::read).collect()
}

pub(crate) async fn batch(conn: &mut dyn StandIn, sql: &str) -> QueryResult<()> {
    conn.run(sql, &[]).await.map(drop)
}

/// Returns a query's text, with `?` for each bound value, and these values.
fn rendered(query: &impl QueryFragment<Mysql>) -> QueryResult<(String, Vec<Value>)> {
    let mut text = MysqlQueryBuilder::new();
    query.to_sql(&mut text, &Mysql)?;
    let mut bound = RawBytesBindCollector::<Mysql>::new();
    query.collect_binds(&mut bound, &mut (), &Mysql)?;
    let values = bound.metadata.into_iter().zip(bound.binds);
    Ok((text.finish(), values.map(|(kind, bytes)| Value { kind, bytes }).collect()))
}
