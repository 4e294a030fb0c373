//! A Chromium for one test, and what users do with it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rowmq_test::{PATIENCE, Program, until};
use serde_json::{Value, json};
use thirtyfour::prelude::*;
use thirtyfour::{ChromiumLikeCapabilities, LoggingPrefsLogLevel};

use crate::tool::tool;

/// The accessibility checker of Deque Systems, 4.14.1, MPL-2.0: the unchanged release.
const AXE: &str = include_str!("axe.min.js");

/// The width and height of its window.
const WINDOW: (u32, u32) = (1100, 720);

/// The colour scheme that the browser reports to pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scheme {
    Light,
    Dark,
}

/// A browser that shows a console. It ends with the test.
pub(crate) struct Chromium {
    // Dropped before the program: it needs the program to close its session.
    driver: WebDriver,
    console: String,
    _program: Program,
    /// Where the browser stores its files.
    _folder: tempfile::TempDir,
}

impl Chromium {
    /// Starts it; returns `None` where no browser is available.
    pub(crate) async fn before(console: &str) -> Option<Self> {
        let (browser, driver) = (tool("chromium")?, tool("chromedriver")?);
        // The first test decides.
        drop(rustls::crypto::ring::default_provider().install_default());
        let mut command = Command::new("/bin/sh");
        let told = r#"exec "$0" --port=0 1>&2"#;
        let folder = tempfile::tempdir().expect("a folder");
        command.args(["-c", told, &driver]).stdout(Stdio::null()).env("TMPDIR", folder.path());
        let (program, line) = loop {
            let program = Program::start(&mut command);
            if let Some(line) = program.said_or_ended("started successfully on port").await {
                break (program, line);
            }
            // It takes a port that is free for IPv6, and ends if another has it for IPv4.
            assert!(!program.lines("Address already in use").is_empty(), "the driver has ended");
        };
        let port = line.trim_end_matches('.').rsplit(' ').next().expect("a port").to_owned();
        let mut wishes = DesiredCapabilities::chrome();
        wishes.set_binary(&browser).expect("a path");
        wishes.set_browser_log_level(LoggingPrefsLogLevel::All).expect("a level");
        let (width, height) = WINDOW;
        // It opens only our own pages, and it cannot create a sandbox in a container.
        for option in ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"] {
            wishes.add_arg(option).expect("an option");
        }
        // Over a pipe it ends with its driver, however that ends.
        wishes.add_arg("--remote-debugging-pipe").expect("an option");
        wishes.add_arg(&format!("--window-size={width},{height}")).expect("an option");
        let address = format!("http://127.0.0.1:{port}");
        // Loopback needs no proxy.
        let client = reqwest::Client::builder().no_proxy().timeout(PATIENCE).build();
        let session = WebDriver::builder(address, wishes).client(client.expect("a client"));
        let driver = session.await.expect("a session");
        Some(Self { driver, console: console.to_owned(), _program: program, _folder: folder })
    }

    /// Opens a page of the console, and waits until the page is there with its scripts. The driver
    /// sometimes reports this too early, mostly when the page before was still loading: a page
    /// without its table, or with times that no script had touched (1 of 25 runs on busy cores).
    pub(crate) async fn open(&self, path: &str) {
        self.script("window.left = true", json!([])).await;
        self.driver.goto(format!("http://{}{path}", self.console)).await.expect("opened");
        let is_there = "return !window.left && document.readyState === 'complete'";
        until(path, async || {
            let answer = self.driver.execute(is_there, Vec::new()).await;
            answer.is_ok_and(|is_there| is_there.json() == true)
        })
        .await;
    }

    /// Returns the path of the page.
    pub(crate) async fn path(&self) -> String {
        self.driver.current_url().await.expect("a URL").path().to_owned()
    }

    /// Returns the element once it exists.
    async fn find(&self, css: &str) -> WebElement {
        let mut found = None;
        until(css, async || {
            found = self.driver.find(By::Css(css)).await.ok();
            found.is_some()
        })
        .await;
        found.expect("just seen")
    }

    /// Returns the text of the element, with single spaces between words.
    pub(crate) async fn text(&self, css: &str) -> String {
        let script = "return document.querySelector(arguments[0])?.innerText ?? ''";
        let text = self.script(script, json!([css])).await;
        let words = text.as_str().expect("text").replace('\u{202f}', "");
        words.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    /// Waits until the element contains this text, among other things. The page is not loaded
    /// again: it must update itself.
    pub(crate) async fn reads(&self, css: &str, text: &str) {
        self.read_until(css, text, |now| now.contains(text)).await;
    }

    /// As [`Self::reads`], but the text must be all there is.
    pub(crate) async fn reads_only(&self, css: &str, text: &str) {
        self.read_until(css, text, |now| now == text).await;
    }

    async fn read_until(&self, css: &str, text: &str, holds: impl Fn(&str) -> bool) {
        let mut read = String::new();
        until(&format!("{css} reads {text}"), async || {
            let now = self.text(css).await;
            if now != read {
                // If the test fails, the last line shows why.
                eprintln!("{css}: {now}");
                read = now;
            }
            holds(&read)
        })
        .await;
    }

    /// Clicks the link or button with this text, within the first element that the selector finds.
    pub(crate) async fn click_in(&self, css: &str, text: &str) {
        let script = "const words = (it) => it.innerText.trim().replace(/\\s+/g, ' ');
            const within = document.querySelector(arguments[0]);
            return [...(within?.querySelectorAll('a, button') ?? [])]
              .find((it) => words(it) === arguments[1]) ?? null";
        until(&format!("{text} can be clicked in {css}"), async || {
            let arguments = vec![json!(css), json!(text)];
            let found = self.driver.execute(script, arguments).await.expect("it ran");
            match found.element() {
                // A page that updates itself may have replaced the element in the meantime.
                Ok(element) => element.click().await.is_ok(),
                Err(_) => false,
            }
        })
        .await;
    }

    pub(crate) async fn click(&self, text: &str) {
        self.click_in("body", text).await;
    }

    /// Ticks the box of a dangerous action.
    pub(crate) async fn tick(&self, css: &str) {
        self.find(css).await.click().await.expect("ticked");
    }

    /// Types into a field.
    pub(crate) async fn write(&self, css: &str, text: &str) {
        self.find(css).await.send_keys(text).await.expect("typed");
    }

    /// Presses keys while no field has the focus.
    pub(crate) async fn press(&self, keys: &str) {
        self.driver.action_chain().send_keys(keys).perform().await.expect("pressed");
    }

    pub(crate) async fn script(&self, script: &str, arguments: Value) -> Value {
        let arguments = arguments.as_array().expect("a list").clone();
        self.driver.execute(script, arguments).await.expect("it ran").json().clone()
    }

    /// Sets the colour scheme that pages see.
    pub(crate) async fn prefer(&self, scheme: Scheme) {
        let value = match scheme {
            Scheme::Light => "light",
            Scheme::Dark => "dark",
        };
        let told = json!({"features": [{"name": "prefers-color-scheme", "value": value}]});
        let told = self.driver.cdp().send_raw("Emulation.setEmulatedMedia", told).await;
        told.expect("told");
    }

    /// Sets the reader's time zone.
    pub(crate) async fn travel(&self, zone: &str) {
        self.driver.cdp().emulation().set_timezone_override(zone).await.expect("told");
    }

    /// Makes the window as wide as a phone, or as wide as before.
    pub(crate) async fn narrow(&self, is_phone: bool) {
        let cdp = self.driver.cdp();
        if is_phone {
            let phone =
                json!({"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": true});
            let told = cdp.send_raw("Emulation.setDeviceMetricsOverride", phone).await;
            told.expect("told");
        } else {
            cdp.emulation().clear_device_metrics_override().await.expect("told");
        }
    }

    /// Returns what the checker finds wrong with the page, one line each.
    pub(crate) async fn violations(&self) -> Vec<String> {
        self.driver.execute(AXE, Vec::new()).await.expect("it ran");
        let script = "const done = arguments[arguments.length - 1];
            axe.run(document, { resultTypes: ['violations'] }).then(
              (found) => done(found.violations.map((one) => `${one.impact} ${one.id}: ${one.help}: `
                + one.nodes.map((node) => node.html).join(' '))),
              (error) => done([String(error)]))";
        let found = self.driver.execute_async(script, Vec::new()).await.expect("it ran");
        found.convert().expect("a list of texts")
    }

    /// Returns the browser's complaints since the last call.
    pub(crate) async fn complaints(&self) -> Vec<String> {
        let log = self.driver.browser_log().await.expect("a log");
        log.into_iter().map(|entry| format!("{}: {}", entry.level, entry.message)).collect()
    }

    /// Takes a picture of the window: into the folder of `ROWMQ_PICTURES`, which `ops/capture`
    /// sets, or else into cargo's folder for tests.
    pub(crate) async fn picture(&self, name: &str) {
        let folder = std::env::var_os("ROWMQ_PICTURES")
            .map_or_else(|| Path::new(env!("CARGO_TARGET_TMPDIR")).join("pictures"), PathBuf::from);
        std::fs::create_dir_all(&folder).expect("a folder");
        let file = folder.join(name).with_extension("png");
        // On a busy machine the page may not be drawn yet.
        until("its picture is taken", async || self.driver.screenshot(&file).await.is_ok()).await;
    }

    /// Closes the browser cleanly.
    pub(crate) async fn close(self) {
        self.driver.quit().await.expect("ended");
    }
}
