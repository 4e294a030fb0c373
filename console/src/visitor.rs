//! Who sends a request. Every request passes here, so that no page is shown to a user who may not
//! see it.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::extract::{ConnectInfo, FromRequestParts, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use rowmq_core::model::Actor;
use rowmq_service::http::{is_foreign, is_loopback_name};

use crate::login::Login;
use crate::refusal::Refusal;
use crate::role::Role;
use crate::settings::Rules;
use crate::state::Console;

/// The name of the cookie. Over https no other host can set it.
const COOKIE: &str = "rowmq-console";
const SECURE_COOKIE: &str = "__Host-rowmq-console";

/// Security headers for every answer. Browsers load resources from here only, run no inline
/// scripts, and show no page in a frame.
const HEADERS: [(HeaderName, &str); 6] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
         connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    ),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::X_FRAME_OPTIONS, "DENY"),
    // Not `no-referrer`: our own forms would then not state where they come from.
    (header::REFERRER_POLICY, "same-origin"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("permissions-policy"), "camera=(), microphone=(), geolocation=()"),
];

/// For how long browsers use https only (`Strict-Transport-Security`).
const A_YEAR: &str = "max-age=31536000";

/// Who sent a request.
#[derive(Debug, Clone)]
struct Visitor {
    login: Option<Arc<Login>>,
    address: IpAddr,
}

/// A signed-in user.
#[derive(Debug, Clone)]
pub(crate) struct SignedIn {
    pub(crate) login: Arc<Login>,
    address: IpAddr,
}

impl SignedIn {
    /// The user as the audit names them.
    pub(crate) fn actor(&self) -> Actor {
        self.login.actor(self.address.to_string())
    }

    pub(crate) fn may(&self, role: Role) -> bool {
        self.login.role >= role
    }
}

/// The address that a request comes from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Address(pub(crate) IpAddr);

/// Lets a request pass together with its sender, and adds the headers for the browser to the
/// answer.
pub(crate) async fn admit(
    State(console): State<Arc<Console>>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    mut request: Request,
    next: Next,
) -> Response {
    let mut response = match visitor(&console, peer.ip(), &request) {
        Ok(visitor) => {
            request.extensions_mut().insert(visitor);
            next.run(request).await
        }
        Err(refusal) => refusal.into_response(),
    };
    let headers = response.headers_mut();
    for (name, value) in HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    // Pages are for one user at one moment; assets set their own value.
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    if console.rules.is_https() {
        headers.insert(header::STRICT_TRANSPORT_SECURITY, HeaderValue::from_static(A_YEAR));
    }
    response
}

fn visitor(console: &Console, peer: IpAddr, request: &Request) -> Result<Visitor, Refusal> {
    let (rules, headers) = (&console.rules, request.headers());
    refuse_foreign(rules, request.method(), headers)?;
    let peer = peer.to_canonical();
    if !rules.proxies.send(peer, headers) {
        let login = cookie(headers, rules).and_then(|cookie| console.logins.of_cookie(cookie));
        return Ok(Visitor { login, address: peer });
    }
    let said = [&rules.proxies.user_header, &rules.proxies.role_header].into_iter().flatten();
    // One of them does not come from the proxy, and there is no way to see which.
    if said.clone().any(|name| headers.get_all(name).iter().nth(1).is_some()) {
        return Err(Refusal::Foreign);
    }
    let text = |name: &HeaderName| headers.get(name)?.to_str().ok().filter(|it| !it.is_empty());
    let by_proxy = rules.proxies.user_header.as_ref().and_then(text).map(|name| {
        let role = rules.proxies.role_header.as_ref().and_then(text);
        let role = role.and_then(|role| role.parse().ok()).unwrap_or(Role::Viewer);
        console.logins.of_proxy(name, role)
    });
    let by_cookie = || cookie(headers, rules).and_then(|cookie| console.logins.of_cookie(cookie));
    let address = forwarded(headers, rules).unwrap_or(peer);
    Ok(Visitor { login: by_proxy.or_else(by_cookie), address })
}

