//! A headless Chromium, driven over the WebDriver protocol.
//!
//! The protocol is JSON over HTTP, which the client of brokers can send as well, so that no further
//! crate is needed. A [`Browser`] has a profile of its own; it ends with its value, and fails the
//! test if the page reported an error.

use std::io::{BufRead as _, BufReader};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Child, Command, Stdio};
use std::thread;

use punctual_test_support::{BrokerClient, WAIT_MAX, until_ok};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Keys of the protocol that are not letters.
pub(crate) mod keys {
    pub(crate) const ENTER: &str = "\u{e007}";
    pub(crate) const ESCAPE: &str = "\u{e00c}";
    pub(crate) const TAB: &str = "\u{e004}";
    pub(crate) const SPACE: &str = " ";
    pub(crate) const CONTROL: &str = "\u{e009}";
    pub(crate) const SHIFT: &str = "\u{e008}";
    pub(crate) const RIGHT: &str = "\u{e014}";
    pub(crate) const DOWN: &str = "\u{e015}";
}

/// The name of an element in answers of the protocol.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

const FLAGS: [&str; 10] = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--lang=en-GB",
    "--window-size=1400,1000",
];

/// `chromedriver` takes a free port of IPv4, and ends if another process has the same one of IPv6.
const DRIVER_STARTS_MAX: usize = 5;

/// A browser with one tab.
pub(crate) struct Browser {
    driver: Child,
    client: BrokerClient,
    session: String,
    address: SocketAddr,
    /// Parts of messages of the browser that the test expects.
    expected: Vec<&'static str>,
    profile: TempDir,
}

impl Browser {
    /// Opens the console of a broker at a fragment.
    pub(crate) fn open(address: SocketAddr, fragment: &str) -> Self {
        let (driver, port) = (0..DRIVER_STARTS_MAX)
            .find_map(|_| start_driver())
            .expect("chromedriver ends before it listens on a port");
        let client = BrokerClient::new((Ipv4Addr::LOCALHOST, port).into(), WAIT_MAX);
        let profile = tempfile::tempdir().unwrap();
        let directory = format!("--user-data-dir={}", profile.path().display());
        let flags: Vec<&str> = FLAGS.into_iter().chain([directory.as_str()]).collect();
        let wanted = json!({"capabilities": {"alwaysMatch": {
            "goog:chromeOptions": {"args": flags},
            "goog:loggingPrefs": {"browser": "ALL"},
        }}});
        let mut browser =
            Self { driver, client, session: String::new(), address, expected: Vec::new(), profile };
        let answer = browser.command("POST", "/session", &wanted).unwrap_or_else(|problem| {
            panic!("chromium does not start: run ./test, which installs it ({problem})")
        });
        browser.session = format!("/session/{}", answer["sessionId"].as_str().unwrap());
        browser.load(fragment);
        browser
    }

    /// Expects messages of the browser that have this text, such as a refused request.
    pub(crate) fn expect_message(&mut self, text: &'static str) {
        self.expected.push(text);
    }

    /// Loads the page anew at a fragment.
    pub(crate) fn load(&self, fragment: &str) {
        self.session("POST", "/url", &json!({"url": "about:blank"}));
        self.session("POST", "/url", &json!({"url": self.url(fragment)}));
    }

    /// Follows a link to a fragment within the loaded page.
    pub(crate) fn go(&self, fragment: &str) {
        self.run("location.hash = arguments[0]", &[json!(fragment)]);
    }

    pub(crate) fn url(&self, fragment: &str) -> String {
        format!("http://{}/{fragment}", self.address)
    }

    /// The fragment of the present address.
    pub(crate) fn fragment(&self) -> String {
        self.run("return location.hash", &[]).as_str().unwrap().to_owned()
    }

    /// Runs a script in the page and returns its result.
    pub(crate) fn run(&self, script: &str, values: &[Value]) -> Value {
        self.session("POST", "/execute/sync", &json!({"script": script, "args": values}))
    }

    /// Runs a script that calls its last argument when it is done.
    pub(crate) fn run_until_done(&self, script: &str) -> Value {
        self.session("POST", "/execute/async", &json!({"script": script, "args": []}))
    }

