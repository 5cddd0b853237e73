//! Where the messages of a gRPC body begin and end.
//!
//! Each message has five bytes before it: whether it is compressed, and its length. Only these are
//! read here; tonic decodes the messages.

use punctual_core::Namespace;

/// Bytes before each message.
const PREFIX_BYTES: usize = 5;
/// Fields that may precede the namespace in a message; `ScheduleBatch` has its number there.
const FIELDS_MAX: usize = 2;

/// Follows a body piece by piece.
#[derive(Debug, Default)]
pub(super) struct MessageFrames {
    prefix: [u8; PREFIX_BYTES],
    /// How many bytes of the prefix have arrived; none between two messages.
    prefix_bytes: usize,
    /// Bytes of the present message, and how many of them have not arrived.
    size: usize,
    left: usize,
    /// How many messages have ended.
    ended: u64,
}

/// What a piece contains.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct PieceContent {
    /// The size of the largest message of which a part is in the piece.
    pub(super) largest: usize,
    /// Where the last message that begins in the piece begins.
    pub(super) begins_at: Option<usize>,
}

impl MessageFrames {
    /// Takes the next piece of the body.
    pub(super) fn add(&mut self, piece: &[u8]) -> PieceContent {
        let mut content = PieceContent { largest: self.size, begins_at: None };
        let mut rest = piece;
        while !rest.is_empty() {
            let missing = PREFIX_BYTES - self.prefix_bytes;
            if missing == 0 {
                let taken = self.left.min(rest.len());
                self.left -= taken;
                rest = &rest[taken..];
            } else {
                let taken = missing.min(rest.len());
                self.prefix[self.prefix_bytes..][..taken].copy_from_slice(&rest[..taken]);
                self.prefix_bytes += taken;
                rest = &rest[taken..];
                if taken < missing {
                    return content;
                }
                let [_, length @ ..] = self.prefix;
                self.size = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
                self.left = self.size;
                content.largest = content.largest.max(self.size);
                content.begins_at = Some(piece.len() - rest.len());
            }
            if self.left == 0 {
                (self.prefix_bytes, self.size) = (0, 0);
                self.ended += 1;
            }
        }
        content
    }

    /// The size of the message that is incomplete; zero if none is.
    pub(super) const fn size(&self) -> usize {
        self.size
    }

    /// Whether a message has begun and is incomplete.
    pub(super) const fn is_within(&self) -> bool {
        self.prefix_bytes > 0
    }

    /// How many messages have ended.
    pub(super) const fn ended(&self) -> u64 {
        self.ended
    }
}

/// The namespace that a message begins with, as every encoder writes it. It only says whose share
/// is used; rights are checked when the message is decoded.
pub(super) fn namespace_in(message: &[u8]) -> Option<Namespace> {
    let mut rest = message;
    for _ in 0..FIELDS_MAX {
        let tag = prost::encoding::decode_varint(&mut rest).ok()?;
        let number = prost::encoding::decode_varint(&mut rest).ok()?;
        // The wire type: a number, or a length and as many bytes.
        match tag & 7 {
            0 => {}
            2 => {
                let text = rest.get(..usize::try_from(number).ok()?)?;
                return Namespace::new(std::str::from_utf8(text).ok()?).ok();
            }
            _ => return None,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use prost::Message as _;
    use punctual_proto::v1;

    use super::*;

    fn framed(size: u32) -> Vec<u8> {
        let mut bytes = vec![0];
        bytes.extend_from_slice(&size.to_be_bytes());
        bytes.resize(PREFIX_BYTES + usize::try_from(size).unwrap(), 7);
        bytes
    }

    #[test]
    fn messages_are_followed_in_pieces_of_any_size() {
        let body = [framed(3), framed(0), framed(700), framed(1)].concat();
        for piece in [1, 2, 4, 5, 6, 8, 100, 1000] {
            let mut frames = MessageFrames::default();
            let mut largest = 0;
            for piece in body.chunks(piece) {
                largest = frames.add(piece).largest.max(largest);
            }
            assert_eq!((frames.ended(), largest), (4, 700), "{piece}");
            assert!(!frames.is_within() && frames.size() == 0, "{piece}");
        }
        let mut frames = MessageFrames::default();
        assert_eq!(
            frames.add(&body),
            PieceContent { largest: 700, begins_at: Some(body.len() - 1) }
        );
        frames.add(&body[..4]);
        assert!(frames.is_within() && frames.size() == 0, "a part of the prefix");
        frames.add(&body[4..6]);
        assert!(frames.is_within() && frames.size() == 3);
    }

    #[test]
    fn the_namespace_is_found_where_messages_have_it() {
        let shop = || "shop".to_owned();
        let batch = v1::ScheduleBatch { number: 700, namespace: shop(), ..Default::default() };
        let first = v1::ScheduleBatch { namespace: shop(), ..Default::default() };
        let cancel = v1::CancelRequest { namespace: shop(), ..Default::default() };
        let messages = [batch.encode_to_vec(), first.encode_to_vec(), cancel.encode_to_vec()];
        for message in messages {
            assert_eq!(namespace_in(&message), Namespace::new("shop").ok());
            assert_eq!(namespace_in(&message[..3]), None);
        }
        for other in [&b""[..], b"\x0a\xff\xff\xff\xff\x0fab", b"\x0a\x03a b", b"\x0d\0\0\0\0"] {
            assert_eq!(namespace_in(other), None, "{other:?}");
        }
    }
}
