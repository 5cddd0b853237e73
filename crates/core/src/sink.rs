//! Sinks as targets: the name of a connection, and an address at its other side.
//!
//! The operator configures connections, with hosts and secrets; a task only names one. The form is
//! checked here. Whether the namespace may use the connection and the address is decided by the
//! configuration of the broker (`connectors`), when the task is created and again at each delivery.

mod message;

use std::borrow::Cow;

use crate::limits::{PARAM_NAME_BYTES_MAX, SQL_PARAMS_BYTES_MAX, SQL_PARAMS_MAX};
use crate::{ConnectionName, Invalid, StatementName};
pub use message::{
    MESSAGE_HEADERS_RESERVED_PREFIXES, MessageAddress, MessageOptions, MessageSystem, MqttQos,
};

/// A connection, and an address at its other side.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SinkTarget {
    /// The connection, as the configuration names it.
    pub connection: ConnectionName,
    /// Where at the other side.
    pub address: SinkAddress,
}

/// An address at the other side of a connection, by its kind.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum SinkAddress {
    /// A statement of a database.
    Sql(SqlCall),
    /// A topic, an exchange, a subject or a stream.
    Message(MessageAddress),
}

/// A statement that the configuration names, and values for its parameters.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SqlCall {
    statement: StatementName,
    params: Vec<SqlParam>,
}

/// A value for a parameter of a statement.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SqlParam {
    /// The name of the parameter, without the colon.
    pub name: String,
    /// The value as compact JSON text, like `7` or `"paid"`.
    pub value: String,
}

impl SinkTarget {
    /// The field of a task that has this kind of target, as in JSON.
    #[must_use]
    pub const fn field(&self) -> &'static str {
        match &self.address {
            SinkAddress::Sql(_) => "sql",
            SinkAddress::Message(message) => message.system().field(),
        }
    }

    /// The field of the target that has the place.
    #[must_use]
    pub const fn place_field(&self) -> &'static str {
        match &self.address {
            SinkAddress::Sql(_) => "statement",
            SinkAddress::Message(message) => message.system().place_field(),
        }
    }

    /// What the configuration of the connection allows or refuses: the statement, or the place of
    /// messages.
    #[must_use]
    pub fn permission(&self) -> Cow<'_, str> {
        match &self.address {
            SinkAddress::Sql(call) => call.statement.as_str().into(),
            SinkAddress::Message(message) => message.permission().into(),
        }
    }

    /// What has a lane of its own at the other side. Subjects of NATS and topics of MQTT share the
    /// lane of their connection: a device may have one each, and the server takes all in turn.
    #[must_use]
    pub fn lane(&self) -> &str {
        match &self.address {
            SinkAddress::Sql(call) => call.statement.as_str(),
            SinkAddress::Message(message) => match message.system() {
                MessageSystem::Kafka | MessageSystem::Amqp | MessageSystem::RedisStream => {
                    message.place()
                }
                MessageSystem::Nats | MessageSystem::Mqtt => "",
            },
        }
    }
}

impl SqlCall {
    /// Makes a call, after checking the parameters. Fields of errors are relative to the target.
    pub fn new(statement: StatementName, params: Vec<SqlParam>) -> Result<Self, Invalid> {
        check_params(&params).map_err(|problem| Invalid::new("params", problem))?;
        Ok(Self { statement, params })
    }

    /// The statement, as the configuration names it.
    #[must_use]
    pub const fn statement(&self) -> &StatementName {
        &self.statement
    }

    /// The values of the task for parameters of the statement.
    #[must_use]
    pub fn params(&self) -> &[SqlParam] {
        &self.params
    }
}

/// Whether a text is the name of a parameter: a letter or an underscore, then also digits.
#[must_use]
pub fn is_param_name(text: &str) -> bool {
    let is_letter = |c: char| c.is_ascii_alphabetic() || c == '_';
    text.starts_with(is_letter)
        && text.chars().all(|c| is_letter(c) || c.is_ascii_digit())
        && text.len() <= PARAM_NAME_BYTES_MAX
}

fn check_params(params: &[SqlParam]) -> Result<(), String> {
    if params.len() > SQL_PARAMS_MAX {
        return Err(format!("must have at most {SQL_PARAMS_MAX} members, has {}", params.len()));
    }
    let bytes: usize = params.iter().map(|param| param.name.len() + param.value.len()).sum();
    if bytes > SQL_PARAMS_BYTES_MAX {
        return Err(format!("must have at most {SQL_PARAMS_BYTES_MAX} bytes, has {bytes}"));
    }
    for (at, param) in params.iter().enumerate() {
        let name = &param.name;
        if !is_param_name(name) {
            return Err(format!(
                "{name:?} is not the name of a parameter: letters, digits and _, at most \
                 {PARAM_NAME_BYTES_MAX} bytes"
            ));
        }
        if params[..at].iter().any(|before| before.name == *name) {
            return Err(format!("{name:?} is given twice"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parameters_of_a_call_have_names_of_their_own_and_are_bounded() {
        let param =
            |name: &str, value: &str| SqlParam { name: name.to_owned(), value: value.to_owned() };
        let many = |n: usize| (0..n).map(|i| param(&format!("p{i}"), "1")).collect::<Vec<_>>();
        for (params, problem) in [
            (vec![], None),
            (vec![param("order", "1"), param("_a1", "\"x\"")], None),
            (many(32), None),
            (many(33), Some("must have at most 32 members, has 33")),
            (vec![param("a", "1"), param("a", "2")], Some("\"a\" is given twice")),
            (vec![param("a", &"1".repeat(4096))], Some("must have at most 4096 bytes, has 4097")),
            (vec![param("1a", "1")], Some("\"1a\" is not the name of a parameter")),
            (vec![param("a-b", "1")], Some("\"a-b\" is not the name of a parameter")),
            (vec![param("", "1")], Some("\"\" is not the name of a parameter")),
        ] {
            let call = SqlCall::new(StatementName::new("paid").unwrap(), params.clone());
            match problem {
                None => assert_eq!(call.unwrap().params(), params),
                Some(problem) => {
                    let error = call.unwrap_err();
                    assert_eq!(error.field, "params");
                    assert!(error.problem.starts_with(problem), "{error}");
                }
            }
        }
    }
}