    /// Sends a command of the DevTools protocol.
    pub(crate) fn devtools(&self, name: &str, values: &Value) -> Value {
        self.session("POST", "/goog/cdp/execute", &json!({"cmd": name, "params": values}))
    }

    /// The text of the page as it is shown.
    pub(crate) fn text(&self) -> String {
        self.run("return document.body.innerText", &[]).as_str().unwrap().to_owned()
    }

    /// The text of the first element of a selector, if there is one.
    pub(crate) fn text_of(&self, selector: &str) -> Option<String> {
        let script = "return document.querySelector(arguments[0])?.innerText ?? null";
        self.run(script, &[json!(selector)]).as_str().map(str::to_owned)
    }

    /// Waits until the page shows a text.
    pub(crate) fn wait_for(&self, text: &str) {
        until_ok(|| {
            let shown = self.text();
            shown.contains(text).then_some(()).ok_or(format!("{text:?} in the page:\n{shown}"))
        });
    }

    /// Waits until the page does not show a text.
    pub(crate) fn wait_until_gone(&self, text: &str) {
        until_ok(|| {
            let shown = self.text();
            (!shown.contains(text)).then_some(()).ok_or(format!("no {text:?} in:\n{shown}"))
        });
    }

    /// Waits for an element by a CSS selector, and returns its text.
    pub(crate) fn wait_for_element(&self, selector: &str) -> String {
        until_ok(|| self.text_of(selector).ok_or(format!("an element {selector}")))
    }

    /// Waits until the fragment has a text.
    pub(crate) fn wait_for_fragment(&self, part: &str) {
        until_ok(|| {
            let fragment = self.fragment();
            fragment.contains(part).then_some(()).ok_or(format!("{part:?} in {fragment}"))
        });
    }

    /// Clicks the first element of a selector.
    pub(crate) fn click(&self, selector: &str) {
        self.act_on("css selector", selector, "click", &json!({}));
    }

    /// Clicks the button or link that has this text.
    pub(crate) fn click_text(&self, text: &str) {
        let path = format!(
            "(//dialog//button | //button | //a | //summary)[normalize-space(.) = \"{text}\"]"
        );
        self.act_on("xpath", &path, "click", &json!({}));
    }

    /// Replaces the text of an input. The page may be drawn anew meanwhile, so the text is typed
    /// again until the input has it.
    pub(crate) fn fill(&self, selector: &str, text: &str) {
        let value = "return document.querySelector(arguments[0])?.value ?? null";
        until_ok(|| {
            self.act_on("css selector", selector, "clear", &json!({}));
            self.act_on("css selector", selector, "value", &json!({"text": text}));
            let shown = self.run(value, &[json!(selector)]);
            if shown == text.trim_end_matches(keys::ENTER) {
                Ok(())
            } else {
                Err(format!("{selector} has {shown}"))
            }
        });
    }

    /// Chooses an option of a select by its text.
    pub(crate) fn choose(&self, text: &str) {
        let path = format!("//select/option[normalize-space(.) = \"{text}\"]");
        self.act_on("xpath", &path, "click", &json!({}));
    }

    /// Presses keys at once, such as Control and K, and releases them.
    pub(crate) fn press(&self, keys: &[&str]) {
        let action = |kind: &str, key: &str| json!({"type": kind, "value": key});
        let down = keys.iter().map(|key| action("keyDown", key));
        let up = keys.iter().rev().map(|key| action("keyUp", key));
        let actions: Vec<Value> = down.chain(up).collect();
        let keyboard = json!({"type": "key", "id": "keyboard", "actions": actions});
        self.session("POST", "/actions", &json!({"actions": [keyboard]}));
    }

    /// Types a text where the focus is.
    pub(crate) fn type_text(&self, text: &str) {
        for letter in text.chars() {
            self.press(&[letter.to_string().as_str()]);
        }
    }

    /// Whether any button or link has this text.
    pub(crate) fn has_button(&self, text: &str) -> bool {
        let script = "return [...document.querySelectorAll('button, a.button')]
            .some((one) => one.innerText.trim() === arguments[0])";
        self.run(script, &[json!(text)]) == true
    }