/// The sender's address as a trusted proxy reports it: the last address that is not a proxy's,
/// because the sender can forge those before it. An unreadable entry ends the list, for the same
/// reason.
fn forwarded(headers: &HeaderMap, rules: &Rules) -> Option<IpAddr> {
    let all = headers.get_all("x-forwarded-for").iter().map(|value| value.to_str().unwrap_or("?"));
    let entries: Vec<&str> = all.flat_map(|list| list.split(',')).map(str::trim).collect();
    let addresses = entries.into_iter().rev().map_while(address_of);
    addresses.into_iter().find(|address| !rules.proxies.contain(*address))
}

/// An address, with or without a port.
fn address_of(entry: &str) -> Option<IpAddr> {
    let with_port = || entry.parse::<SocketAddr>().ok().map(|address| address.ip());
    let address = entry.parse::<IpAddr>().ok().or_else(with_port)?;
    Some(address.to_canonical())
}

/// Refuses requests that a foreign page makes a user's browser send: under a host name that leads
/// here but is not ours (an attacker's name server can create one), or for a change that does not
/// come from one of our pages.
fn refuse_foreign(rules: &Rules, method: &Method, headers: &HeaderMap) -> Result<(), Refusal> {
    let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    let host = text(header::HOST).unwrap_or_default();
    let wanted = rules.origin.as_ref().and_then(|origin| {
        let name = origin.host_str()?;
        Some(origin.port().map_or_else(|| name.to_owned(), |port| format!("{name}:{port}")))
    });
    if wanted.as_deref().is_some_and(|wanted| !wanted.eq_ignore_ascii_case(host))
        || (rules.by_link() && !is_loopback_name(host))
    {
        return Err(Refusal::Foreign);
    }
    if matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS) {
        return Ok(());
    }
    if is_foreign(headers) { Err(Refusal::Foreign) } else { Ok(()) }
}

fn cookie_name(rules: &Rules) -> &'static str {
    if rules.is_https() { SECURE_COOKIE } else { COOKIE }
}

/// The secret of a user's login, as the browser sends it.
pub(crate) fn cookie<'h>(headers: &'h HeaderMap, rules: &Rules) -> Option<&'h str> {
    let all = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut pairs = all.flat_map(|list| list.split(';')).filter_map(|it| it.trim().split_once('='));
    pairs.find(|(name, _)| *name == cookie_name(rules)).map(|(_, value)| value)
}

/// The header value that sets that cookie, or removes it if there is no secret.
pub(crate) fn set_cookie(rules: &Rules, secret: Option<&str>) -> String {
    let name = cookie_name(rules);
    let secure = if rules.is_https() { "; Secure" } else { "" };
    let age = if secret.is_some() { rules.login_time.as_secs() } else { 0 };
    let secret = secret.unwrap_or_default();
    format!("{name}={secret}; Path=/; HttpOnly; SameSite=Strict; Max-Age={age}{secure}")
}

impl FromRequestParts<Arc<Console>> for SignedIn {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _: &Arc<Console>) -> Result<Self, Refusal> {
        let to = || parts.uri.path_and_query().map_or("/", |uri| uri.as_str()).to_owned();
        let visitor = parts.extensions.get::<Visitor>();
        match visitor.and_then(|visitor| Some((visitor.login.clone()?, visitor.address))) {
            Some((login, address)) => Ok(Self { login, address }),
            None => Err(Refusal::SignIn { to: to() }),
        }
    }
}

impl FromRequestParts<Arc<Console>> for Address {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _: &Arc<Console>) -> Result<Self, Refusal> {
        let visitor = parts.extensions.get::<Visitor>();
        visitor.map(|visitor| Self(visitor.address)).ok_or(Refusal::Foreign)
    }
}
