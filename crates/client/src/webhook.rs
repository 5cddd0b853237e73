//! Verifies the signatures of webhooks, as [Standard Webhooks](https://www.standardwebhooks.com)
//! specifies.
//!
//! A receiver must check the body as it was received, byte by byte, before it is parsed:
//!
//! ```
//! use std::time::{Duration, SystemTime};
//! use punctual_client::webhook::Verifier;
//!
//! # fn receive(headers: &std::collections::HashMap<String, String>, body: &[u8])
//! #     -> Result<(), punctual_client::webhook::WebhookError> {
//! // During a rotation both secrets, separated by a space.
//! let verifier = Verifier::new("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")?;
//! let header = |name: &str| headers.get(name).map(String::as_str);
//! verifier.verify(header, body, SystemTime::now())?;
//! // The webhook is genuine. `webhook-id` is the fire id: the same for every attempt of a fire.
//! # Ok(())
//! # }
//! ```

use std::fmt;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::hmac;

use crate::Timestamp;

/// The beginning of a secret, which distinguishes it from other kinds of secrets.
const SECRET_PREFIX: &str = "whsec_";
/// The beginning of a signature by HMAC-SHA256.
const SIGNATURE_PREFIX: &str = "v1,";
/// How far the timestamp may be from now, as the standard suggests.
const TOLERANCE: Duration = Duration::from_secs(5 * 60);
/// Signatures of one webhook that are checked: a broker sends at most two.
const SIGNATURES_MAX: usize = 16;

/// Why a webhook is not accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WebhookError {
    /// A secret has the wrong form, or there is none.
    #[error("a secret must be whsec_ and base64")]
    Secret,
    /// A header is missing or has the wrong form.
    #[error("the header {0} is missing or has the wrong form")]
    Header(&'static str),
    /// The webhook was sent too long ago, or the clocks differ.
    #[error("webhook-timestamp is more than {} s from now", tolerance.as_secs())]
    Timestamp {
        /// How far it may be from now.
        tolerance: Duration,
    },
    /// No signature was made with one of the secrets for this id, timestamp and body.
    #[error("no signature matches the body and one of the secrets")]
    Signature,
}

/// Checks the signatures of webhooks. A secret never appears in debug output.
#[derive(Clone)]
pub struct Verifier {
    secrets: Vec<hmac::Key>,
    tolerance: Duration,
}

impl Verifier {
    /// Takes the secret that signs the webhooks of a namespace, `whsec_…`. During a rotation give
    /// both, separated by white space: a webhook that is signed with either is accepted.
    ///
    /// # Errors
    /// [`WebhookError::Secret`].
    pub fn new(secrets: &str) -> Result<Self, WebhookError> {
        let key = |text: &str| {
            let bytes = STANDARD.decode(text.strip_prefix(SECRET_PREFIX)?).ok()?;
            (!bytes.is_empty()).then(|| hmac::Key::new(hmac::HMAC_SHA256, &bytes))
        };
        let secrets: Option<Vec<hmac::Key>> = secrets.split_whitespace().map(key).collect();
        let secrets = secrets.filter(|secrets| !secrets.is_empty()).ok_or(WebhookError::Secret)?;
        Ok(Self { secrets, tolerance: TOLERANCE })
    }

    /// How far `webhook-timestamp` may be from now; 5 minutes by default.
    #[must_use]
    pub const fn tolerance(mut self, tolerance: Duration) -> Self {
        self.tolerance = tolerance;
        self
    }

    /// Checks a webhook. `header` returns the value of a header by its name in lower case.
    /// Signatures are compared in constant time.
    ///
    /// # Errors
    /// Any [`WebhookError`] but [`WebhookError::Secret`]: answer 401.
    pub fn verify<'a>(
        &self,
        header: impl Fn(&str) -> Option<&'a str>,
        body: &[u8],
        now: impl Into<Timestamp>,
    ) -> Result<(), WebhookError> {
        let given = |name| header(name).ok_or(WebhookError::Header(name));
        let (id, timestamp) = (given("webhook-id")?, given("webhook-timestamp")?);
        let sent: u64 = timestamp.parse().map_err(|_| WebhookError::Header("webhook-timestamp"))?;
        let now = now.into().as_millis() / 1000;
        if now.abs_diff(sent) > self.tolerance.as_secs() {
            return Err(WebhookError::Timestamp { tolerance: self.tolerance });
        }
        let signed = [id.as_bytes(), b".", timestamp.as_bytes(), b".", body].concat();
        let signatures = given("webhook-signature")?.split_ascii_whitespace();
        let matches = |text: &str| {
            let signature = text.strip_prefix(SIGNATURE_PREFIX)?;
            let signature = STANDARD.decode(signature).ok()?;
            let made_with = |secret| hmac::verify(secret, &signed, &signature).is_ok();
            self.secrets.iter().any(made_with).then_some(())
        };
        let found = signatures.take(SIGNATURES_MAX).find_map(matches);
        found.ok_or(WebhookError::Signature)
    }
}

