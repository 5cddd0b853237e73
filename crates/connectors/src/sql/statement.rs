//! Statements of the configuration: SQL with named parameters like `:order`.
//!
//! The text is the operator's; values reach the database as bound parameters only. Quoted text,
//! comments and casts (`::int`) are left alone.

use std::collections::BTreeMap;

use punctual_core::is_param_name;
use punctual_sql::SqlKind;

/// Parameters of one statement. More than a table has columns in practice.
const PARAMS_MAX: usize = 64;

/// A statement as the database prepares it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Statement {
    /// The text, with `$1` or `?` for parameters.
    pub(crate) sql: String,
    /// What each placeholder is bound to, in order.
    pub(crate) params: Vec<Param>,
}

/// A parameter, and where its value comes from unless the task gives it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Param {
    pub(crate) name: String,
    pub(crate) from: ParamSource,
}

/// Where the value of a parameter comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ParamSource {
    Namespace,
    Key,
    FireId,
    FireAt,
    Attempt,
    /// The whole payload.
    Payload,
    /// A JSON pointer into the payload.
    Pointer(String),
}

impl ParamSource {
    /// The source of a name that has a meaning of its own.
    fn named(name: &str) -> Option<Self> {
        Some(match name {
            "namespace" => Self::Namespace,
            "key" => Self::Key,
            "fire_id" => Self::FireId,
            "fire_at" => Self::FireAt,
            "attempt" => Self::Attempt,
            "payload" => Self::Payload,
            _ => return None,
        })
    }
}

impl Statement {
    /// Reads a statement. `pointers` says where in the payload parameters are that are not members
    /// of it by their own name.
    pub(crate) fn parse(
        text: &str,
        pointers: &BTreeMap<String, String>,
        kind: SqlKind,
    ) -> Result<Self, String> {
        if text.trim().is_empty() {
            return Err("must not be empty".to_owned());
        }
        for (name, pointer) in pointers {
            check_pointer(name, pointer)?;
        }
        let (mut sql, mut names) = (String::with_capacity(text.len()), Vec::<&str>::new());
        let mut rest = text;
        while let Some(next) = rest.chars().next() {
            let skipped = skipped(rest, kind);
            if skipped > 0 {
                sql.push_str(&rest[..skipped]);
                rest = &rest[skipped..];
                continue;
            }
            if let Some(name) = param_at(rest, &sql) {
                match (kind, names.iter().position(|known| *known == name)) {
                    (SqlKind::Postgres, Some(known)) => sql.push_str(&format!("${}", known + 1)),
                    (SqlKind::Postgres, None) => {
                        names.push(name);
                        sql.push_str(&format!("${}", names.len()));
                    }
                    (SqlKind::Mysql, _) => {
                        names.push(name);
                        sql.push('?');
                    }
                }
                rest = &rest[1 + name.len()..];
                continue;
            }
            sql.push(next);
            rest = &rest[next.len_utf8()..];
        }
        if names.len() > PARAMS_MAX {
            return Err(format!("must have at most {PARAMS_MAX} parameters, has {}", names.len()));
        }
        if let Some(unused) = pointers.keys().find(|name| !names.contains(&name.as_str())) {
            return Err(format!("has no parameter :{unused}, which params names"));
        }
        let params = names.into_iter().map(|name| {
            let pointer = pointers.get(name).map(|at| ParamSource::Pointer(at.clone()));
            let from = pointer.or_else(|| ParamSource::named(name));
            let from = from.unwrap_or_else(|| ParamSource::Pointer(format!("/{name}")));
            Param { name: name.to_owned(), from }
        });
        Ok(Self { sql, params: params.collect() })
    }
}

fn check_pointer(name: &str, pointer: &str) -> Result<(), String> {
    match pointer.is_empty() || pointer.starts_with('/') {
        true => Ok(()),
        false => Err(format!("{name}: {pointer:?} is not a JSON pointer like /order/id")),
    }
}

/// The name of the parameter that a text begins with. `before` is the text before it.
fn param_at<'a>(text: &'a str, before: &str) -> Option<&'a str> {
    let after = text.strip_prefix(':')?;
    if before.ends_with(':') {
        return None;
    }
    let end = after.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    let name = &after[..end.unwrap_or(after.len())];
    is_param_name(name).then_some(name)
}

