//! Which places of a connection a task may name: patterns with `*` for any text.

/// Whether a pattern matches a whole text. `*` stands for any text, also none.
pub(crate) fn matches(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else { return false };
    let mut parts = parts.peekable();
    if parts.peek().is_none() {
        return rest.is_empty();
    }
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return rest.ends_with(part);
        }
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_any_text() {
        for (pattern, text, expected) in [
            ("*", "", true),
            ("*", "orders.paid", true),
            ("orders.*", "orders.paid", true),
            ("orders.*", "orders.", true),
            ("orders.*", "order", false),
            ("orders", "orders", true),
            ("orders", "orders2", false),
            ("*.paid", "orders.paid", true),
            ("*.paid", "orders.paid.x", false),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "a-c-b", false),
            ("ab*ba", "aba", false),
            ("", "", true),
            ("", "x", false),
        ] {
            assert_eq!(matches(pattern, text), expected, "{pattern} {text}");
        }
    }
}
