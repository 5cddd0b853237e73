//! The page of the console and its files, as a browser gets them.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Command, Stdio};

use punctual_test_support::TestBroker;

const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
                      img-src 'self' data:; connect-src 'self'; base-uri 'none'; \
                      form-action 'none'; frame-ancestors 'none'; \
                      require-trusted-types-for 'script'";

struct RawAnswer {
    head: String,
    body: Vec<u8>,
}

impl RawAnswer {
    fn status(&self) -> &str {
        self.head.split(' ').nth(1).unwrap()
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }
}

/// Sends a request without a token.
fn get(broker: &TestBroker, path: &str, headers: &str) -> RawAnswer {
    let mut stream = TcpStream::connect(broker.address).unwrap();
    let address = broker.address;
    write!(stream, "GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n{headers}\r\n")
        .unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let head = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n").unwrap();
    let body = answer.split_off(head + 4);
    RawAnswer { head: String::from_utf8(answer).unwrap(), body }
}

fn gunzip(bytes: &[u8]) -> Vec<u8> {
    let mut gzip = Command::new("gzip");
    let gzip = gzip.arg("-dc").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut gzip = gzip.spawn().unwrap();
    let mut input = gzip.stdin.take().unwrap();
    let bytes = bytes.to_vec();
    let writing = std::thread::spawn(move || input.write_all(&bytes).unwrap());
    let output = gzip.wait_with_output().unwrap();
    writing.join().unwrap();
    assert!(output.status.success());
    output.stdout
}

/// The files that a text names after one of these words: `src="…"`, `from './…'`.
fn named_after<'a>(text: &'a str, words: &[&str]) -> Vec<&'a str> {
    let rests = words.iter().flat_map(|word| text.split(*word).skip(1));
    rests.filter_map(|rest| rest.split(['"', '\'']).next()).collect()
}

/// The page needs no token, and neither do the scripts and styles that it names.
#[test]
fn a_browser_gets_the_page_and_all_of_its_files_without_a_token() {
    let broker = TestBroker::start(&["--token", "shop=aaa"]);
    let page = get(&broker, "/", "accept: text/html,application/xhtml+xml,*/*;q=0.8\r\n");
    assert_eq!((page.status(), page.header("cache-control")), ("200", Some("no-cache")));
    let html = String::from_utf8(page.body).unwrap();
    let mut paths: Vec<String> =
        named_after(&html, &["src=\"", "href=\""]).iter().map(|it| format!("/{it}")).collect();
    assert!(!paths.is_empty(), "{html}");
    let mut number = 0;
    while let Some(path) = paths.get(number).cloned() {
        number += 1;
        let path = path.split('#').next().unwrap();
        let file = get(&broker, path, "");
        assert_eq!(file.status(), "200", "{path}");
        let cached = file.header("cache-control");
        assert_eq!(cached, Some("public, max-age=31536000, immutable"), "{path}");
        assert_eq!(file.header("content-security-policy"), Some(POLICY));
        assert_eq!(file.header("x-content-type-options"), Some("nosniff"));
        assert_eq!(file.header("referrer-policy"), Some("no-referrer"));
        let media_type = file.header("content-type").unwrap();
        let extension = path.rsplit('.').next().unwrap();
        let want = match extension {
            "js" => "text/javascript; charset=utf-8",
            "css" => "text/css; charset=utf-8",
            _ => "image/svg+xml",
        };
        assert_eq!(media_type, want, "{path}");
        if extension == "js" {
            // Modules import each other relative to themselves.
            let text = String::from_utf8(file.body).unwrap();
            for import in named_after(&text, &["from '", "from \"", "import '", "import('"]) {
                let folder = path.rsplit_once('/').unwrap().0;
                let imported = join(folder, import);
                if import.starts_with('.') && !paths.contains(&imported) {
                    paths.push(imported);
                }
            }
        }
    }
}

/// Resolves a relative path.
fn join(folder: &str, relative: &str) -> String {
    let mut parts: Vec<&str> = folder.split('/').collect();
    for part in relative.split('/') {
        match part {
            "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    parts.join("/")
}

#[test]
fn the_page_has_a_policy_a_tag_and_a_compressed_form() {
    let broker = TestBroker::start(&[]);
    let plain = get(&broker, "/", "");
    assert_eq!(plain.status(), "200");
    for (name, want) in [
        ("content-type", "text/html; charset=utf-8"),
        ("content-security-policy", POLICY),
        ("x-content-type-options", "nosniff"),
        ("referrer-policy", "no-referrer"),
        ("vary", "accept-encoding"),
    ] {
        assert_eq!(plain.header(name), Some(want));
    }
    assert_eq!(plain.header("content-encoding"), None);
    let compressed = get(&broker, "/", "accept-encoding: gzip, br\r\n");
    assert_eq!(compressed.header("content-encoding"), Some("gzip"));
    assert_eq!(gunzip(&compressed.body), plain.body);
    let tag = plain.header("etag").unwrap();
    let again = get(&broker, "/", &format!("if-none-match: {tag}\r\n"));
    assert_eq!((again.status(), again.body.len()), ("304", 0));
    assert_eq!(get(&broker, "/", "if-none-match: \"other\"\r\n").status(), "200");
}

#[test]
fn what_is_no_file_of_the_console_is_not_found() {
    let broker = TestBroker::start(&[]);
    let page = String::from_utf8(get(&broker, "/", "").body).unwrap();
    let (_, rest) = page.split_once("console/").unwrap();
    let (hash, _) = rest.split_once('/').unwrap();
    for path in [
        "/console/0123456789abcdef/main.js",
        &format!("/console/{hash}/none.js"),
        &format!("/console/{hash}/index.html"),
        &format!("/console/{hash}/../../../etc/passwd"),
        &format!("/console/{hash}"),
        "/console",
    ] {
        let answer = get(&broker, path, "");
        assert_eq!(answer.status(), "404", "{path}");
        assert_eq!(answer.header("content-type"), Some("application/problem+json"));
    }
    assert_eq!(get(&broker, "/", "accept: application/json\r\n").status(), "404");
}
