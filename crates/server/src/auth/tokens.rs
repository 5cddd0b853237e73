//! The tokens of a broker, and the caller that shows one.
//!
//! Only hashes of secrets are kept, and all of them are compared in constant time. A secret that is
//! in a file is read again when the file changes: [`ApiTokens::watch_files`] looks every few
//! seconds. The new secret replaces the old one for all later requests; contents that are no valid
//! secret are logged, and the old one stays.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use http::HeaderMap;
use http::header::AUTHORIZATION;
use punctual_core::Namespace;
use subtle::{Choice, ConstantTimeEq};
use tokio::task::spawn_blocking;
use tokio::time::interval;

use super::rights::Rights;

/// How often files with secrets are read. New contents are used when two reads in a row find the
/// same, so that no half of a secret becomes valid: five seconds after the change at most.
const CHECK_EVERY: Duration = Duration::from_millis(2500);

/// What a token grants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Grant {
    /// Every route, in every namespace.
    Admin,
    /// These rights in one namespace, and the routes that need any token.
    Namespace(Namespace, Rights),
}

/// As in the configuration: `admin`, `shop` or `shop:read+operate`.
impl fmt::Display for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Admin => f.write_str("admin"),
            Self::Namespace(namespace, Rights::ALL) => write!(f, "{namespace}"),
            Self::Namespace(namespace, rights) => write!(f, "{namespace}:{rights}"),
        }
    }
}

/// The hash of a token and what it grants.
#[derive(Clone)]
pub struct ApiToken {
    hash: blake3::Hash,
    grant: Grant,
    /// The file that has the secret.
    file: Option<PathBuf>,
}

/// The text is not a valid bearer token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("must be letters, digits, '-', '.', '_', '~', '+' or '/', with '=' only at the end")]
pub struct TokenError;

/// All tokens of a broker. Without any, every caller is an admin. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct ApiTokens {
    /// Without tokens, which cannot change while the broker runs.
    is_open: bool,
    tokens: Arc<RwLock<Vec<ApiToken>>>,
}

/// What the token of a caller grants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Identity {
    /// Everything.
    Admin,
    /// Rights in these namespaces. There are several if one secret is configured for several.
    Namespaces(Vec<(Namespace, Rights)>),
}

impl ApiToken {
    /// Hashes a secret; it must have the form of a bearer token (RFC 6750).
    pub fn new(grant: Grant, secret: &str) -> Result<Self, TokenError> {
        Ok(Self { hash: hash_of(secret)?, grant, file: None })
    }

    /// The secret is in this file, which is read again when it changes.
    #[must_use]
    pub fn of_file(self, file: PathBuf) -> Self {
        Self { file: Some(file), ..self }
    }
}

fn hash_of(secret: &str) -> Result<blake3::Hash, TokenError> {
    let body = secret.trim_end_matches('=');
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~+/".contains(&byte);
    match !body.is_empty() && body.bytes().all(plain) {
        true => Ok(blake3::hash(secret.as_bytes())),
        false => Err(TokenError),
    }
}

impl fmt::Debug for ApiToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ApiToken").field("grant", &self.grant).finish_non_exhaustive()
    }
}

impl ApiTokens {
    pub(crate) fn new(tokens: Vec<ApiToken>) -> Self {
        Self { is_open: tokens.is_empty(), tokens: Arc::new(RwLock::new(tokens)) }
    }

    /// Whether no token is configured, so that every caller is an admin.
    pub(crate) fn is_open(&self) -> bool {
        self.is_open
    }

    /// The caller that sends this `Authorization` header; `None` without a valid token.
    pub(crate) fn identify(&self, authorization: Option<&[u8]>) -> Option<Identity> {
        if self.is_open {
            return Some(Identity::Admin);
        }
        let hash = blake3::hash(bearer(authorization?)?);
        let tokens = self.tokens.read().unwrap_or_else(PoisonError::into_inner);
        // Every token is compared, so that the time does not depend on which one matches.
        let matches: Vec<Choice> =
            tokens.iter().map(|token| token.hash.as_bytes().ct_eq(hash.as_bytes())).collect();
        let grants = tokens.iter().zip(matches);
        let grants =
            grants.filter(|(_, matches)| bool::from(*matches)).map(|(token, _)| &token.grant);
        grants.fold(None, |identity, grant| Some(Identity::with(identity, grant)))
    }

    /// The caller that sends these headers; `None` without a valid token.
    pub(crate) fn identify_headers(&self, headers: &HeaderMap) -> Option<Identity> {
        let mut values = headers.get_all(AUTHORIZATION).iter();
        let first = values.next().map(http::HeaderValue::as_bytes);
        // Two headers are ambiguous.
        if values.next().is_some() { None } else { self.identify(first) }
    }

