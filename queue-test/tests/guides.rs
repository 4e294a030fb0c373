//! Follows the guides of `docs/` as a reader does: types their commands in their order, makes the
//! files that they show, and compares what is printed with what they say.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "tests: a guide that cannot be followed has failed"
)]

mod guide;
mod shell;

use diesel_async::SimpleAsyncConnection;
use rowmq_core::connection::ServerUrl;
use rowmq_test::TestDatabase;

use self::guide::{Guide, Step};
use self::shell::Shell;
use crate::tool::checkout;

/// Follows a guide on an empty database.
async fn follow(page: &str) {
    let guide = Guide::read(&checkout().join("docs").join(page));
    let server = std::env::var("ROWMQ_URL").expect("ROWMQ_URL names the server to test on");
    let server = ServerUrl::new(&server).expect("a URL");
    let database = TestDatabase::empty_on(&server).await;
    let mut shell = Shell::start(&database);
    for step in guide.steps {
        match step {
            Step::File { name, text } => shell.write(&name, &text),
            Step::Command { line, command, output } => {
                shell.run(&format!("{page}:{line}"), &command, &output).await;
            }
            Step::Sql { line, text } => {
                let done = database.connect().await.batch_execute(&text).await;
                done.unwrap_or_else(|error| panic!("{page}:{line}: {error}"));
            }
        }
    }
}

/// Defines the test of each guide, and a test that none is left out.
macro_rules! guides {
    ($($test:ident: $page:literal),+ $(,)?) => {
        $(#[tokio::test]
        async fn $test() {
            follow($page).await;
        })+

        #[test]
        fn every_how_to_is_followed() {
            let followed = [$($page),+];
            let pages = std::fs::read_dir(checkout().join("docs/how-to")).expect("the how-tos");
            for page in pages {
                let name = page.expect("listed").file_name().into_string().expect("text");
                let page = format!("how-to/{name}");
                assert!(followed.contains(&page.as_str()), "{page} is not followed by a test");
            }
        }
    };
}

guides! {
    the_tutorial: "tutorial.md",
    the_outbox: "how-to/outbox.md",
    the_webhook: "how-to/webhook.md",
    the_rate_limit: "how-to/rate-limit.md",
    the_nightly_report: "how-to/nightly-report.md",
    the_payment: "how-to/exactly-once-payment.md",
}
