use super::lexer::{Token, tokens};
use super::{Expr, From, JsonColumns, Locking, Query, Rows, Select, Source, Statement};

/// Reads one statement.
///
/// # Panics
/// If the model does not know a part of the statement.
pub(crate) fn parse(text: &str) -> Statement {
    let mut parser = Parser::new(text);
    let statement = parser.statement();
    assert!(
        parser.at == parser.tokens.len(),
        "unknown to the model: {:?} in {text}",
        parser.rest()
    );
    statement
}

pub(super) struct Parser {
    tokens: Vec<Token>,
    at: usize,
    pub(super) params: usize,
}

/// Words that cannot be a table's alias.
const KEYWORDS: [&str; 19] = [
    "LOCK",
    "WHERE",
    "ORDER",
    "LIMIT",
    "FOR",
    "FORCE",
    "INNER",
    "JOIN",
    "LEFT",
    "STRAIGHT_JOIN",
    "ON",
    "UNION",
    "SET",
    "VALUES",
    "GROUP",
    "FROM",
    "SELECT",
    "AND",
    "THEN",
];

impl Parser {
    pub(super) fn new(text: &str) -> Self {
        Self { tokens: tokens(text), at: 0, params: 0 }
    }

    pub(super) fn rest(&self) -> &[Token] {
        &self.tokens[self.at.min(self.tokens.len())..]
    }

    pub(super) fn next(&mut self) -> Token {
        let token = self.tokens.get(self.at).cloned();
        self.at += 1;
        token.expect("a statement that goes on")
    }

    pub(super) fn is(&self, word: &str) -> bool {
        let token = self.tokens.get(self.at);
        matches!(token, Some(Token::Word(found)) if found.eq_ignore_ascii_case(word))
    }

    pub(super) fn takes(&mut self, word: &str) -> bool {
        let is = self.is(word);
        self.at += usize::from(is);
        is
    }

    /// Takes all of these words, or none.
    pub(super) fn take_all(&mut self, words: &str) -> bool {
        let start = self.at;
        let all = words.split(' ').all(|word| self.takes(word));
        if !all {
            self.at = start;
        }
        all
    }

    pub(super) fn needs(&mut self, words: &str) {
        assert!(self.take_all(words), "{words} expected at {:?}", self.rest());
    }

    pub(super) fn is_symbol(&self, symbol: &str) -> bool {
        matches!(self.tokens.get(self.at), Some(Token::Symbol(found)) if *found == symbol)
    }

    pub(super) fn takes_symbol(&mut self, symbol: &str) -> bool {
        let is = self.is_symbol(symbol);
        self.at += usize::from(is);
        is
    }

    pub(super) fn needs_symbol(&mut self, symbol: &str) {
        assert!(self.takes_symbol(symbol), "{symbol} expected at {:?}", self.rest());
    }

    pub(super) fn word(&mut self) -> String {
        match self.next() {
            Token::Word(word) | Token::Name(word) => word,
            other => panic!("a name expected, not {other:?}"),
        }
    }

    pub(super) fn list<T>(&mut self, mut one: impl FnMut(&mut Self) -> T) -> Vec<T> {
        let mut list = vec![one(self)];
        while self.takes_symbol(",") {
            list.push(one(self));
        }
        list
    }

    pub(super) fn in_parentheses<T>(&mut self, one: impl FnOnce(&mut Self) -> T) -> T {
        self.needs_symbol("(");
        let value = one(self);
        self.needs_symbol(")");
        value
    }

