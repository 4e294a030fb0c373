//! A queue, a console for it, and a user with a browser.

use std::process::Command;

use reqwest::redirect::Policy;
use reqwest::{Client, Method, Response};
use rowmq_core::TopicName;
use rowmq_core::account::Account;
use rowmq_core::connection::ServerUrl;
use rowmq_core::store::topic::existing;
use rowmq_test::{Console as Program, TestQueue, until};

/// A queue, and a console for it, under an account with the grants of its file.
pub(crate) struct Fixture {
    pub(crate) queue: TestQueue,
    pub(crate) console: Console,
    _folder: tempfile::TempDir,
}

/// The password of the users, each of whom has the name of their role.
pub(crate) const PASSWORD: &str = "correct horse";

impl Fixture {
    /// Creates it with a user of each role.
    pub(crate) async fn new() -> Self {
        Self::with(&[]).await
    }

    pub(crate) async fn with(options: &[&str]) -> Self {
        Self::behind(options, async |url| url).await
    }

    /// Does the same; the console reaches the server through the URL that `way` builds from its
    /// own.
    pub(crate) async fn behind(
        options: &[&str],
        way: impl AsyncFnOnce(ServerUrl) -> ServerUrl,
    ) -> Self {
        let queue = TestQueue::new().await;
        let url = way(queue.database().account_of(Account::Console).await).await;
        let folder = tempfile::tempdir().expect("a folder");
        let users = folder.path().join("users");
        let lines: String = ["viewer", "operator", "admin"].map(|role| line(role, role)).concat();
        std::fs::write(&users, lines).expect("written");
        let users = users.to_str().expect("text").to_owned();
        let console = Console::start(&url, &[&["--users", &users], options].concat()).await;
        Self { queue, console, _folder: folder }
    }

    /// Does what [`Self::with`] does, without users.
    pub(crate) async fn open(options: &[&str]) -> Self {
        let queue = TestQueue::new().await;
        let folder = tempfile::tempdir().expect("a folder");
        let url = queue.database().account_of(Account::Console).await;
        let console = Console::start(&url, options).await;
        Self { queue, console, _folder: folder }
    }

    /// Returns the browser of a user who has signed in.
    pub(crate) async fn signed_in(&self, role: &str) -> Browser {
        let mut browser = self.console.browser();
        let fields = [("name", role), ("password", PASSWORD), ("to", "/")];
        let answer = browser.send(Method::POST, "/sign-in", &fields).await;
        assert_eq!(answer.status, 303, "{}", answer.text);
        browser.read("/").await;
        browser
    }

    /// Returns the topic's stored access rule.
    pub(crate) async fn access(&self, topic: &str) -> &'static str {
        let mut conn = self.queue.connect().await;
        let name = TopicName::new(topic).expect("a name");
        existing(&mut conn, &name).await.expect("read").access.word()
    }

    /// Waits until the console has looked at the server after everything done before.
    pub(crate) async fn seen(&self, browser: &mut Browser, topic: &str, dead: u64) {
        let path = format!("/api/v1/topics/{topic}");
        let wanted = format!("\"dead\":{dead},");
        until("the console has seen it", async || browser.get(&path).await.text.contains(&wanted))
            .await;
    }
}

/// Returns the program under test.
fn program() -> Command {
    Command::new(env!("CARGO_BIN_EXE_rowmq-console"))
}

/// Returns a line of the users' file, as the program prints it.
pub(crate) fn line(name: &str, role: &str) -> String {
    Program::user(&mut program(), name, role, PASSWORD)
}

/// The running program, killed when the test ends.
pub(crate) struct Console(Program);

impl Console {
    async fn start(url: &ServerUrl, options: &[&str]) -> Self {
        Self(Program::start(&mut program(), url, options).await)
    }

    /// Returns the newest line of its log that contains this text.
    pub(crate) fn logged(&self, text: &str) -> Option<String> {
        self.0.program().lines(text).pop()
    }

    /// Returns the port that it listens on.
    pub(crate) fn port(&self) -> u16 {
        let port = self.0.address().rsplit_once(':').and_then(|(_, port)| port.parse().ok());
        port.expect("a port")
    }

    /// Returns a browser of a user who has not signed in.
    pub(crate) fn browser(&self) -> Browser {
        // The first test decides.
        drop(rustls::crypto::ring::default_provider().install_default());
        let client = Client::builder().redirect(Policy::none()).no_proxy().build();
        Browser {
            client: client.expect("a client"),
            address: self.0.address().to_owned(),
            headers: Vec::new(),
            cookie: None,
            csrf: String::new(),
        }
    }
}

impl Drop for Console {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            // Its last output counts, too.
            self.0.kill();
            assert_eq!(self.0.program().lines("denied"), Vec::<String>::new());
        }
    }
}

/// An answer of the console.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) text: String,
    headers: reqwest::header::HeaderMap,
}

impl Answer {
    async fn of(response: Response) -> Self {
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        Self { status, headers, text: response.text().await.expect("text") }
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().expect("text"))
    }
}

/// A user's browser: it keeps the cookie, and fills in what pages put into their forms.
pub(crate) struct Browser {
    client: Client,
    address: String,
    /// The additional headers of each request.
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) cookie: Option<String>,
    pub(crate) csrf: String,
}

impl Browser {
    pub(crate) async fn send(
        &mut self,
        method: Method,
        path: &str,
        fields: &[(&str, &str)],
    ) -> Answer {
        let mut request = self.client.request(method, format!("http://{}{path}", self.address));
        for (name, value) in &self.headers {
            request = request.header(*name, value);
        }
        if let Some(cookie) = &self.cookie {
            request = request.header("cookie", cookie);
        }
        if !fields.is_empty() {
            let body =
                url::form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish();
            request =
                request.header("content-type", "application/x-www-form-urlencoded").body(body);
        }
        let answer = Answer::of(request.send().await.expect("an answer")).await;
        if let Some((pair, _)) = answer.header("set-cookie").split_once(';') {
            self.cookie = Some(pair.to_owned());
        }
        answer
    }

    /// Returns the content type and the beginning of an endless answer.
    pub(crate) async fn first(&mut self, path: &str) -> (String, String) {
        let request = self.client.get(format!("http://{}{path}", self.address));
        let cookie = self.cookie.clone().unwrap_or_default();
        let mut answer = request.header("cookie", cookie).send().await.expect("an answer");
        let kind = answer.headers().get("content-type").map(|kind| kind.to_str().expect("text"));
        let kind = kind.unwrap_or_default().to_owned();
        let mut read = Vec::new();
        while !read.ends_with(b"\n\n")
            && let Some(chunk) = answer.chunk().await.expect("read")
        {
            read.extend(chunk);
        }
        (kind, String::from_utf8(read).expect("text"))
    }

    pub(crate) async fn get(&mut self, path: &str) -> Answer {
        self.send(Method::GET, path, &[]).await
    }

    /// Reads a page that must exist.
    pub(crate) async fn read(&mut self, path: &str) -> String {
        let answer = self.get(path).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.text);
        if let Some((_, rest)) = answer.text.split_once("data-csrf=\"") {
            self.csrf = rest.split('"').next().unwrap_or_default().to_owned();
        }
        answer.text
    }

    /// Sends the form of a page.
    pub(crate) async fn ask(&mut self, path: &str, fields: &[(&str, &str)]) -> Answer {
        let csrf = self.csrf.clone();
        let fields = [&[("csrf", csrf.as_str())], fields].concat();
        self.send(Method::POST, path, &fields).await
    }
}
