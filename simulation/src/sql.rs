//! The SQL of the store as the model reads it. It knows only what the store uses; anything else
//! stops the run.

mod expressions;
mod lexer;
mod parser;
mod tables;

pub(crate) use self::parser::parse;
pub(crate) use self::tables::{Definition, definitions};

/// A value, a column or a computation.
#[derive(Debug, Clone)]
pub(crate) enum Expr {
    Null,
    Number(i128),
    Text(Vec<u8>),
    Param(usize),
    /// A column, with the name of its table where the text gives one.
    Name(Option<String>, String),
    Not(Box<Self>),
    Negative(Box<Self>),
    Binary(Op, Box<Self>, Box<Self>),
    In(Box<Self>, Vec<Self>),
    Between(Box<Self>, Box<Self>, Box<Self>),
    IsNull(Box<Self>),
    /// Conditions with their values, and the ELSE value.
    Case(Vec<(Self, Self)>, Option<Box<Self>>),
    Call(String, Vec<Self>),
    /// A column of the row that an INSERT brings.
    Given(String),
    /// This many microseconds.
    Interval(Box<Self>, i128),
    Exists(Box<Query>),
    Scalar(Box<Query>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Op {
    Or,
    And,
    Equal,
    /// `<=>`
    Same,
    Unequal,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
    Plus,
    Minus,
    Times,
    Modulo,
    /// Integer division.
    Divided,
}

/// What a locking read does about rows that other sessions have locked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Locking {
    Wait,
    Skip,
}

/// SELECTs joined by UNION ALL.
#[derive(Debug, Clone)]
pub(crate) struct Query(pub(crate) Vec<Select>);

#[derive(Debug, Clone)]
pub(crate) struct Select {
    pub(crate) items: Vec<(Expr, String)>,
    pub(crate) from: Vec<Source>,
    pub(crate) filter: Option<Expr>,
    /// Rows that are equal in these become one.
    pub(crate) group: Vec<Expr>,
    /// With whether it descends.
    pub(crate) order: Vec<(Expr, bool)>,
    pub(crate) limit: Option<Expr>,
    pub(crate) locking: Option<Locking>,
}

/// A table of a FROM.
#[derive(Debug, Clone)]
pub(crate) struct Source {
    pub(crate) table: From,
    pub(crate) alias: String,
    pub(crate) index: Option<String>,
    pub(crate) left: bool,
    pub(crate) on: Option<Expr>,
}

#[derive(Debug, Clone)]
pub(crate) enum From {
    Table(String),
    /// `JSON_TABLE` over an array.
    Json {
        array: Expr,
        columns: JsonColumns,
    },
    Query(Query),
}

/// The columns of a `JSON_TABLE`.
#[derive(Debug, Clone, Copy)]
pub(crate) enum JsonColumns {
    /// `id`, a number or a text.
    Id,
    /// The positions from 1 on, and `id`.
    PlaceAndId,
    /// `id` and `page` of elements that are pairs of numbers.
    IdAndPage,
}

#[derive(Debug, Clone)]
pub(crate) enum Rows {
    Values(Vec<Vec<Expr>>),
    Select(Box<Select>),
}

#[derive(Debug, Clone)]
pub(crate) enum Statement {
    Select(Query),
    Insert {
        table: String,
        columns: Vec<String>,
        rows: Rows,
        on_duplicate: Vec<(String, Expr)>,
    },
    Update {
        source: Source,
        sets: Vec<(String, Expr)>,
        filter: Option<Expr>,
        order: Vec<(Expr, bool)>,
        limit: Option<Expr>,
    },
    Delete {
        /// The names of the tables whose rows are deleted.
        targets: Vec<String>,
        from: Vec<Source>,
        filter: Option<Expr>,
        order: Vec<(Expr, bool)>,
        limit: Option<Expr>,
    },
    /// What is shown, and the names asked for.
    Show(String, Vec<String>),
    Kill(u64),
    Begin,
    Commit,
    Rollback,
    Savepoint,
    RollbackToSavepoint,
    /// Session variables with numeric values.
    Set(Vec<(String, u64)>),
}