    fn statement(&mut self) -> Statement {
        if self.is("SELECT") || self.is_symbol("(") {
            return Statement::Select(self.query());
        }
        let verb = self.word();
        match verb.to_ascii_uppercase().as_str() {
            "INSERT" => self.insert(),
            "UPDATE" => {
                let source = self.source(false);
                self.needs("SET");
                let sets = self.list(Self::assignment);
                let filter = self.filter();
                let (order, limit) = self.order_and_limit();
                Statement::Update { source, sets, filter, order, limit }
            }
            "DELETE" => self.delete(),
            "BEGIN" => Statement::Begin,
            "COMMIT" => Statement::Commit,
            "ROLLBACK" if self.take_all("TO SAVEPOINT") => {
                self.word();
                Statement::RollbackToSavepoint
            }
            "ROLLBACK" => Statement::Rollback,
            "SAVEPOINT" => {
                self.word();
                Statement::Savepoint
            }
            "KILL" => match self.next() {
                Token::Number(id) => Statement::Kill(u64::try_from(id).expect("an id")),
                other => panic!("KILL {other:?}"),
            },
            "SHOW" => self.show(),
            "SET" => self.set(),
            other => panic!("unknown to the model: {other}"),
        }
    }

    fn assignment(&mut self) -> (String, Expr) {
        let mut column = self.word();
        if self.takes_symbol(".") {
            column = self.word();
        }
        self.needs_symbol("=");
        (column, self.expr())
    }

    fn insert(&mut self) -> Statement {
        self.needs("INTO");
        let table = self.word();
        let columns = self.in_parentheses(|p| p.list(Self::word));
        let rows = if self.takes("VALUES") {
            Rows::Values(self.list(|p| p.in_parentheses(|p| p.list(Self::expr))))
        } else {
            Rows::Select(Box::new(self.select()))
        };
        let on_duplicate = if self.take_all("ON DUPLICATE KEY UPDATE") {
            self.list(Self::assignment)
        } else {
            Vec::new()
        };
        Statement::Insert { table, columns, rows, on_duplicate }
    }

    fn delete(&mut self) -> Statement {
        let targets = if self.is("FROM") { Vec::new() } else { self.list(Self::word) };
        self.needs("FROM");
        let from = self.sources();
        let targets = if targets.is_empty() { vec![from[0].alias.clone()] } else { targets };
        let filter = self.filter();
        let (order, limit) = self.order_and_limit();
        Statement::Delete { targets, from, filter, order, limit }
    }

    fn show(&mut self) -> Statement {
        self.takes("GLOBAL");
        let what = self.word().to_ascii_lowercase();
        let mut names = Vec::new();
        if self.take_all("WHERE Variable_name IN") {
            let texts = self.in_parentheses(|p| p.list(Self::next));
            names.extend(texts.into_iter().map(text_of));
        } else if self.take_all("WHERE Variable_name") {
            self.needs_symbol("=");
            let name = self.next();
            names.push(text_of(name));
        }
        Statement::Show(what, names)
    }

    /// Parses SETs of session variables; those that are not numbers change nothing in the model.
    fn set(&mut self) -> Statement {
        let mut variables = Vec::new();
        while self.at < self.tokens.len() {
            let token = self.next();
            if let Token::Word(name) = token
                && self.takes_symbol("=")
                && let Token::Number(value) = self.next()
            {
                variables.push((name, u64::try_from(value).expect("no sign")));
            }
        }
        Statement::Set(variables)
    }

    pub(super) fn query(&mut self) -> Query {
        let mut selects = Vec::new();
        loop {
            let select =
                if self.is_symbol("(") { self.in_parentheses(Self::select) } else { self.select() };
            selects.push(select);
            if !self.take_all("UNION ALL") {
                return Query(selects);
            }
        }
    }