    /// Uses the new secrets of files that change. Never returns.
    pub(crate) async fn watch_files(&self, read_secret: fn(&Path) -> Result<String, String>) {
        let mut files: Vec<WatchedFile> = self.files();
        if files.is_empty() {
            return std::future::pending().await;
        }
        let mut checks = interval(CHECK_EVERY);
        loop {
            checks.tick().await;
            let read = spawn_blocking(move || {
                let secrets = files.iter().map(|file| read_secret(&file.path)).collect::<Vec<_>>();
                (files, secrets)
            });
            let Ok((watched, secrets)) = read.await else {
                files = self.files();
                continue;
            };
            files = watched;
            for (file, secret) in files.iter_mut().zip(secrets) {
                self.note(file, secret);
            }
        }
    }

    /// Each file once, as its tokens are now.
    fn files(&self) -> Vec<WatchedFile> {
        let tokens = self.tokens.read().unwrap_or_else(PoisonError::into_inner);
        let mut files: Vec<WatchedFile> = Vec::new();
        for token in tokens.iter() {
            let Some(path) = &token.file else { continue };
            if files.iter().all(|file| file.path != *path) {
                let now = FileState::Secret(token.hash);
                files.push(WatchedFile { path: path.clone(), used: now.clone(), last: now });
            }
        }
        files
    }

    /// Uses what a file has if it has changed and is stable.
    fn note(&self, file: &mut WatchedFile, secret: Result<String, String>) {
        let hash = secret.and_then(|secret| hash_of(&secret).map_err(|error| error.to_string()));
        let now = match hash {
            Ok(hash) => FileState::Secret(hash),
            Err(problem) => FileState::Invalid(problem),
        };
        if now == file.used || now != file.last {
            file.last = now;
            return;
        }
        let path = file.path.display();
        match &now {
            FileState::Secret(hash) => {
                let mut tokens = self.tokens.write().unwrap_or_else(PoisonError::into_inner);
                let of_file = |token: &&mut ApiToken| token.file.as_ref() == Some(&file.path);
                tokens.iter_mut().filter(of_file).for_each(|token| token.hash = *hash);
                tracing::info!(%path, "token replaced by the new secret of its file");
            }
            FileState::Invalid(problem) => {
                tracing::error!(%path, problem, "token not replaced; the previous one stays valid");
            }
        }
        file.used = now;
    }
}

/// A file with a secret.
#[derive(Debug)]
struct WatchedFile {
    path: PathBuf,
    /// What was used or reported last.
    used: FileState,
    /// What the last read has found.
    last: FileState,
}

/// What a file has.
#[derive(Debug, Clone, PartialEq, Eq)]
enum FileState {
    Secret(blake3::Hash),
    /// Why it has no secret.
    Invalid(String),
}

impl Identity {
    fn with(identity: Option<Self>, grant: &Grant) -> Self {
        let mut namespaces = match (identity, grant) {
            (Some(Self::Admin), _) | (_, Grant::Admin) => return Self::Admin,
            (Some(Self::Namespaces(namespaces)), _) => namespaces,
            (None, _) => Vec::new(),
        };
        if let Grant::Namespace(namespace, rights) = grant {
            match namespaces.iter_mut().find(|(known, _)| known == namespace) {
                Some((_, known)) => *known = known.with(*rights),
                None => namespaces.push((namespace.clone(), *rights)),
            }
        }
        Self::Namespaces(namespaces)
    }

    /// Whether the caller has one of these rights in a namespace.
    pub(crate) fn may(&self, one_of: Rights, namespace: &Namespace) -> bool {
        match self {
            Self::Admin => true,
            Self::Namespaces(namespaces) => {
                namespaces.iter().any(|(name, has)| name == namespace && has.has_one_of(one_of))
            }
        }
    }

    /// What the caller is called in records of what it did: as its token is configured.
    pub(crate) fn name_in(&self, namespace: &Namespace) -> String {
        let rights = match self {
            Self::Admin => return Grant::Admin.to_string(),
            Self::Namespaces(namespaces) => {
                namespaces.iter().find(|(known, _)| known == namespace).map(|(_, rights)| *rights)
            }
        };
        Grant::Namespace(namespace.clone(), rights.unwrap_or(Rights::NONE)).to_string()
    }

    /// The only namespace of the caller; `None` if it has several, or all.
    pub(crate) fn only_namespace(&self) -> Option<&Namespace> {
        match self {
            Self::Namespaces(namespaces) if namespaces.len() == 1 => Some(&namespaces[0].0),
            _ => None,
        }
    }

    /// The namespace that is configured first for the token; `None` for an admin.
    pub(crate) fn first_namespace(&self) -> Option<&Namespace> {
        match self {
            Self::Admin => None,
            Self::Namespaces(namespaces) => namespaces.first().map(|(namespace, _)| namespace),
        }
    }
}

