//! The webhook handler against real servers on this machine.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use axum::http::{Method, StatusCode};
use axum::response::IntoResponse;
use hmac::{Hmac, KeyInit, Mac};
use reqwest::header::HeaderValue;
use rowmq_consumer::webhook::{AddressPolicy, WebhookError, WebhookHandler, WebhookOptions};
use rowmq_core::handler::{Context, HandlerError, RawHandler};
use rowmq_core::model::Headers;
use sha2::Sha256;
use tokio::net::TcpListener;
use url::Url;

use crate::message::{all_bytes, context, context_with};
use crate::service::{Service, https_service, raw_service};

/// Names the URL for [`a_webhook_in_a_process_of_its_own`].
const ROLE: &str = "WEBHOOK_TEST_URL";

fn loopback() -> AddressPolicy {
    AddressPolicy::Allow(vec!["127.0.0.0/8".parse().unwrap(), "::1".parse().unwrap()])
}

fn options(url: &Url) -> WebhookOptions {
    WebhookOptions { allow: loopback(), ..WebhookOptions::new(url.clone()) }
}

async fn post(url: &Url) -> Result<(), HandlerError> {
    WebhookHandler::new(options(url)).unwrap().handle(&context("hello")).await
}

/// Returns the text of an error that requests a retry.
fn retry_text(result: Result<(), HandlerError>) -> String {
    match result {
        Err(HandlerError::Retry(error)) => error.to_string(),
        other => panic!("expected a retry, got {other:?}"),
    }
}

#[tokio::test]
async fn the_request_carries_the_body_byte_for_byte_and_the_messages_facts() {
    let service = Service::start(|_| StatusCode::NO_CONTENT.into_response()).await;
    let handler = WebhookHandler::new(options(&service.url)).unwrap();
    let message = context(all_bytes());
    handler.handle(&message).await.unwrap();
    handler.handle(&context("")).await.unwrap();
    let seen = service.seen();
    assert_eq!(seen.len(), 2);
    assert_eq!(seen[0].method, Method::POST);
    assert_eq!(seen[0].uri.path(), "/hook");
    assert_eq!(seen[0].body, all_bytes());
    assert_eq!(seen[0].header("queue-topic"), "mail");
    assert_eq!(seen[0].header("queue-msg-id"), message.delivery.msg_id.to_string());
    assert_eq!(seen[0].header("queue-delivery-no"), "3");
    assert_eq!(seen[0].header("queue-failures"), "2");
    assert_eq!(seen[0].header("content-type"), "application/octet-stream");
    assert!(seen[0].headers.get("queue-signature").is_none());
    assert_eq!(seen[1].body, "");
}

#[tokio::test]
async fn the_request_goes_on_with_the_trace_of_its_message() {
    let service = Service::start(|_| StatusCode::OK.into_response()).await;
    let handler = WebhookHandler::new(options(&service.url)).unwrap();
    let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let message = |state: &str| {
        let headers = [("traceparent", parent), ("tracestate", state)];
        context_with("", |delivery| delivery.headers = Headers::from_iter(headers))
    };
    let (first, second) = (message("a=1"), message("no\nheader"));
    for message in [&first, &second, &context("")] {
        handler.handle(message).await.unwrap();
    }
    let seen = service.seen();
    let here = first.traceparent().unwrap().to_string();
    assert_eq!(seen[0].header("traceparent"), here);
    assert!(here.starts_with(&parent[..36]) && !here.contains("00f067aa0ba902b7"), "{here}");
    assert_eq!(seen[0].header("tracestate"), "a=1");
    assert!(seen[1].headers.contains_key("traceparent"));
    assert!(!seen[1].headers.contains_key("tracestate"));
    assert!(!seen[2].headers.contains_key("traceparent"));
}

#[tokio::test]
async fn the_signature_is_verified_as_documented() {
    let service = Service::start(|_| StatusCode::OK.into_response()).await;
    let secret = "a secret \u{e9}";
    let signing = WebhookOptions { secret: Some(secret.into()), ..options(&service.url) };
    WebhookHandler::new(signing).unwrap().handle(&context(all_bytes())).await.unwrap();
    let request = &service.seen()[0];
    let timestamp = request.header("queue-timestamp");
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).unwrap();
    let (msg_id, delivery_no) =
        (request.header("queue-msg-id"), request.header("queue-delivery-no"));
    mac.update(format!("{timestamp}.{msg_id}.{delivery_no}.").as_bytes());
    mac.update(&request.body);
    let signature = request.header("queue-signature").strip_prefix("v1=").unwrap();
    let bytes: Vec<u8> = (0..signature.len() / 2)
        .map(|i| u8::from_str_radix(&signature[2 * i..2 * i + 2], 16).unwrap())
        .collect();
    mac.verify_slice(&bytes).unwrap();
    assert!(timestamp.parse::<i64>().unwrap().abs_diff(chrono::Utc::now().timestamp()) < 3600);
}