impl fmt::Debug for Verifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Verifier").field("tolerance", &self.tolerance).finish_non_exhaustive()
    }
}

/// Checks one webhook with a tolerance of 5 minutes, as [`Verifier::verify`].
///
/// # Errors
/// Any [`WebhookError`].
pub fn verify<'a>(
    secrets: &str,
    header: impl Fn(&str) -> Option<&'a str>,
    body: &[u8],
    now: impl Into<Timestamp>,
) -> Result<(), WebhookError> {
    Verifier::new(secrets)?.verify(header, body, now)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    const SECOND: &str = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYX";
    /// The example of the standard.
    const BODY: &[u8] = br#"{"test": 2432232314}"#;
    const HEADERS: [(&str, &str); 3] = [
        ("webhook-id", "msg_p5jXN8AQM9LWM0D4loKWxJek"),
        ("webhook-timestamp", "1614265330"),
        ("webhook-signature", "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="),
    ];

    fn check(
        secrets: &str,
        changed: (&str, Option<&'static str>),
        body: &[u8],
        seconds_later: i64,
    ) -> Result<(), WebhookError> {
        let header = |name: &str| match changed {
            (of, value) if of == name => value,
            _ => HEADERS.iter().find(|(known, _)| *known == name).map(|(_, value)| *value),
        };
        let now = 1_614_265_330_999_u64.saturating_add_signed(seconds_later * 1000);
        verify(secrets, header, body, Timestamp::from_millis(now))
    }

    #[test]
    fn a_webhook_is_accepted_if_one_secret_signed_exactly_this_body() {
        let both = format!("{SECOND} {FIRST}");
        let old = Err(WebhookError::Timestamp { tolerance: TOLERANCE });
        let bad = |name| Err(WebhookError::Header(name));
        let signature = "webhook-signature";
        let rotated = "v1,bm9uZQ== v2,x v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE= v1";
        for (secrets, changed, body, later, want) in [
            (FIRST, ("", None), BODY, 0, Ok(())),
            (&both, ("", None), BODY, 300, Ok(())),
            (FIRST, ("", None), BODY, -300, Ok(())),
            (FIRST, ("", None), BODY, 301, old.clone()),
            (FIRST, ("", None), BODY, -301, old),
            (SECOND, ("", None), BODY, 0, Err(WebhookError::Signature)),
            (FIRST, ("", None), b"{}", 0, Err(WebhookError::Signature)),
            (FIRST, (signature, Some(rotated)), BODY, 0, Ok(())),
            (FIRST, (signature, Some("v1,")), BODY, 0, Err(WebhookError::Signature)),
            (FIRST, (signature, Some("")), BODY, 0, Err(WebhookError::Signature)),
            (FIRST, ("webhook-id", Some("other")), BODY, 0, Err(WebhookError::Signature)),
            // The timestamp is signed as text.
            (FIRST, ("webhook-timestamp", Some("+1614265330")), BODY, 0, {
                Err(WebhookError::Signature)
            }),
            (FIRST, ("webhook-timestamp", Some("soon")), BODY, 0, bad("webhook-timestamp")),
            (FIRST, ("webhook-timestamp", None), BODY, 0, bad("webhook-timestamp")),
            (FIRST, ("webhook-id", None), BODY, 0, bad("webhook-id")),
            (FIRST, (signature, None), BODY, 0, bad(signature)),
            ("", ("", None), BODY, 0, Err(WebhookError::Secret)),
            ("whsec_", ("", None), BODY, 0, Err(WebhookError::Secret)),
            ("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", ("", None), BODY, 0, Err(WebhookError::Secret)),
        ] {
            let result = check(secrets, changed, body, later);
            assert_eq!(result, want, "{secrets} {changed:?} {later}");
        }
    }

    #[test]
    fn the_tolerance_is_chosen_and_secrets_are_not_printed() {
        let verifier = Verifier::new(FIRST).unwrap().tolerance(Duration::from_secs(1));
        let header =
            |name: &str| HEADERS.iter().find(|(known, _)| *known == name).map(|(_, value)| *value);
        let at = |seconds: u64| Timestamp::from_millis(seconds * 1000);
        assert_eq!(verifier.verify(header, BODY, at(1_614_265_331)), Ok(()));
        let late = verifier.verify(header, BODY, at(1_614_265_332));
        let sentence = "webhook-timestamp is more than 1 s from now";
        assert_eq!(late.unwrap_err().to_string(), sentence);
        assert_eq!(format!("{verifier:?}"), "Verifier { tolerance: 1s, .. }");
    }
}
