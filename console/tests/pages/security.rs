//! Who can sign in, and what they may do.

use std::path::Path;
use std::process::{Command, Stdio};

use reqwest::Method;
use rowmq_core::NewMessage;
use rowmq_test::until;

use crate::fixture::{Fixture, PASSWORD, line};

#[tokio::test(flavor = "multi_thread")]
async fn nobody_sees_anything_before_signing_in() {
    let place = Fixture::new().await;
    let mut stranger = place.console.browser();
    for path in ["/", "/topics", "/messages", "/dead", "/groups", "/workers", "/audit", "/runs/1"] {
        let answer = stranger.get(path).await;
        assert_eq!(answer.status, 303, "{path}");
        assert!(answer.header("location").starts_with("/sign-in?to="), "{path}");
    }
    for path in ["/api/v1/overview", "/api/v1/live", "/api/v1/openapi.json"] {
        let answer = stranger.get(path).await;
        assert_eq!(answer.status, 401, "{path}");
        assert!(answer.text.contains("sign in first"), "{}", answer.text);
    }
    let page = stranger.get("/sign-in").await;
    assert_eq!(page.status, 200);
    assert!(
        !page.text.contains("queue_test_"),
        "the database's name is for those who are signed in"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_browser_is_told_to_load_and_run_nothing_but_what_is_here() {
    let place = Fixture::new().await;
    let mut viewer = place.signed_in("viewer").await;
    for path in ["/", "/sign-in", "/no-such-page", "/assets/console.js", "/api/v1/overview"] {
        let answer = viewer.get(path).await;
        let policy = answer.header("content-security-policy").to_owned();
        assert!(policy.starts_with("default-src 'none'; script-src 'self'"), "{path}: {policy}");
        assert!(!policy.contains("unsafe"), "{path}: {policy}");
        assert_eq!(answer.header("x-content-type-options"), "nosniff", "{path}");
        assert!(!answer.text.contains(" style=\"") && !answer.text.contains(" onclick"), "{path}");
    }
    assert_eq!(viewer.get("/").await.header("cache-control"), "no-store");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_password_is_refused_and_after_five_of_them_so_is_the_right_one() {
    let place = Fixture::new().await;
    let mut stranger = place.console.browser();
    let wrong = [("name", "admin"), ("password", "wrong horse")];
    for _ in 0..5 {
        assert_eq!(stranger.send(Method::POST, "/sign-in", &wrong).await.status, 401);
    }
    let right = [("name", "admin"), ("password", PASSWORD)];
    let refused = stranger.send(Method::POST, "/sign-in", &right).await;
    assert_eq!(refused.status, 429);
    let wait: u64 = refused.header("retry-after").parse().expect("seconds");
    assert!((1..=61).contains(&wait), "{wait}");
    assert!(stranger.cookie.is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_cookie_is_for_this_site_and_no_script_and_ends_with_the_sign_out() {
    let place = Fixture::new().await;
    let mut browser = place.console.browser();
    let fields = [("name", "viewer"), ("password", PASSWORD), ("to", "//evil.example")];
    let answer = browser.send(Method::POST, "/sign-in", &fields).await;
    assert_eq!(answer.header("location"), "/", "nobody is led elsewhere");
    let cookie = answer.header("set-cookie").to_owned();
    assert!(cookie.contains("; HttpOnly; SameSite=Strict"), "{cookie}");
    browser.read("/").await;
    let stolen = browser.cookie.clone();
    assert_eq!(browser.ask("/sign-out", &[]).await.status, 303);
    browser.cookie = stolen;
    assert_eq!(browser.get("/").await.status, 303);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_that_no_page_of_ours_asks_for_is_refused() {
    let place = Fixture::new().await;
    place.queue.topic("mail").await;
    let mut admin = place.signed_in("admin").await;
    let (path, fields) = ("/topics/mail/access", [("access", "denied")]);
    assert_eq!(admin.send(Method::POST, path, &fields).await.status, 403, "without a token");
    let token = std::mem::replace(&mut admin.csrf, "another".to_owned());
    assert_eq!(admin.ask(path, &fields).await.status, 403, "with a wrong one");
    let other = place.signed_in("operator").await;
    admin.csrf.clone_from(&other.csrf);
    assert_eq!(admin.ask(path, &fields).await.status, 403, "with somebody else's");
    admin.csrf = token;
    for foreign in
        [("origin", "http://evil.example"), ("origin", "null"), ("sec-fetch-site", "cross-site")]
    {
        admin.headers = vec![(foreign.0, foreign.1.to_owned())];
        assert_eq!(admin.ask(path, &fields).await.status, 403, "{foreign:?}");
    }
    admin.headers.clear();
    assert_eq!(place.access("mail").await, "read-write");
    assert_eq!(admin.ask(path, &fields).await.status, 303);
    assert_eq!(place.access("mail").await, "denied");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_may_do_what_it_is_for_and_its_pages_offer_nothing_else() {
    let place = Fixture::new().await;
    place.queue.topic("mail").await;
    place.queue.enqueue_all("mail", &[NewMessage::new("a")]).await;
    place.queue.dead_letter("mail", "no").await;
    let mut viewer = place.signed_in("viewer").await;
    place.seen(&mut viewer, "mail", 1).await;
    let page = viewer.read("/topics/mail").await;
    assert!(!page.contains("Pause consumers"));
    let dead = viewer.read("/dead/mail").await;
    assert!(!dead.contains("Redrive") && !dead.contains("Delete"));
    for (path, field) in [
        ("/topics/mail/access", ("access", "denied")),
        ("/dead/mail/redrive", ("all", "true")),
        ("/dead/mail/purge", ("all", "true")),
    ] {
        assert_eq!(viewer.ask(path, &[field]).await.status, 403, "{path}");
    }
    let mut operator = place.signed_in("operator").await;
    let dead = operator.read("/dead/mail").await;
    assert!(dead.contains("Redrive all") && !dead.contains("Delete all"));
    assert_eq!(operator.ask("/dead/mail/purge", &[("all", "true")]).await.status, 403);
    assert_eq!(operator.ask("/groups/a@b/reset", &[("to", "latest")]).await.status, 403);
    assert!(
        place.signed_in("admin").await.read("/dead/mail").await.contains("Delete all for ever")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn viewers_see_bodies_only_where_that_is_allowed() {
    let place = Fixture::new().await;
    place.queue.topic("mail").await;
    let message = NewMessage::new("the secret");
    let path = format!("/messages/mail/{}", message.msg_id);
    place.queue.enqueue_all("mail", &[message]).await;
    let mut viewer = place.signed_in("viewer").await;
    let page = viewer.read(&path).await;
    assert!(!page.contains("the secret") && page.contains("not shown to viewers"), "{page}");
    assert_eq!(viewer.get(&format!("{path}/body")).await.status, 403);
    assert!(!viewer.read(&format!("/api/v1{path}")).await.contains("the secret"));
    let mut operator = place.signed_in("operator").await;
    assert!(operator.read(&path).await.contains("the secret"));
    let body = operator.get(&format!("{path}/body")).await;
    assert_eq!(
        (body.text.as_str(), body.header("content-type")),
        ("the secret", "application/octet-stream")
    );
    assert!(body.header("content-disposition").starts_with("attachment"));
    let open = Fixture::with(&["--viewers-see-bodies", "true"]).await;
    open.queue.topic("mail").await;
    let message = NewMessage::new("no secret");
    let path = format!("/messages/mail/{}", message.msg_id);
    open.queue.enqueue_all("mail", &[message]).await;
    assert!(open.signed_in("viewer").await.read(&path).await.contains("no secret"));
}

#[tokio::test(flavor = "multi_thread")]
async fn without_users_the_link_of_the_log_signs_in_once_and_only_on_this_machine() {
    let place = Fixture::open(&[]).await;
    let token = || {
        let line = place.console.logged("/sign-in?token=").expect("a link");
        line.split("token=")
            .nth(1)
            .and_then(|rest| rest.split(' ').next())
            .expect("a token")
            .to_owned()
    };
    let first = token();
    let mut browser = place.console.browser();
    assert!(browser.get(&format!("/sign-in?token={first}")).await.text.contains(&first));
    // Wrong guesses of another program on this machine do not lock the owner out.
    for _ in 0..20 {
        assert_eq!(browser.send(Method::POST, "/sign-in", &[("token", "guess")]).await.status, 401);
    }
    assert_eq!(browser.send(Method::POST, "/sign-in", &[("token", &first)]).await.status, 303);
    assert!(browser.read("/").await.contains("(admin)"));
    until("another link is logged", async || token() != first).await;
    let mut second = place.console.browser();
    assert_eq!(second.send(Method::POST, "/sign-in", &[("token", &first)]).await.status, 401);
    browser.headers = vec![("host", "evil.example:9480".to_owned())];
    assert_eq!(browser.get("/").await.status, 403, "a name that another site has led here");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_header_signs_in_only_by_a_trusted_proxy() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("secret");
    std::fs::write(&file, "sixteen characters\n").expect("written");
    let file = file.to_str().expect("text");
    let headers = ["--proxy-user-header", "x-user", "--proxy-role-header", "x-role"];
    let headers = [&headers[..], &["--proxy-secret-file", file]].concat();
    let secret = ("queue-proxy-secret", "sixteen characters".to_owned());
    let trusting =
        Fixture::open(&[&headers[..], &["--trusted-proxy", "127.0.0.0/8"]].concat()).await;
    let mut ada = trusting.console.browser();
    ada.headers = vec![("x-user", "ada".to_owned()), ("x-role", "operator".to_owned())];
    assert_eq!(ada.get("/").await.status, 303, "another program of the proxy's machine");
    ada.headers.push((secret.0, "sixteen characterz".to_owned()));
    assert_eq!(ada.get("/").await.status, 303, "a guess");
    ada.headers[2] = secret.clone();
    assert!(ada.read("/").await.contains("ada (operator)"));
    // Behind a proxy that adds its headers to those of a client.
    ada.headers.push(("x-role", "admin".to_owned()));
    assert_eq!(ada.get("/").await.status, 403);
    ada.headers.pop();
    ada.headers[1].1 = "root".to_owned();
    assert!(ada.read("/").await.contains("ada (viewer)"));
    ada.headers.clear();
    assert_eq!(ada.get("/").await.status, 303);
    let other = Fixture::open(&[&headers[..], &["--trusted-proxy", "10.0.0.0/8"]].concat()).await;
    let mut liar = other.console.browser();
    liar.headers = vec![("x-user", "ada".to_owned()), ("x-role", "admin".to_owned()), secret];
    assert_eq!(liar.get("/").await.status, 303);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_others_have_written_is_shown_and_never_run() {
    const EVIL: &str = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>";
    let place = Fixture::new().await;
    place.queue.topic("mail").await;
    let message = NewMessage::new(EVIL).with_key(EVIL).with_biz_id(EVIL).with_header("x", EVIL);
    let path = format!("/messages/mail/{}", message.msg_id);
    place.queue.enqueue_all("mail", &[message]).await;
    place.queue.dead_letter("mail", EVIL).await;
    let mut admin = place.signed_in("admin").await;
    place.seen(&mut admin, "mail", 1).await;
    let query: String = url::form_urlencoded::byte_serialize(EVIL.as_bytes()).collect();
    let search = format!("/messages?topic=mail&error={query}");
    for path in [
        path.as_str(),
        "/dead/mail",
        "/messages?topic=mail",
        &search,
        &format!("/dead/mail?error={query}"),
    ] {
        let page = admin.read(path).await;
        assert!(page.contains("&lt;script&gt;alert(1)"), "{path} shows it");
        assert!(!page.contains("<script>") && !page.contains("<img"), "{path} runs it");
    }
    for wrong in [format!("/topics/{query}"), format!("/messages?topic=mail&id={query}")] {
        let page = admin.get(&wrong).await;
        assert!(page.status >= 400 && !page.text.contains("<script>"), "{wrong}: {}", page.text);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn with_a_certificate_it_speaks_https_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
    let [certificate, key] =
        [("certificate", made.cert.pem()), ("key", made.signing_key.serialize_pem())].map(
            |(name, text)| {
                let file = folder.path().join(name);
                std::fs::write(&file, text).expect("written");
                file.to_str().expect("text").to_owned()
            },
        );
    let place = Fixture::with(&["--tls-certificate", &certificate, "--tls-key", &key]).await;
    let port = place.console.port();
    let trusted = reqwest::Certificate::from_pem(made.cert.pem().as_bytes()).expect("read");
    let client = reqwest::Client::builder()
        .redirect(reqwest::redirect::Policy::none())
        .no_proxy()
        .add_root_certificate(trusted)
        .build()
        .expect("a client");
    let url = format!("https://localhost:{port}/sign-in");
    let form = client.post(url).header("content-type", "application/x-www-form-urlencoded");
    let form = form.body(format!("name=viewer&password={}", PASSWORD.replace(' ', "+")));
    let answer = form.send().await.expect("answered");
    assert_eq!(answer.status(), 303);
    let header = |name: &str| answer.headers()[name].to_str().expect("text").to_owned();
    assert!(header("strict-transport-security").starts_with("max-age="));
    let cookie = header("set-cookie");
    assert!(cookie.starts_with("__Host-") && cookie.ends_with("; Secure"), "{cookie}");
    let plain = client.get(format!("http://localhost:{port}/sign-in")).send().await;
    assert!(plain.is_err(), "{plain:?}");
}

/// Runs `--check` with these options; returns the exit code and what it prints.
fn checked(options: &[&str], handed: Option<&Path>) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rowmq-console"));
    command.args(options).arg("--check").env("ROWMQ_URL", "mysql://u:p@127.0.0.1/q");
    command.env_remove("ROWMQ_CONFIG").env_remove("CREDENTIALS_DIRECTORY").stdin(Stdio::null());
    if let Some(directory) = handed {
        command.env("CREDENTIALS_DIRECTORY", directory);
    }
    let ended = command.output().expect("it runs");
    (ended.status.code(), String::from_utf8(ended.stderr).expect("text"))
}

#[test]
fn settings_that_would_let_strangers_in_are_refused_with_what_to_do() {
    for (options, sentence) in [
        (&["--listen", "0.0.0.0:9480"][..], "--listen: 'listen' is more than loopback"),
        (&["--users", "/nowhere"], "Cannot read the users' file /nowhere"),
        (&["--users", "/dev/null"], "/dev/null names no user: `rowmq-console user NAME"),
        (&["--proxy-user-header", "x-user"], "'proxy_user_header' is believed from no address"),
        (&["--origin", "https://rowmq.example.com"], "'origin' leads here from elsewhere"),
        (&["--origin", "rowmq.example.com"], "it looks like https://rowmq.example.com"),
        (&["--trusted-proxy", "here"], "it looks like 10.0.0.7"),
        (
            &["--proxy-user-header", "x-user", "--trusted-proxy", "10.0.0.7"],
            "'proxy_user_header' could be sent by any program at the proxy's address: name a",
        ),
        (&["--tls-certificate", "/nowhere"], "'tls_certificate' and 'tls_key' work only together"),
        (
            &["--tls-certificate", "/dev/null", "--tls-key", "/dev/null"],
            "Cannot serve https with /dev/null",
        ),
    ] {
        let (code, said) = checked(options, None);
        assert_eq!(code, Some(2), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(said.contains(sentence), "{said}");
    }
}

#[test]
fn a_service_gets_its_users_by_a_credential_which_may_name_nobody() {
    let handed = tempfile::tempdir().expect("a folder");
    let everywhere = ["--listen", "0.0.0.0:9480"];
    let hand_to = |text: &str, options: &[&str]| {
        std::fs::write(handed.path().join("rowmq-users"), text).expect("written");
        checked(&[&everywhere[..], options].concat(), Some(handed.path()))
    };
    let hand = |text: &str| hand_to(text, &["--plain-http", "true"]);
    let (code, said) = hand("# nobody\n");
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("'listen' is more than loopback"), "{said}");
    let (code, said) = hand("ada:admin:none\n");
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("rowmq-users:1: the hash is none of argon2id"), "{said}");
    let (code, said) = hand(&line("ada", "admin"));
    assert_eq!(code, Some(0), "{said}");
    // Plain HTTP beyond loopback must be allowed explicitly.
    let (code, said) = hand_to(&line("ada", "admin"), &[]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("would cross the network in plain text"), "{said}");
    let (code, said) = hand_to(&line("ada", "admin"), &["--origin", "http://rowmq.example.com"]);
    assert_eq!(code, Some(2), "{said}");
    let (code, said) = hand_to(&line("ada", "admin"), &["--origin", "https://rowmq.example.com"]);
    assert_eq!(code, Some(0), "{said}");
}
