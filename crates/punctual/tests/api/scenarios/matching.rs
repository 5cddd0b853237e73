//! Names in arguments, and expectations about answers.

use std::collections::HashMap;

use serde_json::Value;

/// Replaces `$name` in texts, and `{"$repeat": "x", "times": n}` by a long text.
pub(super) fn expand(value: &Value, names: &HashMap<String, Value>) -> Value {
    match value {
        Value::String(text) => Value::String(expand_text(text, names)),
        Value::Array(all) => all.iter().map(|one| expand(one, names)).collect(),
        Value::Object(fields) => match (fields.get("$repeat"), fields.get("times")) {
            (Some(Value::String(text)), Some(times)) => {
                Value::String(text.repeat(usize::try_from(times.as_u64().unwrap()).unwrap()))
            }
            _ => {
                let pair = |(key, one): (&String, &Value)| {
                    // The key of a condition is no name.
                    let condition = CONDITIONS.contains(&key.as_str());
                    let key = if condition { key.clone() } else { expand_text(key, names) };
                    (key, expand(one, names))
                };
                Value::Object(fields.iter().map(pair).collect())
            }
        },
        other => other.clone(),
    }
}

const CONDITIONS: [&str; 7] = ["$lt", "$gt", "$length", "$any", "$absent", "$starts", "$contains"];

fn expand_text(text: &str, names: &HashMap<String, Value>) -> String {
    let mut parts = text.split('$');
    let mut expanded = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let is_of_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        let end = part.find(|c| !is_of_name(c)).unwrap_or(part.len());
        match names.get(&part[..end]) {
            Some(Value::String(value)) => expanded.push_str(value),
            Some(value) => expanded.push_str(&value.to_string()),
            None => {
                expanded.push('$');
                expanded.push_str(&part[..end]);
            }
        }
        expanded.push_str(&part[end..]);
    }
    expanded
}

/// Checks that an answer contains what is expected.
pub(super) fn check(want: &Value, got: &Value, path: &str) -> Result<(), String> {
    let differs = || {
        let got: String = got.to_string().chars().take(600).collect();
        Err(format!("{path}: expected {want}, got {got}"))
    };
    match want {
        Value::Object(fields) => {
            if let Some((condition, operand)) = fields.iter().find(|(key, _)| key.starts_with('$'))
            {
                return match holds(condition, operand, got) {
                    Some(true) if fields.len() == 1 => Ok(()),
                    Some(_) => differs(),
                    None => Err(format!("{path}: unknown condition {want}")),
                };
            }
            if !got.is_object() {
                return differs();
            }
            for (key, one) in fields {
                match (got.get(key), one.get("$absent").is_some()) {
                    (None, true) => {}
                    (Some(got), true) => return Err(format!("{path}.{key}: unexpected {got}")),
                    (None, false) => return Err(format!("{path}.{key}: missing in {got}")),
                    (Some(got), false) => check(one, got, &format!("{path}.{key}"))?,
                }
            }
            Ok(())
        }
        Value::Array(all) => match got.as_array() {
            Some(given) if given.len() == all.len() => {
                let pairs = all.iter().zip(given).enumerate();
                let mut checks =
                    pairs.map(|(i, (want, got))| check(want, got, &format!("{path}.{i}")));
                checks.try_for_each(|result| result)
            }
            _ => differs(),
        },
        Value::Number(want) => match got.as_f64() {
            Some(got) if want.as_f64() == Some(got) => Ok(()),
            _ => differs(),
        },
        other if other == got => Ok(()),
        _ => differs(),
    }
}

/// Whether a condition holds; `None` if there is no such condition.
fn holds(condition: &str, operand: &Value, got: &Value) -> Option<bool> {
    let numbers = || Some((got.as_f64()?, operand.as_f64()?));
    let texts = || Some((got.as_str()?, operand.as_str()?));
    let length = || match got {
        Value::String(text) => Some(text.chars().count()),
        Value::Array(all) => Some(all.len()),
        Value::Object(fields) => Some(fields.len()),
        _ => None,
    };
    Some(match condition {
        "$lt" => numbers().is_some_and(|(got, bound)| got < bound),
        "$gt" => numbers().is_some_and(|(got, bound)| got > bound),
        "$length" => length().is_some_and(|length| operand.as_u64() == Some(length as u64)),
        "$any" => true,
        "$absent" => false,
        "$starts" => texts().is_some_and(|(got, start)| got.starts_with(start)),
        "$contains" => texts().is_some_and(|(got, part)| got.contains(part)),
        _ => return None,
    })
}

/// The value at a path like `deliveries.0.token`.
pub(super) fn pick(answer: &Value, path: &str) -> Result<Value, String> {
    let pointer = format!("/{}", path.replace('.', "/"));
    answer.pointer(&pointer).cloned().ok_or_else(|| format!("{path} is missing in {answer}"))
}
