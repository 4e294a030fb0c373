use std::io::{Write, stdout};

use clap::builder::{PossibleValuesParser, TypedValueParser};
use rowmq_core::account::{Account, AccountName};

/// Print the grants that an account of the queue needs, as SQL.
///
/// Nothing is changed: run it as an account that may grant, after `rowmq migrate`:
/// `rowmq grants consumer --user shop_worker@10.0.0.% | mysql shop`.
#[derive(Debug, clap::Args)]
pub(crate) struct Grants {
    /// What the account is for.
    #[arg(value_parser = account())]
    account: Account,
    /// The account, which exists already: NAME@HOST; without HOST, from everywhere.
    #[arg(long, value_name = "NAME@HOST")]
    user: Option<AccountName>,
}

/// Parses the name of a kind of account.
pub(crate) fn account() -> impl TypedValueParser<Value = Account> {
    PossibleValuesParser::new(Account::ALL.map(Account::word))
        .try_map(|word| Account::of_word(&word).ok_or("no such account"))
}

impl Grants {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let statements = match &self.user {
            Some(name) => self.account.statements(name),
            None => self.account.file().to_owned(),
        };
        Ok(stdout().lock().write_all(statements.as_bytes())?)
    }
}
