//! Signs deliveries as Standard Webhooks specifies, so that receivers can verify the sender.
//!
//! The value of `webhook-signature` has one signature per secret of the namespace, so that a
//! receiver can change to a new secret while the old one is in use. Id, timestamp and body are
//! signed exactly as they are sent. A secret never appears in debug output.

use std::fmt;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::HeaderValue;
use punctual_core::Namespace;
use ring::hmac;

/// The prefix of a secret, which distinguishes it from other kinds of secrets.
const PREFIX: &str = "whsec_";
/// The length of a secret in bytes, according to the standard.
const SECRET_BYTES: std::ops::RangeInclusive<usize> = 24..=64;
/// Secrets of one namespace: the current one, and the next or the previous one.
const SECRETS_MAX: usize = 2;

/// Which deliveries a secret signs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Signs {
    /// Deliveries of every namespace without a secret of its own.
    All,
    /// Deliveries of one namespace.
    Namespace(Namespace),
}

/// A secret that is shared with receivers.
#[derive(Clone)]
pub struct SigningSecret {
    signs: Signs,
    key: hmac::Key,
}

/// Why a secret is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SecretError {
    /// It has the wrong form.
    #[error("must be whsec_ and base64 of 24 to 64 bytes")]
    Form,
    /// A namespace has too many secrets.
    #[error("at most two per namespace: the current one, and the next or the previous one")]
    TooMany,
}

/// Signs deliveries. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Signer(Arc<[SigningSecret]>);

impl SigningSecret {
    /// Parses a secret of the form `whsec_…`.
    pub fn new(signs: Signs, secret: &str) -> Result<Self, SecretError> {
        let bytes = secret.strip_prefix(PREFIX).and_then(|text| STANDARD.decode(text).ok());
        let bytes = bytes.filter(|bytes| SECRET_BYTES.contains(&bytes.len()));
        let bytes = bytes.ok_or(SecretError::Form)?;
        Ok(Self { signs, key: hmac::Key::new(hmac::HMAC_SHA256, &bytes) })
    }

    /// Checks that no namespace has more secrets than allowed.
    pub fn check_all(secrets: &[Self]) -> Result<(), SecretError> {
        let too_many = |secret: &Self| {
            secrets.iter().filter(|other| other.signs == secret.signs).count() > SECRETS_MAX
        };
        if secrets.iter().any(too_many) { Err(SecretError::TooMany) } else { Ok(()) }
    }
}

impl fmt::Debug for SigningSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SigningSecret").field("signs", &self.signs).finish_non_exhaustive()
    }
}

impl Signer {
    pub(crate) fn new(secrets: Vec<SigningSecret>) -> Self {
        Self(secrets.into())
    }

    /// Returns the value of `webhook-signature`; `None` if the namespace has no secret.
    pub(crate) fn sign(
        &self,
        namespace: &Namespace,
        id: &str,
        timestamp: u64,
        body: &[u8],
    ) -> Option<HeaderValue> {
        let of = |signs: &Signs| {
            self.0.iter().filter(|secret| secret.signs == *signs).collect::<Vec<_>>()
        };
        let mut secrets = of(&Signs::Namespace(namespace.clone()));
        if secrets.is_empty() {
            secrets = of(&Signs::All);
        }
        if secrets.is_empty() {
            return None;
        }
        let signatures: Vec<String> =
            secrets.iter().map(|secret| signature(&secret.key, id, timestamp, body)).collect();
        HeaderValue::from_str(&signatures.join(" ")).ok()
    }
}

fn signature(key: &hmac::Key, id: &str, timestamp: u64, body: &[u8]) -> String {
    let mut context = hmac::Context::with_key(key);
    context.update(format!("{id}.{timestamp}.").as_bytes());
    context.update(body);
    format!("v1,{}", STANDARD.encode(context.sign()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    const SECOND: &str = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYX";

    fn namespace(name: &str) -> Namespace {
        Namespace::new(name).unwrap()
    }

    fn secret(signs: Signs, secret: &str) -> SigningSecret {
        SigningSecret::new(signs, secret).unwrap()
    }

    #[test]
    fn the_signature_of_the_published_example_matches() {
        let signer = Signer::new(vec![secret(Signs::All, FIRST)]);
        let signature = signer.sign(
            &namespace("shop"),
            "msg_p5jXN8AQM9LWM0D4loKWxJek",
            1_614_265_330,
            br#"{"test": 2432232314}"#,
        );
        assert_eq!(signature.unwrap(), "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn the_reference_library_computes_the_same_signature() {
        let theirs = standardwebhooks::Webhook::new(SECOND).unwrap();
        let signer = Signer::new(vec![secret(Signs::All, SECOND)]);
        for (id, timestamp, body) in [("a", 0, ""), ("01J_7", 1_900_000_000, "{\"ä\": 1}")] {
            let ours = signer.sign(&namespace("shop"), id, timestamp, body.as_bytes()).unwrap();
            let theirs = theirs.sign(id, timestamp.cast_signed(), body.as_bytes()).unwrap();
            assert_eq!(ours, theirs);
        }
    }

    #[test]
    fn a_namespace_signs_with_its_own_secrets_or_else_with_the_common_ones() {
        let own = |text| secret(Signs::Namespace(namespace("shop")), text);
        let signer = Signer::new(vec![own(FIRST), own(SECOND), secret(Signs::All, SECOND)]);
        let sign = |name: &str| {
            let value = signer.sign(&namespace(name), "id", 1, b"body").unwrap();
            value.to_str().unwrap().to_owned()
        };
        let (two, all) = (sign("shop"), sign("other"));
        let parts: Vec<&str> = two.split(' ').collect();
        assert_eq!(parts.len(), 2, "{two}");
        assert_ne!(parts[0], parts[1]);
        assert_eq!(parts[1], all);
        let signer = Signer::new(vec![own(FIRST)]);
        assert!(signer.sign(&namespace("other"), "id", 1, b"").is_none());
        assert!(Signer::default().sign(&namespace("shop"), "id", 1, b"").is_none());
    }

    #[test]
    fn a_secret_has_one_form_and_is_not_in_debug_output() {
        for (text, taken) in [
            (FIRST, true),
            ("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", false),
            ("whsec_", false),
            ("whsec_c2hvcnQ=", false),
            ("whsec_not base64", false),
            (&format!("whsec_{}", "AAAA".repeat(22)), false),
        ] {
            assert_eq!(SigningSecret::new(Signs::All, text).is_ok(), taken, "{text}");
        }
        let shown = format!("{:?}", secret(Signs::All, FIRST));
        assert_eq!(shown, "SigningSecret { signs: All, .. }");
    }

    #[test]
    fn a_namespace_has_at_most_two_secrets() {
        let own = || secret(Signs::Namespace(namespace("shop")), FIRST);
        let all = || secret(Signs::All, FIRST);
        assert!(SigningSecret::check_all(&[own(), own(), all(), all()]).is_ok());
        assert!(SigningSecret::check_all(&[own(), own(), own()]).is_err());
    }
}
