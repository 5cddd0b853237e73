//! Templates of statements: names of tables, and parameters that may be lists.
//!
//! `@seat` is a table of the cluster. `$1` is a parameter; a list becomes as many as it has items.
//! `{2 3}` is a list of pairs of two lists. A template that begins with `EACH 3` is repeated for
//! each item of a list, joined by `UNION ALL`.

use std::fmt::Write as _;

use punctual_sql::mysql_async::Value;

use crate::values::StatementParam;

/// Lists are padded to these lengths by repeating their last item, so that few statements are
/// prepared.
const LENGTHS: [usize; 4] = [1, 8, 64, 512];

/// A statement for the server.
#[derive(Debug, Default, PartialEq)]
pub(super) struct FilledStatement {
    pub(super) text: String,
    pub(super) values: Vec<Value>,
}

/// How values are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ValueStyle {
    /// As `?`, apart from the text.
    Bound,
    /// In the text: numbers, and bytes as hexadecimal digits.
    Inline,
}

/// Returns the name of a table in quotes. The name of a cluster has no quote.
pub(super) fn table(cluster: &str, name: &str) -> String {
    format!("`{cluster}_{name}`")
}

/// Appends bytes as a literal.
pub(super) fn put_bytes(text: &mut String, bytes: &[u8]) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    text.reserve(2 * bytes.len() + 3);
    text.push_str("x'");
    for byte in bytes {
        text.push(char::from(DIGITS[usize::from(byte >> 4)]));
        text.push(char::from(DIGITS[usize::from(byte & 15)]));
    }
    text.push('\'');
}

/// One item of a parameter.
#[derive(Clone, Copy)]
enum Item<'a> {
    Number(i64),
    Raw(&'a [u8]),
    Id(u128),
}

fn length(param: &StatementParam<'_>) -> Option<usize> {
    match param {
        StatementParam::Ids(items) => Some(items.len()),
        StatementParam::Ints(items) => Some(items.len()),
        StatementParam::Kinds(items) => Some(items.len()),
        StatementParam::Names(items) => Some(items.len()),
        StatementParam::Int(_)
        | StatementParam::Text(_)
        | StatementParam::Bytes(_)
        | StatementParam::Id(_) => None,
    }
}

fn padded(length: usize) -> usize {
    LENGTHS.into_iter().find(|padded| *padded >= length).unwrap_or(length)
}

/// Returns an item of a list, or the parameter itself.
fn item<'a>(param: &StatementParam<'a>, index: usize) -> Item<'a> {
    let last = |length: usize| index.min(length.saturating_sub(1));
    let found = match param {
        StatementParam::Int(number) => Some(Item::Number(*number)),
        StatementParam::Text(text) => Some(Item::Raw(text.as_bytes())),
        StatementParam::Bytes(bytes) => Some(Item::Raw(bytes)),
        StatementParam::Id(id) => Some(Item::Id(id.0)),
        StatementParam::Ids(ids) => ids.get(last(ids.len())).map(|id| Item::Id(id.0)),
        StatementParam::Ints(items) => items.get(last(items.len())).map(|item| Item::Number(*item)),
        StatementParam::Kinds(items) => {
            items.get(last(items.len())).map(|item| Item::Number((*item).into()))
        }
        StatementParam::Names(items) => items.get(last(items.len())).map(|item| Item::Raw(item)),
    };
    found.unwrap_or(Item::Raw(b""))
}

struct Filling<'a> {
    cluster: &'a str,
    params: &'a [StatementParam<'a>],
    style: ValueStyle,
    filled: FilledStatement,
}