    /// Shows the page in `light` or `dark` colours.
    pub(crate) fn prefer(&self, scheme: &str) {
        let feature = json!({"name": "prefers-color-scheme", "value": scheme});
        self.devtools("Emulation.setEmulatedMedia", &json!({"features": [feature]}));
    }

    /// Fails if the browser has reported something that the test does not expect.
    pub(crate) fn assert_no_messages(&self) {
        let messages = self.session("POST", "/se/log", &json!({"type": "browser"}));
        let messages = messages.as_array().unwrap().iter();
        let texts = messages.map(|message| message["message"].as_str().unwrap());
        let unexpected: Vec<&str> = texts
            .filter(|text| !self.expected.iter().any(|expected| text.contains(expected)))
            .collect();
        assert!(unexpected.is_empty(), "the browser reported {unexpected:#?}");
    }

    /// Finds an element and does something to it. Elements are drawn again at any time, so it is
    /// tried until it succeeds.
    fn act_on(&self, using: &str, selector: &str, verb: &str, values: &Value) {
        until_ok(|| {
            let query = json!({"using": using, "value": selector});
            let found = self.command("POST", &format!("{}/element", self.session), &query)?;
            let element = found[ELEMENT].as_str().ok_or("no element")?;
            let path = format!("{}/element/{element}/{verb}", self.session);
            self.command("POST", &path, values)
        });
    }

    fn session(&self, method: &str, path: &str, body: &Value) -> Value {
        let path = format!("{}{path}", self.session);
        self.command(method, &path, body).unwrap_or_else(|problem| panic!("{path}: {problem}"))
    }

    fn command(&self, method: &str, path: &str, body: &Value) -> Result<Value, String> {
        let answer = self.client.request(method, path, &body.to_string());
        let (status, mut answer) = answer.ok_or("chromedriver does not answer")?;
        let value = answer["value"].take();
        if status == 200 { Ok(value) } else { Err(value["message"].to_string()) }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        if thread::panicking() {
            // The page as it was helps to find the reason.
            let script = json!({"script": "return document.body?.innerText", "args": []});
            let shown = self.command("POST", &format!("{}/execute/sync", self.session), &script);
            eprint_page(&shown.unwrap_or_default());
        } else {
            self.assert_no_messages();
        }
        let _ = self.command("DELETE", &self.session, &Value::Null);
        let _ = self.driver.kill();
        let _ = self.driver.wait();
        kill_all_with(&self.profile.path().display().to_string());
    }
}

#[expect(clippy::print_stderr, reason = "shown with the failed test")]
fn eprint_page(shown: &Value) {
    eprintln!("the page shows:\n{}", shown.as_str().unwrap_or_default());
}

/// Ends the processes whose command line has this text. The driver answers before the browser has
/// ended, and leaves it behind when it is killed.
fn kill_all_with(text: &str) {
    let pids = std::fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(|entry| {
        let command = std::fs::read(entry.path().join("cmdline")).ok()?;
        let pid = entry.file_name().into_string().ok()?;
        String::from_utf8_lossy(&command).contains(text).then_some(pid)
    });
    let pids: Vec<String> = pids.collect();
    if !pids.is_empty() {
        let _ = Command::new("kill").arg("-9").args(pids).stderr(Stdio::null()).status();
    }
}

/// Starts `chromedriver` and returns the port on which it listens; `None` if it ends before.
fn start_driver() -> Option<(Child, u16)> {
    let mut driver = Command::new("chromedriver")
        .arg("--port=0")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("chromedriver is not installed: run ./test, which installs it");
    let mut lines = BufReader::new(driver.stdout.take().unwrap()).lines();
    let port = lines.by_ref().map_while(Result::ok).find_map(|line| {
        line.split_once("successfully on port ")?.1.trim_end_matches('.').parse::<u16>().ok()
    });
    let Some(port) = port else {
        driver.wait().unwrap();
        return None;
    };
    // What the driver prints is read to its end, so that it never blocks.
    thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
    Some((driver, port))
}
