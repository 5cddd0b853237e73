//! Damage: cut files, flipped bits and torn groups are cut off or refused, never read wrongly.

use std::collections::BTreeSet;

use super::*;

#[test]
fn a_file_cut_at_any_byte_opens_with_all_commits_before_the_cut() {
    let dir = temp_dir();
    let groups = ten_groups();
    build(dir.path(), &groups, 5);
    let all: Vec<Bytes> = groups.concat();
    let path = dir.path().join(file_name(1));
    let good = fs::read(&path).expect("reads");
    for length in 0..good.len() {
        fs::write(&path, &good[..length]).expect("written");
        if length < 64 {
            assert!(matches!(read(dir.path(), 0), Err(JournalError::Damaged { .. })), "{length}");
            continue;
        }
        let mut end = FRAMES_AT;
        let whole = all.iter().take_while(|payload| {
            end += frame_bytes(payload.len());
            end <= length as u64
        });
        let want: Commits = (1..).map(CommitNo).zip(whole.cloned()).collect();
        let (opened, commits) = read(dir.path(), 0).expect("reads");
        assert!(commits == want, "cut at {length}");
        assert!(opened.dropped.is_some(), "cut at {length} must be reported");
        // Appending works too; trying it at every byte would take too long.
        if length % 61 == 0 {
            let (journal, ..) = open(dir.path(), 0).expect("opens");
            put(&journal, "more").expect("durable");
            drop(journal);
            let (opened, commits) = read(dir.path(), 0).expect("reads");
            assert_eq!((commits.len(), opened.dropped), (want.len() + 1, None));
            for entry in fs::read_dir(dir.path()).expect("lists") {
                fs::remove_file(entry.expect("an entry").path()).expect("removed");
            }
        }
    }
}

#[test]
fn a_flipped_bit_in_the_last_group_drops_its_end_and_in_an_earlier_one_is_refused() {
    let dir = temp_dir();
    let groups = ten_groups();
    let ranges = build(dir.path(), &groups, 5);
    let all: Commits = (1..).map(CommitNo).zip(groups.concat()).collect();
    let last_group = ranges[9];
    let before_last = all.len() - groups[9].len();
    let path = dir.path().join(file_name(1));
    let good = fs::read(&path).expect("reads");
    let mut seen = BTreeSet::new();
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 1 << (at % 8);
        fs::write(&path, &bad).expect("written");
        let at = at as u64;
        match read(dir.path(), 0) {
            Err(error) => {
                assert!(at < last_group.0, "a flip at {at} is in the tail: {error}");
                seen.insert("refused");
            }
            Ok((opened, commits)) => {
                assert!(commits == all[..commits.len()], "wrong data after a flip at {at}");
                assert!(commits.len() >= before_last, "a flip at {at} lost a group");
                if commits.len() < all.len() {
                    assert!(opened.dropped.is_some(), "a flip at {at} was not reported");
                    assert!((last_group.0..last_group.1).contains(&at), "flip at {at}");
                    seen.insert("dropped");
                } else {
                    seen.insert("harmless");
                }
            }
        }
    }
    assert_eq!(seen, BTreeSet::from(["refused", "dropped", "harmless"]));
}

#[test]
fn a_torn_group_is_cut_off_whichever_of_its_sectors_were_written() {
    let dir = temp_dir();
    // The last group spans eight sectors of 64 bytes (smaller than real ones: more cases).
    let mut groups = ten_groups();
    groups[9] = (0..4).map(|i| Bytes::from(vec![i + 1; 80])).collect();
    let before: usize = groups[..9].iter().map(Vec::len).sum();
    let ranges = build(dir.path(), &groups, 5);
    let all: Commits = (1..).map(CommitNo).zip(groups.concat()).collect();
    let path = dir.path().join(file_name(1));
    let good = fs::read(&path).expect("reads");
    let (from, to) = ranges[9];
    let sectors = (to - from).div_ceil(64);
    for missing in 1u64..1 << sectors {
        let mut torn = good.clone();
        for sector in (0..sectors).filter(|sector| missing & (1 << sector) != 0) {
            let at = from + sector * 64;
            torn[at as usize..(at + 64).min(to) as usize].fill(0);
        }
        fs::write(&path, &torn).expect("written");
        let (_, commits) = read(dir.path(), 0).expect("a torn tail opens");
        assert!(commits.len() >= before && commits == all[..commits.len()], "{missing:b}");
        if missing % 16 == 1 {
            // The next group is smaller than the torn one, whose rest must not be read after it.
            let (journal, ..) = open(dir.path(), 0).expect("opens");
            put(&journal, "").expect("durable");
            drop(journal);
            let (opened, again) = read(dir.path(), 0).expect("reads");
            assert_eq!((again.len(), opened.dropped), (commits.len() + 1, None), "{missing:b}");
        }
    }
}