/// Fills a template.
pub(super) fn fill(
    template: &str,
    cluster: &str,
    params: &[StatementParam<'_>],
    style: ValueStyle,
) -> FilledStatement {
    let mut filling = Filling { cluster, params, style, filled: FilledStatement::default() };
    match template.strip_prefix("EACH ").and_then(|rest| rest.split_once(' ')) {
        None => filling.part(template, None),
        Some((number, part)) => filling.each(number, part),
    }
    filling.filled
}

impl Filling<'_> {
    fn each(&mut self, number: &str, part: &str) {
        let number = number.parse().unwrap_or(0);
        let param = self.param(number);
        let count = length(&param).unwrap_or(1);
        // Kinds are not repeated: every row would be returned twice.
        let repeated =
            if matches!(param, StatementParam::Names(_)) { padded(count) } else { count };
        for index in 0..repeated {
            if index > 0 {
                self.filled.text.push_str(" UNION ALL ");
            }
            self.part(part, Some((number, index)));
        }
    }

    fn param(&self, number: usize) -> StatementParam<'_> {
        self.params.get(number.wrapping_sub(1)).copied().unwrap_or(StatementParam::Bytes(b""))
    }

    /// Fills a part of which the list `each.0` stands for its item `each.1`.
    fn part(&mut self, mut rest: &str, each: Option<(usize, usize)>) {
        while let Some(place) = rest.find(['@', '$', '{']) {
            let (before, from) = rest.split_at(place);
            self.filled.text.push_str(before);
            let (mark, from) = from.split_at(1);
            let word = |inside: fn(char) -> bool| {
                let end = from.find(|letter| !inside(letter)).unwrap_or(from.len());
                from.split_at(end)
            };
            rest = match mark {
                "@" => {
                    let (name, after) = word(|letter| letter.is_ascii_lowercase());
                    self.filled.text.push_str(&table(self.cluster, name));
                    after
                }
                "$" => {
                    let (digits, after) = word(|letter| letter.is_ascii_digit());
                    self.list(digits.parse().unwrap_or(0), each);
                    after
                }
                _ => {
                    let (pair, after) = from.split_once('}').unwrap_or((from, ""));
                    self.pairs(pair);
                    after
                }
            };
        }
        self.filled.text.push_str(rest);
    }

    fn list(&mut self, number: usize, each: Option<(usize, usize)>) {
        let count = length(&self.param(number));
        match (each, count) {
            (Some((list, index)), _) if list == number => self.value(number, index),
            (_, None) => self.value(number, 0),
            (_, Some(count)) => {
                for index in 0..padded(count.max(1)) {
                    self.separate(index);
                    self.value(number, index);
                }
            }
        }
    }

    fn pairs(&mut self, pair: &str) {
        let numbers = pair.split_once(' ').map(|(a, b)| (a.parse(), b.parse()));
        let Some((Ok(a), Ok(b))) = numbers else { return };
        let count = length(&self.param(a)).unwrap_or(1);
        for index in 0..padded(count.max(1)) {
            self.separate(index);
            self.filled.text.push('(');
            self.value(a, index);
            self.filled.text.push_str(", ");
            self.value(b, index);
            self.filled.text.push(')');
        }
    }

    fn separate(&mut self, index: usize) {
        if index > 0 {
            self.filled.text.push_str(", ");
        }
    }

    fn value(&mut self, number: usize, index: usize) {
        let Some(param) = self.params.get(number.wrapping_sub(1)) else { return };
        let item = item(param, index);
        let FilledStatement { text, values } = &mut self.filled;
        match (self.style, item) {
            (ValueStyle::Bound, item) => {
                text.push('?');
                values.push(match item {
                    Item::Number(number) => Value::Int(number),
                    Item::Raw(bytes) => Value::Bytes(bytes.to_vec()),
                    Item::Id(id) => Value::Bytes(id.to_be_bytes().to_vec()),
                });
            }
            // Writing to a text cannot fail.
            (ValueStyle::Inline, Item::Number(number)) => _ = write!(text, "{number}"),
            (ValueStyle::Inline, Item::Raw(bytes)) => put_bytes(text, bytes),
            (ValueStyle::Inline, Item::Id(id)) => put_bytes(text, &id.to_be_bytes()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::SqlId;

    fn inline(template: &str, params: &[StatementParam<'_>]) -> String {
        fill(template, "shop", params, ValueStyle::Inline).text
    }

    #[test]
    fn tables_and_parameters_are_filled_in() {
        let params =
            [StatementParam::Int(-7), StatementParam::Bytes(b"a'"), StatementParam::Id(SqlId(1))];
        for (template, text) in [
            ("SELECT 1 FROM @task", "SELECT 1 FROM `shop_task`"),
            ("p = $1 AND k = $2;", "p = -7 AND k = x'6127';"),
            ("id = $3", "id = x'00000000000000000000000000000001'"),
            ("$1 $1", "-7 -7"),
        ] {
            assert_eq!(inline(template, &params), text);
        }
        let bound = fill("p = $1 AND k IN ($2)", "shop", &params, ValueStyle::Bound);
        assert_eq!(bound.text, "p = ? AND k IN (?)");
        assert_eq!(bound.values, [Value::Int(-7), Value::Bytes(b"a'".to_vec())]);
    }

    #[test]
    fn lists_are_padded_with_their_last_item() {
        let names: [&[u8]; 2] = [b"a", b"b"];
        let params = [StatementParam::Names(&names), StatementParam::Ints(&[5, 6])];
        assert_eq!(
            inline("($1)", &params),
            "(x'61', x'62', x'62', x'62', x'62', x'62', x'62', x'62')"
        );
        assert!(inline("{1 2}", &params).starts_with("(x'61', 5), (x'62', 6), (x'62', 6)"));
        let one = [StatementParam::Names(&names[..1])];
        assert_eq!(inline("($1)", &one), "(x'61')");
    }

    #[test]
    fn a_part_is_repeated_for_each_item_and_kinds_are_never_padded() {
        let kinds = [StatementParam::Int(1), StatementParam::Kinds(&[0, 3])];
        assert_eq!(inline("EACH 2 (p=$1,k=$2)", &kinds), "(p=1,k=0) UNION ALL (p=1,k=3)");
        let names: [&[u8]; 2] = [b"a", b"b"];
        let filled = inline("EACH 1 (k=$1)", &[StatementParam::Names(&names)]);
        assert_eq!(filled.matches("UNION ALL").count(), 7, "{filled}");
    }
}
