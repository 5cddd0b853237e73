//! Random groups, checkpoints and damage, compared with a model.

use proptest::prelude::*;

use super::*;

/// What happens to a journal between two openings.
#[derive(Debug, Clone)]
enum Harm {
    Nothing,
    CloseCleanly,
    /// Cut the newest file with frames to this share of its frames.
    Cut(f64),
    /// Flip a bit at this share of its frames.
    Flip(f64, u8),
}

fn harm() -> impl Strategy<Value = Harm> {
    prop_oneof![
        2 => Just(Harm::Nothing),
        2 => Just(Harm::CloseCleanly),
        1 => (0.0..1.0).prop_map(Harm::Cut),
        3 => ((0.9..1.0), 0u8..8).prop_map(|(share, bit)| Harm::Flip(share, bit)),
        1 => ((0.0..1.0), 0u8..8).prop_map(|(share, bit)| Harm::Flip(share, bit)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    /// After any damage to the newest file the journal either refuses to open, or it is a prefix of
    /// the model, reports what it dropped, and continues from there.
    #[test]
    fn a_journal_is_always_a_prefix_of_what_was_written(
        rounds in prop::collection::vec(
            (
                prop::collection::vec(prop::collection::vec(0usize..300, 1..6), 0..12),
                harm(),
                0u64..20,
            ),
            1..5,
        ),
    ) {
        let dir = temp_dir();
        let mut model: Vec<Bytes> = Vec::new();
        let mut checkpoint = 0u64;
        for (groups, harm, behind) in rounds {
            let (journal, _, commits) = open(dir.path(), checkpoint).expect("opens");
            let tail: Vec<Bytes> = commits.into_iter().map(|(_, bytes)| bytes).collect();
            prop_assert_eq!(&tail[..], &model[checkpoint as usize..]);
            for group in groups {
                let answers: Vec<_> = group
                    .iter()
                    .map(|&length| {
                        let fill = (model.len() % 255) as u8;
                        model.push(Bytes::from(vec![fill; length]));
                        send(&journal, model.last().expect("pushed").clone(), Class::Grow)
                    })
                    .collect();
                for answer in answers {
                    answer.recv().expect("an answer").expect("durable");
                }
            }
            checkpoint = checkpoint.max((model.len() as u64).saturating_sub(behind));
            journal.checkpointed(CommitNo(checkpoint));
            if matches!(harm, Harm::CloseCleanly) {
                journal.close().expect("closes");
            }
            drop(journal);
            let (path, end) = newest(dir.path(), checkpoint);
            let mut bytes = fs::read(&path).expect("reads");
            let at = |share: f64| FRAMES_AT + ((end - FRAMES_AT) as f64 * share) as u64;
            match harm {
                Harm::Nothing | Harm::CloseCleanly => {}
                Harm::Cut(share) => bytes.truncate(at(share) as usize),
                Harm::Flip(share, bit) => bytes[at(share) as usize] ^= 1 << bit,
            }
            fs::write(&path, bytes).expect("written");
            match read(dir.path(), checkpoint) {
                Ok((opened, commits)) => {
                    let last = opened.last.0 as usize;
                    prop_assert!(last as u64 >= checkpoint);
                    prop_assert!(last == model.len() || opened.dropped.is_some());
                    model.truncate(last);
                    let tail: Vec<Bytes> = commits.into_iter().map(|(_, bytes)| bytes).collect();
                    prop_assert_eq!(&tail[..], &model[checkpoint as usize..]);
                }
                Err(_) => {
                    prop_assert!(matches!(harm, Harm::Cut(_) | Harm::Flip(..)), "{:?}", harm);
                    return Ok(());
                }
            }
        }
    }
}

/// The newest file with a commit, and where its frames end.
fn newest(dir: &Path, after: u64) -> (PathBuf, u64) {
    let scan = scan::scan(&Disk::default(), dir, STORE, CommitNo(after), &mut |_, _| Ok(()));
    let scan = scan.expect("reads").expect("is there");
    let file = &scan.files[scan.active];
    (file.path.clone(), file.end)
}