/// How many bytes at the beginning of a text are quoted or a comment.
fn skipped(text: &str, kind: SqlKind) -> usize {
    let all = text.len();
    if text.starts_with("--") {
        return text.find('\n').unwrap_or(all);
    }
    if text.starts_with("/*") {
        return text.find("*/").map_or(all, |end| end + 2);
    }
    match text.as_bytes()[0] {
        quote @ (b'\'' | b'"' | b'`') => quoted(text, quote, kind),
        b'$' if kind == SqlKind::Postgres => dollar_quoted(text),
        _ => 0,
    }
}

/// The length of a quoted text. A doubled quote does not end it, nor does a quote after a backslash
/// in MySQL.
fn quoted(text: &str, quote: u8, kind: SqlKind) -> usize {
    let bytes = text.as_bytes();
    let mut at = 1;
    while at < bytes.len() {
        let escapes = bytes[at] == b'\\' && kind == SqlKind::Mysql && quote != b'`';
        if escapes || (bytes[at] == quote && bytes.get(at + 1) == Some(&quote)) {
            at += 2;
        } else if bytes[at] == quote {
            return at + 1;
        } else {
            at += 1;
        }
    }
    text.len()
}

/// The length of a text in dollar quotes, like `$tag$ … $tag$`; zero if it is something else.
fn dollar_quoted(text: &str) -> usize {
    let Some(end) = text[1..].find('$') else { return 0 };
    let tag = &text[..end + 2];
    let is_tag = tag[1..=end].chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        && !tag[1..].starts_with(|c: char| c.is_ascii_digit());
    if !is_tag {
        return 0;
    }
    text[tag.len()..].find(tag).map_or(text.len(), |at| 2 * tag.len() + at)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, kind: SqlKind) -> (String, Vec<String>) {
        let statement = Statement::parse(text, &BTreeMap::new(), kind).unwrap();
        (statement.sql, statement.params.into_iter().map(|param| param.name).collect())
    }

    #[test]
    fn parameters_become_placeholders_and_quoted_text_stays() {
        use SqlKind::{Mysql, Postgres};
        for (kind, text, sql, names) in [
            (
                Postgres,
                "insert into t values (:a, :b, :a)",
                "insert into t values ($1, $2, $1)",
                "a b",
            ),
            (Mysql, "insert into t values (:a, :b, :a)", "insert into t values (?, ?, ?)", "a b a"),
            (Postgres, "select :a::int, ':b', \":c\"", "select $1::int, ':b', \":c\"", "a"),
            (Postgres, "select 'it''s :a', :b", "select 'it''s :a', $1", "b"),
            (Postgres, "select 'a\\', :b", "select 'a\\', $1", "b"),
            (Mysql, "select 'a\\' :x', :b, `:c`", "select 'a\\' :x', ?, `:c`", "b"),
            (Postgres, "select 1 -- :a\n, :b /* :c */", "select 1 -- :a\n, $1 /* :c */", "b"),
            (Postgres, "do $x$ :a $x$; :b", "do $x$ :a $x$; $1", "b"),
            (Postgres, "select $$ :a $$, :b", "select $$ :a $$, $1", "b"),
            (Mysql, "set @a := :b, :é", "set @a := ?, :é", "b"),
            (Postgres, "select 'open :a", "select 'open :a", ""),
        ] {
            let expected: Vec<String> = names.split_whitespace().map(str::to_owned).collect();
            assert_eq!(read(text, kind), (sql.to_owned(), expected), "{text}");
        }
    }

    #[test]
    fn a_parameter_is_a_fact_of_the_delivery_or_a_member_of_the_payload() {
        let pointers = BTreeMap::from([("total".to_owned(), "/cart/total".to_owned())]);
        let text = "call f(:key, :fire_id, :order, :total)";
        let statement = Statement::parse(text, &pointers, SqlKind::Postgres).unwrap();
        let from: Vec<_> = statement.params.into_iter().map(|param| param.from).collect();
        let pointer = |at: &str| ParamSource::Pointer(at.to_owned());
        let expected =
            [ParamSource::Key, ParamSource::FireId, pointer("/order"), pointer("/cart/total")];
        assert_eq!(from, expected);
        for (text, pointers, problem) in [
            (" ", vec![], "must not be empty"),
            ("select :a", vec![("b", "/b")], "has no parameter :b"),
            ("select :a", vec![("a", "b")], "is not a JSON pointer"),
        ] {
            let pointers = pointers.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
            let read = Statement::parse(text, &pointers.collect(), SqlKind::Postgres);
            assert!(read.unwrap_err().contains(problem), "{text}");
        }
    }
}