#[tokio::test]
async fn the_content_type_is_the_messages_then_the_options_then_bytes() {
    let service = Service::start(|_| StatusCode::OK.into_response()).await;
    let mut fixed = options(&service.url);
    fixed.headers.insert("content-type", HeaderValue::from_static("text/fixed"));
    fixed.headers.insert("authorization", HeaderValue::from_static("Bearer x"));
    let handler = WebhookHandler::new(fixed).unwrap();
    let typed = |value: &str| {
        let value = value.to_owned();
        context_with("{}", |delivery| {
            delivery.headers = Headers::from_iter([("Content-Type", value)])
        })
    };
    for value in ["application/json", "bad\r\nQueue-Topic: forged", ""] {
        handler.handle(&typed(value)).await.unwrap();
    }
    let types: Vec<_> =
        service.seen().iter().map(|seen| seen.header("content-type").to_owned()).collect();
    assert_eq!(types, ["application/json", "text/fixed", "text/fixed"]);
    assert!(service.seen().iter().all(|seen| seen.header("queue-topic") == "mail"));
    assert!(service.seen().iter().all(|seen| seen.header("authorization") == "Bearer x"));
}

#[tokio::test]
async fn the_status_decides() {
    let service = Service::start(|uri| {
        let code: u16 = uri.query().unwrap().parse().unwrap();
        StatusCode::from_u16(code).unwrap().into_response()
    })
    .await;
    for code in (200..=599).filter(|code| code % 100 <= 31) {
        let mut url = service.url.clone();
        url.set_query(Some(&code.to_string()));
        let result = post(&url).await;
        let as_documented = match code {
            200..=299 => result.is_ok(),
            300..=399 | 408 | 425 | 429 | 500..=599 => {
                matches!(result, Err(HandlerError::Retry(_)))
            }
            _ => matches!(result, Err(HandlerError::Dead(_))),
        };
        assert!(as_documented, "{code}: {result:?}");
    }
}

#[tokio::test]
async fn redirects_are_not_followed() {
    let service = Service::start(|uri| {
        if uri.path() == "/hook" {
            return (StatusCode::TEMPORARY_REDIRECT, [("location", "/elsewhere")]).into_response();
        }
        StatusCode::OK.into_response()
    })
    .await;
    let text = retry_text(post(&service.url).await);
    assert!(text.contains("307") && text.contains("redirects are not followed"), "{text}");
    assert_eq!(service.seen().len(), 1);
}

#[tokio::test]
async fn the_wait_that_the_service_asks_for_is_kept() {
    let service = Service::start(|uri| {
        let code = if uri.query() == Some("dead") { 404 } else { 429 };
        (StatusCode::from_u16(code).unwrap(), [("retry-after", "120")]).into_response()
    })
    .await;
    match post(&service.url).await {
        Err(HandlerError::RetryAfter(wait, error)) => {
            assert_eq!(wait, Duration::from_secs(120));
            assert!(error.to_string().contains("429 Too Many Requests"), "{error}");
        }
        other => panic!("expected a wait, got {other:?}"),
    }
    let mut url = service.url.clone();
    url.set_query(Some("dead"));
    assert!(matches!(post(&url).await, Err(HandlerError::Dead(_))));
}

#[tokio::test]
async fn a_service_may_snooze_a_message_with_a_status_that_passes() {
    let service = Service::start(|uri| {
        let (code, seconds) = uri.query().unwrap().split_once('-').unwrap();
        let code = StatusCode::from_u16(code.parse().unwrap()).unwrap();
        let headers = [("queue-snooze", seconds.to_owned()), ("retry-after", "120".to_owned())];
        (code, headers).into_response()
    })
    .await;
    let post_as = async |query: &str| {
        let mut url = service.url.clone();
        url.set_query(Some(query));
        post(&url).await
    };
    for (query, seconds) in [("503-30", 30), ("429-0", 0), ("425-99999", 3600)] {
        let result = post_as(query).await;
        let time = Duration::from_secs(seconds);
        assert!(matches!(result, Err(HandlerError::Snooze(wait)) if wait == time), "{result:?}");
    }
    assert!(matches!(post_as("503-soon").await, Err(HandlerError::RetryAfter(..))));
    assert!(matches!(post_as("404-30").await, Err(HandlerError::Dead(_))));
    assert!(post_as("200-30").await.is_ok());
}

