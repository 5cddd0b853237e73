//! `GET /` and `/console/…`: the console, a web page that is a client of this API.
//!
//! Its files are in `crates/server/console`; `build.rs` embeds them. The page names them below one
//! hash of their contents, so that browsers keep them, and relative to itself, so that it works
//! below a proxy's path. Files contain no secrets and need no token; the page asks for one and
//! sends it with every call. The policy allows scripts and styles of the broker only.

use axum::extract::RawPathParams;
use axum::response::{IntoResponse as _, Response};
use http::header::{
    ACCEPT, ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_SECURITY_POLICY,
    CONTENT_TYPE, ETAG, HeaderName, IF_NONE_MATCH, REFERRER_POLICY, VARY, X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderMap, HeaderValue, StatusCode};

use super::response::ApiResult;
use crate::problem::Problem;

include!(concat!(env!("OUT_DIR"), "/console.rs"));

/// What the page may load and do. Scripts cannot write markup (trusted types).
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
                      img-src 'self' data:; connect-src 'self'; base-uri 'none'; \
                      form-action 'none'; frame-ancestors 'none'; \
                      require-trusted-types-for 'script'";

/// A file of the console.
struct EmbeddedFile {
    /// Its path below the hash.
    name: &'static str,
    media_type: &'static str,
    plain: &'static [u8],
    /// The same in gzip.
    compressed: &'static [u8],
}

/// Shows the page.
pub(super) async fn page(headers: HeaderMap) -> ApiResult {
    if !names_any(&headers, &ACCEPT, &["text/html", "text/*", "*/*"]).unwrap_or(true) {
        return Err(Problem::not_found());
    }
    // Weak, because it is the same for both encodings.
    let tag = format!("W/\"{HASH}\"");
    let mut response = match names_any(&headers, &IF_NONE_MATCH, &[&tag]) {
        Some(true) => StatusCode::NOT_MODIFIED.into_response(),
        _ => serve(&PAGE, &headers),
    };
    let cached = [(CACHE_CONTROL, "no-cache"), (ETAG, tag.as_str())];
    add_headers(&mut response, cached);
    Ok(response)
}

/// Shows a file of the page.
pub(super) async fn file(params: RawPathParams, headers: HeaderMap) -> ApiResult {
    let mut values = params.iter().map(|(_, value)| value);
    let (hash, name) = (values.next(), values.next());
    let file = FILES.iter().find(|file| Some(file.name) == name && Some(HASH) == hash);
    let mut response = serve(file.ok_or_else(Problem::no_console_file)?, &headers);
    add_headers(&mut response, [(CACHE_CONTROL, "public, max-age=31536000, immutable")]);
    Ok(response)
}

fn serve(file: &EmbeddedFile, headers: &HeaderMap) -> Response {
    let compressed = names_any(headers, &ACCEPT_ENCODING, &["gzip"]) == Some(true);
    let mut response = match compressed {
        true => ([(CONTENT_ENCODING, "gzip")], file.compressed).into_response(),
        false => file.plain.into_response(),
    };
    let fields = [
        (CONTENT_TYPE, file.media_type),
        (VARY, "accept-encoding"),
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
    ];
    add_headers(&mut response, fields);
    response
}

fn add_headers<const N: usize>(response: &mut Response, fields: [(HeaderName, &str); N]) {
    for (name, value) in fields {
        if let Ok(value) = HeaderValue::from_str(value) {
            response.headers_mut().insert(name, value);
        }
    }
}

/// Whether a header with a list has one of these entries, with a weight other than 0; `None`
/// without the header.
fn names_any(headers: &HeaderMap, name: &HeaderName, wanted: &[&str]) -> Option<bool> {
    let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
    let entries: Vec<&str> = values.flat_map(|value| value.split(',')).collect();
    let is_wanted = |entry: &&str| {
        let (entry, parameters) = entry.split_once(';').unwrap_or((*entry, ""));
        let refused = ["q=0", "q=0.0", "q=0.00", "q=0.000"];
        let is_refused = parameters.split(';').any(|it| refused.contains(&it.trim()));
        !is_refused && wanted.iter().any(|it| entry.trim().eq_ignore_ascii_case(it))
    };
    (!entries.is_empty()).then(|| entries.iter().any(is_wanted))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_in_a_header_names_what_it_does_not_refuse() {
        for (value, want) in [
            (None, None),
            (Some("gzip"), Some(true)),
            (Some("br, GZIP;q=0.5"), Some(true)),
            (Some("br;q=1.0 , gzip ; q=0"), Some(false)),
            (Some("gzip;q=0.000"), Some(false)),
            (Some("identity"), Some(false)),
            (Some(""), Some(false)),
        ] {
            let mut headers = HeaderMap::new();
            if let Some(value) = value {
                headers.insert(ACCEPT_ENCODING, HeaderValue::from_static(value));
            }
            assert_eq!(names_any(&headers, &ACCEPT_ENCODING, &["gzip"]), want, "{value:?}");
        }
    }

    #[test]
    fn the_page_names_its_files_below_the_hash() {
        let page = std::str::from_utf8(PAGE.plain).unwrap();
        assert!(page.contains(&format!("\"console/{HASH}/")), "{page}");
        assert!(!page.contains("HASH"), "{page}");
        assert!(FILES.iter().all(|file| file.name != "index.html"));
    }
}