    fn select(&mut self) -> Select {
        self.needs("SELECT");
        let items = self.list(|p| {
            let start = p.at;
            let expr = p.expr();
            let name = if p.takes("AS") {
                p.word()
            } else {
                match &p.tokens[start..p.at] {
                    [.., Token::Word(name) | Token::Name(name)] => name.clone(),
                    _ => String::new(),
                }
            };
            (expr, name)
        });
        let from = if self.takes("FROM") { self.sources() } else { Vec::new() };
        let filter = self.filter();
        let group = if self.take_all("GROUP BY") { self.list(Self::expr) } else { Vec::new() };
        let (order, limit) = self.order_and_limit();
        // A session that only shares a lock waits less than in the model.
        let locking = (self.take_all("LOCK IN SHARE MODE") || self.take_all("FOR UPDATE"))
            .then(|| if self.take_all("SKIP LOCKED") { Locking::Skip } else { Locking::Wait });
        Select { items, from, filter, group, order, limit, locking }
    }

    fn filter(&mut self) -> Option<Expr> {
        self.takes("WHERE").then(|| self.expr())
    }

    fn order_and_limit(&mut self) -> (Vec<(Expr, bool)>, Option<Expr>) {
        let order = if self.take_all("ORDER BY") {
            self.list(|p| {
                let expr = p.expr();
                let descends = !p.takes("ASC") && p.takes("DESC");
                (expr, descends)
            })
        } else {
            Vec::new()
        };
        let limit = self.takes("LIMIT").then(|| self.expr());
        (order, limit)
    }

    fn sources(&mut self) -> Vec<Source> {
        // Diesel writes a join in parentheses.
        if self.is_symbol("(") && matches!(self.tokens.get(self.at + 1), Some(Token::Name(_))) {
            return self.in_parentheses(Self::sources);
        }
        let mut sources = vec![self.source(false)];
        loop {
            let left = self.take_all("LEFT JOIN");
            if !left
                && !self.take_all("INNER JOIN")
                && !self.takes("JOIN")
                && !self.takes("STRAIGHT_JOIN")
            {
                return sources;
            }
            let mut source = self.source(left);
            self.needs("ON");
            source.on = Some(self.expr());
            sources.push(source);
        }
    }

    fn json_columns(&mut self) -> JsonColumns {
        let numbered = self.take_all("place FOR ORDINALITY");
        if numbered {
            self.needs_symbol(",");
        }
        if self.take_all("id CHAR") {
            self.in_parentheses(Self::next);
            self.needs("PATH");
        } else {
            self.needs("id BIGINT UNSIGNED PATH");
        }
        self.next();
        if self.takes_symbol(",") {
            self.needs("page BIGINT UNSIGNED PATH");
            self.next();
            return JsonColumns::IdAndPage;
        }
        if numbered { JsonColumns::PlaceAndId } else { JsonColumns::Id }
    }

    fn source(&mut self, left: bool) -> Source {
        let table = if self.is_symbol("(") {
            From::Query(self.in_parentheses(Self::query))
        } else if self.takes("JSON_TABLE") {
            self.needs_symbol("(");
            let array = self.expr();
            self.needs_symbol(",");
            assert_eq!(self.next(), Token::Text(b"$[*]".to_vec()), "elements of an array");
            self.needs("COLUMNS");
            let columns = self.in_parentheses(Self::json_columns);
            self.needs_symbol(")");
            From::Json { array, columns }
        } else {
            let mut name = self.word();
            if self.takes_symbol(".") {
                name = format!("{name}.{}", self.word());
            }
            From::Table(name)
        };
        let other_name = match self.tokens.get(self.at) {
            Some(Token::Word(word)) => {
                !KEYWORDS.iter().any(|keyword| word.eq_ignore_ascii_case(keyword))
            }
            _ => false,
        };
        let alias = match (&table, self.takes("AS") || other_name) {
            (_, true) => self.word(),
            (From::Table(name), false) => name.clone(),
            _ => String::new(),
        };
        let index = self.take_all("FORCE INDEX").then(|| self.in_parentheses(Self::word));
        Source { table, alias, index, left, on: None }
    }
}

fn text_of(token: Token) -> String {
    match token {
        Token::Text(text) => String::from_utf8_lossy(&text).into_owned(),
        other => panic!("a text expected, not {other:?}"),
    }
}
