//! The bytes of journal files, compared with `tests/golden`.

use punctual_store::conformance::golden::GoldenFiles;

use super::super::frame::{payload_sum, spare_name};
use super::*;

const SALT: u64 = 0x0123_4567_89ab_cdef;
const PAYLOAD: &[u8] = b"one commit!";

fn assert_golden(name: &str, encoded: &[u8]) -> Vec<u8> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden");
    GoldenFiles::open(folder).check(name, encoded)
}

#[test]
fn a_file_header_has_the_bytes_of_format_1() {
    let store = StoreId(*b"golden store id!");
    let header = FileHeader { store, number: 7, salt: SALT, file_bytes: 65_536 };
    let page = header.to_page();
    let (front, zeros) = page.split_at(64);
    let golden = assert_golden("journal_file_header", front);
    assert_eq!(FileHeader::read(&golden), Ok(header));
    assert_eq!(zeros.len() as u64, FRAMES_AT - 64 + HEAD_BYTES as u64);
    assert!(zeros.iter().all(|byte| *byte == 0));
}

#[test]
fn a_frame_has_the_bytes_of_format_1() {
    let head = FrameHead {
        length: u32::try_from(PAYLOAD.len()).expect("small"),
        commit: CommitNo(300),
        group: CommitNo(299),
        payload_sum: payload_sum(PAYLOAD),
    };
    let mut frame = head.to_bytes(SALT).to_vec();
    frame.extend_from_slice(PAYLOAD);
    frame.resize(frame.len() + frame::padding(PAYLOAD.len()), 0);
    assert_eq!(frame.len() as u64, frame_bytes(PAYLOAD.len()));
    let golden = assert_golden("journal_frame", &frame);
    let read = FrameHead::read(&golden, SALT).expect("a head");
    assert_eq!(read, head);
    let payload = &golden[HEAD_BYTES..HEAD_BYTES + PAYLOAD.len()];
    assert_eq!((payload, payload_sum(payload)), (PAYLOAD, read.payload_sum));
}

#[test]
fn a_closing_mark_has_the_bytes_of_format_1() {
    let mark = ClosingMark { store: StoreId(*b"golden store id!"), last: CommitNo(300) };
    let golden = assert_golden("journal_closing_mark", &mark.to_bytes());
    assert_eq!(ClosingMark::read(&golden), Ok(mark));
}

#[test]
fn files_have_the_names_of_format_1() {
    assert_eq!(file_name(7), "000000000007.journal");
    assert_eq!(spare_name(7), "000000000007.spare");
    assert_eq!(CLOSED_NAME, "closed");
}

#[test]
fn a_written_journal_consists_of_these_bytes() {
    let dir = temp_dir();
    let (journal, ..) = open(dir.path(), 0).expect("opens");
    put(&journal, PAYLOAD).expect("durable");
    journal.close().expect("closes");
    let bytes = fs::read(dir.path().join(file_name(1))).expect("reads");
    let header = FileHeader::read(&bytes).expect("a header");
    assert_eq!(bytes[..FRAMES_AT as usize], header.to_page()[..FRAMES_AT as usize]);
    let head = FrameHead {
        length: u32::try_from(PAYLOAD.len()).expect("small"),
        commit: CommitNo(1),
        group: CommitNo(1),
        payload_sum: payload_sum(PAYLOAD),
    };
    let frames = &bytes[FRAMES_AT as usize..];
    assert_eq!(frames[..HEAD_BYTES], head.to_bytes(header.salt));
    let (payload, rest) = frames[HEAD_BYTES..].split_at(PAYLOAD.len());
    assert_eq!(payload, PAYLOAD);
    assert!(rest.iter().all(|byte| *byte == 0));
    let mark = fs::read(dir.path().join(CLOSED_NAME)).expect("reads");
    assert_eq!(mark, ClosingMark { store: STORE, last: CommitNo(1) }.to_bytes());
}