#[tokio::test]
async fn the_error_carries_the_beginning_of_the_answer() {
    let service = Service::start(|uri| {
        let text = match uri.query() {
            Some("short") => "no such\nuser\u{7}".to_owned(),
            _ => "x".repeat(1024 * 1024),
        };
        (StatusCode::BAD_GATEWAY, text).into_response()
    })
    .await;
    let text = retry_text(post(&service.url).await);
    assert!(text.ends_with(&format!("answered 502 Bad Gateway: {}", "x".repeat(300))), "{text}");
    let mut url = service.url.clone();
    url.set_query(Some("short"));
    let text = retry_text(post(&url).await);
    assert!(text.ends_with("answered 502 Bad Gateway: no such user"), "{text}");
}

#[tokio::test]
async fn an_answer_that_breaks_off_after_a_good_status_is_an_ack() {
    let (url, _) = raw_service(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nshort").await;
    post(&url).await.unwrap();
    let (url, _) = raw_service(b"HTTP/1.1 500 No\r\ncontent-length: 100\r\n\r\nshort").await;
    let text = retry_text(post(&url).await);
    assert!(text.ends_with("answered 500 Internal Server Error: short"), "{text}");
}

#[tokio::test]
async fn no_answer_is_a_failure_in_one_sentence_without_the_urls_secrets() {
    let (mut url, _heads) = raw_service(b"").await;
    url.set_path("/secret-path");
    url.set_query(Some("token=secret-query"));
    url.set_username("user").unwrap();
    url.set_password(Some("secret-password")).unwrap();
    let origin = format!("http://127.0.0.1:{}", url.port().unwrap());

    let impatient = WebhookOptions { timeout: Duration::from_millis(50), ..options(&url) };
    assert!(!format!("{impatient:?}").contains("secret-"), "{impatient:?}");
    let handler = WebhookHandler::new(impatient).unwrap();
    assert!(!format!("{handler:?}").contains("secret-"), "{handler:?}");
    let text = retry_text(handler.handle(&context("")).await);
    assert_eq!(text, format!("the webhook at {origin} did not answer within 50 ms"));

    // A port that was free a moment ago.
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    url.set_port(Some(closed.port())).unwrap();
    let text = retry_text(post(&url).await);
    let start = format!("the webhook at http://{closed} gave no answer: Connection refused");
    assert!(text.starts_with(&start) && !text.contains("secret-"), "{text}");

    let (url, _) = raw_service(b"this is no HTTP\r\n\r\n").await;
    let text = retry_text(post(&url).await);
    assert!(text.contains("gave no answer: invalid HTTP version parsed"), "{text}");
}

#[tokio::test]
async fn user_and_password_of_the_url_are_sent_as_authorization_only() {
    let service = Service::start(|_| StatusCode::OK.into_response()).await;
    let mut url = service.url.clone();
    url.set_username("user").unwrap();
    url.set_password(Some("p%40ss")).unwrap();
    post(&url).await.unwrap();
    let request = &service.seen()[0];
    assert_eq!(request.header("authorization"), "Basic dXNlcjpwQHNz");
    assert!(!request.header("host").contains('@'));
}

#[tokio::test]
async fn a_cancelled_request_releases_its_message() {
    let (url, mut heads) = raw_service(b"").await;
    let handler = WebhookHandler::new(options(&url)).unwrap();
    let message = context("");
    let cancelled = message.cancelled.clone();
    let handling = tokio::spawn(async move { handler.handle(&message).await });
    heads.recv().await.unwrap();
    cancelled.cancel();
    assert!(matches!(handling.await.unwrap(), Err(HandlerError::Release)));
}

#[tokio::test]
async fn a_request_cancelled_at_its_deadline_has_failed() {
    let (url, _heads) = raw_service(b"").await;
    let message = Context { deadline: Some(Instant::now()), ..context("") };
    message.cancelled.cancel();
    let handler = WebhookHandler::new(options(&url)).unwrap();
    let text = retry_text(handler.handle(&message).await);
    assert!(text.contains("when the message's time was up"), "{text}");
}

#[test]
fn an_address_inside_is_refused_in_every_spelling_of_a_url() {
    let spellings = [
        "http://127.0.0.1/",
        "http://127.1/",
        "http://2130706433/",
        "http://0x7f000001/",
        "http://0x7f.1/",
        "http://017700000001/",
        "http://127.0.0.1./",
        "http://\u{ff11}27.0.0.1/",
        "http://0/",
        "http://[::]/",
        "http://[::1]/",
        "http://[::ffff:127.0.0.1]/",
        "http://[::ffff:7f00:1]/",
        "http://[64:ff9b::7f00:1]/",
        "http://[2002:7f00:1::]/",
        "http://10.0.0.1/",
        "http://172.16.0.1/",
        "http://192.168.0.1/",
        "http://100.64.0.1/",
        "http://169.254.169.254/latest/meta-data/",
        "http://[fd00:ec2::254]/latest/meta-data/",
        "http://user@169.254.169.254:80/",
        "https://[fe80::1]/",
        "http://224.0.0.1/",
    ];
    for spelling in spellings {
        let result = WebhookHandler::new(WebhookOptions::new(spelling.parse().unwrap()));
        assert!(matches!(result, Err(WebhookError::Refused { .. })), "{spelling}: {result:?}");
    }
}

#[tokio::test]
async fn a_name_is_judged_by_the_address_it_resolves_to() {
    let service = Service::start(|_| StatusCode::OK.into_response()).await;
    let mut url = service.url.clone();
    url.set_host(Some("localhost")).unwrap();
    let with = |allow: &[&str]| {
        let list = allow.iter().map(|text| text.parse().unwrap()).collect();
        WebhookOptions { allow: AddressPolicy::Allow(list), ..options(&url) }
    };
    let public = WebhookOptions { allow: AddressPolicy::Public, ..options(&url) };
    for refusing in [public, with(&["10.0.0.0/8"]), with(&["hooks.example.com"]), with(&[])] {
        let text = retry_text(WebhookHandler::new(refusing).unwrap().handle(&context("")).await);
        let port = url.port().unwrap();
        let start = format!(
            "the webhook at http://localhost:{port} gave no answer: localhost has the address "
        );
        assert!(text.starts_with(&start), "{text}");
        assert!(text.ends_with("not allowed by the webhook's address policy"), "{text}");
    }
    assert!(service.seen().is_empty());
    for permitting in [with(&["LOCALHOST"]), with(&["127.0.0.1", "::1"])] {
        WebhookHandler::new(permitting).unwrap().handle(&context("")).await.unwrap();
    }
    assert_eq!(service.seen().len(), 2);
}

#[test]
fn options_that_can_never_work_are_refused_at_the_start() {
    let url: Url = "http://hooks.example.com/".parse().unwrap();
    let refused = |options: WebhookOptions| WebhookHandler::new(options).unwrap_err();
    let scheme = WebhookOptions::new("ftp://hooks.example.com/".parse().unwrap());
    assert!(matches!(refused(scheme), WebhookError::Scheme { .. }));
    let empty = WebhookOptions { secret: Some("".into()), ..WebhookOptions::new(url.clone()) };
    assert!(matches!(refused(empty), WebhookError::EmptySecret));
    for name in ["queue-signature", "content-length", "transfer-encoding"] {
        let mut options = WebhookOptions::new(url.clone());
        options.headers.insert(name, HeaderValue::from_static("1"));
        assert!(matches!(refused(options), WebhookError::ReservedHeader { .. }), "{name}");
    }
}

/// The other half of the next tests, which start it; otherwise it does nothing.
#[tokio::test]
async fn a_webhook_in_a_process_of_its_own() {
    let Ok(url) = std::env::var(ROLE) else { return };
    post(&url.parse().unwrap()).await.unwrap();
}

/// Posts to `url` in a process with these variables; returns whether the message was acked.
async fn post_elsewhere(url: &str, variables: &[(&str, &str)]) -> bool {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "webhook::a_webhook_in_a_process_of_its_own"])
        .env(ROLE, url)
        .envs(variables.iter().copied())
        .stdout(Stdio::null());
    let status = tokio::task::spawn_blocking(move || command.status());
    status.await.unwrap().unwrap().success()
}

#[tokio::test]
async fn no_proxy_is_taken_from_the_environment() {
    let service = Service::start(|_| StatusCode::OK.into_response()).await;
    let (proxy, mut heads) = raw_service(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
    let proxies = ["HTTP_PROXY", "http_proxy", "ALL_PROXY"].map(|name| (name, proxy.as_str()));
    assert!(post_elsewhere(service.url.as_str(), &proxies).await);
    assert_eq!(service.seen().len(), 1);
    assert!(heads.try_recv().is_err());
}

#[tokio::test]
async fn https_trusts_the_platforms_authorities_and_no_others() {
    let directory = tempfile::TempDir::new().unwrap();
    let (url, trusted) = https_service().await;
    let (_, other) = https_service().await;
    for (name, pem, acked) in [("trusted", trusted, true), ("other", other, false)] {
        let file = directory.path().join(name);
        std::fs::write(&file, pem).unwrap();
        let file = file.to_str().unwrap();
        assert_eq!(post_elsewhere(&url, &[("SSL_CERT_FILE", file)]).await, acked, "{name}");
    }
}