#[test]
fn damage_in_an_earlier_group_is_refused_with_file_and_offset() {
    let dir = temp_dir();
    let groups = ten_groups();
    let ranges = build(dir.path(), &groups, 5);
    let path = dir.path().join(file_name(1));
    let good = fs::read(&path).expect("reads");
    let mut commit = 1;
    for (group, (from, to)) in groups.iter().zip(&ranges).take(9) {
        let mut bad = good.clone();
        bad[*from as usize..*to as usize].fill(0);
        fs::write(&path, bad).expect("written");
        match read(dir.path(), 0) {
            Err(JournalError::Damaged { file, offset, commit: named, .. }) => {
                assert_eq!((file, offset, named), (path.clone(), *from, Some(CommitNo(commit))));
            }
            other => panic!("group at {from}: {other:?}"),
        }
        commit += group.len() as u64;
    }
}

#[test]
fn damage_at_the_end_of_a_full_file_is_refused_if_a_later_file_continues() {
    let dir = temp_dir();
    let (journal, ..) = open(dir.path(), 0).expect("opens");
    for number in 1..=200 {
        put(&journal, payload(number)).expect("durable");
    }
    drop(journal);
    let path = dir.path().join(file_name(1));
    let good = fs::read(&path).expect("reads");
    let mut harmless = 0;
    for at in (FRAMES_AT as usize)..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 0x10;
        fs::write(&path, &bad).expect("written");
        if let Ok((_, commits)) = read(dir.path(), 0) {
            assert!(commits == numbered(1..=200), "a flip at {at} lost something");
            harmless += 1;
        }
    }
    assert!(harmless < 1000, "only padding and bytes after the end: {harmless}");
    fs::write(&path, &good[..good.len() / 2 + 2048]).expect("written");
    assert!(matches!(read(dir.path(), 0), Err(JournalError::Damaged { .. })));
}

#[test]
fn only_the_end_of_the_last_file_can_be_torn() {
    let dir = temp_dir();
    let group = || vec![Bytes::from_static(b"some bytes"); 2];
    let ranges = build_file(dir.path(), 1, 1, &[group(), group()], 5);
    let path = dir.path().join(file_name(1));
    let good = fs::read(&path).expect("reads");
    // Commits 3 and 4 in the first file; the head of 3 is gone.
    let mut torn = good.clone();
    torn[ranges[1].0 as usize..ranges[1].0 as usize + 8].fill(0);
    // Neither a frame nor the end marker.
    let mut bad = good.clone();
    bad[ranges[1].1 as usize] = 1;
    for (what, first, next, opens) in [
        ("torn, then an empty file", &torn, vec![], true),
        ("torn, then a file that continues where it tore", &torn, vec![(3, group())], false),
        ("torn, then a file that continues after it", &torn, vec![(5, group())], false),
        ("bad bytes, then an empty file", &bad, vec![], true),
        (
            "bad bytes, then a file that continues: nothing is missing",
            &bad,
            vec![(5, group())],
            true,
        ),
        ("bad bytes, then a file with a gap", &bad, vec![(6, group())], false),
    ] {
        fs::write(&path, first).expect("written");
        let commit = next.first().map_or(1, |(commit, _)| *commit);
        let groups: Vec<Vec<Bytes>> = next.into_iter().map(|(_, group)| group).collect();
        build_file(dir.path(), 2, commit, &groups, 6);
        let read = read(dir.path(), 0);
        assert_eq!(read.is_ok(), opens, "{what}: {read:?}");
    }
    // Two ends that could both be torn: one of them must have been durable.
    fs::write(&path, &bad).expect("written");
    build_file(dir.path(), 2, 5, &[], 6);
    let next = dir.path().join(file_name(2));
    let mut bytes = fs::read(&next).expect("reads");
    bytes[FRAMES_AT as usize] = 1;
    fs::write(&next, bytes).expect("written");
    assert!(matches!(read(dir.path(), 0), Err(JournalError::Damaged { .. })));
}

#[test]
fn frames_from_before_a_file_was_recycled_are_never_read() {
    let dir = temp_dir();
    let old = ten_groups();
    build(dir.path(), &old, 5);
    let path = dir.path().join(file_name(1));
    let earlier = fs::read(&path).expect("reads");
    for groups in 0..10 {
        // The same file recycled: another salt, fewer groups, the end, then the old bytes.
        let ranges = build(dir.path(), &old[..groups], 6);
        let end = ranges.last().map_or(FRAMES_AT, |range| range.1) as usize;
        let mut bytes = fs::read(&path).expect("reads");
        bytes[end + HEAD_BYTES..].copy_from_slice(&earlier[end + HEAD_BYTES..]);
        fs::write(&path, &bytes).expect("written");
        let (opened, commits) = read(dir.path(), 0).expect("reads");
        assert_eq!((commits.len(), opened.dropped), (old[..groups].concat().len(), None));
    }
}
