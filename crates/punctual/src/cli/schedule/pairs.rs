//! Flags of a name and a value, like `--label zone:eu`.

use anyhow::bail;
use serde_json::{Map, Value, json};

/// Parses `NAME:VALUE`.
pub(super) fn pair(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once(':').ok_or("must be NAME:VALUE")?;
    Ok((name.trim().to_owned(), value.trim().to_owned()))
}

/// An object of all pairs. A name that is given twice is an error: one of its values would be lost.
pub(super) fn object(flag: &str, pairs: &[(String, String)]) -> anyhow::Result<Value> {
    let mut object = Map::new();
    for (name, value) in pairs {
        if object.insert(name.clone(), json!(value)).is_some() {
            bail!("{flag} {name} is given twice");
        }
    }
    Ok(object.into())
}
