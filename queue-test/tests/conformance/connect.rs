//! Ways to reach the server: TCP with and without TLS, the socket, and again after a loss.

use std::path::Path;
use std::time::Duration;

use diesel::QueryableByName;
use diesel::sql_types::Text;
use diesel_async::RunQueryDsl;
use rowmq_core::connection::{Pool, ServerUrl, SessionKind, Tls, connect};
use rowmq_core::store::process_list;
use rowmq_core::{AsyncMysqlConnection, Fault, store};

use crate::scene::{Scene, number, text};

/// Returns the scene's URL with one of our parameters.
fn with(scene: &Scene, parameter: &str) -> ServerUrl {
    let mut url = url::Url::parse(scene.db.url().expose()).unwrap();
    url.set_query(Some(parameter));
    ServerUrl::new(url.as_str()).unwrap()
}

async fn cipher(conn: &mut AsyncMysqlConnection) -> String {
    #[derive(QueryableByName)]
    struct Row {
        #[diesel(sql_type = Text, column_name = "Value")]
        value: String,
    }
    let status = diesel::sql_query("SHOW SESSION STATUS LIKE 'Ssl_cipher'");
    let rows: Vec<Row> = status.load(conn).await.unwrap();
    rows.into_iter().next().map(|row| row.value).unwrap_or_default()
}

#[tokio::test]
async fn an_encrypted_connection_is_encrypted_and_a_plain_one_is_not() {
    let mut scene = Scene::new().await;
    assert_eq!(scene.db.url().tls(), Tls::Disabled, "near servers are talked to plainly");
    assert_eq!(cipher(&mut scene.conn).await, "");
    let mut conn = connect(&with(&scene, "tls=unverified"), SessionKind::Plain).await.unwrap();
    assert_ne!(cipher(&mut conn).await, "");
}

/// No authority vouches for the certificate that a server makes for itself.
#[tokio::test]
async fn a_certificate_that_nobody_vouches_for_is_refused() {
    let scene = Scene::new().await;
    let url = with(&scene, "tls=verified");
    let refused = connect(&url, SessionKind::Plain).await.map(|_| ()).unwrap_err();
    assert!(refused.to_string().contains("certificate"), "{refused}");
    assert!(!refused.to_string().contains("queue:queue"), "{refused}");
}

/// MySQL also makes an authority for itself; a client that trusts it objects only to the name.
#[tokio::test]
async fn an_authority_that_is_named_is_trusted_and_no_other() {
    let mut scene = Scene::new().await;
    let refusal = async |url: &ServerUrl| {
        connect(url, SessionKind::Plain).await.map(|_| ()).unwrap_err().to_string()
    };
    let unknown = refusal(&with(&scene, "tls=verified")).await;
    assert!(unknown.contains("UnknownIssuer") && unknown.contains("?ca=FILE"), "{unknown}");
    let own = scene.text("SELECT CONCAT(@@datadir, COALESCE(@@ssl_ca, ''))").await;
    // MariaDB has no authority by default, and a remote server's file is not here.
    if !Path::new(&own).is_file() {
        return;
    }
    let encoded: String = own.bytes().map(|byte| format!("%{byte:02X}")).collect();
    let known = refusal(&with(&scene, &format!("ca={encoded}"))).await;
    assert!(!known.contains("UnknownIssuer") && known.contains("certificate"), "{known}");
}

#[tokio::test]
async fn a_socket_leads_to_the_same_database() {
    let mut scene = Scene::new().await;
    let socket = scene.text("SELECT @@socket").await;
    // A server in a container has its socket inside the container.
    if !Path::new(&socket).exists() {
        return;
    }
    let encoded: String = socket.bytes().map(|byte| format!("%{byte:02X}")).collect();
    let mut url = url::Url::parse(scene.db.url().expose()).unwrap();
    url.set_host(Some("localhost")).unwrap();
    url.set_query(Some(&format!("socket={encoded}")));
    let url = ServerUrl::new(url.as_str()).unwrap();
    let mut conn = connect(&url, SessionKind::Plain).await.unwrap();
    assert_eq!(text(&mut conn, "SELECT DATABASE()").await, scene.db.name());
    assert!(text(&mut conn, "SELECT USER()").await.ends_with("@localhost"));
}

/// The driver would otherwise move a TCP connection to the socket, bypassing any proxy.
#[tokio::test]
async fn a_tcp_connection_stays_one() {
    let mut scene = Scene::new().await;
    let user = scene.text("SELECT USER()").await;
    assert!(!user.ends_with("@localhost"), "{user}");
}

#[tokio::test]
async fn a_pool_replaces_a_killed_connection_after_one_failure() {
    let mut scene = Scene::new().await;
    let pool = Pool::new(scene.db.url().clone(), 1, Duration::from_secs(10)).unwrap();
    let id = pool
        .call("ask", async |conn| Ok(process_list::visibility(conn).await?.conn))
        .await
        .unwrap();
    scene.sql(&format!("KILL {id}")).await;
    let failed = pool.call("ask", async |conn| store::topic::all(conn).await).await;
    assert_eq!(failed.unwrap_err().fault(), Fault::Gone);
    let now = pool.call("ask", async |conn| Ok(process_list::visibility(conn).await?.conn)).await;
    assert_ne!(now.unwrap(), id);
}

#[tokio::test]
async fn a_pool_opens_nothing_before_it_is_asked_and_no_more_than_its_size() {
    let scene = Scene::new().await;
    let account = scene.db.account(&["SELECT ON {}.*"]).await;
    let pool = Pool::new(account.clone(), 3, Duration::from_secs(10)).unwrap();
    let mut own = connect(&account, SessionKind::Plain).await.unwrap();
    // The account sees only its own connections.
    assert_eq!(process_list::show(&mut own).await.unwrap().len(), 1);
    let calls = (0..9).map(|_| {
        pool.call("count", async |conn| {
            number(conn, "SELECT SLEEP(0.05)").await;
            Ok(())
        })
    });
    for call in futures_util::future::join_all(calls).await {
        call.unwrap();
    }
    assert_eq!(process_list::show(&mut own).await.unwrap().len(), 4);
}

#[tokio::test]
async fn a_renewed_password_is_used_by_every_clone_for_new_connections() {
    let scene = Scene::new().await;
    let url = scene.db.account(&["SELECT ON {}.*"]).await;
    let clone = url.clone();
    let other = scene.db.account(&["SELECT ON {}.*"]).await;
    let user = async |url: &ServerUrl| {
        let mut conn = connect(url, SessionKind::Plain).await.unwrap();
        text(&mut conn, "SELECT CURRENT_USER()").await
    };
    let (before, wanted) = (user(&clone).await, user(&other).await);
    assert_ne!(before, wanted);
    url.renew_account(&other).unwrap();
    assert_eq!(user(&clone).await, wanted);
    let elsewhere = other.with_database("elsewhere").unwrap();
    let refused = url.renew_account(&elsewhere).unwrap_err().to_string();
    assert!(refused.contains("only the account and its password"), "{refused}");
}