/// The token after `Bearer`, which may have any case.
fn bearer(authorization: &[u8]) -> Option<&[u8]> {
    let (scheme, secret) = authorization.split_at_checked("Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then(|| secret.trim_ascii())
}

#[cfg(test)]
mod tests {
    use super::super::rights::Right;
    use super::*;

    fn namespace(name: &str) -> Namespace {
        Namespace::new(name).unwrap()
    }

    fn token(grant: Grant, secret: &str) -> ApiToken {
        ApiToken::new(grant, secret).unwrap()
    }

    fn all_of(name: &str) -> Grant {
        Grant::Namespace(namespace(name), Rights::ALL)
    }

    #[test]
    fn a_token_identifies_its_caller() {
        let (read, operate) = (Rights::of(&[Right::Read]), Rights::of(&[Right::Operate]));
        let tokens = ApiTokens::new(vec![
            token(all_of("shop"), "aaa"),
            token(all_of("bank"), "bbb"),
            token(Grant::Namespace(namespace("shop"), read), "both"),
            token(all_of("bank"), "both"),
            token(Grant::Namespace(namespace("shop"), operate), "both"),
            token(Grant::Admin, "root=="),
        ]);
        let of = |names: &[(&str, Rights)]| {
            let all = names.iter().map(|(name, rights)| (namespace(name), *rights));
            Some(Identity::Namespaces(all.collect()))
        };
        for (authorization, want) in [
            (None, None),
            (Some("Bearer aaa"), of(&[("shop", Rights::ALL)])),
            (Some("bearer aaa"), of(&[("shop", Rights::ALL)])),
            (Some("Bearer   bbb "), of(&[("bank", Rights::ALL)])),
            (Some("Bearer both"), of(&[("shop", read.with(operate)), ("bank", Rights::ALL)])),
            (Some("Bearer root=="), Some(Identity::Admin)),
            (Some("Bearer aa"), None),
            (Some("Bearer aaaa"), None),
            (Some("Bearer "), None),
            (Some("Bearer"), None),
            (Some("Basic aaa"), None),
            (Some("aaa"), None),
            (Some(""), None),
        ] {
            assert_eq!(
                tokens.identify(authorization.map(str::as_bytes)),
                want,
                "{authorization:?}"
            );
        }
        let open = ApiTokens::new(Vec::new());
        assert_eq!(open.identify(None), Some(Identity::Admin), "an open broker");
    }

    #[test]
    fn two_authorization_headers_identify_no_caller() {
        let tokens = ApiTokens::new(vec![token(Grant::Admin, "root")]);
        let mut headers = HeaderMap::new();
        assert_eq!(tokens.identify_headers(&headers), None);
        headers.append(AUTHORIZATION, "Bearer root".parse().unwrap());
        assert_eq!(tokens.identify_headers(&headers), Some(Identity::Admin));
        headers.append(AUTHORIZATION, "Bearer other".parse().unwrap());
        assert_eq!(tokens.identify_headers(&headers), None);
    }

    #[test]
    fn a_token_must_fit_a_header_and_is_never_shown() {
        for (secret, valid) in [
            ("abc-._~+/123==", true),
            ("", false),
            ("=", false),
            ("a b", false),
            ("a,b", false),
            ("ä", false),
            ("a\nb", false),
        ] {
            assert_eq!(ApiToken::new(Grant::Admin, secret).is_ok(), valid, "{secret:?}");
        }
        assert_eq!(format!("{:?}", token(Grant::Admin, "root")), "ApiToken { grant: Admin, .. }");
    }

    #[test]
    fn the_new_secret_of_a_file_is_used_when_two_reads_find_it() {
        let file = PathBuf::from("/secrets/shop");
        let shop = token(all_of("shop"), "old").of_file(file.clone());
        let bank = token(all_of("bank"), "old").of_file(file);
        let other = token(all_of("other"), "old");
        let tokens = ApiTokens::new(vec![shop, bank, other]);
        let mut files = tokens.files();
        assert_eq!(files.len(), 1, "two tokens have the same file");
        let granted = |secret: &str| {
            let identity = tokens.identify(Some(format!("Bearer {secret}").as_bytes()));
            match identity {
                None => 0,
                Some(Identity::Namespaces(namespaces)) => namespaces.len(),
                Some(Identity::Admin) => panic!("an admin"),
            }
        };
        for (read, old, new) in [
            (Ok("old"), 3, 0),
            (Ok("ne"), 3, 0),
            (Ok("new"), 3, 0),
            (Ok("new"), 1, 2),
            (Ok(""), 1, 2),
            (Ok(""), 1, 2),
            (Ok(""), 1, 2),
            (Err("no such file"), 1, 2),
            (Err("no such file"), 1, 2),
            (Ok("old"), 1, 2),
            (Ok("old"), 3, 0),
        ] {
            tokens.note(&mut files[0], read.map(str::to_owned).map_err(str::to_owned));
            assert_eq!((granted("old"), granted("new")), (old, new), "after {read:?}");
            assert_eq!(granted("ne"), 0, "half of a secret");
        }
    }
}
