use super::lexer::Token;
use super::parser::Parser;
use super::{Expr, Op};

impl Parser {
    pub(super) fn expr(&mut self) -> Expr {
        self.binary(0)
    }

    fn binary(&mut self, level: u8) -> Expr {
        if level == 2 && self.takes("NOT") {
            return Expr::Not(Box::new(self.binary(2)));
        }
        if level > 5 {
            return self.unary();
        }
        let mut left = self.binary(level + 1);
        loop {
            if level == 3
                && let Some(predicate) = self.predicate(&left)
            {
                left = predicate;
                continue;
            }
            let Some(op) = self.operator(level) else { return left };
            let right = self.binary(level + 1);
            left = Expr::Binary(op, Box::new(left), Box::new(right));
        }
    }

    fn operator(&mut self, level: u8) -> Option<Op> {
        let symbols: &[(&str, Op)] = match level {
            0 => return self.takes("OR").then_some(Op::Or),
            1 => return self.takes("AND").then_some(Op::And),
            5 if self.takes("MOD") => return Some(Op::Modulo),
            5 if self.takes("DIV") => return Some(Op::Divided),
            3 => &[
                ("<=>", Op::Same),
                ("<=", Op::LessEqual),
                (">=", Op::GreaterEqual),
                ("<>", Op::Unequal),
                ("!=", Op::Unequal),
                ("=", Op::Equal),
                ("<", Op::Less),
                (">", Op::Greater),
            ],
            4 => &[("+", Op::Plus), ("-", Op::Minus)],
            5 => &[("*", Op::Times), ("%", Op::Modulo)],
            _ => &[],
        };
        symbols.iter().find(|(symbol, _)| self.takes_symbol(symbol)).map(|(_, op)| *op)
    }

    /// Parses IS NULL, IN and BETWEEN after `left`.
    fn predicate(&mut self, left: &Expr) -> Option<Expr> {
        let left = || Box::new(left.clone());
        if self.take_all("IS NOT NULL") {
            return Some(Expr::Not(Box::new(Expr::IsNull(left()))));
        }
        if self.take_all("IS NULL") {
            return Some(Expr::IsNull(left()));
        }
        if self.takes("IN") {
            return Some(Expr::In(left(), self.in_parentheses(|p| p.list(Self::expr))));
        }
        if self.takes("BETWEEN") {
            let low = self.binary(4);
            self.needs("AND");
            return Some(Expr::Between(left(), Box::new(low), Box::new(self.binary(4))));
        }
        None
    }

    fn unary(&mut self) -> Expr {
        match self.next() {
            Token::Param => {
                self.params += 1;
                Expr::Param(self.params - 1)
            }
            Token::Number(number) => Expr::Number(number),
            Token::Text(text) => Expr::Text(text),
            Token::Symbol("-") => Expr::Negative(Box::new(self.unary())),
            Token::Symbol("*") => Expr::Number(1),
            Token::Symbol("@@") => Expr::Call("@@".into(), vec![Expr::Text(self.word().into())]),
            Token::Symbol("(") => {
                let expr = if self.is("SELECT") {
                    Expr::Scalar(Box::new(self.query()))
                } else {
                    self.expr()
                };
                self.needs_symbol(")");
                expr
            }
            Token::Word(word) => self.named(&word),
            Token::Name(name) => self.column(name),
            Token::Symbol(other) => panic!("unknown to the model: {other} {:?}", self.rest()),
        }
    }

    fn named(&mut self, word: &str) -> Expr {
        match word.to_ascii_uppercase().as_str() {
            "NULL" => return Expr::Null,
            "TRUE" => return Expr::Number(1),
            "FALSE" => return Expr::Number(0),
            "EXISTS" => return Expr::Exists(Box::new(self.in_parentheses(Self::query))),
            "INTERVAL" => {
                let number = self.binary(4);
                let unit = match self.word().to_ascii_uppercase().as_str() {
                    "MICROSECOND" => 1,
                    "SECOND" => 1_000_000,
                    other => panic!("unknown to the model: {other}"),
                };
                return Expr::Interval(Box::new(number), unit);
            }
            "VALUES" => return Expr::Given(self.in_parentheses(Self::word)),
            "CASE" => return self.case(),
            // Only one of its values is computed.
            "IF" => {
                let mut three = self.in_parentheses(|p| p.list(Self::expr));
                assert_eq!(three.len(), 3, "IF(condition, value, value)");
                let otherwise = three.pop().map(Box::new);
                let value = three.pop().expect("a value");
                return Expr::Case(vec![(three.remove(0), value)], otherwise);
            }
            "TIMESTAMPDIFF" => {
                return self.in_parentheses(|p| {
                    p.needs("MICROSECOND");
                    p.needs_symbol(",");
                    Expr::Call("TIMESTAMPDIFF".to_owned(), p.list(Self::expr))
                });
            }
            "CAST" => {
                return self.in_parentheses(|p| {
                    let expr = p.expr();
                    p.needs("AS");
                    p.word();
                    expr
                });
            }
            "CONVERT" => {
                return self.in_parentheses(|p| {
                    let expr = p.expr();
                    p.needs("USING");
                    p.word();
                    expr
                });
            }
            _ => {}
        }
        if self.takes_symbol("(") {
            let arguments = if self.is_symbol(")") { Vec::new() } else { self.list(Self::expr) };
            self.needs_symbol(")");
            return Expr::Call(word.to_ascii_uppercase(), arguments);
        }
        self.column(word.to_owned())
    }

    /// Parses a column after its first name, which may be its table's.
    fn column(&mut self, name: String) -> Expr {
        if !self.takes_symbol(".") {
            return Expr::Name(None, name);
        }
        let all = self.takes_symbol("*");
        let column = if all { "*".to_owned() } else { self.word() };
        Expr::Name(Some(name), column)
    }

    fn case(&mut self) -> Expr {
        let mut cases = Vec::new();
        while self.takes("WHEN") {
            let condition = self.expr();
            self.needs("THEN");
            cases.push((condition, self.expr()));
        }
        let default = self.takes("ELSE").then(|| Box::new(self.expr()));
        self.needs("END");
        Expr::Case(cases, default)
    }
}
