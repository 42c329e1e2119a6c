//! A real browser: Chromium without a window, driven over the WebDriver protocol, which is JSON over HTTP.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::Stdio;

use serde_json::{Value, json};

use super::process::Process;
use super::scratch::Scratch;
use super::{LONG, poll};

/// The key under which the protocol names an element.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

/// A browser with one tab. Dropping it ends the browser.
pub struct Browser {
    port: u16,
    session: String,
    _driver: Process,
    _profile: Scratch,
}

impl Browser {
    /// Starts a browser whose window has this size in CSS pixels.
    pub fn start(width: u32, height: u32) -> Self {
        Self::with(width, height, true, false)
    }

    /// Starts a browser that runs no scripts of pages.
    pub fn without_script() -> Self {
        Self::with(1000, 800, false, false)
    }

    /// Starts a browser that asks pages to be dark.
    pub fn dark(width: u32, height: u32) -> Self {
        Self::with(width, height, true, true)
    }

    fn with(width: u32, height: u32, has_script: bool, is_dark: bool) -> Self {
        let profile = Scratch::new("browser");
        let mut driver = Process::spawn("chromedriver", |command| {
            command.arg("--port=0").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
            command.env("HOME", profile.path()).env("TMPDIR", profile.path());
        })
        .expect("chromedriver starts");
        let port = port(BufReader::new(driver.take(|child| child.stdout.take())));
        let arguments = [
            "--headless=new".to_owned(),
            // The browser ends with the driver, which ends with the test.
            "--remote-debugging-pipe".to_owned(),
            // The tests may run as root, and the pages are our own.
            "--no-sandbox".to_owned(),
            "--disable-gpu".to_owned(),
            "--disable-dev-shm-usage".to_owned(),
            "--hide-scrollbars".to_owned(),
            format!("--window-size={width},{height}"),
            format!("--user-data-dir={}", profile.path().join("profile").display()),
        ];
        let script = if has_script { 1 } else { 2 };
        let options = json!({
            "args": arguments,
            "prefs": { "profile.managed_default_content_settings.javascript": script },
        });
        let wanted = json!({ "capabilities": { "alwaysMatch": { "goog:chromeOptions": options } } });
        let started = exchange(port, "POST", "/session", Some(&wanted));
        let session = started["sessionId"].as_str().unwrap_or_else(|| panic!("no browser: {started}")).to_owned();
        let browser = Self { port, session, _driver: driver, _profile: profile };
        // A window has a least width; a page can be narrower, as on a phone.
        let screen = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        browser.devtools("Emulation.setDeviceMetricsOverride", &screen);
        let scheme = json!({ "name": "prefers-color-scheme", "value": if is_dark { "dark" } else { "light" } });
        browser.devtools("Emulation.setEmulatedMedia", &json!({ "features": [scheme] }));
        browser
    }

    fn ask(&self, method: &str, path: &str, body: Option<&Value>) -> Value {
        exchange(self.port, method, &format!("/session/{}{path}", self.session), body)
    }

    fn devtools(&self, command: &str, parameters: &Value) {
        let body = json!({ "cmd": command, "params": parameters });
        self.ask("POST", "/goog/cdp/execute", Some(&body));
    }

    /// Opens an address, and waits until the page has loaded.
    pub fn open(&self, url: &str) {
        let answer = self.ask("POST", "/url", Some(&json!({ "url": url })));
        assert!(answer.is_null(), "{url}: {answer}");
    }

    pub fn url(&self) -> String {
        self.ask("GET", "/url", None).as_str().unwrap_or_default().to_owned()
    }

    /// Runs a script in the page. Returns its result.
    pub fn run(&self, script: &str) -> Value {
        self.ask("POST", "/execute/sync", Some(&json!({ "script": script, "args": [] })))
    }

    fn element(&self, selector: &str) -> Option<String> {
        let body = json!({ "using": "css selector", "value": selector });
        self.ask("POST", "/element", Some(&body))[ELEMENT].as_str().map(str::to_owned)
    }

    /// The text of an element as it is seen; empty if there is none.
    pub fn text(&self, selector: &str) -> String {
        let Some(element) = self.element(selector) else { return String::new() };
        self.ask("GET", &format!("/element/{element}/text"), None).as_str().unwrap_or_default().to_owned()
    }

    /// Waits until the text of an element is as wanted.
    pub fn await_text(&self, selector: &str, wanted: impl Fn(&str) -> bool) -> String {
        let found = poll(LONG, || Some(self.text(selector)).filter(|text| wanted(text)));
        found.unwrap_or_else(|| panic!("{selector} has not the text that is wanted: {}", self.text("body")))
    }

    /// Waits for an element, and clicks it.
    pub fn click(&self, selector: &str) {
        let clicked = poll(LONG, || {
            let element = self.element(selector)?;
            // The page may have replaced the element since it was found.
            self.ask("POST", &format!("/element/{element}/click"), Some(&json!({}))).is_null().then_some(())
        });
        assert!(clicked.is_some(), "{selector} cannot be clicked: {}", self.text("body"));
    }

    /// Waits for a field, and types into it.
    pub fn type_into(&self, selector: &str, text: &str) {
        let typed = poll(LONG, || {
            let element = self.element(selector)?;
            // The page may have replaced the element since it was found. Then nothing was typed.
            self.ask("POST", &format!("/element/{element}/value"), Some(&json!({ "text": text })))
                .is_null()
                .then_some(())
        });
        assert!(typed.is_some(), "{selector} takes no text: {}", self.text("body"));
    }

    /// A picture of what is seen, as PNG in base64.
    pub fn screenshot(&self) -> String {
        self.ask("GET", "/screenshot", None).as_str().unwrap_or_default().to_owned()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // So that the browser has removed its files when its directory is removed.
        self.ask("DELETE", "", None);
    }
}

/// The port that the driver has chosen. Its other lines are read and dropped, so that it can write them.
fn port(mut lines: BufReader<std::process::ChildStdout>) -> u16 {
    let mut line = String::new();
    while lines.read_line(&mut line).is_ok_and(|length| length > 0) {
        if let Some((_, port)) = line.trim_end().split_once("started successfully on port ") {
            std::thread::spawn(move || std::io::copy(&mut lines, &mut std::io::sink()));
            return port.trim_end_matches('.').parse().expect("a port");
        }
        line.clear();
    }
    panic!("chromedriver has not started");
}

/// Sends a command to the driver. Returns the value of its answer, which for errors is an object with `error`.
fn exchange(port: u16, method: &str, path: &str, body: Option<&Value>) -> Value {
    let body = body.map(ToString::to_string).unwrap_or_default();
    let head = format!("{method} {path} HTTP/1.1\r\nHost: localhost:{port}\r\nConnection: close\r\n");
    let answered = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_read_timeout(Some(LONG))?;
        write!(stream, "{head}Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}", body.len())?;
        // The driver keeps the connection open, so the length says where the answer ends.
        let (mut reader, mut length, mut line) = (BufReader::new(stream), 0, String::new());
        while reader.read_line(&mut line)? > 2 {
            let header = line.to_ascii_lowercase();
            if let Some((_, value)) = header.split_once("content-length:") {
                length = value.trim().parse().unwrap_or(0);
            }
            line.clear();
        }
        let mut answer = String::new();
        reader.take(length).read_to_string(&mut answer)?;
        Ok(answer)
    };
    let answer = answered().unwrap_or_default();
    serde_json::from_str::<Value>(&answer).map(|mut answer| answer["value"].take()).unwrap_or(Value::Null)
}
