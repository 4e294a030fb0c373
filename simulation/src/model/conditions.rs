//! What a condition says about the rows that a scan reads.

use crate::sql::{Expr, Op};

/// Returns the conditions that must all hold.
pub(super) fn conjuncts(expr: &Expr) -> Vec<&Expr> {
    match expr {
        Expr::Binary(Op::And, left, right) => {
            let mut all = conjuncts(left);
            all.extend(conjuncts(right));
            all
        }
        other => vec![other],
    }
}

/// Returns whether the condition bounds `column` by itself.
pub(super) fn bounds(condition: &Expr, column: &str) -> bool {
    let is = |expr: &Expr| matches!(expr, Expr::Name(_, name) if name.eq_ignore_ascii_case(column));
    match condition {
        Expr::Binary(_, left, _) | Expr::In(left, _) | Expr::Between(left, ..) => is(left),
        _ => false,
    }
}

/// Returns whether the expression is known before a row of `alias` is read.
pub(super) fn is_known(expr: &Expr, alias: &str) -> bool {
    !mentions(expr, &|table, _| table.is_none_or(|table| table == alias))
}

/// Returns whether `asked` holds for any column of the expression.
pub(super) fn mentions(expr: &Expr, asked: &dyn Fn(Option<&str>, &str) -> bool) -> bool {
    let any = |exprs: &[Expr]| exprs.iter().any(|expr| mentions(expr, asked));
    match expr {
        Expr::Name(table, name) => asked(table.as_deref(), name),
        Expr::Not(a) | Expr::Negative(a) | Expr::IsNull(a) | Expr::Interval(a, _) => {
            mentions(a, asked)
        }
        Expr::Binary(_, a, b) => mentions(a, asked) || mentions(b, asked),
        Expr::In(a, list) => mentions(a, asked) || any(list),
        Expr::Between(a, b, c) => [a, b, c].into_iter().any(|expr| mentions(expr, asked)),
        Expr::Call(_, arguments) => any(arguments),
        Expr::Case(cases, default) => {
            cases.iter().any(|(a, b)| mentions(a, asked) || mentions(b, asked))
                || default.as_ref().is_some_and(|expr| mentions(expr, asked))
        }
        Expr::Exists(_) | Expr::Scalar(_) => true,
        Expr::Given(_) | Expr::Null | Expr::Number(_) | Expr::Text(_) | Expr::Param(_) => false,
    }
}
