//! Patterns of topics, subjects and routing keys, and the words that their wildcards stand for.

/// The system whose wildcards a pattern has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WildcardStyle {
    /// Words between slashes; `+` is one word, `#` at the end any number.
    Mqtt,
    /// Words between dots; `*` is one word, `>` at the end one or more.
    Nats,
    /// Words between dots; `*` is one word, `#` anywhere any number.
    Amqp,
}

/// A pattern of places.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PlacePattern {
    style: WildcardStyle,
    words: Vec<PatternWord>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum PatternWord {
    Literal(String),
    One,
    /// At least as many words as the number.
    Many(usize),
}

impl WildcardStyle {
    const fn separator(self) -> char {
        match self {
            Self::Mqtt => '/',
            Self::Nats | Self::Amqp => '.',
        }
    }

    fn word(self, text: &str) -> PatternWord {
        match (self, text) {
            (Self::Mqtt, "+") | (Self::Nats | Self::Amqp, "*") => PatternWord::One,
            (Self::Mqtt | Self::Amqp, "#") => PatternWord::Many(0),
            (Self::Nats, ">") => PatternWord::Many(1),
            _ => PatternWord::Literal(text.to_owned()),
        }
    }
}

impl PlacePattern {
    /// Reads a pattern. The error says what is allowed.
    pub(crate) fn parse(style: WildcardStyle, text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Err("must not be empty".to_owned());
        }
        let words: Vec<_> = text.split(style.separator()).map(|word| style.word(word)).collect();
        let last = words.len() - 1;
        let many = |word: &PatternWord| matches!(word, PatternWord::Many(_));
        let mut before = words.iter().take(last);
        if style != WildcardStyle::Amqp && before.any(many) {
            let sign = if style == WildcardStyle::Mqtt { '#' } else { '>' };
            return Err(format!("must have {sign:?} as the last word only"));
        }
        if words.iter().filter(|word| many(word)).count() > 1 {
            return Err("must have at most one '#'".to_owned());
        }
        Ok(Self { style, words })
    }

    /// How many wildcards it has.
    pub(crate) fn wildcards(&self) -> usize {
        self.words.iter().filter(|word| !matches!(word, PatternWord::Literal(_))).count()
    }

    /// What the wildcards stand for in a place, or `None` if the pattern does not match.
    pub(crate) fn captures<'a>(&self, place: &'a str) -> Option<Vec<&'a str>> {
        let separator = self.style.separator();
        let mut captures = Vec::with_capacity(self.wildcards());
        let mut rest = Some(place);
        for (at, word) in self.words.iter().enumerate() {
            if let PatternWord::Many(least) = word {
                // The words behind it, of which none stands for many, take the end of the place.
                let behind = self.words.len() - at - 1;
                let count = rest.map_or(0, |rest| rest.split(separator).count());
                let taken = count.checked_sub(behind).filter(|taken| taken >= least)?;
                let (many, after) = split_words(rest, separator, taken);
                captures.push(many);
                rest = after;
                continue;
            }
            let (first, after) = split_words(Some(rest?), separator, 1);
            match word {
                PatternWord::Literal(literal) if literal != first => return None,
                PatternWord::One => captures.push(first),
                PatternWord::Literal(_) | PatternWord::Many(_) => {}
            }
            rest = after;
        }
        rest.is_none().then_some(captures)
    }
}

/// The first words of a place, and what is behind them if there is more.
fn split_words(place: Option<&str>, separator: char, count: usize) -> (&str, Option<&str>) {
    let Some(place) = place else { return ("", None) };
    let Some(last) = count.checked_sub(1) else { return ("", Some(place)) };
    match place.match_indices(separator).nth(last) {
        Some((at, _)) => (&place[..at], Some(&place[at + separator.len_utf8()..])),
        None => (place, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wildcards_stand_for_words_as_in_their_system() {
        use WildcardStyle::{Amqp, Mqtt, Nats};
        for (style, pattern, place, expected) in [
            (Mqtt, "devices/+/up", "devices/lamp-7/up", Some(vec!["lamp-7"])),
            (Mqtt, "devices/+/up", "devices/lamp-7/down", None),
            (Mqtt, "devices/+/up", "devices/lamp-7/up/now", None),
            (Mqtt, "devices/+/up", "devices/up", None),
            (Mqtt, "+/+", "a/b", Some(vec!["a", "b"])),
            (Mqtt, "+/+", "/b", Some(vec!["", "b"])),
            (Mqtt, "a/#", "a/b/c", Some(vec!["b/c"])),
            (Mqtt, "a/#", "a", Some(vec![""])),
            (Mqtt, "a/#", "b", None),
            (Mqtt, "#", "a/b", Some(vec!["a/b"])),
            (Mqtt, "a.*", "a.*", Some(vec![])),
            (Nats, "orders.*.paid", "orders.7.paid", Some(vec!["7"])),
            (Nats, "orders.>", "orders.7.paid", Some(vec!["7.paid"])),
            (Nats, "orders.>", "orders", None),
            (Nats, "a.+", "a.+", Some(vec![])),
            (Amqp, "device.*.up", "device.7.up", Some(vec!["7"])),
            (Amqp, "device.#.up", "device.7.8.up", Some(vec!["7.8"])),
            (Amqp, "device.#.up", "device.up", Some(vec![""])),
            (Amqp, "device.#.up", "device", None),
            (Amqp, "#", "", Some(vec![""])),
            (Amqp, "plain", "plain", Some(vec![])),
        ] {
            let parsed = PlacePattern::parse(style, pattern).unwrap();
            assert_eq!(parsed.captures(place), expected, "{pattern} {place}");
        }
    }

    #[test]
    fn a_pattern_that_its_system_would_not_take_is_refused() {
        use WildcardStyle::{Amqp, Mqtt, Nats};
        for (style, pattern) in [(Mqtt, "a/#/b"), (Nats, "a.>.b"), (Amqp, "#.a.#"), (Mqtt, "")] {
            assert!(PlacePattern::parse(style, pattern).is_err(), "{pattern}");
        }
    }
}
