//! The payload flags of `punctual schedule`.

use anyhow::{Context as _, bail};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use punctual_core::Payload;
use serde_json::value::RawValue;

use super::body::TaskRequest;
use crate::cli::input::{read_file, read_json, read_json_text};

/// The content type of bytes without one.
const CONTENT_TYPE_DEFAULT: &str = "application/octet-stream";

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Payload")]
pub(super) struct PayloadArgs {
    /// Payload as JSON
    #[arg(long, value_name = "JSON", conflicts_with_all = ["payload_file", "payload_base64"])]
    payload: Option<String>,
    /// File to read the payload from, or - for standard input; JSON unless --content-type is given
    #[arg(long, value_name = "FILE", conflicts_with = "payload_base64")]
    payload_file: Option<String>,
    /// Payload as base64, for bytes that are not JSON
    #[arg(long, value_name = "BASE64")]
    payload_base64: Option<String>,
    /// Content type of a payload that is not JSON; application/octet-stream if not given
    #[arg(long, value_name = "TYPE", conflicts_with = "payload")]
    content_type: Option<String>,
}

/// A payload that was read.
#[derive(Debug)]
pub(super) enum PayloadInput {
    Empty,
    /// JSON as the user wrote it.
    Json(Box<RawValue>),
    Binary {
        bytes: Vec<u8>,
        content_type: Option<String>,
    },
}

impl PayloadArgs {
    pub(super) fn read(&self) -> anyhow::Result<PayloadInput> {
        if let Some(json) = &self.payload {
            return Ok(PayloadInput::Json(read_json_text("--payload", json)?));
        }
        if let Some(file) = &self.payload_file {
            let bytes = read_file(file)?;
            return match &self.content_type {
                Some(_) => {
                    Ok(PayloadInput::Binary { bytes, content_type: self.content_type.clone() })
                }
                None => {
                    let json = read_json("--payload-file", &bytes);
                    let json =
                        json.context("give --content-type for a payload that is not JSON")?;
                    Ok(PayloadInput::Json(json))
                }
            };
        }
        if let Some(base64) = &self.payload_base64 {
            let bytes = STANDARD.decode(base64).context("--payload-base64 must be base64")?;
            return Ok(PayloadInput::Binary { bytes, content_type: self.content_type.clone() });
        }
        if self.content_type.is_some() {
            bail!("--content-type needs --payload-file or --payload-base64");
        }
        Ok(PayloadInput::Empty)
    }
}

impl PayloadInput {
    pub(super) fn add_to(&self, body: &mut TaskRequest) -> anyhow::Result<()> {
        match self {
            Self::Empty => Ok(()),
            Self::Json(json) => body.set("payload", json),
            Self::Binary { bytes, content_type } => {
                if let Some(content_type) = content_type {
                    body.set("content_type", content_type)?;
                }
                body.set("payload_base64", &STANDARD.encode(bytes))
            }
        }
    }

    pub(super) fn into_payload(self) -> Payload {
        match self {
            Self::Empty => Payload::Empty,
            Self::Json(json) => Payload::Json(json.get().as_bytes().to_vec().into()),
            Self::Binary { bytes, content_type } => {
                let content_type = content_type.unwrap_or_else(|| CONTENT_TYPE_DEFAULT.to_owned());
                Payload::Binary { bytes: bytes.into(), content_type: content_type.into() }
            }
        }
    }
}
