use rowmq_core::account::Account;
use rowmq_test::TestDatabase;

use crate::run::Rowmq;

#[test]
fn grants_prints_what_an_account_needs_without_a_server() {
    let rowmq = Rowmq::at_text("");
    for account in Account::ALL {
        let named = rowmq.say(&["grants", account.word(), "--user", "shop@10.0.%"]);
        let statements = named.lines().filter(|line| line.contains("GRANT "));
        assert_eq!(statements.clone().count(), named.matches("TO 'shop'@'10.0.%';").count());
        assert!(statements.count() > 0, "{named}");
        assert_eq!(rowmq.say(&["grants", account.word()]), account.file());
    }
    assert_eq!(rowmq.run(&["grants", "king"]).code, Some(2));
    rowmq.run(&["grants", "janitor", "--user", "@"]).refused(2);
}

#[tokio::test]
async fn doctor_names_the_missing_and_the_excess_grant_of_an_account() {
    let database = TestDatabase::new().await;
    let janitor = Rowmq::at(&database.account_of(Account::Janitor).await);
    let report = janitor.say(&["doctor", "--as", "janitor"]);
    assert!(report.contains("what a janitor needs, and no more"), "{report}");
    let wrong = janitor.run(&["doctor", "--as", "consumer"]);
    assert_eq!(wrong.code, Some(1), "{wrong:?}");
    for part in ["missing for a consumer: ", "INSERT ON queue_claim", "PROCESS ON *.*"] {
        assert!(wrong.out.contains(part), "{part}: {}", wrong.out);
    }
    let whole = Rowmq::at(&database.account(&["ALL ON {}.*"]).await);
    let report = whole.say(&["doctor", "--as", "caller"]);
    assert!(report.contains("more than a caller needs"), "{report}");
    assert!(!report.contains("missing for"), "{report}");
}
